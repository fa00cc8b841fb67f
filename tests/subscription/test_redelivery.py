"""Delays between attempts."""

from __future__ import annotations

import pytest

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
    returned.add(0, 5, attempts=1, delay_ms=2_000, now=0.0)
    returned.add(5, 9, attempts=1, delay_ms=1_000, now=0.0)
    assert returned.next_ready_at() == 1.0
    assert returned.promote(0.999) == []
    assert returned.promote(1.0) == [(5, 9)]
    assert list(returned.ready) == [(5, 9, 1)]
    assert returned.next_ready_at() == 2.0


def test_dropped_records_leave_no_deadline_behind():
    returned = ReturnedRecords()
    returned.add(0, 5, attempts=1, delay_ms=1_000, now=0.0)
    assert returned.drop(0, 3) == [(0, 3, 1)]
    assert returned.next_ready_at() == 1.0
    assert returned.drop(0, 9) == [(3, 5, 1)]
    assert returned.next_ready_at() is None


def test_dropping_keeps_the_next_deadline_of_what_is_left():
    returned = ReturnedRecords()
    for first, delay_ms in ((0, 3_000), (1, 2_000), (2, 4_000), (3, 1_000)):
        returned.add(first, first + 1, attempts=1, delay_ms=delay_ms, now=0.0)
    returned.drop(3, 4)
    assert returned.next_ready_at() == 2.0
    assert returned.promote(2.0) == [(1, 2)]
    assert returned.next_ready_at() == 3.0
