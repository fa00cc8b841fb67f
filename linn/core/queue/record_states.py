"""The state of each record of a shared subscription, computed as a fold over the subscription's events.

Laws: every offset from `low` to `cursor` is in exactly one state: settled, leased, decided, returned (ready or
delayed), orphaned, or dead; those below `low` are settled, and those from the cursor on were never delivered. The state
follows from the events alone: whenever and wherever they are applied, it is the same.
Orphaned records were leased when the broker stopped; they exist only between replay and `recovered`. An offset that an
event skips without naming it is ready and was never delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from linn.core.errors.tree import LogCorrupt
from linn.core.queue.dead_letter import DeadLetters, DeadReason, Ending, Intent
from linn.core.queue.event import (
    Acquired,
    Decided,
    DeliveryIdsStarted,
    Died,
    Ended,
    Explained,
    Intended,
    Returned,
    Settled,
    Skipped,
    Started,
    SubscriptionEvent,
    single_events,
)
from linn.core.queue.event_run import EventRun, Holder, Snapshot
from linn.core.queue.lease import LeaseBook
from linn.core.queue.offset_map import OffsetMap
from linn.core.queue.offset_ranges import OffsetRanges, Range
from linn.core.queue.offset_rows import is_ascending
from linn.core.queue.redelivery import ReturnedRecords

CAUSES_MAX = 8_192
"""Limit of the ranges of records whose reasons are kept, of one subscription on one partition: 4 MiB at most, texts of
255 bytes and all. Beyond half of it only the reasons of dead records are.
"""
_BESIDE_STATES = (Intended.kind, Explained.kind, Ended.kind)
"""Kinds of events about records whose state another event says."""


class Decision(NamedTuple):
    """The decision about records of one delivery: they are a holder's for good."""

    holder: Holder
    delivery_id: int
    attempt: int


class DecidedRange(NamedTuple):
    """Records [first, end) that were decided to a consumer and are not done."""

    first: int
    end: int
    decision: Decision


