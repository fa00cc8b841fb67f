"""Runs of rows of a subscription log as columns, for replay, where an object per row would cost more.

Law: a run means the same as its rows, applied one by one in order. A snapshot means a `Started` row, and then its runs.

Layout of a snapshot after its version byte, little-endian: offset i64, next delivery id i64; then each run: kind u8,
zero u8, zero u16, count u32, and its columns, one after the other: firsts i64, ends i64, numbers u32, arguments i64,
reasons u8, holders u16, texts u16, without columns that the kind does not use. Holders and texts are indexes in the
record's tables.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from linn.core.errors.tree import LogCorrupt
from linn.core.queue.offset_rows import is_ascending


class Holder(NamedTuple):
    """The name of the consumer that records were decided to, and the time of the decision."""

    name: str
    since_ms: int
    """Wall time, for people."""


def is_transactions(holder: str) -> bool:
    """Whether a holder is a transaction, whose end settles or returns the records: no consumer's name has a NUL."""
    return holder.startswith("\0")


class Columns(NamedTuple):
    """The columns that a kind of row uses besides `firsts` and `ends`."""

    numbers: bool = False
    arguments: bool = False
    reasons: bool = False
    holders: bool = False
    texts: bool = False


class Tables(NamedTuple):
    """The indexes of holders and texts in the tables of a record that is written."""

    holders: dict[Holder, int]
    texts: dict[str, int]


class Items(NamedTuple):
    """The tables of a record that is read."""

    holders: Sequence[Holder]
    texts: Sequence[str]


_SNAPSHOT = struct.Struct("<qq")
_RUN = struct.Struct("<BBHI")
_FORMATS: Final = ("I", "q", "B", "H", "H")
"""Formats of the columns in `Columns`."""


@dataclass(frozen=True, slots=True)
class EventRun:
    """Rows of one kind about ranges of offsets. A column that the kind does not use is empty."""

    kind: int
    firsts: tuple[int, ...]
    ends: tuple[int, ...]
    numbers: tuple[int, ...] = ()
    """Attempts, or the sequence of an intent."""
    arguments: tuple[int, ...] = ()
    """Delivery ids, the ends of delays in ms since 1970, or the producers of intents."""
    reasons: tuple[int, ...] = ()
    holders: tuple[Holder, ...] = ()
    texts: tuple[str, ...] = ()

    def clipped(self, end: int) -> EventRun | None:
        """The rows about offsets below `end`; None if there are none."""
        if max(self.ends) <= end:
            return self
        kept = [at for at, first in enumerate(self.firsts) if first < end]
        if not kept:
            return None
        firsts, ends, numbers, arguments, reasons = [
            tuple([column[at] for at in kept]) if column else ()
            for column in (self.firsts, self.ends, self.numbers, self.arguments, self.reasons)
        ]
        holders = tuple([self.holders[at] for at in kept]) if self.holders else ()
        texts = tuple([self.texts[at] for at in kept]) if self.texts else ()
        clipped_ends = tuple([min(stop, end) for stop in ends])
        return EventRun(self.kind, firsts, clipped_ends, numbers, arguments, reasons, holders, texts)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole state: everything before `offset` is settled, each run has one kind, and nothing else is known."""

    offset: int
    next_delivery_id: int
    runs: tuple[EventRun, ...]
    """Runs in the order of their kinds, each with its rows in the order of their offsets."""

    def clipped(self, end: int) -> Snapshot:
        """The part of the snapshot about offsets below `end`."""
        clipped = [run.clipped(end) for run in self.runs]
        runs = tuple([run for run in clipped if run is not None])
        return Snapshot(min(self.offset, end), self.next_delivery_id, runs)


def encode_snapshot(snapshot: Snapshot, tables: Tables) -> bytes:
    """Encode a snapshot, without the version byte."""
    parts = [_SNAPSHOT.pack(snapshot.offset, snapshot.next_delivery_id)]
    for run in snapshot.runs:
        count = len(run.firsts)
        parts.append(_RUN.pack(run.kind, 0, 0, count))
        parts += [struct.pack(f"<{count}q", *column) for column in (run.firsts, run.ends)]
        indexes = [tables.holders[holder] for holder in run.holders], [tables.texts[text] for text in run.texts]
        others = zip(_FORMATS, (run.numbers, run.arguments, run.reasons, *indexes), strict=True)
        parts += [struct.pack(f"<{count}{form}", *column) for form, column in others if column]
    return b"".join(parts)


def decode_snapshot(data: memoryview, columns_by_kind: dict[int, Columns], items: Items) -> Snapshot:
    """Decode a snapshot. The caller checks that the values of the columns make sense.

    Raises:
        LogCorrupt: it ends early, or its runs or their rows are not in order.
    """
    runs: list[EventRun] = []
    try:
        offset, next_delivery_id = _SNAPSHOT.unpack_from(data)
        position = _SNAPSHOT.size
        while position < len(data):
            run, position = _decode_run(data, position, columns_by_kind, items)
            if runs and runs[-1].kind >= run.kind:
                raise LogCorrupt(f"a snapshot of a subscription has rows of kind {run.kind} in the wrong place")
            runs.append(run)
    except struct.error as error:
        raise LogCorrupt("a snapshot of a subscription ends inside a column") from error
    return Snapshot(offset, next_delivery_id, tuple(runs))


def _decode_run(
    data: memoryview, position: int, columns_by_kind: dict[int, Columns], items: Items
) -> tuple[EventRun, int]:
    """Decode the run at a position; returns it and the position after it. Raises LogCorrupt, struct.error: it ends
    early.
    """
    kind, zero, zeros, count = _RUN.unpack_from(data, position)
    position += _RUN.size
    has = columns_by_kind.get(kind)
    if has is None or zero or zeros or not count:
        raise LogCorrupt(f"a snapshot of a subscription has a run that no broker can have written: {count} of {kind}")
    columns: list[tuple[int, ...]] = []
    for form, used in (("q", True), ("q", True), *zip(_FORMATS, has, strict=True)):
        layout = struct.Struct(f"<{count if used else 0}{form}")
        columns.append(layout.unpack_from(data, position))
        position += layout.size
    firsts, ends, numbers, arguments, reasons, holders_at, texts_at = columns
    if max(holders_at, default=-1) >= len(items.holders) or max(texts_at, default=-1) >= len(items.texts):
        raise LogCorrupt("a snapshot of a subscription names a holder or a text that its table does not have")
    named = tuple([items.holders[at] for at in holders_at]), tuple([items.texts[at] for at in texts_at])
    run = EventRun(kind, firsts, ends, numbers, arguments, reasons, *named)
    if not is_ascending(run.firsts, run.ends):
        raise LogCorrupt(f"a snapshot of a subscription has rows of kind {kind} that are not in order")
    return run, position
