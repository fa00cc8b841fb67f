"""SharedSubscription against the naive model: any history, with crashes that lose what was not flushed."""

from __future__ import annotations

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from subscription_model import SUSPECTS_MAX, Model, Record

from linn.core.errors.tree import DeliveryNotCurrent, SubscriptionWrongKind
from linn.core.queue.dead_letter import DeadReason, Intent
from linn.core.queue.dispatch_order import OrderOptions
from linn.core.queue.effects import Effects
from linn.core.queue.event import decode_events, encode_events
from linn.core.queue.event_run import Holder
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.ordering import Ordering
from linn.core.queue.subscription import SharedSubscription
from linn.plugins.orders import KeyOrder, PriorityOrder
from linn.semantics.at_least_once import AtLeastOnce
from linn.semantics.at_most_once import AtMostOnce
from linn.semantics.exactly_once import ExactlyOnce

CLASSES = {offset: offset * 5 % 7 % 4 for offset in range(5_000)}
"""The priority of each record, or the hash of its key."""
consumers = st.integers(1, 3)
spans = st.tuples(st.integers(0, 3), st.integers(0, 3))
parts = st.sampled_from([None, None, None, [(0, 1)], [(1, 1)]]) | st.lists(spans, max_size=2)
seldom = st.sampled_from([False, False, False, True])
jumps = st.sampled_from([0.0, 0.0, 0.5, 2.0, -0.5, -3.0, 1e7, -1e7])
"""Seconds by which the wall clock is set while the broker is down."""
forgers = st.sampled_from([None, None, None, None, 1, 2])


