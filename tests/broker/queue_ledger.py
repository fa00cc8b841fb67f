"""The model of a queue's life: what clients were answered about each record, in plain lists.

A value is "PARTITION/PRIORITY/KEY/NUMBER", and says all about its record but its times.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from linn.core.batch.batch import CONTROL, RecordBatch
from linn.core.batch.record import Record

FOR_EVER_MS = 1 << 60
IN_FLIGHT_MS = 500
"""Time from a delivery to its arrival, at most."""


@dataclass
class Sent:
    """A record that was published, and what its publisher knows of it."""

    ttl_ms: int
    id: UUID
    state: str = "unknown"
    """"stored", "refused", "aborted"; "unknown": it may be stored."""
    due_ms: int = 0
    """The wall time before which it does not come."""
    sends: int = 0
    confirmed: int = 0
    is_later: bool = False
    """Whether it was scheduled, at least once."""
    timers: dict[str, str] = field(default_factory=dict)
    """Its scheduled messages by their ids: "waits", "cancelled", or "asked": to be cancelled, without an answer."""

    @property
    def is_cancelled(self) -> bool:
        """Whether it never comes."""
        return 0 < self.sends == len(self.timers) and {*self.timers.values()} == {"cancelled"}

    @property
    def may_be_cancelled(self) -> bool:
        """Whether it need not come."""
        return 0 < self.confirmed == len(self.timers) and "waits" not in self.timers.values()


def partition_of(value: str) -> int:
    """The partition to which a value goes."""
    return int(value.partition("/")[0])


class QueueLedger:
    """All records of one queue."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        """Broken promises, found where nothing can be raised."""
        self.sent: dict[str, Sent] = {}
        self.at: dict[tuple[int, int], str] = {}
        """Values by partition and offset, as far as they are known."""
        self.settled: set[str] = set()
        """Records whose settlement was answered."""
        self.rejected: set[str] = set()
        """Records whose rejection was answered."""
        self.asked: set[str] = set()
        """Records that a consumer may have settled, or rejected."""
        self.dropped: set[tuple[int, int]] = set()
        """Partitions and offsets of records that made room for others."""
        self.holder: dict[str, str] = {}
        """The consumers, by name, to which records were decided."""
        self.in_doubt: set[str] = set()
        """Records of transactions of which nobody was told the end: one that was aborted may be sent once more."""
        self.set_back_ms = 0
        """The latest wall time at which the clock was set back: what was due then may come with an earlier time."""
        self.kept: dict[int, int] = {}
        """While the queue keeps records, the start of each partition at that time."""

    # --- publishing --------------------------------------------------------------------------------------------------

    def record(self, value: str, now_ms: int, *, wait_ms: int, has_id: bool) -> Record:
        """The record of a value that is about to be sent; every second one with a delay instead of a time."""
        _, priority, key, number = value.split("/")
        sent = self.sent[value]
        due_ms = now_ms + wait_ms if wait_ms else 0
        sent.due_ms = min(due_ms, sent.due_ms) if sent.sends else due_ms
        sent.sends += 1
        sent.is_later = sent.is_later or wait_ms > 0
        return Record(
            value=value.encode(),
            key=key.encode(),
            priority=int(priority),
            labels={"tenant": key},
            ttl_ms=sent.ttl_ms if sent.ttl_ms < FOR_EVER_MS else 0,
            id=sent.id if has_id else None,
            delay_ms=wait_ms if int(number) % 2 else 0,
            due_ms=0 if int(number) % 2 else due_ms,
        )

    def stored(self, partition: int, offset: int, values: list[str], *, is_later: bool = False) -> None:
        """Note that records were confirmed. `is_later`: all of them are scheduled, from this place on; -1: it is not
        known.
        """
        for place, value in enumerate(values):
            sent = self.sent[value]
            sent.state = "stored"
            sent.confirmed += 1
            if offset >= 0 and is_later:
                sent.timers[f"{partition}/{offset + place}"] = "waits"
            elif offset >= 0 and self.at.setdefault((partition, offset + place), value) != value:
                self.wrong.append(f"{value} is not where its publisher was told")

    # --- what the log has --------------------------------------------------------------------------------------------

    def came(self, partition: int, batch: RecordBatch) -> None:
        """Note the records of a batch at the end of the log: none has come early, or after it was cancelled."""
        self.forget_lost(partition, batch.base_offset)
        is_control = batch.attributes & CONTROL
        found = [] if is_control else [(record.value or b"").decode() for record in batch.records()]
        for place, value in enumerate(found):
            self.at[partition, batch.offset(place)] = value
            sent = self.sent[value]
            if sent.due_ms > max(batch.append_time_ms, self.set_back_ms):
                self.wrong.append(f"{value} has come early")
            if sent.is_cancelled:
                self.wrong.append(f"{value} was cancelled, and has come")

    def forget_lost(self, partition: int, end: int) -> None:
        """Forget records that a loss of power has taken: the log ends here."""
        for place in [place for place in self.at if place[0] == partition and place[1] >= end]:
            del self.at[place]

    # --- consuming ---------------------------------------------------------------------------------------------------

    def delivered(self, value: str, consumer: str, age_ms: int, ttl_ms: int, *, is_commit: bool) -> None:
        """Check a delivery of one record; `is_commit`: of one that was decided before."""
        sent = self.sent[value]
        assert value not in self.settled | self.rejected, f"what is settled does not come back: {value}"
        assert sent.state not in ("refused", "aborted"), f"{value} was {sent.state}"
        if is_commit:
            assert self.holder.get(value, consumer) == consumer, "to its holder alone"
            return
        assert age_ms < min(sent.ttl_ms, ttl_ms) + IN_FLIGHT_MS, "no consumer gets a record that has expired"
        assert value not in self.holder, "what is decided is its holder's alone"

    def check_status(self, value: str, shown: str) -> None:
        """Check the status of a record, with the reason if it is dead, against all that clients know."""
        sent, known = self.sent[value], value in self.at.values()
        waits, right = {*sent.timers.values()} - {"cancelled"}, True
        if shown.startswith(("scheduled", "cancelled")) and sent.sends > 1:
            right = sent.is_later  # What was sent last counts.
        elif value in self.settled:
            right = shown == "settled"
        elif value in self.rejected:
            right = shown == "dead rejected"
        elif sent.state in ("refused", "aborted"):
            right = shown in ("unknown", "aborted", "in_doubt")
        elif sent.is_cancelled:
            right = shown == "cancelled"
        elif not known and sent.timers:
            right = shown.split()[0] in ("scheduled", "in_doubt") if waits == {"waits"} else shown != "unknown"
        elif sent.state == "stored" and value not in self.in_doubt and (known or not sent.is_later):
            right = shown not in ("unknown", "aborted") and (shown != "in_doubt" or sent.is_later)
        if value not in self.asked:
            right = right and shown not in ("settled", "dead rejected")
        assert right, f"{value} is {shown}: {sent}"

    # --- the end -----------------------------------------------------------------------------------------------------

    def check_ends(self, dead: Counter[str]) -> None:
        """Check that each record has come to one end that its topic allows; `dead`: the copies of dead records."""
        ends = dead + Counter(self.settled)
        twice = [value for value, count in ends.items() if count > 1]
        assert twice == [], f"each record has one end: {twice}"
        never = [value for value in ends if self.sent[value].state in ("refused", "aborted")]
        assert never == [], f"what is refused or aborted is no record: {never}"
        may_be_gone = {*self.asked, *(self.at[place] for place in self.dropped if place in self.at)}
        may_be_gone |= {value for value, sent in self.sent.items() if sent.may_be_cancelled}
        stored = [value for value, sent in self.sent.items() if sent.state == "stored"]
        lost = [value for value in stored if value not in ends and value not in may_be_gone]
        assert lost == [], f"what was confirmed is delivered, dead, or dropped by its limit: {lost}"
        copies = Counter([value for value in self.at.values() if value not in self.in_doubt])
        again = [value for value, count in copies.items() if count > 1 and self.sent[value].state != "aborted"]
        assert again == [], f"each record is stored once: {again}"
