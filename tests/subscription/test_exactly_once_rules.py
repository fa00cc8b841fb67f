"""Each rule of two-phase delivery, by itself."""

from __future__ import annotations

import pytest

from linn.core.errors.tree import DeliveryNotCurrent, LimitExceeded, SubscriptionWrongKind
from linn.core.queue.dead_letter import DeadReason
from linn.core.queue.effects import Effects
from linn.core.queue.event import Decided, decode_events, encode_events
from linn.core.queue.event_run import Holder
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.subscription import DECIDED_RANGES_MAX, SharedSubscription
from linn.semantics import exactly_once
from linn.semantics.at_least_once import AtLeastOnce
from linn.semantics.exactly_once import ExactlyOnce

END = 100_000
ANN, BOB = 1, 2
ANN_NOW, BOB_NOW = Holder("ann", 1_000), Holder("bob", 1_000)


def make(**settings: object) -> SharedSubscription:
    leases = LeaseSettings(lease_ms=10_000, **settings)  # type: ignore[arg-type]
    return SharedSubscription(ExactlyOnce(leases), 0)


def decided(subscription: SharedSubscription, records: int = 5, consumer: int = ANN) -> int:
    """Have records decided to a consumer; returns the delivery id."""
    lease = subscription.acquire(consumer, records, END, 0.0)
    assert lease is not None
    holder = ANN_NOW if consumer == ANN else BOB_NOW
    assert subscription.ready(consumer, lease.delivery_id, None, holder, 0.0) == Effects(decided=records)
    return lease.delivery_id


def test_it_is_registered_with_the_settings_of_leases() -> None:
    kind = exactly_once.linn_register_semantics()
    assert (kind.name, kind.settings) == ("exactly-once", LeaseSettings)
    made = kind.make(LeaseSettings(lease_ms=7_000))
    assert isinstance(made, ExactlyOnce)
    lease = SharedSubscription(made, 3).acquire(ANN, 1, END, 0.0)
    assert lease is not None
    assert (lease.first, lease.deadline) == (3, 7.0)


def test_what_was_decided_waits_for_its_holder_however_long_it_takes() -> None:
    subscription = make(max_deliveries=1)
    delivery_id = decided(subscription)
    assert subscription.next_deadline() is None
    assert subscription.expire(1e9) == Effects()
    assert subscription.consumer_gone(ANN, 1e9) == Effects()
    assert subscription.dead_letter(0, 5, DeadReason.EXPIRED) == Effects()
    assert subscription.purge(5) == Effects()
    assert subscription.settled_before() == 0
    assert subscription.done("ann", delivery_id, 0, 5) == Effects(settled=5)


def test_records_that_were_decided_are_settled_with_done_alone() -> None:
    subscription = make()
    delivery_id = decided(subscription)
    with pytest.raises(SubscriptionWrongKind):
        subscription.ack(ANN, delivery_id, None, 0.0)
    for refused in (subscription.nack, subscription.reject):
        with pytest.raises(DeliveryNotCurrent):
            refused(ANN, delivery_id, None, 0.0)
    with pytest.raises(DeliveryNotCurrent):
        subscription.ready(ANN, delivery_id, None, ANN_NOW, 0.0)
    assert subscription.decided_count == 5


def test_at_least_once_takes_no_ready() -> None:
    subscription = SharedSubscription(AtLeastOnce(LeaseSettings()), 0)
    lease = subscription.acquire(ANN, 1, END, 0.0)
    assert lease is not None
    with pytest.raises(SubscriptionWrongKind):
        subscription.ready(ANN, lease.delivery_id, None, ANN_NOW, 0.0)
    assert subscription.decided_count == 0


def test_done_settles_what_its_holder_has_of_a_range_and_nothing_else() -> None:
    subscription = make()
    anns, bobs = decided(subscription, 2), decided(subscription, 2, BOB)
    again = decided(subscription, 2)
    assert subscription.done("ann", anns, 0, 6) == Effects(settled=2)
    assert subscription.settled_before() == 2
    for holder, delivery_id in (("ann", anns), ("ann", bobs), ("bob", again), ("", anns)):
        with pytest.raises(DeliveryNotCurrent):
            subscription.done(holder, delivery_id, 0, 6)
    for first, end in ((2, 2), (4, 2), (-1, -1)):
        with pytest.raises(DeliveryNotCurrent):
            subscription.done("bob", bobs, first, end)
    assert subscription.done("bob", bobs, 3, 4) == Effects(settled=1)
    assert [(it.first, it.end) for it in subscription.decided()] == [(2, 3), (4, 6)]


def test_a_part_of_a_lease_is_decided_and_the_rest_may_be_returned() -> None:
    subscription = make()
    lease = subscription.acquire(ANN, 5, END, 0.0)
    assert lease is not None
    assert subscription.ready(ANN, lease.delivery_id, [(0, 2)], ANN_NOW, 0.0) == Effects(decided=2)
    assert subscription.nack(ANN, lease.delivery_id, None, 0.0) == Effects(ready=3)
    assert [(it.first, it.end) for it in subscription.decided_to("ann")] == [(0, 2)]
    assert subscription.decided_to("bob") == []


