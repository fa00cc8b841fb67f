"""The offset at which two replicas' logs part, found by their epochs.

Law: an epoch and an offset name one batch for ever, and a follower stores only batches that follow its own. So two logs
that have batches of the same epoch agree up to the end of that epoch in the one that has fewer of it (KIP-101). A cut
to the follower's watermark would take committed records: it hears of the watermark late.
"""

from __future__ import annotations

from linn.core.errors.tree import ProtocolError
from linn.core.log.facts import EPOCHS_MAX
from linn.core.log.replication.events import Cut, LogTable, Match, Restart
from linn.core.log.storage import PartitionLog


def table_of(log: PartitionLog) -> LogTable:
    """The bounds and epochs of a log."""
    return LogTable(*log.bounds(), tuple(log.facts.epochs.rows()))


def check_table(table: LogTable) -> None:
    """Check a table from another broker. Raises ProtocolError."""
    start, end, rows = table
    if not 0 <= start <= end:
        raise ProtocolError(f"a log from offset {start} to {end}")
    if len(rows) > EPOCHS_MAX:
        raise ProtocolError(f"a log of {len(rows):,} epochs; {EPOCHS_MAX:,} are remembered")
    before = -1, 0
    for row in rows:
        if row[0] <= before[0] or row[1] < before[1] or row[1] > end:
            raise ProtocolError(
                f"epoch {row[0]} from offset {row[1]} on, after epoch {before[0]}, in a log up to {end}"
            )
        before = row


def match_logs(leading: LogTable, following: LogTable) -> Match:
    """The offset at which a follower has to cut its log, or the leader's start, where it begins anew."""
    shared = _shared_end(leading, following)
    if shared is None and following.start == following.end:
        shared = following.end  # Nothing to compare: it goes on where it is, if the leader has that.
    if shared is None or not max(leading.start, following.start) <= shared <= leading.end:
        return Restart(leading.start)
    return Cut(shared)


def _shared_end(leading: LogTable, following: LogTable) -> int | None:
    """The end of the last epoch of which both have batches, in the log that has fewer; None: there is no such epoch."""
    ours, theirs = _ends(leading), _ends(following)
    shared = max(ours.keys() & theirs.keys(), default=None)
    return None if shared is None else min(ours[shared], theirs[shared])


def _ends(table: LogTable) -> dict[int, int]:
    """The offset after the last one of each epoch."""
    epochs, ends = [epoch for epoch, _ in table.epochs], [first for _, first in table.epochs[1:]]
    return dict(zip(epochs, [*ends, table.end], strict=False))