class SubscriptionMachine(RuleBasedStateMachine):
    """Offsets begin at 0; times are multiples of half a second, so that floats are exact.

    Hypothesis takes each rule about as often as any other, so what disturbs the traffic shares a few rules.
    """

    @initialize(
        max_deliveries=st.sampled_from([None, 1, 2, 3]),
        delay_ms=st.sampled_from([0, 500, 1_000]),
        backoff=st.sampled_from(["fixed", "linear", "exponential"]),
        two_phase=st.booleans(),
        hands_over=seldom,
        order=st.sampled_from(["fifo", "fifo", "priority", "key"]),
    )
    def begin(self, max_deliveries, delay_ms, backoff, two_phase=False, hands_over=False, order="fifo"):
        settings = LeaseSettings(
            lease_ms=4_000,
            max_deliveries=max_deliveries,
            redelivery_delay_ms=delay_ms,
            redelivery_delay_max_ms=3_000,
            redelivery_backoff=backoff,
        )
        self.model = Model(4_000, max_deliveries, delay_ms, 3_000, backoff)
        self.semantics = ExactlyOnce(settings) if two_phase else AtLeastOnce(settings)
        if hands_over:
            self.semantics = AtMostOnce()
        self.subscription = SharedSubscription(self.semantics, 0)
        self.subscription.suspects_max = SUSPECTS_MAX
        self.now = 0.0
        self.given: dict[int, tuple[int, int, int]] = {}
        self.log: list[bytes] = []
        self.model.records = [Record() for _ in range(12)]
        self.model.order, self.model.classes = order, CLASSES
        self.subscription.recovered(self.now)
        self.put_in_order()
        self.flush()

    # --- traffic -----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 10))
    def publish(self, count):
        """Published records are durable at once: the topic's log is another log."""
        for model in (self.model, self.durable):
            model.records += [Record() for _ in range(count)]
        self.index()

    def put_in_order(self):
        """Begin the index of the order, with all there is."""
        for record in self.model.records:
            record.was_waiting = False
        order = {"priority": PriorityOrder(OrderOptions()), "key": KeyOrder()}.get(self.model.order)
        if order is not None:
            start = self.subscription.settled_before()
            self.subscription.ordering = Ordering(order, 1_000, start)
            self.index()

    def index(self):
        """Index what has come since, in batches of up to five records."""
        ordering, end = self.subscription.ordering, len(self.model.records)
        while ordering is not None and ordering.indexed < end:
            first = ordering.indexed
            offsets = range(first, min(end, first + 5))
            self.subscription.index(offsets, [CLASSES[offset] for offset in offsets], offsets.stop)
        self.model.cursor = max(self.model.cursor, end) if ordering is not None else self.model.cursor

    @precondition(lambda self: self.model.order != "fifo")
    @rule(order=st.sampled_from(["priority", "key"]))
    def change_order(self, order):
        """The order is changed, whatever is leased, and its index built anew."""
        self.model.order = order
        self.put_in_order()

    @rule(consumer=consumers, records_max=st.integers(1, 4), start=st.none() | st.integers(0, 30), skips=seldom)
    def acquire(self, consumer, records_max, start=None, skips=False):
        expected = self.model.acquire(records_max, start, skips_lost=skips)
        end = len(self.model.records)
        if start is None or self.model.order != "fifo":
            lease = self.subscription.acquire(consumer, records_max, end, self.now, skips_lost=skips)
            while lease is None and self.subscription.ordering is not None and self.subscription.ordering.has_more:
                lease = self.subscription.acquire(consumer, records_max, end, self.now, skips_lost=skips)
        else:
            lease = self.subscription.acquire_from(start, consumer, records_max, end, self.now)
        if expected is None:
            assert lease is None
            return
        ranges, attempt = (lease.granted_from(0), lease.attempt) if lease is not None else ([], 0)
        got = [offset for start, stop in ranges for offset in range(start, stop)]
        if self.model.order == "fifo":
            assert (got, attempt) == expected, "the lowest that are ready, with their attempts"
        else:
            assert (got, attempt) == (expected[0][: len(got)], expected[1]), "the first of the order"
        assert all(lease.delivery_id > given for given in self.given), "delivery ids grow, also over crashes"
        self.given[lease.delivery_id] = (consumer, lease.first, lease.end)
        self.model.grant(lease.delivery_id, consumer, got, lease.attempt, self.now)
        if self.semantics.settles_on_delivery:
            self.model.release(lease.delivery_id, got)
            self.model.settle(got)

    def pick(self, which, stale):
        """A delivery id that was given at some time, and who got it; one of a current lease unless `stale`."""
        delivery_ids = list(self.given if stale or not self.model.leases else self.model.leases)
        delivery_id = delivery_ids[which % len(delivery_ids)]
        return delivery_id, *self.given[delivery_id]

    @precondition(lambda self: self.given)
    @rule(which=st.integers(0, 9), stale=seldom, forger=forgers, parts=parts)
    def ack(self, which, stale, forger, parts):
        self.settle_or_return(which, stale, forger, parts, "ack", None)

    @precondition(lambda self: self.given)
    @rule(
        which=st.integers(0, 9),
        stale=seldom,
        forger=forgers,
        parts=parts,
        how=st.sampled_from(["nack", "reject", "later"]),
        delay_ms=st.sampled_from([None, 0, 1_500]),
    )
    def nack_or_reject(self, which, stale, forger, parts, how, delay_ms):
        self.settle_or_return(which, stale, forger, parts, how, delay_ms)

    def settle_or_return(self, which, stale, forger, parts, how, delay_ms):
        delivery_id, consumer, first, end = self.pick(which, stale)
        consumer = forger or consumer
        ranges = parts and [(min(first + at, end), min(first + at + count, end + 1)) for at, count in parts]
        offsets = self.model.current(consumer, delivery_id, ranges, self.now)
        calls = {
            "ack": lambda: self.subscription.ack(consumer, delivery_id, ranges, self.now),
            "nack": lambda: self.subscription.nack(consumer, delivery_id, ranges, self.now),
            "later": lambda: self.subscription.nack(consumer, delivery_id, ranges, self.now, delay_ms),
            "reject": lambda: self.subscription.reject(consumer, delivery_id, ranges, self.now),
        }
        if how == "ack" and self.semantics.settles_on_delivery:
            assert calls["ack"]() == Effects(), "an ack that is not needed is no error"
            return
        if how == "ack" and self.semantics.is_two_phase:
            with pytest.raises(SubscriptionWrongKind):
                calls["ack"]()
            how = "ready"
            holder = Holder(f"c{consumer}", round(1000 * self.now))
            calls["ready"] = lambda: self.subscription.ready(consumer, delivery_id, ranges, holder, self.now)
        if offsets is None:
            with pytest.raises(DeliveryNotCurrent):
                calls[how]()
            return
        effects = calls[how]()
        attempt = self.model.leases[delivery_id].attempt
        self.model.release(delivery_id, offsets)
        if how == "ack":
            self.model.settle(offsets)
            assert effects == Effects(settled=len(offsets))
        elif how == "ready":
            self.model.decide(offsets, attempt, (*holder, delivery_id))
            assert effects == Effects(decided=len(offsets))
        elif how == "reject":
            self.model.kill(offsets, attempt, "rejected")
            assert effects == Effects(dead=len(offsets))
        else:
            state = self.model.put_back(offsets, attempt, self.now, delay_ms if how == "later" else None)
            assert effects == Effects(**{state: len(offsets)})

    @precondition(lambda self: self.given)
    @rule(which=st.integers(0, 9), stale=seldom, forger=forgers, lease_ms=st.sampled_from([500, 2_000, 9_000]))
    def extend(self, which, stale, forger, lease_ms):
        delivery_id, consumer, _, _ = self.pick(which, stale)
        consumer = forger or consumer
        if self.model.current(consumer, delivery_id, None, self.now) is None:
            with pytest.raises(DeliveryNotCurrent):
                self.subscription.extend(consumer, delivery_id, None, lease_ms, self.now)
            return
        deadline = self.subscription.extend(consumer, delivery_id, None, lease_ms, self.now)
        assert deadline == self.now + lease_ms / 1000
        self.model.leases[delivery_id].deadline = deadline

    @precondition(lambda self: self.semantics.is_two_phase and self.model.offsets("decided"))
    @rule(
        which=st.integers(0, 9),
        begin=st.integers(-1, 3),
        count=st.integers(0, 6),
        how=st.sampled_from(["done", "done", "done", "give up", "reject"]),
        forger=forgers,
        stale=seldom,
    )
    def decision_ends(self, which, begin, count, how, forger, stale):
        offsets = self.model.offsets("decided")
        first = max(0, offsets[which % len(offsets)] + begin)
        end = first + count
        holder, _, delivery_id = self.model.records[offsets[which % len(offsets)]].decision
        holder = f"c{forger}" if forger else holder
        if stale:
            delivery_id = self.pick(which, True)[0]
        named = self.model.decided_to(holder, delivery_id, first, end)
        calls = {
            "done": lambda: self.subscription.done(holder, delivery_id, first, end),
            "give up": lambda: self.subscription.give_up_decided(holder, delivery_id, first, end, self.now),
            "reject": lambda: self.subscription.reject_decided(holder, delivery_id, first, end),
        }
        is_whole = len(named) == end - first > 0
        if not named or (how != "done" and not is_whole):
            with pytest.raises(DeliveryNotCurrent):
                calls[how]()
            return
        effects = calls[how]()
        attempt = self.model.records[named[0]].attempts
        if how == "done":
            self.model.settle(named)
            assert effects == Effects(settled=len(named))
        elif how == "reject":
            self.model.kill(named, attempt, "rejected")
            assert effects == Effects(dead=len(named))
        else:
            assert effects == Effects(**{self.model.put_back(named, attempt, self.now): len(named)})

    @precondition(lambda self: self.semantics.is_two_phase and self.given)
    @rule(which=st.integers(0, 9), stale=seldom, forger=forgers, begin=st.integers(-1, 3), count=st.integers(0, 6))
    def resolve(self, which, stale, forger, begin, count):
        delivery_id, consumer, granted, _ = self.pick(which, stale)
        consumer = forger or consumer
        first = granted + begin
        end = first + count
        is_decided = bool(self.model.decided_to(f"c{consumer}", delivery_id, first, end))
        effects = self.subscription.resolve(consumer, f"c{consumer}", delivery_id, first, end, self.now)
        assert (effects is None) == is_decided
        held = self.model.leases.get(delivery_id)
        named = [] if held is None or held.consumer != consumer else [it for it in held.offsets if first <= it < end]
        if is_decided or not named:
            assert effects in (None, Effects())
            return
        assert effects == Effects(**{self.model.end_lease(delivery_id, self.now, named): len(named)})

    @rule(
        what=st.sampled_from(["time passes", "time passes", "expire", "expire", "consumer gone", "consumer lost"]),
        consumer=consumers,
        halves=st.integers(1, 5),
    )
    def leases_end(self, what, consumer, halves):
        if what == "time passes":
            self.now += halves / 2
        elif what == "expire":
            self.subscription.expire(self.now)
            self.model.expire(self.now)
            deadline = self.subscription.next_deadline()
            assert deadline is None or deadline > self.now, "no lease and no delay outlives its time"
        else:
            is_lost = what == "consumer lost"
            self.subscription.consumer_gone(consumer, self.now, is_lost=is_lost)
            for delivery_id in [key for key, held in self.model.leases.items() if held.consumer == consumer]:
                self.model.end_lease(delivery_id, self.now, lost=is_lost)

    # --- bounds and dead letters -------------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from(["expired", "overflow", "purge", "skip"]), first=st.integers(0, 6), count=st.integers(1, 3)
    )
    def records_go(self, what, first, count):
        first = min(self.model.settled_before() + first, len(self.model.records) - 1)
        end = min(first + count, len(self.model.records))
        if what == "purge":
            self.purge(end)
        elif what == "skip":
            assert self.subscription.skip_to(end) == self.model.skip_to(end)
        else:
            self.dead_letter(first, end, DeadReason[what.upper()])

    def dead_letter(self, first, end, reason):
        waiting = [offset for offset in self.model.offsets("new", "ready", "delayed") if first <= offset < end]
        assert self.subscription.dead_letter(first, end, reason) == Effects(dead=len(waiting))
        for offset in waiting:
            record = self.model.records[offset]
            self.model.kill([offset], record.attempts, reason.label)
            self.model.records[offset].was_waiting = record.state != "delayed"
        self.model.cursor = max(self.model.cursor, end)

    def purge(self, end):
        waiting = [offset for offset in self.model.offsets("new", "ready", "delayed") if offset < end]
        assert self.subscription.purge(end) == Effects(settled=len(waiting))
        self.model.settle(waiting)
        self.model.cursor = max(self.model.cursor, end)

    @precondition(lambda self: self.subscription.dead())
    @rule(copied=st.booleans(), which=st.integers(0, 3), count=st.integers(1, 4), place=spans)
    def dead_letters_move(self, copied, which, count, place):
        ranges = self.subscription.dead()
        first, end = ranges[which % len(ranges)].first, ranges[which % len(ranges)].end
        end = min(end, first + count)
        if copied:
            assert self.subscription.dead_lettered(first, end) == Effects(settled=end - first)
            self.model.settle(list(range(first, end)))
            return
        self.subscription.intend(first, end, Intent(*place))
        for offset in range(first, end):
            self.model.records[offset].intent = self.model.records[offset].intent or place

    # --- the event log -----------------------------------------------------------------------------------------------

    @rule(what=st.sampled_from(["flush", "snapshot", "trim", "crash", "stop"]), jump=jumps)
    def event_log(self, what, jump=0.0):
        if what != "crash":
            self.flush()
        if what in ("snapshot", "trim"):
            self.log = [] if what == "trim" else self.log
            self.log.append(encode_events(self.subscription.snapshot_events()))
            self.durable = copy.deepcopy(self.model)
        if what in ("crash", "stop"):
            self.start_again(jump)

    def flush(self):
        events = self.subscription.take_events()
        if events:
            self.log.append(encode_events(events))
        self.durable = copy.deepcopy(self.model)

    def start_again(self, jump):
        """Restart: unflushed events are lost, and the wall clock may have been set, or another machine takes over."""
        self.now = max(0.0, self.now + jump)
        self.model = copy.deepcopy(self.durable)
        self.subscription = SharedSubscription(self.semantics, 0)
        self.subscription.suspects_max = SUSPECTS_MAX
        for data in self.log:
            for event in decode_events(data):
                self.subscription.apply(event)
        self.subscription.check()
        self.subscription.recovered(self.now)
        self.model.restart(self.now)
        self.put_in_order()
        self.flush()

    # --- both agree --------------------------------------------------------------------------------------------------

    @invariant()
    def same_state(self):
        if not hasattr(self, "model"):
            return
        subscription, model = self.subscription, self.model
        subscription.check()
        end = len(model.records)
        ready_beyond = [offset for offset in model.offsets("new") if offset >= model.cursor]
        statistics = subscription.statistics()
        assert subscription.settled_before() == model.settled_before()
        beyond = [offset for first, stop in subscription.settled for offset in range(first, stop)]
        assert beyond == [offset for offset in model.offsets("settled") if offset >= model.settled_before()]
        assert statistics.delayed == len(model.offsets("delayed")), "the log says which delays have ended"
        assert subscription.ready_count(end) == len(model.offsets("new", "ready"))
        assert statistics.ready == len(model.offsets("new", "ready")) - len(ready_beyond)
        assert subscription.leased_count == len(model.offsets("leased"))
        assert statistics.leases == len(model.leases)
        assert statistics.cursor == model.cursor
        decided = {
            offset: (*decision.holder, decision.delivery_id, decision.attempt)
            for first, stop, decision in subscription.decided()
            for offset in range(first, stop)
        }
        records = model.records
        assert decided == {at: (*records[at].decision, records[at].attempts) for at in model.offsets("decided")}
        assert subscription.decided_count == statistics.decided == len(decided)
        assert subscription.unsettled_count(end) == end - len(model.offsets("settled"))
        assert subscription.next_deadline() == model.next_deadline(), "leases and delays end at their times"

    @invariant()
    def same_dead_letters(self):
        if not hasattr(self, "model"):
            return
        found = {
            offset: (dead.attempts, dead.reason.label, dead.intent)
            for dead in self.subscription.dead()
            for offset in range(dead.first, dead.end)
        }
        records = self.model.records
        assert found == {
            offset: (records[offset].attempts, records[offset].reason, records[offset].intent)
            for offset in self.model.offsets("dead")
        }


SubscriptionMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestSubscription = SubscriptionMachine.TestCase
