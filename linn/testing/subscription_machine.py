"""SubscriptionMachine: compares the subscriptions of a delivery semantics with a plain set of rules, by Hypothesis.

    class Mine(SubscriptionMachine):
        def make_semantics(self) -> DeliverySemantics:
            return Mine(MySettings())

    TestMine = Mine.TestCase

The model knows the holder of each offset, and the dead and settled offsets. The semantics decides when a returned
record is delivered again, and when it is dead instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from linn.core.errors.tree import LinnError
from linn.core.queue.event import encode_events
from linn.core.queue.semantics import DeliverySemantics
from linn.core.queue.subscription import SharedSubscription
from linn.testing.semantics import LONG_S, acked, holder_of, replayed

_CONSUMERS = st.integers(1, 3)


class SubscriptionMachine(RuleBasedStateMachine):
    """Hypothesis machine that checks the laws of a semantics. Subclass it with `make_semantics`."""

    def __init__(self) -> None:
        super().__init__()
        self.semantics = self.make_semantics()
        self.now = 0.0
        self.end = 12
        self.rows: list[bytes] = []
        """The event log."""
        self.held: dict[int, tuple[int, set[int]]] = {}
        """(consumer, offsets) by delivery id, as granted."""
        self.decided: dict[int, tuple[str, set[int]]] = {}
        """(holder, offsets) by delivery id, for two-phase deliveries that are decided and not done."""
        self.dead: set[int] = set()
        self.settled: set[int] = set()
        self.newest_id = 0
        self.lowest = 0
        self.subscription = self._restarted()

    def make_semantics(self) -> DeliverySemantics:
        """The semantics of one topic."""
        raise AssertionError("a subclass gives make_semantics")

    def _restarted(self) -> SharedSubscription:
        subscription = replayed(self.semantics, self.rows, self.now)
        self.rows.append(encode_events(subscription.take_events()))
        return subscription

    def _flush(self) -> None:
        events = self.subscription.take_events()
        if events:
            self.rows.append(encode_events(events))

    def _look(self) -> None:
        """Adopt the decisions of the semantics about returned records that are dead."""
        self.dead = {offset for letter in self.subscription.dead() for offset in range(letter.first, letter.end)}
        assert not self.dead & self.settled

    # --- traffic -----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 8))
    def publish(self, count: int) -> None:
        self.end += count

    @rule(consumer=_CONSUMERS, records_max=st.integers(1, 5))
    def acquire(self, consumer: int, records_max: int) -> None:
        self.expire(0)
        lease = self.subscription.acquire(consumer, records_max, self.end, self.now)
        if lease is None:
            assert self.subscription.ready_count(self.end) == 0
            return
        offsets = set(range(lease.first, lease.end))
        assert 0 < len(offsets) <= records_max
        assert lease.end <= self.end
        taken = self.settled | self.dead | {offset for _, mine in self.held.values() for offset in mine}
        taken |= {offset for _, mine in self.decided.values() for offset in mine}
        assert not offsets & taken, "given although it is settled, dead, held or decided"
        assert lease.delivery_id > self.newest_id, "delivery ids grow, also over restarts"
        self.newest_id = lease.delivery_id
        if self.semantics.settles_on_delivery:
            self.settled |= offsets
            self._flush()
        else:
            self.held[lease.delivery_id] = consumer, offsets

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 20), part=st.booleans(), verdict=st.sampled_from(["ack", "nack", "reject"]))
    def settle(self, which: int, part: bool, verdict: str) -> None:
        delivery_id = list(self.held)[which % len(self.held)]
        consumer, offsets = self.held[delivery_id]
        chosen = {min(offsets)} if part else set(offsets)
        ranges = [(offset, offset + 1) for offset in sorted(chosen)] if part else None
        request: Callable[..., object] = getattr(self.subscription, verdict)
        holder = holder_of(consumer)
        if verdict == "ack" and self.subscription.is_two_phase:
            request = partial(self.subscription.ready, holder=holder)
        try:
            request(consumer, delivery_id, ranges, now=self.now)
        except LinnError:
            assert self._has_ended(delivery_id), "a lease that is current was refused"
            return
        offsets -= chosen
        if not offsets:
            del self.held[delivery_id]
        if verdict != "ack":
            return
        if self.subscription.is_two_phase:
            self.decided.setdefault(delivery_id, (holder.name, set()))[1].update(chosen)
        else:
            self.settled |= chosen

    @precondition(lambda self: self.decided)
    @rule(which=st.integers(0, 20), part=st.booleans(), forged=st.sampled_from(["", "", "name", "id"]))
    def finish(self, which: int, part: bool, forged: str) -> None:
        delivery_id = list(self.decided)[which % len(self.decided)]
        holder, offsets = self.decided[delivery_id]
        first = min(offsets)
        end = first + 1 if part else max(offsets) + 1
        who = "another" if forged == "name" else holder
        try:
            self.subscription.done(who, delivery_id + 1_000_000 * (forged == "id"), first, end)
        except LinnError:
            assert forged, "what is decided can be done"
            return
        assert not forged, "done by another, or for another delivery"
        done = {offset for offset in offsets if first <= offset < end}
        self.settled |= done
        offsets -= done
        if not offsets:
            del self.decided[delivery_id]

    def _has_ended(self, delivery_id: int) -> bool:
        """Whether the lease has expired: only the subscription knows its duration."""
        before = self.subscription.leased_count
        self.expire(0)
        return delivery_id not in self.held or self.subscription.leased_count < before

    @rule(consumer=_CONSUMERS, delivery_id=st.integers(0, 40))
    def forge(self, consumer: int, delivery_id: int) -> None:
        if delivery_id in self.held:
            return
        before = self.subscription.statistics()
        for verdict in ("ack", "nack", "reject"):
            with suppress(LinnError):
                getattr(self.subscription, verdict)(consumer, delivery_id, None, self.now)
        with suppress(LinnError):
            self.subscription.ready(consumer, delivery_id, None, holder_of(consumer), self.now)
        if delivery_id not in self.decided:
            with suppress(LinnError):
                self.subscription.done(holder_of(consumer).name, delivery_id, 0, self.end)
        assert self.subscription.statistics() == before

    @rule(consumer=_CONSUMERS)
    def leave(self, consumer: int) -> None:
        self.subscription.consumer_gone(consumer, self.now)
        self.held = {id: entry for id, entry in self.held.items() if entry[0] != consumer}

    @rule(seconds=st.sampled_from([0, 1, 40, 1_000]))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        self.subscription.expire(self.now)
        for id, (consumer, offsets) in list(self.held.items()):
            try:
                self.subscription.extend(consumer, id, None, 30_000, self.now)
            except LinnError:
                del self.held[id]
                assert offsets

    @precondition(lambda self: self.dead)
    @rule()
    def copy_the_dead(self) -> None:
        for letter in self.subscription.dead():
            self.subscription.dead_lettered(letter.first, letter.end)
            self.settled |= set(range(letter.first, letter.end))

    # --- disturbance -------------------------------------------------------------------------------------------------

    @rule(up_to=st.integers(0, 30))
    def lose_head(self, up_to: int) -> None:
        offset = min(up_to, self.end)
        self.subscription.skip_to(offset)
        gone = set(range(offset))
        self.settled |= gone
        for entries in (self.held, self.decided):
            for _, offsets in entries.values():
                offsets -= gone
        self.held = {id: entry for id, entry in self.held.items() if entry[1]}
        self.decided = {id: entry for id, entry in self.decided.items() if entry[1]}

    @rule(compact=st.booleans())
    def restart(self, compact: bool) -> None:
        self._flush()
        if compact:
            self.rows = [encode_events(self.subscription.snapshot_events(self.now))]
        if not self.semantics.survives_restart:
            self.settled.clear()
            self.decided.clear()
            self.rows.clear()
            self.lowest = self.newest_id = 0
        self.held.clear()
        self.subscription = self._restarted()

    # --- invariants -------------------------------------------------------------------------------------------

    @invariant()
    def every_record_is_in_one_place(self) -> None:
        self._look()
        self.subscription.check()
        low = next(offset for offset in range(self.end + 1) if offset not in self.settled)
        assert self.subscription.settled_before() == low
        assert low >= self.lowest, "settled_before never goes back"
        self.lowest = low
        assert self.subscription.leased_count == sum(len(offsets) for _, offsets in self.held.values())
        found: dict[int, tuple[str, set[int]]] = {}
        for first, end, decision in self.subscription.decided():
            found.setdefault(decision.delivery_id, (decision.holder.name, set()))[1].update(range(first, end))
        assert found == self.decided

    def teardown(self) -> None:
        """Consume the rest: each record is settled, and none twice."""
        self.now += LONG_S
        for first, end, decision in self.subscription.decided():
            self.subscription.done(decision.holder.name, decision.delivery_id, first, end)
        for consumer in (1, 2, 3):
            self.subscription.consumer_gone(consumer, self.now)
        for _ in range(self.end + 1):
            self.now += LONG_S
            self.subscription.expire(self.now)
            lease = self.subscription.acquire(1, self.end, self.end, self.now)
            if lease is None:
                break
            acked(self.subscription, 1, lease.delivery_id, None, self.now)
        for letter in self.subscription.dead():
            self.subscription.dead_lettered(letter.first, letter.end)
        assert self.subscription.settled_before() == self.end
