"""The two built-in semantics, through the hook that registers them."""

from __future__ import annotations

import pytest

from linn.core.errors.tree import DeliveryNotCurrent
from linn.core.queue.effects import Effects
from linn.core.queue.event import decode_events, encode_events
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.semantics import ConfirmWhen
from linn.core.queue.subscription import SharedSubscription
from linn.semantics import at_least_once, at_most_once

END = 1_000
ANN, BOB = 1, 2
LEASES = LeaseSettings(lease_ms=5_000, max_deliveries=3)


def semantics(plugin):
    kind = plugin.linn_register_semantics()
    return kind.make(LEASES if kind.settings is LeaseSettings else None)


@pytest.mark.parametrize("plugin", [at_least_once, at_most_once])
def test_a_confirmation_has_the_requested_meaning(plugin):
    confirm_when = semantics(plugin).confirm_when
    assert [confirm_when(acks) for acks in ("none", "leader", "all")] == list(ConfirmWhen)


def test_at_least_once_leases_with_the_settings_of_its_topic():
    subscription = SharedSubscription(semantics(at_least_once), 10)
    lease = subscription.acquire(ANN, 5, END, 0.0)
    assert (lease.first, lease.deadline, subscription.leased_count) == (10, 5.0, 5)


def test_at_most_once_settles_what_it_hands_over_and_never_gives_it_again():
    subscription = SharedSubscription(semantics(at_most_once), 0)
    lease = subscription.acquire(ANN, 5, END, 0.0)
    assert (lease.first, lease.end) == (0, 5)
    assert (subscription.settled_before(), subscription.leased_count) == (5, 0)
    assert subscription.consumer_gone(ANN, 1.0) == Effects()
    assert subscription.next_deadline() is None
    assert subscription.acquire(BOB, 5, END, 1.0).first == 5


def test_at_most_once_hands_nothing_over_again_after_a_restart():
    before = SharedSubscription(semantics(at_most_once), 0)
    before.acquire(ANN, 5, END, 0.0)
    after = SharedSubscription(semantics(at_most_once), 0)
    for event in decode_events(encode_events(before.take_events())):
        after.apply(event)
    assert after.recovered(0.0) == Effects()
    assert after.acquire(ANN, 5, END, 0.0).first == 5


def test_at_most_once_takes_any_ack_and_refuses_to_promise_a_redelivery():
    subscription = SharedSubscription(semantics(at_most_once), 0)
    delivery_id = subscription.acquire(ANN, 5, END, 0.0).delivery_id
    subscription.take_events()
    assert subscription.ack(ANN, delivery_id, None, 0.0) == Effects()
    assert subscription.ack(BOB, 10**9, [(0, 99)], 0.0) == Effects()
    for refused in (subscription.nack, subscription.reject):
        with pytest.raises(DeliveryNotCurrent):
            refused(ANN, delivery_id, None, 0.0)
    with pytest.raises(DeliveryNotCurrent):
        subscription.extend(ANN, delivery_id, None, 1_000, 0.0)
    assert subscription.take_events() == []
    assert subscription.settled_before() == 5
