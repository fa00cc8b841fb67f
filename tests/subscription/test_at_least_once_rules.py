"""Each rule of at-least-once delivery, by itself."""

from __future__ import annotations

from functools import partial

import pytest

from linn.core.errors.tree import DeliveryNotCurrent, LimitExceeded
from linn.core.queue.dead_letter import DeadReason, Intent
from linn.core.queue.effects import Effects
from linn.core.queue.lease import LEASE_MS_MAX, STALE_DEADLINES_MIN, LeaseSettings
from linn.core.queue.subscription import SharedSubscription
from linn.semantics.at_least_once import AtLeastOnce

END = 1_000
ANN, BOB = 1, 2


def make(start: int = 0, **settings: object) -> SharedSubscription:
    return SharedSubscription(AtLeastOnce(LeaseSettings(lease_ms=10_000, **settings)), start)


def span(lease) -> tuple[int, int, int]:
    return (lease.first, lease.end, lease.attempt)


def test_consumers_get_the_lowest_records_and_never_the_same():
    subscription = make(start=7)
    assert span(subscription.acquire(ANN, 10, END, 0.0)) == (7, 17, 1)
    assert span(subscription.acquire(BOB, 10, END, 0.0)) == (17, 27, 1)
    assert subscription.leased_count == 20
    assert subscription.ready_count(END) == END - 27


def test_nothing_beyond_the_high_watermark_is_delivered():
    subscription = make()
    assert subscription.acquire(ANN, 10, 0, 0.0) is None
    assert span(subscription.acquire(ANN, 10, 4, 0.0)) == (0, 4, 1)
    assert subscription.acquire(ANN, 10, 4, 0.0) is None


def test_an_ack_moves_the_low_watermark_over_records_settled_earlier():
    subscription = make()
    first, second = subscription.acquire(ANN, 10, END, 0.0), subscription.acquire(BOB, 10, END, 0.0)
    assert subscription.ack(BOB, second.delivery_id, None, 1.0) == Effects(settled=10)
    assert (subscription.settled_before(), subscription.settled) == (0, [(10, 20)])
    subscription.ack(ANN, first.delivery_id, None, 1.0)
    assert (subscription.settled_before(), subscription.settled) == (20, [])


def test_a_part_of_a_lease_is_settled_and_the_rest_stays_leased():
    subscription = make()
    lease = subscription.acquire(ANN, 10, END, 0.0)
    assert subscription.ack(ANN, lease.delivery_id, [(6, 8), (2, 3)], 1.0) == Effects(settled=3)
    assert subscription.settled == [(2, 3), (6, 8)]
    assert subscription.consumer_gone(ANN, 2.0) == Effects(ready=7)
    assert [span(subscription.acquire(BOB, 9, END, 2.0)) for _ in range(3)] == [(0, 2, 2), (3, 6, 2), (8, 10, 2)]


def test_an_empty_list_of_ranges_settles_nothing_but_must_name_a_current_delivery():
    subscription = make()
    lease = subscription.acquire(ANN, 10, END, 0.0)
    assert subscription.ack(ANN, lease.delivery_id, [], 1.0) == Effects()
    with pytest.raises(DeliveryNotCurrent):
        subscription.ack(BOB, lease.delivery_id, [], 1.0)


def test_a_returned_record_goes_back_to_its_place_and_counts_its_attempts():
    subscription = make()
    lease = subscription.acquire(ANN, 2, END, 0.0)
    subscription.acquire(BOB, 2, END, 0.0)
    assert subscription.nack(ANN, lease.delivery_id, None, 1.0) == Effects(ready=2)
    assert span(subscription.acquire(BOB, 5, END, 1.0)) == (0, 2, 2)
    assert span(subscription.acquire(BOB, 5, END, 1.0)) == (4, 9, 1)


NOT_CURRENT = ["forged", "other consumer", "settled", "returned", "expired"]
NOT_HELD = {"outside": [(3, 5), (9, 11)], "twice": [(3, 5), (4, 6)], "empty": [(3, 5), (6, 6)]}
REFUSALS = [(how, why) for how in ("ack", "nack", "reject") for why in (*NOT_CURRENT, *NOT_HELD)]
REFUSALS += [("extend", why) for why in NOT_CURRENT]


