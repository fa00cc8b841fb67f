"""The lease of a session: when it is renewed, and how old the last sign of it is."""

from __future__ import annotations

import pytest

from linn.core.cluster.session import SessionLease

TTL_S = 6.0


@pytest.fixture
def lease() -> SessionLease:
    """Asked for at 100 s."""
    return SessionLease(7, TTL_S, 100.0)


def test_it_is_renewed_three_times_in_its_time(lease: SessionLease) -> None:
    assert lease.wait_s(100.0) == 2
    assert lease.wait_s(101.5) == 0.5
    assert lease.wait_s(107.0) == 0
    lease.renewed(102.0)
    assert lease.wait_s(102.5) == 1.5


def test_its_age_counts_from_when_the_renewal_was_sent(lease: SessionLease) -> None:
    assert lease.age_s(103.0) == 3
    lease.renewed(102.0)  # Answered at 103.
    assert lease.age_s(103.0) == 1
    assert not lease.is_expired(107.9)
    assert lease.is_expired(108.0)


def test_an_answer_to_an_earlier_renewal_makes_it_no_younger(lease: SessionLease) -> None:
    lease.renewed(104.0)
    lease.renewed(102.0)
    assert lease.age_s(105.0) == 1


def test_after_a_failure_the_next_renewal_comes_sooner_and_the_age_goes_on(lease: SessionLease) -> None:
    lease.failed(102.0)
    assert lease.wait_s(102.0) == 0.5
    assert lease.age_s(105.0) == 5


def test_what_the_store_has_ended_is_expired_at_once_and_for_good(lease: SessionLease) -> None:
    lease.lost()
    assert lease.is_expired(100.0)
    lease.renewed(101.0)
    assert lease.is_expired(101.0)