def test_resolve_ends_a_lease_that_was_not_decided() -> None:
    subscription = make()
    lease = subscription.acquire(ANN, 5, END, 0.0)
    assert lease is not None
    assert subscription.resolve(BOB, "bob", lease.delivery_id, 0, 5, 1.0) == Effects(), "it is another's"
    assert subscription.leased_count == 5
    assert subscription.resolve(ANN, "ann", lease.delivery_id, 0, 5, 1.0) == Effects(ready=5)
    with pytest.raises(DeliveryNotCurrent):
        subscription.ready(ANN, lease.delivery_id, None, ANN_NOW, 1.0)
    delivery_id = decided(subscription)
    assert subscription.resolve(ANN, "ann", delivery_id, 0, 5, 1.0) is None
    assert subscription.resolve(ANN, "bob", delivery_id, 0, 5, 1.0) == Effects()
    assert subscription.decided_count == 5


def test_resolve_answers_for_the_named_part_of_a_delivery_and_leaves_the_others() -> None:
    subscription = make()
    lease = subscription.acquire(ANN, 9, END, 0.0)
    assert lease is not None
    subscription.ready(ANN, lease.delivery_id, [(0, 3)], ANN_NOW, 0.0)
    assert subscription.resolve(ANN, "ann", lease.delivery_id, 0, 3, 1.0) is None
    assert subscription.resolve(ANN, "ann", lease.delivery_id, 3, 6, 1.0) == Effects(ready=3)
    assert subscription.resolve(ANN, "ann", lease.delivery_id, 3, 6, 1.0) == Effects(), "it is aborted already"
    for nothing in ((6, 6), (8, 6), (-1, -1)):
        assert subscription.resolve(ANN, "ann", lease.delivery_id, *nothing, 1.0) == Effects()
    assert subscription.leased_count == 3
    assert subscription.ready(ANN, lease.delivery_id, [(6, 9)], ANN_NOW, 1.0) == Effects(decided=3)
    assert subscription.give_up_decided("ann", lease.delivery_id, 6, 8, 1.0) == Effects(ready=2)
    assert subscription.resolve(ANN, "ann", lease.delivery_id, 6, 9, 1.0) is None, "the decision was made"


def test_an_operator_gives_decided_records_to_others_or_to_nobody() -> None:
    subscription = make(max_deliveries=2)
    delivery_id = decided(subscription, 6)
    with pytest.raises(DeliveryNotCurrent):
        subscription.give_up_decided("ann", delivery_id, 0, 7, 0.0)
    with pytest.raises(DeliveryNotCurrent):
        subscription.reject_decided("bob", delivery_id, 0, 6)
    assert subscription.give_up_decided("ann", delivery_id, 0, 2, 0.0) == Effects(ready=2)
    assert subscription.reject_decided("ann", delivery_id, 4, 6) == Effects(dead=2)
    lease = subscription.acquire(BOB, 9, 6, 0.0)
    assert lease is not None
    assert (lease.first, lease.end, lease.attempt) == (0, 2, 2)
    subscription.ready(BOB, lease.delivery_id, None, BOB_NOW, 0.0)
    assert subscription.give_up_decided("bob", lease.delivery_id, 0, 2, 0.0) == Effects(dead=2), "the last attempt"
    assert subscription.done("ann", delivery_id, 2, 4) == Effects(settled=2)


def test_the_loss_of_the_logs_head_takes_what_was_decided_with_it() -> None:
    subscription = make()
    delivery_id = decided(subscription)
    assert subscription.skip_to(3) == 3
    assert [(it.first, it.end) for it in subscription.decided()] == [(3, 5)]
    assert subscription.done("ann", delivery_id, 0, 5) == Effects(settled=2)


def test_decisions_are_kept_over_restarts_with_the_time_at_which_they_were_made() -> None:
    subscription = make()
    delivery_id = decided(subscription, 2)
    log = [encode_events(subscription.take_events())]
    later = Holder("ann", 9_000)
    lease = subscription.acquire(ANN, 2, END, 0.0)
    assert lease is not None
    subscription.ready(ANN, lease.delivery_id, None, later, 0.0)
    log.append(encode_events(subscription.take_events()))
    for rows in (log, [encode_events(subscription.snapshot_events())]):
        after = make()
        for row in rows:
            for event in decode_events(row):
                after.apply(event)
        assert after.recovered(0.0) == Effects()
        found = [(*it[:2], it.decision.holder, it.decision.delivery_id) for it in after.decided()]
        assert found == [(0, 2, ANN_NOW, delivery_id), (2, 4, later, lease.delivery_id)]
        fresh = after.acquire(BOB, 1, END, 0.0)
        assert fresh is not None
        assert fresh.first == 4
        assert fresh.delivery_id > lease.delivery_id


def test_too_many_decisions_that_are_not_done_are_refused_whole() -> None:
    subscription = make()
    for offset in range(DECIDED_RANGES_MAX - 1):
        subscription.apply(Decided(2 * offset, 2 * offset + 1, 1, offset + 1, ANN_NOW))
    lease = subscription.acquire_from(2 * DECIDED_RANGES_MAX, BOB, 5, END, 0.0)
    assert lease is not None
    first = lease.first
    subscription.take_events()
    with pytest.raises(LimitExceeded):
        subscription.ready(BOB, lease.delivery_id, [(first, first + 1), (first + 2, first + 3)], BOB_NOW, 0.0)
    assert subscription.take_events() == []
    subscription.reject(BOB, lease.delivery_id, [(first + 1, first + 2)], 0.0)
    with pytest.raises(LimitExceeded):
        subscription.ready(BOB, lease.delivery_id, None, BOB_NOW, 0.0)
    assert subscription.ready(BOB, lease.delivery_id, [(first + 2, first + 5)], BOB_NOW, 0.0) == Effects(decided=3)
    subscription.done("ann", 1, 0, 1)
    assert subscription.ready(BOB, lease.delivery_id, None, BOB_NOW, 0.0) == Effects(decided=1)