@pytest.mark.parametrize(("how", "why"), REFUSALS)
def test_a_delivery_that_is_not_current_is_refused_and_changes_nothing(how, why):
    subscription = make()
    lease = subscription.acquire(ANN, 10, END, 0.0)
    other = subscription.acquire(BOB, 10, END, 0.0)
    consumer = BOB if why == "other consumer" else ANN
    delivery_id = 10**6 if why == "forged" else lease.delivery_id
    now = 10.0 if why == "expired" else 1.0
    if why == "settled":
        subscription.ack(ANN, delivery_id, None, 0.5)
    elif why == "returned":
        subscription.nack(ANN, delivery_id, None, 0.5)
    subscription.take_events()
    before = subscription.statistics(), subscription.snapshot_events()
    request = partial(getattr(subscription, how), consumer, delivery_id, NOT_HELD.get(why))
    with pytest.raises(DeliveryNotCurrent) as refused:
        request(*([1_000] if how == "extend" else []), now)
    assert str(delivery_id) in refused.value.text
    assert (subscription.statistics(), subscription.snapshot_events()) == before
    assert subscription.take_events() == []
    subscription.ack(BOB, other.delivery_id, None, 1.0)


def test_the_old_delivery_id_is_dead_once_the_record_is_delivered_again():
    subscription = make()
    old = subscription.acquire(ANN, 1, END, 0.0)
    subscription.expire(10.0)
    new = subscription.acquire(ANN, 1, END, 10.0)
    with pytest.raises(DeliveryNotCurrent):
        subscription.ack(ANN, old.delivery_id, None, 11.0)
    assert subscription.ack(ANN, new.delivery_id, None, 11.0) == Effects(settled=1)


def test_a_lease_returns_at_its_deadline_and_not_before():
    subscription = make()
    subscription.acquire(ANN, 3, END, 0.0)
    assert subscription.next_deadline() == 10.0
    assert subscription.expire(9.999) == Effects()
    assert subscription.expire(10.0) == Effects(ready=3)
    assert subscription.next_deadline() is None


def test_an_extended_lease_lives_as_long_as_it_was_extended():
    subscription = make()
    lease = subscription.acquire(ANN, 3, END, 0.0)
    assert subscription.extend(ANN, lease.delivery_id, [(0, 1)], 60_000, 9.0) == 69.0
    assert subscription.next_deadline() == 69.0
    assert subscription.expire(68.0) == Effects()
    assert subscription.ack(ANN, lease.delivery_id, None, 68.0) == Effects(settled=3)


@pytest.mark.parametrize("named", [(-(1 << 63), 3), (0, 4), (2, 2), (3, 1)])
def test_a_lease_is_extended_by_naming_its_own_records_only(named):
    subscription = make()
    lease = subscription.acquire(ANN, 3, END, 0.0)
    with pytest.raises(DeliveryNotCurrent):
        subscription.extend(ANN, lease.delivery_id, [named], 60_000, 1.0)
    assert subscription.next_deadline() == 10.0
    subscription.ack(ANN, lease.delivery_id, [(0, 1)], 1.0)
    assert subscription.extend(ANN, lease.delivery_id, [(0, 3)], 60_000, 1.0) == 61.0, "settled records do not matter"


@pytest.mark.parametrize("lease_ms", [0, -1, LEASE_MS_MAX + 1, 2**63])
def test_a_lease_is_not_extended_beyond_its_limits(lease_ms):
    subscription = make()
    lease = subscription.acquire(ANN, 3, END, 0.0)
    with pytest.raises(LimitExceeded):
        subscription.extend(ANN, lease.delivery_id, None, lease_ms, 1.0)
    assert subscription.next_deadline() == 10.0


@pytest.mark.parametrize("delay_ms", [-1, LEASE_MS_MAX + 1])
def test_a_delay_beyond_its_limits_is_refused_and_the_lease_stays(delay_ms):
    subscription = make()
    lease = subscription.acquire(ANN, 3, END, 0.0)
    with pytest.raises(LimitExceeded):
        subscription.nack(ANN, lease.delivery_id, None, 1.0, delay_ms)
    assert subscription.leased_count == 3