class RecordStates:
    """The state of one shared subscription. It makes no decisions and produces no events."""

    __slots__ = ("causes", "cursor", "dead", "decided", "ended", "leases", "low", "orphaned", "returned", "settled")

    def __init__(self, start: int) -> None:
        assert start >= 0
        self.low = start
        """The offset before which everything is settled. It never goes back, except to the start of a snapshot in the
        log.
        """
        self.cursor = start
        self.settled = OffsetRanges()
        """Settled offsets above `low`, never touching it."""
        self.leases = LeaseBook()
        self.decided: OffsetMap[Decision] = OffsetMap()
        self.returned = ReturnedRecords()
        self.dead = DeadLetters()
        self.orphaned: OffsetMap[int] = OffsetMap()
        """Attempts so far, by offset."""
        self.causes: OffsetMap[str] = OffsetMap()
        """Reasons that consumers gave for returning or rejecting records, whatever their states are now."""
        self.ended: OffsetMap[Ending] = OffsetMap()
        """Endings of settled records that no consumer settled, where they are kept."""

    # --- moving records ----------------------------------------------------------------------------------------------

    def settle(self, first: int, end: int) -> None:
        """Mark offsets settled that are in no other state."""
        if self.causes.count:
            self.causes.take(first, end)
        if first != self.low:
            self.settled.add(first, end)
            return
        self.low = end
        if self.settled.count:
            self._absorb()

    def settle_rows(self, rows: Sequence[Range]) -> None:
        """Mark ascending ranges settled, in whatever state they are; together where they lie close."""
        if len(rows) == 1:
            self.settle(*rows[0])
        elif rows:
            for first, end in rows if self.causes.count else ():
                self.causes.take(first, end)
            self.settled.add_rows(rows)
            self._absorb()

    def orphan(self, first: int, end: int, attempts: int) -> None:
        """Make settled offsets orphaned, as if a lease of them was left; `low` goes back for it."""
        if first < self.low:
            if end < self.low:
                self.settled.add(end, self.low)
            self.low = first
        else:
            self.settled.remove(first, end)
        self.orphaned.set(first, end, attempts)

    def explain(self, first: int, end: int, cause: str) -> bool:
        """Keep the reason for which records were returned or died, if there is room; an earlier one is replaced."""
        room = CAUSES_MAX if self.dead.covers(first, end) else CAUSES_MAX // 2
        if len(self.causes) >= room:
            self.causes.take(first, end)
            return False
        self.causes.set(first, end, cause)
        return True

    def advance(self, end: int) -> None:
        """Move the cursor up to `end`; the offsets that it passes are ready and were never delivered."""
        if end > self.cursor:
            self.returned.ready.set(self.cursor, end, 0)
            self.cursor = end

    def forget_before(self, offset: int) -> None:
        """Treat everything before `offset` as settled, in whatever state it is."""
        low = self.low
        if offset <= low:
            return
        self.returned.drop(low, offset)
        self.dead.take(low, offset)
        self.decided.take(low, offset)
        self.orphaned.take(low, offset)
        self.causes.take(low, offset)
        self.settled.remove(low, offset)
        self.leases.cut(offset)
        self.low = offset
        self.cursor = max(self.cursor, offset)
        self._absorb()

    def _absorb(self) -> None:
        """Move the low watermark over settled offsets above it."""
        low = self.settled.first_gap(self.low)
        if low > self.low:
            self.settled.remove(self.low, low)
            self.low = low

    # --- events ------------------------------------------------------------------------------------------------------

    def apply(self, event: SubscriptionEvent) -> None:
        """Apply an event of the log.

        Raises:
            LogCorrupt: no subscription can have made this transition. The state must not be used any more.
        """
        match event:
            case Acquired(first, end, attempt, delivery_id):
                self._replace(first, end)
                self.orphaned.set(first, end, attempt)
                self._raise_delivery_id(delivery_id + 1)
            case Settled(first, end):
                self._apply_settled(max(first, self.low), end)
            case Returned(first, end, attempts, ready_ms):
                self._replace(first, end)
                self.returned.add(first, end, attempts, ready_ms)
            case Died(first, end, attempts, reason):
                self._replace(first, end)
                self.dead.add(first, end, attempts, reason)
            case Decided(first, end, attempt, delivery_id, holder):
                self._replace(first, end)
                self.decided.set(first, end, Decision(holder, delivery_id, attempt))
                self._raise_delivery_id(delivery_id + 1)
            case Intended(first, end, sequence, producer):
                if not self.dead.covers(first, end):
                    raise LogCorrupt(f"a subscription log intends a dead letter of records that live: {event}")
                self.dead.intend(first, end, Intent(sequence, producer))
            case Explained(first, end, cause):
                for start, stop in self.settled.gaps(max(first, self.low), end) if end > self.low else ():
                    self.causes.set(start, stop, cause)
            case Ended(first, end, ending):
                self.ended.set(first, end, ending)
            case Skipped(offset):
                self.forget_before(offset)
            case DeliveryIdsStarted(next_delivery_id):
                self._raise_delivery_id(next_delivery_id)
            case Started(offset, next_delivery_id):
                self._restart(offset, next_delivery_id)
            case EventRun():
                self._apply_run(event)
            case Snapshot(offset, next_delivery_id, runs):
                self._restart(offset, next_delivery_id)
                self._load(runs)

    def _replace(self, first: int, end: int) -> None:
        """Remove the state of offsets that an event gives a new one. Raises LogCorrupt if they are settled."""
        self._check_unsettled(first, end)
        self.advance(end)
        self._drop(first, end)

    def _check_unsettled(self, first: int, end: int) -> None:
        if first < self.low or self.settled.intersect(first, end):
            raise LogCorrupt(f"a subscription log brings settled records back: offsets {first} to {end - 1}")

    def _apply_settled(self, first: int, end: int) -> None:
        if first >= end:
            return
        self.advance(end)
        self._drop(first, end)
        for start, stop in self.settled.gaps(first, end):
            self.settle(start, stop)

    def _drop(self, first: int, end: int) -> None:
        self.returned.drop(first, end)
        self.orphaned.take(first, end)
        self.dead.take(first, end)
        self.decided.take(first, end)

    # --- many rows at once -------------------------------------------------------------------------------------------

    def _apply_run(self, run: EventRun) -> None:
        """Apply a run like its rows one by one, in time proportional to the rows and the ranges between them."""
        if run.kind in _BESIDE_STATES or run.firsts[0] < self.low or not is_ascending(run.firsts, run.ends):
            for event in single_events([run]):
                self.apply(event)
            return
        first, end = run.firsts[0], run.ends[-1]
        crossed = self.settled.ranges_within(first, end) > 0
        if run.kind == Settled.kind:
            self.advance(end)
            self._drop_rows(run.firsts, run.ends)
            self.settle_rows(list(zip(run.firsts, run.ends, strict=True)))
            return
        for start, stop in zip(run.firsts, run.ends, strict=True) if crossed else ():
            self._check_unsettled(start, stop)
        self.advance(end)
        self._drop_rows(run.firsts, run.ends)
        self._set_rows(run)

    def _set_rows(self, run: EventRun) -> None:
        """Set the states of ascending rows that have none."""
        rows = zip(run.firsts, run.ends, run.numbers or run.firsts, strict=True)
        if run.kind == Settled.kind:
            for first, end in zip(run.firsts, run.ends, strict=True):
                self.settled.add(first, end)
        elif run.kind == Acquired.kind:
            self.orphaned.set_rows(list(rows))
            self._raise_delivery_id(max(run.arguments) + 1)
        elif run.kind == Returned.kind:
            self.returned.add_rows(list(zip(run.firsts, run.ends, run.numbers, run.arguments, strict=True)))
        elif run.kind == Decided.kind:
            for (first, end, attempt), delivery_id, holder in zip(rows, run.arguments, run.holders, strict=True):
                self.decided.set(first, end, Decision(holder, delivery_id, attempt))
            self._raise_delivery_id(max(run.arguments) + 1)
        elif run.kind == Died.kind:
            for (first, end, attempts), reason in zip(rows, run.reasons, strict=True):
                self.dead.add(first, end, attempts, DeadReason(reason))

    def _drop_rows(self, firsts: Sequence[int], ends: Sequence[int]) -> None:
        """Drop ascending ranges; see `_drop`."""
        self.orphaned.take_rows(firsts, ends)
        self.returned.drop_rows(firsts, ends)
        if self.dead.count or self.decided.count:
            for first, end in zip(firsts, ends, strict=True):
                self.dead.take(first, end)
                self.decided.take(first, end)

    def _load(self, runs: Sequence[EventRun]) -> None:
        """Load a snapshot's rows into an empty state. Raises LogCorrupt: they don't fit together."""
        beside = [run for run in runs if run.kind in _BESIDE_STATES]
        states = [run for run in runs if run.kind not in _BESIDE_STATES]
        firsts = sorted(chain.from_iterable(run.firsts for run in states))
        ends = sorted(chain.from_iterable(run.ends for run in states))
        # As no row is empty, these are equal exactly where each row begins at the end of another.
        if firsts and firsts != [self.low, *ends[:-1]]:
            raise LogCorrupt(f"a snapshot of a subscription has offsets from {self.low} on in two states or in none")
        self.cursor = ends[-1] if ends else self.low
        for run in states:
            self._set_rows(run)
        self._absorb()
        for event in single_events(beside):
            self.apply(event)

    def _raise_delivery_id(self, next_delivery_id: int) -> None:
        self.leases.next_delivery_id = max(self.leases.next_delivery_id, next_delivery_id)

    def _restart(self, offset: int, next_delivery_id: int) -> None:
        """Reset to the start of a snapshot; only delivery ids never go back."""
        next_delivery_id = max(next_delivery_id, self.leases.next_delivery_id)
        RecordStates.__init__(self, offset)
        self.leases.next_delivery_id = next_delivery_id

    def snapshot(self) -> Snapshot:
        """A snapshot that restores this state, whatever it is applied to."""
        settled = [(first, end) for first, end in self.settled]
        leased = [(span, lease) for lease in self.leases for span in lease.ranges()]
        acquired = [(*span, lease.stored_attempt, lease.delivery_id) for span, lease in leased]
        acquired += [(first, end, attempt, 0) for first, end, attempt in self.orphaned]
        returned = [(first, end, attempts, 0) for first, end, attempts in self.returned.ready]
        returned += [(first, end, delay.attempts, delay.ready_ms) for first, end, delay in self.returned.delayed]
        runs = [
            _run_of(Acquired.kind, sorted(acquired)),
            _run_of(Settled.kind, settled),
            _run_of(Returned.kind, sorted(returned)),
            self._died_run(),
            self._decided_run(),
            self._explained_run(),
            self._intended_run(),
            self._ended_run(),
        ]
        return Snapshot(self.low, self.leases.next_delivery_id, tuple([run for run in runs if run is not None]))

    def _died_run(self) -> EventRun | None:
        ranges = self.dead.ranges()
        run = _run_of(Died.kind, [(dead.first, dead.end, dead.attempts) for dead in ranges])
        return replace(run, reasons=tuple([int(dead.reason) for dead in ranges])) if run is not None else None

    def _intended_run(self) -> EventRun | None:
        ranges = self.dead.ranges()
        intents = [(dead.first, dead.end, *dead.intent) for dead in ranges if dead.intent is not None]
        return _run_of(Intended.kind, intents)

    def _decided_run(self) -> EventRun | None:
        rows = [(first, end, decision.attempt, decision.delivery_id) for first, end, decision in self.decided]
        run = _run_of(Decided.kind, rows)
        holders = tuple([decision.holder for _, _, decision in self.decided])
        return replace(run, holders=holders) if run is not None else None

    def _explained_run(self) -> EventRun | None:
        causes = list(self.causes)
        run = _run_of(Explained.kind, [(first, end) for first, end, _ in causes])
        return replace(run, texts=tuple([cause for _, _, cause in causes])) if run is not None else None

    def _ended_run(self) -> EventRun | None:
        ended = list(self.ended)
        run = _run_of(Ended.kind, [(first, end) for first, end, _ in ended])
        return replace(run, reasons=tuple([int(ending) for _, _, ending in ended])) if run is not None else None

    # --- looking -----------------------------------------------------------------------------------------------------

    def ranges(self) -> list[Range]:
        """All stored ranges, of every state, lowest first. Examines everything."""
        kept: list[Range] = list(self.settled)
        for lease in self.leases:
            kept += lease.ranges()
        returned = self.returned
        for part in (returned.ready, returned.delayed, self.orphaned, self.decided):
            kept += [(first, end) for first, end, _ in part]
        kept += [(dead.first, dead.end) for dead in self.dead.ranges()]
        return sorted(kept)

    def check(self) -> None:
        """Assert the first law. For tests: it examines everything."""
        position = self.low
        for first, end in self.ranges():
            assert first == position, f"offsets {position} to {first} are in two states or in none"
            assert first < end
            position = end
        assert position == self.cursor
        assert self.low not in self.settled
        assert self.leases.count == sum(end - first for lease in self.leases for first, end in lease.ranges())


def _run_of(kind: int, rows: Sequence[tuple[int, ...]]) -> EventRun | None:
    """Rows as columns; None if there are none."""
    return EventRun(kind, *zip(*rows, strict=True)) if rows else None


def take_out(waiting: deque[tuple[int, DecidedRange]], place: int, ended: DecidedRange) -> int:
    """Take the offsets of a decision that has ended out of decided ranges; returns the number of them that it found."""
    found = 0
    for _ in range(len(waiting)):
        where, decided = waiting.popleft()
        first, end = max(decided.first, ended.first), min(decided.end, ended.end)
        if where != place or first >= end:
            waiting.append((where, decided))
            continue
        found += end - first
        left = (decided.first, first), (end, decided.end)
        waiting.extend((where, decided._replace(first=start, end=stop)) for start, stop in left if start < stop)
    return found
