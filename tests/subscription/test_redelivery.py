"""Delays between attempts."""

from __future__ import annotations

import pytest

from linn.core.queue import redelivery
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.redelivery import ReturnedRecords


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
