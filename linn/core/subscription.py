"""The shared subscription of a queue on one partition: which record is next, who holds it, what is settled.

Laws:
- Every offset from the start to the cursor is in exactly one state: settled, leased, returned (ready or delayed), or
  dead. Everything from the cursor on was never delivered.
- It works on ranges. Offsets are told apart only when somebody did something to one and not to the other.
- A lease is taken from the lowest ready offset; what is leased, delayed or dead is passed over, so nothing waits behind
  one slow record, and what is returned goes back to its place.
- A refused request changes nothing.
- `take_events` gives what must survive; the same events applied to a fresh subscription give the same state. A lease as
  such does not survive: `recovered` returns what was leased, with its attempts.

Each method takes what happened and, where time matters, `now` in monotonic seconds, which never goes back. It returns
its effects; the caller performs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from linn.core.dead_letter import DeadLetters, DeadLetterTarget, DeadRange, DeadReason
from linn.core.errors import LimitExceeded, LogCorrupt
from linn.core.lease import LEASE_MS_MAX, Lease, LeaseBook, LeaseSettings
from linn.core.offset_map import OffsetMap
from linn.core.offset_ranges import OffsetRanges, Range
from linn.core.redelivery import Recorded, ReturnedRecords, redelivery_delay_ms
from linn.core.subscription_event import (
    Acquired,
    DeadLetterIntended,
    DeliveryIdsStarted,
    Died,
    EventBuffer,
    Returned,
    Settled,
    Skipped,
    Started,
    SubscriptionEvent,
)

DELIVERY_ID_GAP = 1 << 32
"""How far delivery ids jump at a restart: more than can have been given out since the event log was last durable."""


class Effects(NamedTuple):
    """How many records a step moved to each state, so that the caller knows what to do next."""

    settled: int = 0
    """The topic may be trimmed when `settled_before` has moved."""
    ready: int = 0
    """Dispatch."""
    delayed: int = 0
    """`next_deadline` may be earlier than it was."""
    dead: int = 0
    """Copy to the dead-letter topic."""


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """A subscription in numbers: records, except where the name says otherwise."""

    settled_before: int
    """Offset."""
    cursor: int
    """Offset: the first one that was never looked at."""
    settled_beyond: int
    leased: int
    ready: int
    """Returned and ready; those beyond the cursor are not counted."""
    delayed: int
    dead: int
    leases: int
    """Number of leases."""
    ranges: int
    """Number of ranges kept in memory, all states together."""


class SharedSubscription:
    """One shared subscription on one partition, delivering at least once."""

    __slots__ = ("_cursor", "_dead", "_events", "_leases", "_low", "_orphaned", "_returned", "_settled", "settings")

    def __init__(self, settings: LeaseSettings, start: int) -> None:
        """Begin at offset `start` with nothing delivered. `settings` may be replaced while it runs."""
        assert start >= 0
        self.settings = settings
        self._low = start
        self._cursor = start
        self._settled = OffsetRanges()
        self._leases = LeaseBook()
        self._returned = ReturnedRecords()
        self._dead = DeadLetters()
        self._orphaned: OffsetMap[int] = OffsetMap()
        self._events = EventBuffer()

    # --- delivering --------------------------------------------------------------------------------------------------

    def acquire(self, consumer: int, records_max: int, end: int, now: float) -> Lease | None:
        """Lease the lowest ready records below `end` (the high watermark) to a consumer; None if none is ready.

        The lease may be shorter than `records_max` although more is ready: ask again.
        """
        assert records_max > 0
        assert not self._orphaned.count, "recovered() comes before the first acquire"
        returned = self._returned
        returned.promote(now)
        if returned.ready.count:
            first, stop, attempts = returned.ready.take_lowest(records_max)
        else:
            first, attempts = self._cursor, 0
            stop = min(end, first + records_max)
            if stop <= first:
                return None
            self._cursor = stop
        lease = self._leases.grant(consumer, first, stop, attempts + 1, now + self.settings.lease_ms / 1000)
        self._events.acquired(first, stop, attempts + 1, lease.delivery_id)
        return lease

    def ack(self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float) -> Effects:
        """Settle a lease, or the named ranges of it.

        Raises:
            DeliveryNotCurrent: the id is not current for all of these offsets. Nothing was settled.
        """
        lease = self._leases.current(consumer, delivery_id, now)
        count = 0
        for first, end in self._leases.release(lease, ranges):
            self._settle(first, end)
            count += end - first
        return Effects(settled=count)

    def nack(
        self,
        consumer: int,
        delivery_id: int,
        ranges: Iterable[Range] | None,
        now: float,
        delay_ms: int | None = None,
    ) -> Effects:
        """Return a lease, or the named ranges of it; `delay_ms` replaces the delay that the settings ask for.

        Raises:
            DeliveryNotCurrent: as for `ack`. Nothing was returned.
            LimitExceeded: the delay is negative or above LEASE_MS_MAX. Nothing was returned.
        """
        if delay_ms is not None and not 0 <= delay_ms <= LEASE_MS_MAX:
            raise LimitExceeded(f"a delay lasts from 0 to {LEASE_MS_MAX} ms; {delay_ms} was asked for")
        lease = self._leases.current(consumer, delivery_id, now)
        return self._return(self._leases.release(lease, ranges), lease.attempt, now, delay_ms)

    def reject(self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float) -> Effects:
        """Make a lease, or the named ranges of it, dead at once. Raises DeliveryNotCurrent as `ack`."""
        lease = self._leases.current(consumer, delivery_id, now)
        pieces = self._leases.release(lease, ranges)
        return self._kill(pieces, lease.attempt, DeadReason.REJECTED)

    def extend(self, consumer: int, delivery_id: int, lease_ms: int, now: float) -> float:
        """Let a lease end `lease_ms` from now; returns the new deadline. It does not outlive a restart.

        Raises:
            DeliveryNotCurrent: the id is not current.
            LimitExceeded: `lease_ms` is below 1 or above LEASE_MS_MAX.
        """
        lease = self._leases.current(consumer, delivery_id, now)
        self._leases.extend(lease, lease_ms, now)
        return lease.deadline

    def consumer_gone(self, consumer: int, now: float) -> Effects:
        """Return all that a consumer holds. A consumer that holds nothing, or is unknown, has no effects."""
        effects = Effects()
        for lease in self._leases.of_consumer(consumer):
            effects = self._return(self._leases.release(lease, None), lease.attempt, now, None, effects)
        self._leases.forget_consumer(consumer)
        return effects

    def expire(self, now: float) -> Effects:
        """Return the leases whose deadline has passed, and make ready what was delayed until now."""
        effects = Effects()
        while (lease := self._leases.pop_expired(now)) is not None:
            effects = self._return(self._leases.release(lease, None), lease.attempt, now, None, effects)
        return effects._replace(ready=effects.ready + self._returned.promote(now))

    def next_deadline(self) -> float | None:
        """When `expire` has something to do next, in monotonic seconds; None: never, as things are.

        It may name a time at which it turns out that there is nothing to do.
        """
        lease, delay = self._leases.next_deadline(), self._returned.next_ready_at()
        if lease is None or delay is None:
            return delay if lease is None else lease
        return min(lease, delay)

    # --- dead letters ------------------------------------------------------------------------------------------------

    def dead(self) -> list[DeadRange]:
        """All dead records, lowest offset first, until `dead_lettered` settles them; also after a restart."""
        return self._dead.ranges()

    def dead_letter_intents(self) -> list[DeadRange]:
        """The dead records of which a copy may exist already: read the target from its end before copying."""
        return [dead for dead in self._dead.ranges() if dead.target is not None]

    def dead_letter(self, first: int, end: int, reason: DeadReason) -> Effects:
        """Make the records of [first, end) dead that nobody holds, whatever their attempts: TTL and overflow.

        `end` is not above the high watermark. Leased, settled and dead records stay as they are.
        """
        self._advance(first, end)
        killed = 0
        for piece_first, piece_end, attempts in self._take_returned(first, end):
            killed += self._kill([(piece_first, piece_end)], attempts, reason).dead
        return Effects(dead=killed)

    def dead_letter_intended(self, first: int, end: int, target: DeadLetterTarget) -> None:
        """Dead records are about to be copied. The event must be durable before the copy is made.

        Where an intent exists it stays: `dead()` says which target counts.
        """
        assert self._dead.covers(first, end)
        self._dead.intend(first, end, target)
        self._events.add(DeadLetterIntended(first, end, target.partition, target.end))

    def dead_lettered(self, first: int, end: int) -> Effects:
        """Settle the dead records of [first, end): their copy is committed, or nobody wants one."""
        settled = 0
        for piece_first, piece_end in self._dead.take(first, end):
            self._settle(piece_first, piece_end)
            settled += piece_end - piece_first
        return Effects(settled=settled)

    # --- the log's bounds --------------------------------------------------------------------------------------------

    def skip_to(self, offset: int) -> int:
        """The log now starts at `offset`: forget everything before, in every state.

        A delivery id is no longer current for what is gone. Returns how many records were lost unsettled.
        """
        if offset <= self._low:
            return 0
        lost = offset - self._low - sum(end - first for first, end in self._settled.intersect(self._low, offset))
        self._forget_before(offset)
        self._events.add(Skipped(offset))
        return lost

    def purge(self, end: int) -> Effects:
        """Settle every record below `end` that waits for delivery. What is leased or dead stays."""
        waiting = self._returned.drop(self._low, end) if end > self._low else []
        if end > self._cursor:
            waiting.append((self._cursor, end))
            self._cursor = end
        for first, stop in waiting:
            self._settle(first, stop)
        return Effects(settled=sum(stop - first for first, stop in waiting))

    def settled_before(self) -> int:
        """The offset before which every record is settled; never goes back. The topic may be trimmed up to it."""
        return self._low

    @property
    def settled(self) -> list[Range]:
        """What is settled beyond `settled_before`, in order."""
        return list(self._settled)

    def ready_count(self, end: int) -> int:
        """How many records below `end` (the high watermark) `acquire` could give, as of the last `expire`."""
        return self._returned.ready.count + max(0, end - self._cursor)

    @property
    def leased_count(self) -> int:
        """How many records are leased."""
        return self._leases.count

    def statistics(self) -> SubscriptionStatistics:
        """A snapshot in numbers. Looks at every lease."""
        returned = self._returned
        ranges = [len(self._settled), len(returned.ready), len(returned.delayed), len(self._dead)]
        return SubscriptionStatistics(
            settled_before=self._low,
            cursor=self._cursor,
            settled_beyond=self._settled.count,
            leased=self._leases.count,
            ready=returned.ready.count,
            delayed=returned.delayed.count,
            dead=self._dead.count,
            leases=len(self._leases),
            ranges=sum(ranges) + sum(len(lease.ranges()) for lease in self._leases),
        )

    # --- events ------------------------------------------------------------------------------------------------------

    def take_events(self) -> list[SubscriptionEvent]:
        """What happened since the last call and must survive. It belongs into ONE record of the event log.

        Call it often, at least once per turn of the loop that dispatches: nothing else bounds the buffer.
        """
        return self._events.take()

    def snapshot_events(self, now: float) -> list[SubscriptionEvent]:
        """The whole state as events, which replace all earlier ones; one record. Take the pending events before."""
        assert not self._events, "events that are not in the log yet would be applied twice"
        events: list[Settled | Acquired | Returned | Died] = [Settled(first, end) for first, end in self._settled]
        for lease in self._leases:
            events += [Acquired(first, end, lease.attempt, lease.delivery_id) for first, end in lease.ranges()]
        events += [Acquired(first, end, attempt, 0) for first, end, attempt in self._orphaned]
        events += [Returned(first, end, attempts, 0) for first, end, attempts in self._returned.ready]
        for first, end, delay in self._returned.delayed:
            events.append(Returned(first, end, delay.attempts, max(0, ceil((delay.ready_at - now) * 1000))))
        for first, end, recorded in self._returned.recorded:
            events.append(Returned(first, end, recorded.attempts, recorded.delay_ms))
        events += [Died(dead.first, dead.end, dead.attempts, dead.reason) for dead in self._dead.ranges()]
        events.sort(key=lambda event: event.first)
        intents = [
            DeadLetterIntended(dead.first, dead.end, dead.target.partition, dead.target.end)
            for dead in self._dead.ranges()
            if dead.target is not None
        ]
        return [Started(self._low, self._leases.next_delivery_id), *events, *intents]

    def apply(self, event: SubscriptionEvent) -> None:
        """Do again what the event log says was done. Afterwards, when all are applied, comes `recovered`.

        Raises:
            LogCorrupt: no subscription can have come from here to there. The subscription is of no more use.
        """
        match event:
            case Acquired(first, end, attempt, delivery_id):
                self._replace(first, end)
                self._orphaned.set(first, end, attempt)
                self._leases.next_delivery_id = max(self._leases.next_delivery_id, delivery_id + 1)
            case Settled(first, end):
                self._apply_settled(max(first, self._low), end)
            case Returned(first, end, attempts, delay_ms):
                self._replace(first, end)
                if delay_ms:
                    self._returned.recorded.set(first, end, Recorded(attempts, delay_ms))
                else:
                    self._returned.ready.set(first, end, attempts)
            case Died(first, end, attempts, reason):
                self._replace(first, end)
                self._dead.add(first, end, attempts, reason)
            case DeadLetterIntended(first, end, partition, target_end):
                if not self._dead.covers(first, end):
                    raise LogCorrupt(f"a subscription log intends a dead letter of records that live: {event}")
                self._dead.intend(first, end, DeadLetterTarget(partition, target_end))
            case Skipped(offset):
                self._forget_before(max(offset, self._low))
            case DeliveryIdsStarted(next_delivery_id):
                self._leases.next_delivery_id = max(self._leases.next_delivery_id, next_delivery_id)
            case Started(offset, next_delivery_id):
                self._restart(offset, next_delivery_id)

    def recovered(self, now: float) -> Effects:
        """The event log was applied, if there was any: return what was leased, start delays, jump the delivery ids.

        The events must be durable before the first delivery, or a delivery id might be given twice.
        """
        self._leases.next_delivery_id += DELIVERY_ID_GAP
        self._events.add(DeliveryIdsStarted(self._leases.next_delivery_id))
        self._returned.start_recorded(now)
        effects = Effects()
        for first, end, attempt in self._orphaned:
            effects = self._return([(first, end)], attempt, now, None, effects)
        self._orphaned.clear()
        return effects

    def check(self) -> None:
        """Assert the first law. For tests: it looks at every range."""
        returned = self._returned
        states: list[Range] = [*self._settled]
        for lease in self._leases:
            states += lease.ranges()
        for part in (returned.ready, returned.delayed, returned.recorded, self._orphaned):
            states += [(first, end) for first, end, _ in part]
        states += [(dead.first, dead.end) for dead in self._dead.ranges()]
        position = self._low
        for first, end in sorted(states):
            assert first == position, f"offsets {position} to {first} are in two states or in none"
            position = end
        assert position == self._cursor
        assert self._low not in self._settled
        assert self._leases.count == sum(end - first for lease in self._leases for first, end in lease.ranges())

    # --- moving records between states -------------------------------------------------------------------------------

    def _settle(self, first: int, end: int) -> None:
        self._events.settled(first, end)
        self._mark_settled(first, end)

    def _mark_settled(self, first: int, end: int) -> None:
        if first != self._low:
            self._settled.add(first, end)
            return
        self._low = end
        if self._settled:
            self._absorb()

    def _absorb(self) -> None:
        """Move the low watermark over what is settled beyond it."""
        low = self._settled.first_gap(self._low)
        if low > self._low:
            self._settled.remove(self._low, low)
            self._low = low

    def _return(
        self, ranges: list[Range], attempts: int, now: float, delay_ms: int | None, before: Effects | None = None
    ) -> Effects:
        """Put released records back, or make them dead where this was their last attempt; adds to `before`."""
        limit = self.settings.max_deliveries
        settled, ready, delayed, dead = before or Effects()
        if limit is not None and attempts >= limit:
            return Effects(settled, ready, delayed, dead + self._kill(ranges, attempts, DeadReason.MAX_DELIVERIES).dead)
        if delay_ms is None:
            delay_ms = redelivery_delay_ms(self.settings, attempts)
        count = 0
        for first, end in ranges:
            self._returned.add(first, end, attempts, delay_ms, now)
            self._events.add(Returned(first, end, attempts, delay_ms))
            count += end - first
        return Effects(settled, ready, delayed + count, dead) if delay_ms else Effects(
            settled, ready + count, delayed, dead
        )

    def _kill(self, ranges: list[Range], attempts: int, reason: DeadReason) -> Effects:
        for first, end in ranges:
            self._dead.add(first, end, attempts, reason)
            self._events.add(Died(first, end, attempts, reason))
        return Effects(dead=sum(end - first for first, end in ranges))

    def _advance(self, first: int, end: int) -> None:
        """Move the cursor to `end`; what it passes is ready and was never delivered."""
        if end > self._cursor:
            self._returned.ready.set(self._cursor, end, 0)
            self._cursor = end

    def _forget_before(self, offset: int) -> None:
        low = self._low
        if offset <= low:
            return
        self._returned.drop(low, offset)
        self._dead.take(low, offset)
        self._orphaned.take(low, offset)
        self._settled.remove(low, offset)
        self._leases.cut(offset)
        self._low = offset
        self._cursor = max(self._cursor, offset)
        self._absorb()

    # --- replaying ---------------------------------------------------------------------------------------------------

    def _replace(self, first: int, end: int) -> None:
        """Forget the state of offsets that an event gives a new one. Raises LogCorrupt where they are settled."""
        if first < self._low or self._settled.intersect(first, end):
            raise LogCorrupt(f"a subscription log brings settled records back: offsets {first} to {end - 1}")
        self._advance(first, end)
        self._drop(first, end)

    def _apply_settled(self, first: int, end: int) -> None:
        if first >= end:
            return
        self._advance(first, end)
        self._drop(first, end)
        self._mark_settled(first, end)

    def _drop(self, first: int, end: int) -> None:
        self._returned.drop(first, end)
        self._orphaned.take(first, end)
        self._dead.take(first, end)

    def _restart(self, offset: int, next_delivery_id: int) -> None:
        """Begin anew where a snapshot begins; delivery ids never go back."""
        next_delivery_id = max(next_delivery_id, self._leases.next_delivery_id)
        SharedSubscription.__init__(self, self.settings, offset)
        self._leases.next_delivery_id = next_delivery_id
