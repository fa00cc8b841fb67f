"""Which record of a shared subscription is in which state, as a fold over the subscription's events.

Laws: every offset from `low` to `cursor` is in exactly one state: settled, leased, returned (ready, delayed, or
recorded as delayed), orphaned, or dead; what is below `low` is settled, what is from the cursor on was never
delivered. Orphaned is what was leased when the broker stopped; it exists only between replaying and `recovered`. An
offset that an event passes over without naming it is ready and was never delivered.
"""

from __future__ import annotations

from math import ceil

from linn.core.dead_letter import DeadLetters, DeadLetterTarget
from linn.core.errors import LogCorrupt
from linn.core.lease import LeaseBook
from linn.core.offset_map import OffsetMap
from linn.core.offset_ranges import OffsetRanges, Range
from linn.core.redelivery import ReturnedRecords
from linn.core.subscription_event import (
    Acquired,
    DeadLetterIntended,
    DeliveryIdsStarted,
    Died,
    Returned,
    Settled,
    Skipped,
    Started,
    SubscriptionEvent,
)


class RecordStates:
    """The state of one shared subscription. It decides nothing and produces no events."""

    __slots__ = ("cursor", "dead", "leases", "low", "orphaned", "returned", "settled")

    def __init__(self, start: int) -> None:
        assert start >= 0
        self.low = start
        """Everything before is settled. Never goes back, except to where a snapshot in the log begins."""
        self.cursor = start
        self.settled = OffsetRanges()
        """Beyond `low`, and never touching it."""
        self.leases = LeaseBook()
        self.returned = ReturnedRecords()
        self.dead = DeadLetters()
        self.orphaned: OffsetMap[int] = OffsetMap()
        """Attempts so far, by offset."""

    # --- moving records ----------------------------------------------------------------------------------------------

    def settle(self, first: int, end: int) -> None:
        """Mark offsets settled that are in no other state any more."""
        if first != self.low:
            self.settled.add(first, end)
            return
        self.low = end
        if self.settled:
            self._absorb()

    def advance(self, end: int) -> None:
        """Move the cursor up to `end`; what it passes is ready and was never delivered."""
        if end > self.cursor:
            self.returned.ready.set(self.cursor, end, 0)
            self.cursor = end

    def forget_before(self, offset: int) -> None:
        """Count everything before `offset` as settled, in whatever state it is."""
        low = self.low
        if offset <= low:
            return
        self.returned.drop(low, offset)
        self.dead.take(low, offset)
        self.orphaned.take(low, offset)
        self.settled.remove(low, offset)
        self.leases.cut(offset)
        self.low = offset
        self.cursor = max(self.cursor, offset)
        self._absorb()

    def _absorb(self) -> None:
        """Move the low watermark over what is settled beyond it."""
        low = self.settled.first_gap(self.low)
        if low > self.low:
            self.settled.remove(self.low, low)
            self.low = low

    # --- events ------------------------------------------------------------------------------------------------------

    def apply(self, event: SubscriptionEvent) -> None:
        """Do again what the event says was done.

        Raises:
            LogCorrupt: no subscription can have come from here to there. The state is of no more use.
        """
        match event:
            case Acquired(first, end, attempt, delivery_id):
                self._replace(first, end)
                self.orphaned.set(first, end, attempt)
                self._raise_delivery_id(delivery_id + 1)
            case Settled(first, end):
                self._apply_settled(max(first, self.low), end)
            case Returned(first, end, attempts, delay_ms):
                self._replace(first, end)
                self.returned.record(first, end, attempts, delay_ms)
            case Died(first, end, attempts, reason):
                self._replace(first, end)
                self.dead.add(first, end, attempts, reason)
            case DeadLetterIntended(first, end, partition, target_end):
                if not self.dead.covers(first, end):
                    raise LogCorrupt(f"a subscription log intends a dead letter of records that live: {event}")
                self.dead.intend(first, end, DeadLetterTarget(partition, target_end))
            case Skipped(offset):
                self.forget_before(offset)
            case DeliveryIdsStarted(next_delivery_id):
                self._raise_delivery_id(next_delivery_id)
            case Started(offset, next_delivery_id):
                self._restart(offset, next_delivery_id)

    def _replace(self, first: int, end: int) -> None:
        """Forget the state of offsets that an event gives a new one. Raises LogCorrupt where they are settled."""
        if first < self.low or self.settled.intersect(first, end):
            raise LogCorrupt(f"a subscription log brings settled records back: offsets {first} to {end - 1}")
        self.advance(end)
        self._drop(first, end)

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

    def _raise_delivery_id(self, next_delivery_id: int) -> None:
        self.leases.next_delivery_id = max(self.leases.next_delivery_id, next_delivery_id)

    def _restart(self, offset: int, next_delivery_id: int) -> None:
        """Begin anew where a snapshot begins; only delivery ids never go back."""
        next_delivery_id = max(next_delivery_id, self.leases.next_delivery_id)
        RecordStates.__init__(self, offset)
        self.leases.next_delivery_id = next_delivery_id

    def snapshot(self, now: float) -> list[SubscriptionEvent]:
        """The events that rebuild this state, whatever they are applied to. Delays count from `now`."""
        events: list[Settled | Acquired | Returned | Died] = [Settled(first, end) for first, end in self.settled]
        for lease in self.leases:
            events += [Acquired(first, end, lease.attempt, lease.delivery_id) for first, end in lease.ranges()]
        events += [Acquired(first, end, attempt, 0) for first, end, attempt in self.orphaned]
        events += [Returned(first, end, attempts, 0) for first, end, attempts in self.returned.ready]
        for first, end, delay in self.returned.delayed:
            events.append(Returned(first, end, delay.attempts, max(0, ceil((delay.ready_at - now) * 1000))))
        for first, end, recorded in self.returned.recorded:
            events.append(Returned(first, end, recorded.attempts, recorded.delay_ms))
        events += [Died(dead.first, dead.end, dead.attempts, dead.reason) for dead in self.dead.ranges()]
        events.sort(key=lambda event: event.first)
        return [Started(self.low, self.leases.next_delivery_id), *events, *self._intents()]

    def _intents(self) -> list[SubscriptionEvent]:
        return [
            DeadLetterIntended(dead.first, dead.end, dead.target.partition, dead.target.end)
            for dead in self.dead.ranges()
            if dead.target is not None
        ]

    # --- looking -----------------------------------------------------------------------------------------------------

    def ranges(self) -> list[Range]:
        """Every range that is kept, of every state, lowest first. Looks at everything."""
        kept: list[Range] = list(self.settled)
        for lease in self.leases:
            kept += lease.ranges()
        returned = self.returned
        for part in (returned.ready, returned.delayed, returned.recorded, self.orphaned):
            kept += [(first, end) for first, end, _ in part]
        kept += [(dead.first, dead.end) for dead in self.dead.ranges()]
        return sorted(kept)

    def check(self) -> None:
        """Assert the first law. For tests: it looks at everything."""
        position = self.low
        for first, end in self.ranges():
            assert first == position, f"offsets {position} to {first} are in two states or in none"
            assert first < end
            position = end
        assert position == self.cursor
        assert self.low not in self.settled
        assert self.leases.count == sum(end - first for lease in self.leases for first, end in lease.ranges())
