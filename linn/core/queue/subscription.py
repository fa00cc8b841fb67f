"""The shared subscription of a queue on one partition: which record is next, which consumer holds it, which are
settled. It is the one state machine of all delivery semantics, which decide by the port in `semantics`.

Read `record_states` for the states, `lease` for leases, `redelivery` for returned records, `dead_letter` for records
without further attempts, `subscription_event` for the events that survive a restart.

Laws:
- It works on ranges of offsets. Two records are distinguished only when something happened to one and not to the
  other.
- A lease is taken from the lowest ready offset, or by the topic's order; leased, delayed and dead records are skipped,
  so nothing waits behind a slow record, and returned records keep their place.
- A refused request changes nothing.
- Records may be decided to a consumer by its name. They wait for it alone, however long it takes and
  whatever restarts; only `done`, by that name, or an operator ends it.
- `take_events` gives the events that must survive; applied to a fresh subscription they restore the state. A lease as
  such does not survive: `recovered` returns leased records, with their attempts.

- It holds no clock. Time that passes changes nothing by itself: `expire` makes the events of leases and delays that
  have ended.

Each method takes an event and, if time matters, `now` in seconds since 1970, on a clock that never goes back while the
process runs. It returns its effects; the caller performs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from linn.core.errors.texts import reason_text
from linn.core.errors.tree import DeliveryNotCurrent, LimitExceeded, SubscriptionWrongKind
from linn.core.queue.dead_letter import DeadReason, Ending, Intent
from linn.core.queue.effects import Effects
from linn.core.queue.event import (
    ATTEMPTS_MAX,
    LOST,
    Decided,
    DeliveryIdsStarted,
    Died,
    Ended,
    EventBuffer,
    Explained,
    Intended,
    Returned,
    Skipped,
    SubscriptionEvent,
)
from linn.core.queue.event_run import Holder
from linn.core.queue.lease import LEASE_MS_MAX, Lease, OnReleased, deadline_of
from linn.core.queue.offset_ranges import Range
from linn.core.queue.offset_rows import joined
from linn.core.queue.ordering import Ordering
from linn.core.queue.record_states import Decision, RecordStates
from linn.core.queue.redelivery import JITTER_SHARE, SUSPECTS_MAX, spread
from linn.core.queue.semantics import DeliverySemantics
from linn.core.queue.subscription_view import SubscriptionView

DELIVERY_ID_GAP = 1 << 32
"""Jump of delivery ids at a restart: more than can have been given out since the event log was last durable."""
DECIDED_RANGES_MAX = 16_384
"""Limit of the decided ranges of one subscription on one partition: a table of them is at most a few MiB."""


class SharedSubscription(SubscriptionView):
    """One shared subscription on one partition, under the semantics of its topic."""

    suspects_max = SUSPECTS_MAX
    """The limit of a lease of records that were lost once."""

    def __init__(self, semantics: DeliverySemantics, start: int) -> None:
        """Begin at offset `start` with nothing delivered."""
        self.semantics = semantics
        """May be replaced by the same semantics with other settings; existing leases and delays keep their deadlines.
        """
        self.ordering: Ordering | None = None
        """The topic's order; None: the lowest offset is next."""
        self.keeps_endings = False
        """Whether the way in which records end is kept where no consumer settles them, until `forget_endings`."""
        self.delay_ms_max = LEASE_MS_MAX
        """The longest delay that a start takes for one: beyond it the clock has been set back."""
        self.salt: int | None = None
        """A number that differs between partitions, for the jitter of delays; None: delays have none."""
        self._states = RecordStates(start)
        self._events = EventBuffer()

    # --- delivering --------------------------------------------------------------------------------------------------

    def acquire(
        self, consumer: int, records_max: int, end: int, now: float, *, skips_lost: bool = False
    ) -> Lease | None:
        """Lease the lowest ready records below `end` (the high watermark) to a consumer, or the next ones by the
        topic's order. None if none is ready.

        The lease may be shorter than `records_max` although more is ready: ask again. Of records that came back because
        their consumer was lost, it has SUSPECTS_MAX; one where that was not their first attempt, or where the next is
        their last; none with `skips_lost`. If delivery settles records, the lease has ended, and they are settled.
        """
        states, records_max = self._states, min(records_max, self.semantics.lease_records_max)
        assert not states.orphaned.count, "recovered() comes before the first acquire"
        if self.ordering is not None:
            taken = self.ordering.take(states, records_max, self._lost_max(skips_lost=skips_lost))
            return None if taken is None else self._lease(consumer, *taken, now)
        found: tuple[int, int, int] | None = None
        if states.returned.ready.count:
            found = states.returned.take_ready(records_max, self._lost_max(skips_lost=skips_lost))
        found = found or self._take_new(records_max, end)
        return None if found is None else self._lease(consumer, [found[:2]], found[2], now)

    def _lost_max(self, *, skips_lost: bool) -> int:
        """The limit of a lease of records that were lost in their first attempt."""
        if skips_lost:
            return 0
        return self.suspects_max if self._redelivery_ms(2) is not None else 1

    def acquire_from(self, start: int, consumer: int, records_max: int, end: int, now: float) -> Lease | None:
        """Lease records from offset `start` on; ready ones before it stay ready. Not for a topic with an order."""
        assert self.ordering is None
        states, records_max = self._states, min(records_max, self.semantics.lease_records_max)
        found = states.returned.ready.take_from(start, records_max)
        if found is None and start < end:
            states.advance(start)
            found = self._take_new(records_max, end)
        return None if found is None else self._lease(consumer, [found[:2]], found[2], now)

    def _take_new(self, records_max: int, end: int) -> tuple[int, int, int] | None:
        """The lowest records that were never delivered, as (first, end, attempts)."""
        first = self._states.cursor
        stop = min(end, first + records_max)
        if stop <= first:
            return None
        self._states.cursor = stop
        return first, stop, 0

    def _lease(self, consumer: int, ranges: Sequence[Range], attempts: int, now: float) -> Lease:
        attempt = min((attempts & ATTEMPTS_MAX) + 1, ATTEMPTS_MAX)
        leases, semantics = self._states.leases, self.semantics
        lease = leases.grant(consumer, ranges, attempt, deadline_of(semantics.lease_ms, now))
        lease.is_lost = attempts > ATTEMPTS_MAX
        for first, end in ranges:
            self._events.acquired(first, end, attempt | (attempts & LOST), lease.delivery_id)
        if semantics.settles_on_delivery:
            self._settle(leases.release(lease, None))
        return lease

    def ack(self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float) -> Effects:
        """Settle a lease, or the named ranges of it. No effects if delivery settles records: a client acks them anyway.

        Raises:
            DeliveryNotCurrent: the id is not current for all of these offsets. Nothing was settled.
            SubscriptionWrongKind: there are two phases.
        """
        if self.semantics.settles_on_delivery:
            return Effects()
        if self.semantics.is_two_phase:
            raise SubscriptionWrongKind("the topic delivers in two phases: settle with ready and done, not ack")
        leases = self._states.leases
        pieces = leases.release(leases.current(consumer, delivery_id, now), ranges)
        return self._settle(pieces)

    def nack(
        self,
        consumer: int,
        delivery_id: int,
        ranges: Iterable[Range] | None,
        now: float,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> Effects:
        """Return a lease, or the named ranges of it, `delay_ms` from now if the semantics agrees.

        `reason` is for people: the dead letter has it, unless a later attempt gives another.

        Raises:
            DeliveryNotCurrent: as for `ack`. Nothing was returned.
            LimitExceeded: the delay is negative or above LEASE_MS_MAX. Nothing was returned.
        """
        if delay_ms is not None and not 0 <= delay_ms <= LEASE_MS_MAX:
            raise LimitExceeded(f"a delay lasts from 0 to {LEASE_MS_MAX} ms; {delay_ms} was asked for")
        leases = self._states.leases
        lease = leases.current(consumer, delivery_id, now)
        is_asked, delay_ms = delay_ms is not None, self._redelivery_ms(lease.attempt, delay_ms)
        pieces = leases.release(lease, ranges)
        return self._return(pieces, lease.attempt, now, delay_ms, is_exact=is_asked, cause=reason)

    def put_back(
        self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float, delay_ms: int
    ) -> Effects:
        """Return a lease, or ranges of it, that no consumer has seen, `delay_ms` from now: the attempt does not count.

        Raises DeliveryNotCurrent as `ack`.
        """
        leases = self._states.leases
        lease = leases.current(consumer, delivery_id, now)
        return self._return(leases.release(lease, ranges), lease.stored_attempt - 1, now, delay_ms, is_exact=True)

    def reject(
        self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float, reason: str = ""
    ) -> Effects:
        """Make a lease, or the named ranges of it, dead at once. Raises DeliveryNotCurrent as `ack`."""
        leases = self._states.leases
        lease = leases.current(consumer, delivery_id, now)
        return self._kill(leases.release(lease, ranges), lease.attempt, DeadReason.REJECTED, reason)

    def extend(
        self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, lease_ms: int, now: float
    ) -> float:
        """Move the end of a lease to `lease_ms` from now, later or earlier; returns the new deadline.

        `ranges` are any part of the lease as it was granted, settled or not: the remaining lease is extended as a
        whole.

        Raises:
            DeliveryNotCurrent: the id is not current, or these offsets are not its own.
            LimitExceeded: `lease_ms` is below 1 or above LEASE_MS_MAX.
        """
        leases = self._states.leases
        lease = leases.current(consumer, delivery_id, now)
        leases.extend(lease, ranges, lease_ms, now)
        return lease.deadline

    def consumer_gone(self, consumer: int, now: float, *, is_lost: bool = False) -> Effects:
        """Return all leases of a consumer. No effects if it has none or is unknown. `is_lost`: as `return_leases`."""
        effects = self.return_leases(self.leases_of(consumer), now, is_lost=is_lost)
        self._states.leases.forget_consumer(consumer)
        return effects

    def return_leases(self, leases: Iterable[Lease], now: float, *, is_lost: bool = False) -> Effects:
        """Return some leases; the caller ends with `consumer_gone`. Leases that have ended are skipped.

        `is_lost`: the consumer was lost and did not leave, so that one of the records may be the reason.
        """
        effects = Effects()
        for lease in leases:
            if not lease.ended:
                effects = effects.plus(self._return_lease(lease, None, now, is_lost=is_lost))
        return effects

    def expire(self, now: float) -> Effects:
        """Return leases whose deadline has passed, and make records ready whose delay has: many, if not all."""
        leases = self._states.leases
        effects = Effects()
        while (lease := leases.pop_expired(now)) is not None:
            effects = effects.plus(self._return_lease(lease, None, now, expired=True, is_lost=True))
        promoted = self._states.returned.promote(now)
        for first, end, attempts in joined(promoted) if promoted else ():
            self._events.add(Returned(first, end, attempts, 0))
        if promoted and self.ordering is not None:
            self.ordering.came_back([row[:2] for row in promoted])
        return effects.plus(Effects(ready=sum([end - first for first, end, _ in promoted])))

    def next_ready_at(self) -> float | None:
        """The time at which the next delay ends, so that `expire` makes records ready; None: there is no delay."""
        return self._states.returned.next_ready_at()

    def take_back(self, lease: Lease) -> None:
        """Undo the settlement of a lease that was handed to no consumer: its records are delivered after a restart.

        Only `snapshot_events` may follow, which includes it.
        """
        for first, end in lease.granted_from(lease.first):
            self._states.orphan(first, end, lease.attempt)

    def next_deadline(self) -> float | None:
        """The time of the next change by `expire`, in seconds as `now`; None: never, as things are."""
        times = self._states.leases.next_deadline(), self._states.returned.next_ready_at()
        return min([time for time in times if time is not None], default=None)

    # --- two phases --------------------------------------------------------------------------------------------------

    def ready(
        self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, holder: Holder, now: float
    ) -> Effects:
        """Take a consumer's word that it can apply a lease, or ranges of it, and decide them to it.

        Raises SubscriptionWrongKind if there are no two phases, otherwise as `decide`.
        """
        if not self.semantics.is_two_phase:
            raise SubscriptionWrongKind("the topic does not deliver in two phases: settle with ack, nack or reject")
        return self.decide(consumer, delivery_id, ranges, holder, now)

    def decide(
        self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, holder: Holder, now: float
    ) -> Effects:
        """Decide a lease, or ranges of it, to its consumer, by name. Tell it only when the event is committed.

        Raises:
            DeliveryNotCurrent: as for `ack`. Nothing was decided.
            LimitExceeded: too much that was decided before is not done. Nothing was decided.
        """
        leases, decided = self._states.leases, self._states.decided
        lease = leases.current(consumer, delivery_id, now)
        named = None if ranges is None else list(ranges)
        if len(decided) + len(lease.ranges() if named is None else named) > DECIDED_RANGES_MAX:
            raise LimitExceeded(f"{len(decided)} deliveries are decided and not done: {DECIDED_RANGES_MAX} at most are")
        pieces = leases.release(lease, named)
        for first, end in pieces:
            decided.set(first, end, Decision(holder, delivery_id, lease.attempt))
            self._events.add(Decided(first, end, lease.attempt, delivery_id, holder))
        return Effects(decided=sum([end - first for first, end in pieces]))

    def done(self, holder: str, delivery_id: int, first: int, end: int) -> Effects:
        """Settle the records of [first, end) that were decided to a holder by a delivery: their effect is stored.

        Raises DeliveryNotCurrent: there are none.
        """
        pieces = self._states.decided.pieces(first, end) if first < end else []
        named = holder, delivery_id
        done = [(start, stop) for start, stop, it in pieces if (it.holder.name, it.delivery_id) == named]
        if not done:
            raise _not_decided(holder, delivery_id, first, end)
        for start, stop in done:
            self._states.decided.take(start, stop)
        return self._settle(done)

    def give_up_decided(self, holder: str, delivery_id: int, first: int, end: int, now: float) -> Effects:
        """Return decided records, for an operator: their holder is lost, and another consumer shall have them.

        If the holder has stored their effect, they have it twice. Raises DeliveryNotCurrent as `done`.
        """
        self._check_decided(holder, delivery_id, first, end)
        effects = Effects()
        for start, stop, decision in self._states.decided.pieces(first, end):
            delay_ms = self._redelivery_ms(decision.attempt)
            self._states.decided.take(start, stop)
            effects = effects.plus(self._return([(start, stop)], decision.attempt, now, delay_ms))
        return effects

    def reject_decided(self, holder: str, delivery_id: int, first: int, end: int) -> Effects:
        """Make decided records dead, for an operator. Raises DeliveryNotCurrent as `done`."""
        self._check_decided(holder, delivery_id, first, end)
        effects = Effects()
        for start, stop, decision in self._states.decided.take(first, end):
            effects = effects.plus(self._kill([(start, stop)], decision.attempt, DeadReason.REJECTED))
        return effects

    def _check_decided(self, holder: str, delivery_id: int, first: int, end: int) -> None:
        """Check that all of [first, end), which is not empty, is decided to this holder by this delivery."""
        pieces = self._states.decided.pieces(first, end) if first < end else []
        is_theirs = all(it.holder.name == holder and it.delivery_id == delivery_id for _, _, it in pieces)
        if not is_theirs or sum([stop - start for start, stop, _ in pieces]) != max(1, end - first):
            raise _not_decided(holder, delivery_id, first, end)

    def resolve(self, consumer: int, holder: str, delivery_id: int, first: int, end: int, now: float) -> Effects | None:
        """Answer a consumer that does not know what became of [first, end) of a delivery: None if it is decided to it.

        That is so if any of it is: the rest has ended since. Otherwise it is aborted: what a lease still holds of it is
        returned, so that it can't be decided any more.
        """
        named = holder, delivery_id
        pieces = self._states.decided.pieces(first, end) if first < end else []
        if any((it.holder.name, it.delivery_id) == named for _, _, it in pieces):
            return None
        effects = Effects()
        for lease in [lease for lease in self.leases_of(consumer) if lease.delivery_id == delivery_id]:
            held = [(max(start, first), min(stop, end)) for start, stop in lease.ranges()]
            effects = effects.plus(self._return_lease(lease, [it for it in held if it[0] < it[1]], now))
        return effects

    # --- dead letters ------------------------------------------------------------------------------------------------

    def dead_letter(self, first: int, end: int, reason: DeadReason) -> Effects:
        """Make the records of [first, end) dead that wait for delivery, whatever their attempts: TTL and overflow.

        `end` is not above the high watermark. Leased, settled and dead records stay as they are.
        """
        self._states.advance(end)
        effects = Effects()
        dropped = self._states.returned.drop(first, end)
        self._left([piece[:2] for piece in dropped])
        for start, stop, attempts in dropped:
            effects = effects.plus(self._kill([(start, stop)], attempts, reason))
        return effects

    def postpone(self, first: int, end: int, ready_ms: int) -> None:
        """Let records that wait become ready at another wall time."""
        states = self._states
        states.advance(end)
        states.returned.drop(first, end)
        states.returned.add(first, end, 0, ready_ms)
        self._events.add(Returned(first, end, 0, ready_ms))

    def intend(self, first: int, end: int, intent: Intent) -> None:
        """Record that a step begins; its event must be committed before it is published. An earlier intent stays."""
        assert self._states.dead.covers(first, end)
        self._states.dead.intend(first, end, intent)
        self._events.add(Intended(first, end, *intent))

    def dead_lettered(self, first: int, end: int) -> Effects:
        """Settle the dead records of [first, end): their copy is committed, or none is wanted."""
        taken = self._states.dead.take(first, end)
        for start, stop, dead in taken if self.keeps_endings else ():
            self._end(start, stop, Ending(dead.reason))
        return self._settle([piece[:2] for piece in taken])

    # --- the log's bounds --------------------------------------------------------------------------------------------

    def skip_to(self, offset: int) -> int:
        """Drop everything before `offset`, the log's new start, in every state.

        Delivery ids are no longer current for dropped records. Returns the number of records lost unsettled.
        """
        states = self._states
        if offset <= states.low:
            return 0
        gone = states.settled.gaps(states.low, offset)
        lost = sum(end - first for first, end in gone)
        states.forget_before(offset)
        for span in gone if self.keeps_endings else ():
            self._end(*span, Ending.DROPPED)
        self._left(gone)
        if self.ordering is not None:
            self.ordering.settled(gone)
        self._events.add(Skipped(offset))
        return lost

    def purge(self, end: int) -> Effects:
        """Settle every record below `end` that waits for delivery. Leased and dead records stay."""
        return self.settle_void(0, end, Ending.DROPPED)

    def settle_void(self, first: int, end: int, ending: Ending | None = None) -> Effects:
        """Settle undelivered offsets of [first, end), below the stable offset: they hold no deliverable record, or it
        ends in this way.
        """
        first = max(first, self._states.low)
        if first >= end:
            return Effects()
        self._states.advance(end)
        dropped = [piece[:2] for piece in self._states.returned.drop(first, end)]
        if self.keeps_endings and ending is not None:
            for span in dropped:
                self._end(*span, ending)
        self._left(dropped)
        return self._settle(dropped)

    def _end(self, first: int, end: int, ending: Ending) -> None:
        """Keep the way in which records end that are being settled."""
        self._states.ended.set(first, end, ending)
        self._events.add(Ended(first, end, ending))

    def forget_endings(self, before: int) -> None:
        """Forget the endings of records before an offset. There is no event: the next snapshot lacks them."""
        if self._states.ended.count:
            self._states.ended.take(0, before)

    def _left(self, ranges: list[Range]) -> None:
        """Note that records are not ready any more, which no consumer took."""
        if self.ordering is not None:
            self.ordering.left(ranges)

    # --- an order ----------------------------------------------------------------------------------------------------

    def index(self, offsets: Sequence[int], classes: Sequence[int], end: int) -> None:
        """Index records in the topic's order, see `Ordering.index`."""
        assert self.ordering is not None
        self.ordering.index(self._states, offsets, classes, end)

    def settle_void_leased(self, consumer: int, delivery_id: int, ranges: Iterable[Range], now: float) -> Effects:
        """Settle parts of a lease without a deliverable record, whatever the semantics. Raises DeliveryNotCurrent."""
        leases = self._states.leases
        return self._settle(leases.release(leases.current(consumer, delivery_id, now), ranges))

    def tell_released(self, on_released: OnReleased) -> None:
        """Call back for each lease, or part of a lease, that ends."""
        self._states.leases.on_released = on_released

    # --- events ------------------------------------------------------------------------------------------------------

    def take_events(self) -> list[SubscriptionEvent]:
        """Take the events since the last call that must survive. They belong into ONE record of the event log.

        Call it often, at least once per turn of the loop that delivers: nothing else bounds the buffer.
        """
        return self._events.take()

    @property
    def events_waiting(self) -> int:
        """The number of events that `take_events` would give."""
        return len(self._events)

    def snapshot_events(self) -> list[SubscriptionEvent]:
        """The whole state as events that replace all earlier ones; ONE record of its own. Take the pending events
        before.
        """
        assert not self._events, "events that are not in the log yet would be applied twice"
        return [self._states.snapshot()]

    def apply(self, event: SubscriptionEvent) -> None:
        """Apply an event of the log. Call `recovered` after all of them.

        Raises:
            LogCorrupt: no subscription can have made this transition. The subscription must not be used any more.
        """
        self._states.apply(event)

    def recovered(self, now: float) -> Effects:
        """Finish recovery after the event log, if any: return leased records, advance the delivery ids.

        Its events must be durable before the first delivery, or a delivery id might be given out twice.
        """
        states = self._states
        states.leases.next_delivery_id += DELIVERY_ID_GAP
        self._events.add(DeliveryIdsStarted(states.leases.next_delivery_id))
        for row in states.returned.cap(now, self.delay_ms_max):
            self._events.add(Returned(*row))
        effects = Effects(ready=states.returned.ready.count, delayed=states.returned.delayed.count)
        by_attempts: dict[int, list[Range]] = {}
        for first, end, attempts in states.orphaned:
            by_attempts.setdefault(attempts, []).append((first, end))
        states.orphaned.clear()
        for attempts, ranges in by_attempts.items():
            delay_ms = self._redelivery_ms(attempts)
            # Without a delay, no event, however many they are: the log has them leased, and so has the next start.
            effects = effects.plus(self._return(ranges, attempts, now, delay_ms, is_event=bool(delay_ms)))
        return effects

    # --- moving records, with their events ---------------------------------------------------------------------------

    def _redelivery_ms(self, attempts: int, asked_ms: int | None = None) -> int | None:
        """The answer of the semantics, within bounds. Ask before anything is changed: it may raise."""
        delay_ms = self.semantics.redelivery_ms(attempts & ATTEMPTS_MAX, asked_ms)
        return None if delay_ms is None else min(max(delay_ms, 0), LEASE_MS_MAX)

    def _settle(self, ranges: list[Range]) -> Effects:
        if len(ranges) == 1:  # As in a queue without an order, mostly.
            first, end = ranges[0]
            self._events.settled.add(first, end)
            self._states.settle(first, end)
            settled = end - first
        elif ranges:
            self._events.settled.add_rows(ranges)
            self._states.settle_rows(ranges)
            settled = sum([end - first for first, end in ranges])
        else:
            settled = 0
        if self.ordering is not None:
            self.ordering.settled(ranges)
        return Effects(settled)

    def _return_lease(
        self, lease: Lease, ranges: list[Range] | None, now: float, *, expired: bool = False, is_lost: bool = False
    ) -> Effects:
        """Return a lease, or ranges of it, or make them dead, as the semantics decides."""
        delay_ms, attempts = self._redelivery_ms(lease.attempt), lease.attempt | LOST if is_lost else lease.attempt
        return self._return(self._states.leases.release(lease, ranges, lost=expired), attempts, now, delay_ms)

    def _return(
        self,
        ranges: list[Range],
        attempts: int,
        now: float,
        delay_ms: int | None,
        *,
        is_event: bool = True,
        is_exact: bool = False,
        cause: str = "",
    ) -> Effects:
        """Return released records `delay_ms` from now, with jitter unless `is_exact`; None: make them dead."""
        if delay_ms is None:
            return self._kill(ranges, attempts, DeadReason.MAX_DELIVERIES, cause)
        # The last millisecond counts whole: nothing is ready early.
        ready_ms = ceil(now * 1000) + delay_ms if delay_ms else 0
        rows = [(first, end, attempts, ready_ms) for first, end in ranges]
        if self.salt is not None and delay_ms and not is_exact:
            rows = spread(ranges, attempts, ready_ms, delay_ms // JITTER_SHARE, self.salt)
        if len(rows) > 1:
            self._states.returned.add_rows(rows)
        elif rows:
            self._states.returned.add(*rows[0])
        if self.ordering is not None and not delay_ms:
            self.ordering.came_back(ranges)
        for row in rows if is_event else ():
            self._events.add(Returned(*row))
        self._explain(ranges, cause)
        count = sum([end - first for first, end in ranges])
        return Effects(delayed=count) if delay_ms else Effects(ready=count)

    def _explain(self, ranges: list[Range], cause: str) -> None:
        """Keep the reason for which records were returned, or are dead."""
        cause = reason_text(cause) if cause else ""
        for first, end in ranges if cause else ():
            if self._states.explain(first, end, cause):
                self._events.add(Explained(first, end, cause))

    def _kill(self, ranges: list[Range], attempts: int, reason: DeadReason, cause: str = "") -> Effects:
        attempts &= ATTEMPTS_MAX
        for first, end in ranges:
            self._states.dead.add(first, end, attempts, reason)
            self._events.add(Died(first, end, attempts, reason))
        self._explain(ranges, cause)
        return Effects(dead=sum(end - first for first, end in ranges))


def _not_decided(holder: str, delivery_id: int, first: int, end: int) -> DeliveryNotCurrent:
    return DeliveryNotCurrent(f"delivery {delivery_id} is not decided to {holder} for offsets {first} to {end - 1}")