def test_nothing_waits_behind_one_slow_record():
    subscription = make(redelivery_delay_ms=5_000)
    slow = subscription.acquire(ANN, 1, END, 0.0)
    subscription.nack(ANN, slow.delivery_id, None, 0.0)
    held = subscription.acquire(BOB, 1, END, 0.0)
    assert span(subscription.acquire(ANN, 1, END, 1.0)) == (2, 3, 1)
    subscription.expire(5.0)
    assert span(subscription.acquire(ANN, 1, END, 5.0)) == (0, 1, 2)
    assert held.first == 1


def test_a_nack_may_name_its_own_delay():
    subscription = make(redelivery_delay_ms=5_000)
    lease = subscription.acquire(ANN, 4, END, 0.0)
    assert subscription.nack(ANN, lease.delivery_id, [(0, 2)], 0.0, delay_ms=1_000) == Effects(delayed=2)
    assert subscription.nack(ANN, lease.delivery_id, [(2, 4)], 0.0, delay_ms=0) == Effects(ready=2)
    assert subscription.next_deadline() == 1.0
    assert subscription.expire(1.0) == Effects(ready=2)
    assert span(subscription.acquire(ANN, 9, END, 1.0)) == (0, 4, 2)


def test_a_leaving_consumer_returns_all_its_leases_and_no_others():
    subscription = make()
    subscription.acquire(ANN, 3, END, 0.0)
    kept = subscription.acquire(BOB, 3, END, 0.0)
    subscription.acquire(ANN, 3, END, 0.0)
    assert subscription.consumer_gone(ANN, 1.0) == Effects(ready=6)
    assert subscription.consumer_gone(ANN, 1.0) == Effects()
    assert subscription.leased_count == 3
    subscription.ack(BOB, kept.delivery_id, None, 1.0)


def test_after_max_deliveries_a_record_is_dead_and_stays_unsettled_until_its_copy_is_made():
    subscription = make(max_deliveries=2)
    for attempt in (1, 2):
        lease = subscription.acquire(ANN, 3, END, 0.0)
        assert lease.attempt == attempt
        effects = subscription.nack(ANN, lease.delivery_id, None, 0.0)
    assert effects == Effects(dead=3)
    (dead,) = subscription.dead()
    assert (dead.first, dead.end, dead.attempts, dead.reason.label) == (0, 3, 2, "max_deliveries")
    assert span(subscription.acquire(ANN, 3, END, 0.0)) == (3, 6, 1)
    assert subscription.settled_before() == 0
    assert subscription.dead_lettered(0, 3) == Effects(settled=3)
    assert (subscription.settled_before(), subscription.dead()) == (3, [])


@pytest.mark.parametrize("end_of_lease", ["consumer_gone", "expire"])
def test_max_deliveries_counts_every_way_in_which_a_lease_ends(end_of_lease):
    subscription = make(max_deliveries=1)
    subscription.acquire(ANN, 3, END, 0.0)
    effects = subscription.consumer_gone(ANN, 10.0) if end_of_lease == "consumer_gone" else subscription.expire(10.0)
    assert effects == Effects(dead=3)


def test_a_rejected_record_is_dead_at_once():
    subscription = make()
    lease = subscription.acquire(ANN, 3, END, 0.0)
    assert subscription.reject(ANN, lease.delivery_id, [(1, 2)], 0.0) == Effects(dead=1)
    (dead,) = subscription.dead()
    assert (dead.first, dead.end, dead.reason) == (1, 2, DeadReason.REJECTED)


def test_waiting_records_can_be_dead_lettered_and_held_ones_stay():
    subscription = make()
    subscription.acquire(ANN, 3, END, 0.0)
    assert subscription.dead_letter(1, 6, DeadReason.EXPIRED) == Effects(dead=3)
    assert [(dead.first, dead.end, dead.attempts, dead.reason) for dead in subscription.dead()] == [
        (3, 6, 0, DeadReason.EXPIRED)
    ]
    assert subscription.dead_letter(10, 12, DeadReason.OVERFLOW) == Effects(dead=2)
    assert span(subscription.acquire(BOB, 9, END, 0.0)) == (6, 10, 1)
    assert span(subscription.acquire(BOB, 1, END, 0.0)) == (12, 13, 1)


