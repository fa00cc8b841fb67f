"""Promises of linn as invariants: `check` compares a history of clients' events with all of them.

Read on: `history` (the events), `log_lives` (the losses that a crash may cause), then the checkers: `stored_records`,
`queue_deliveries`, `dead_letters`, `group_reading`.

Laws: all conclusions follow from what clients saw, so the checks work for any broker, simulated or real. An event that
proves nothing, because a message was lost or late, leads to no conclusion: a finding is a bug, of the broker or of an
invariant.
"""

from __future__ import annotations

from linn.testing import dead_letters as dead
from linn.testing import group_reading as group
from linn.testing import queue_deliveries as queue
from linn.testing import stored_records as stored
from linn.testing.dead_letters import DeadLetters
from linn.testing.finding import Finding, Findings, InvariantBroken
from linn.testing.group_reading import GroupReading
from linn.testing.history import History, Joined
from linn.testing.log_lives import LogLives
from linn.testing.queue_deliveries import QueueDeliveries
from linn.testing.stored_records import StoredRecords

__all__ = ["INVARIANTS", "Finding", "InvariantBroken", "broken", "check"]

INVARIANTS: dict[str, str] = {
    stored.STAYS: "An offset holds one record, in every life, until a crash that may take it has taken it.",
    stored.LOST: "A confirmed or read record survives the failures that the topic's durability covers.",
    stored.READABLE: "A request after a confirmation finds the record below the high watermark, and reads it.",
    stored.WATERMARK: "A later request sees no lower high watermark than any client saw before.",
    stored.START: "A later request in the same life sees no lower start.",
    stored.ORDER: "Records of one producer are stored in the order of its calls, in each partition.",
    stored.ONCE: "A record is in a topic once, however often its producer sends it.",
    stored.KEYS: "Records with one key are in one partition of a topic, as long as it does not grow.",
    stored.REFUSED: "A publish that was refused has stored nothing; where the disk was full, part of one that goes to "
    "several partitions.",
    stored.FOREIGN: "A topic holds what was published to it, unchanged.",
    queue.IDS: "A delivery id is one lease of one consumer, also over restarts.",
    queue.AT_MOST_ONCE: "At most once: a record is handed over once, to one consumer, or to one member of a group.",
    queue.SETTLED: "A record is not leased again once an ack or a reject was answered.",
    queue.CURRENT: "A settlement counts only for the latest lease of a record.",
    queue.ATTEMPTS: "Each lease of a record is one attempt more; none is beyond `max_deliveries`.",
    queue.HOLDS: "A settlement is not refused before the lease's deadline, unless it was settled already.",
    queue.PLACE: "A record returned without delay is leased again before records that were never delivered.",
    queue.IN_ORDER: "Records that were never delivered are leased from the lowest offset on.",
    queue.LEASES: "With consumers that ack, a queue becomes empty: no lease, delay or dead letter stays for ever.",
    dead.DEAD_ONCE: "A dead letter is copied once.",
    dead.DEAD_TRUE: "A dead letter names its source, a reason that happened, and its attempts.",
    dead.DEAD_THERE: "What was rejected, or used up its attempts, is in the dead-letter topic, "
    "unless retention dropped it before.",
    dead.SETTLED_ONE_WAY: "A record whose ack was answered is no dead letter.",
    group.OWNER: "In a generation of a group a partition has one owner.",
    group.FENCED: "A commit counts only from the member that owns the partition.",
    group.GOES_ON: "A new owner of a partition begins where the group committed.",
    group.READS_ON: "A member reads a partition without gaps and without repetition.",
}
"""The text of each invariant, by name."""


def broken(history: History) -> list[Finding]:
    """Return the findings about a history, in the order in which they occur."""
    findings = Findings(history)
    lives = LogLives(history)
    records = StoredRecords(lives, findings)
    names = dict.fromkeys(["", *(entry.event.shared for entry in history.entries if isinstance(entry.event, Joined))])
    queues = [QueueDeliveries(lives, records, findings, name) for name in names]
    letters = [DeadLetters(lives, records, each, findings) for each in queues]
    groups = GroupReading(lives, findings)
    judges: list[QueueDeliveries | DeadLetters | GroupReading] = [*queues, *letters, groups]
    for entry in history.entries:
        lives.observe(entry)
        records.observe(entry)
        for judge in judges:
            judge.observe(entry)
    records.finish(history.entries)
    for judge in judges:
        judge.finish()
    return findings.all


def check(history: History) -> None:
    """Check a history. Raises InvariantBroken, with the events that show it."""
    found = broken(history)
    if found:
        raise InvariantBroken(found)
