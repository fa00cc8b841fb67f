"""Delays between attempts."""

from __future__ import annotations

import pytest

from linn.core.queue import redelivery
from linn.core.queue.effects import Effects
from linn.core.queue.event import Returned, decode_events, encode_events
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.redelivery import ReturnedRecords, spread
from linn.core.queue.subscription import SharedSubscription
from linn.semantics.at_least_once import AtLeastOnce

ANN, END = 1, 2_000


@pytest.mark.parametrize(
    ("backoff", "delays_ms"),
    [
        ("fixed", [100, 100, 100, 100, 100]),
        ("linear", [100, 200, 300, 400, 450]),
        ("exponential", [100, 200, 400, 450, 450]),
    ],
)
def test_delay_grows_as_the_backoff_says_up_to_the_cap(backoff, delays_ms):
    settings = LeaseSettings(redelivery_delay_ms=100, redelivery_delay_max_ms=450, redelivery_backoff=backoff)
    assert [settings.redelivery_ms(attempts) for attempts in range(1, 6)] == delays_ms


def test_an_exponential_delay_stays_at_the_cap_after_any_number_of_attempts():
    settings = LeaseSettings(redelivery_delay_ms=1, redelivery_backoff="exponential")
    assert settings.redelivery_ms(10**9) == settings.redelivery_delay_max_ms


def test_records_become_ready_when_their_own_delay_has_passed():
    returned = ReturnedRecords()
    returned.add(0, 5, attempts=1, ready_ms=2_000)
    returned.add(5, 9, attempts=1, ready_ms=1_000)
    assert returned.next_ready_at() == 1.0
    assert returned.promote(0.999) == []
    assert returned.promote(1.0) == [(5, 9, 1)]
    assert list(returned.ready) == [(5, 9, 1)]
    assert returned.next_ready_at() == 2.0


def test_dropped_records_leave_no_deadline_behind():
    returned = ReturnedRecords()
    returned.add(0, 5, attempts=1, ready_ms=1_000)
    assert returned.drop(0, 3) == [(0, 3, 1)]
    assert returned.next_ready_at() == 1.0
    assert returned.drop(0, 9) == [(3, 5, 1)]
    assert returned.next_ready_at() is None


def test_dropping_changes_nothing_for_what_is_left():
    returned = ReturnedRecords()
    for first, ready_ms in ((0, 3_000), (1, 2_000), (2, 4_000), (3, 1_000)):
        returned.add(first, first + 1, attempts=1, ready_ms=ready_ms)
    assert returned.next_ready_at() == 1.0
    returned.drop(3, 4)
    assert returned.promote(2.0) == [(1, 2, 1)]
    assert returned.next_ready_at() == 3.0


def test_times_of_dropped_records_do_not_pile_up():
    returned = ReturnedRecords()
    assert returned.next_ready_at() is None
    for first in range(1_000):
        returned.add(first, first + 1, attempts=1, ready_ms=5_000 + first)
        assert returned.next_ready_at() is not None
        returned.drop(first - 1, first)
    assert len(returned._heap()) < 100


def test_very_many_delays_that_pass_at_once_end_in_steps(monkeypatch):
    monkeypatch.setattr(redelivery, "PROMOTED_AT_ONCE", 3)
    returned = ReturnedRecords()
    returned.add_rows([(first, first + 1, 1, 1_000 - first) for first in range(0, 10, 2)])
    steps = [returned.promote(2.0) for _ in range(3)]
    assert steps == [[(4, 5, 1), (6, 7, 1), (8, 9, 1)], [(0, 1, 1), (2, 3, 1)], []]
    assert [first for first, _, _ in returned.ready] == [0, 2, 4, 6, 8]


def salted(salt: int | None) -> SharedSubscription:
    """A subscription whose delays of a second have jitter."""
    made = SharedSubscription(AtLeastOnce(LeaseSettings(lease_ms=10_000, redelivery_delay_ms=1_000)), 0)
    made.salt = salt
    return made


def ready_times(subscription: SharedSubscription) -> list[int]:
    return [event.ready_ms for event in subscription.take_events() if isinstance(event, Returned)]


def fail_one_by_one(subscription: SharedSubscription, records: int) -> list[int]:
    """Lease records and return each by itself in the same moment; gives the times when they are ready."""
    for _ in range(records):
        lease = subscription.acquire(ANN, 1, END, 0.0)
        assert lease is not None
        assert subscription.nack(ANN, lease.delivery_id, None, 0.0) == Effects(delayed=1)
    return ready_times(subscription)


def test_a_thousand_records_that_fail_at_once_come_back_over_a_tenth_of_their_delay() -> None:
    times = fail_one_by_one(salted(7), 1_000)
    assert len(times) == 1_000
    assert min(times) >= 1_000, "none is early"
    assert max(times) < 1_100
    busiest = max(times.count(ms) for ms in range(1_000, 1_100))
    assert busiest < 3 * len(times) / 100, "evenly"


def test_a_lease_that_ends_with_many_records_comes_back_in_parts_and_in_order() -> None:
    subscription = salted(7)
    assert subscription.acquire(ANN, 1_000, END, 0.0) is not None
    assert subscription.consumer_gone(ANN, 0.0, is_lost=True) == Effects(delayed=1_000)
    rows = [event for event in subscription.take_events() if isinstance(event, Returned)]
    assert len(rows) == redelivery.JITTER_PARTS_MAX
    assert [row.first for row in rows] == [0, *[row.end for row in rows[:-1]]]
    assert rows[-1].end == 1_000
    times = [row.ready_ms for row in rows]
    assert times == sorted(times)
    assert 1_000 <= times[0] < times[-1] < 1_100


def test_a_delay_that_a_consumer_asks_for_is_exact() -> None:
    subscription = salted(7)
    for _ in range(100):
        lease = subscription.acquire(ANN, 1, END, 0.0)
        assert lease is not None
        subscription.nack(ANN, lease.delivery_id, None, 0.0, 300)
    assert ready_times(subscription) == [300] * 100


def test_partitions_and_attempts_have_jitters_of_their_own() -> None:
    first, other = fail_one_by_one(salted(7), 10), fail_one_by_one(salted(8_000_001), 10)
    assert first != other
    assert first == fail_one_by_one(salted(7), 10), "the same events make the same state"
    rows = [spread([(5, 6)], attempts, 1_000, 100, 7_777) for attempts in (1, 2, 3)]
    assert len({row[0][3] for row in rows}) == 3


def test_a_delay_too_short_for_a_jitter_has_none() -> None:
    assert spread([(0, 9), (20, 21)], 1, 1_009, 0, 7) == [(0, 9, 1, 1_009), (20, 21, 1, 1_009)]


def test_a_restart_knows_the_times_of_a_jitter_and_draws_none_again() -> None:
    before = salted(7)
    lease = before.acquire(ANN, 100, END, 0.0)
    assert lease is not None
    before.nack(ANN, lease.delivery_id, None, 0.0)
    log = encode_events(before.take_events())
    after = salted(99)
    for event in decode_events(log):
        after.apply(event)
    after.recovered(0.5)
    assert after.next_deadline() == before.next_deadline()
    after.take_events(), before.take_events()
    rows = [list(each._states.returned.delayed) for each in (before, after)]
    assert rows[0] == rows[1]