def test_the_lowest_dead_are_given_without_those_above():
    subscription = make()
    lease = subscription.acquire(ANN, 9, END, 0.0)
    for first in (0, 2, 3, 6, 8):
        subscription.reject(ANN, lease.delivery_id, [(first, first + 1)], 0.0)
    subscription.intend(2, 3, Intent(1, 500))
    for records, ranges in ((1, 1), (2, 3), (3, 3), (4, 4), (99, 5)):
        assert subscription.lowest_dead(records) == subscription.dead()[:ranges], "touching records died as one range"
    assert make().lowest_dead(1) == []


def test_leases_may_be_returned_in_parts():
    subscription = make()
    leases = [subscription.acquire(ANN, 2, END, 0.0) for _ in range(3)]
    subscription.acquire(BOB, 1, END, 0.0)
    assert subscription.leases_of(ANN) == leases
    assert subscription.return_leases(leases[:2], 1.0) == Effects(ready=4)
    assert subscription.return_leases(leases[:2], 1.0) == Effects(), "they have ended"
    subscription.check()
    assert subscription.consumer_gone(ANN, 1.0) == Effects(ready=2)
    assert subscription.leased_count == 1


def test_an_intent_splits_the_dead_and_the_first_one_stays():
    subscription = make()
    lease = subscription.acquire(ANN, 9, END, 0.0)
    subscription.reject(ANN, lease.delivery_id, None, 0.0)
    subscription.intend(0, 4, Intent(1, 500))
    subscription.intend(2, 6, Intent(1, 700))
    expected = [(0, 4, Intent(1, 500)), (4, 6, Intent(1, 700)), (6, 9, None)]
    assert [(dead.first, dead.end, dead.intent) for dead in subscription.dead()] == expected


def test_purge_settles_waiting_records_and_leaves_leased_ones():
    subscription = make()
    held = subscription.acquire(ANN, 3, END, 0.0)
    returned = subscription.acquire(BOB, 3, END, 0.0)
    subscription.nack(BOB, returned.delivery_id, None, 0.0, delay_ms=1_000)
    assert subscription.purge(100) == Effects(settled=97)
    assert subscription.next_deadline() == held.deadline
    assert subscription.ack(ANN, held.delivery_id, None, 0.0) == Effects(settled=3)
    assert subscription.settled_before() == 100
    assert subscription.purge(50) == Effects()


def test_skipping_forgets_records_in_every_state_and_tells_how_many_were_lost():
    subscription = make()
    acked, held = subscription.acquire(ANN, 2, END, 0.0), subscription.acquire(ANN, 6, END, 0.0)
    subscription.ack(ANN, acked.delivery_id, None, 0.0)
    assert subscription.skip_to(4) == 2
    assert subscription.settled_before() == 4
    with pytest.raises(DeliveryNotCurrent):
        subscription.ack(ANN, held.delivery_id, [(2, 8)], 1.0)
    assert subscription.ack(ANN, held.delivery_id, None, 1.0) == Effects(settled=4)
    assert subscription.skip_to(50) == 42
    assert subscription.skip_to(20) == 0
    assert span(subscription.acquire(ANN, 1, END, 0.0)) == (50, 51, 1)


def test_traffic_in_whole_batches_keeps_no_trace_of_single_records():
    subscription = make()
    for step in range(2_000):
        now = step / 1_000
        lease = subscription.acquire(ANN, 1_000, 10**9, now)
        subscription.ack(ANN, lease.delivery_id, None, now)
    assert subscription.settled_before() == 2_000_000
    assert subscription.statistics().ranges == 0
    assert len(subscription.take_events()) == 2
    assert len(subscription._states.leases._deadlines) <= STALE_DEADLINES_MIN + 2


def test_interleaved_single_records_are_two_events():
    subscription = make()
    lease = subscription.acquire(ANN, 1, END, 0.0)
    for _ in range(200):
        following = subscription.acquire(ANN, 1, END, 0.0)
        subscription.ack(ANN, lease.delivery_id, None, 0.0)
        lease = following
    assert len(subscription.take_events()) == 2
