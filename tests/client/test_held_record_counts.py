"""The count of the records that a subscription holds: each counts once, under its lease or as decided."""

from __future__ import annotations

import random

import pytest

from linn.client.consume.held_records import HeldRecords
from linn.client.consume.settling import Delivery, PendingSettlement
from linn.wire.messages import Verdict

LEASED, DECIDED, GONE = "leased", "decided", "gone"


def _delivery(first: int, end: int, *, is_decided: bool = False, delivery_id: int = 1) -> Delivery:
    made = Delivery(0, delivery_id, 1, first, end)
    made.is_decided = is_decided
    return made


def _settling(delivery: Delivery, first: int, end: int, verdict: Verdict) -> PendingSettlement:
    return PendingSettlement(delivery, first, end, verdict, 0, lambda: None)


def test_the_end_of_a_lease_takes_nothing_of_what_was_decided() -> None:
    held, delivery = HeldRecords(), _delivery(0, 10)
    held.delivered(delivery)
    held.decided(delivery, 4)
    assert held.is_leased(delivery)
    held.lease_ended((0, 1))
    assert held.count == 4
    assert not held.is_leased(delivery)
    assert held.settled(_settling(delivery, 0, 4, Verdict.DONE)) == 4
    assert held.count == 0


def test_records_whose_lease_ended_before_the_decision_was_told_are_held_again() -> None:
    held, delivery = HeldRecords(), _delivery(0, 10)
    held.delivered(delivery)
    held.lease_ended((0, 1))
    held.decided(delivery, 4)
    assert held.count == 4


def test_a_decision_that_is_repeated_in_parts_is_held_as_a_whole() -> None:
    held = HeldRecords()
    parts = [_delivery(0, 4, is_decided=True), _delivery(4, 10, is_decided=True)]
    for part in parts:
        held.delivered(part)
    held.lease_ended((0, 1))
    assert held.count == 10
    assert [held.settled(_settling(part, part.first, part.end, Verdict.DONE)) for part in parts] == [4, 6]
    assert held.count == 0


@pytest.mark.parametrize("verdict", [Verdict.EXTEND, Verdict.READY])
def test_verdicts_that_settle_nothing_leave_the_count(verdict: Verdict) -> None:
    held, delivery = HeldRecords(), _delivery(0, 10)
    held.delivered(delivery)
    assert held.settled(_settling(delivery, 0, 10, verdict)) == 0
    assert held.count == 10


@pytest.mark.parametrize("seed", range(50))
def test_the_count_is_that_of_the_records_whatever_becomes_of_them(seed: int) -> None:
    rng = random.Random(seed)
    held, states = HeldRecords(), dict[int, str]()
    deliveries = [_delivery(10 * number, 10 * number + 10, delivery_id=number) for number in range(3)]
    for delivery in deliveries:
        held.delivered(delivery)
        states |= dict.fromkeys(range(delivery.first, delivery.end), LEASED)
    for _ in range(30):
        delivery = rng.choice(deliveries)
        first = rng.randrange(delivery.first, delivery.end)
        end = rng.randint(first + 1, delivery.end)
        inside, found = range(first, end), {states[offset] for offset in range(first, end)}
        rest = {states[offset] for offset in range(delivery.first, delivery.end)}
        match rng.choice(["decide", "abort", "ack", "done", "lease ends"]):
            case "decide" if found == {LEASED} or (found == {GONE} and LEASED not in rest):
                held.decided(delivery, end - first)
                states |= dict.fromkeys(inside, DECIDED)
            case "abort" if found == {LEASED}:
                held.aborted(delivery, end - first)
                states |= dict.fromkeys(inside, GONE)
            case "ack" if found == {LEASED}:
                assert held.settled(_settling(delivery, first, end, Verdict.NACK)) == end - first
                states |= dict.fromkeys(inside, GONE)
            case "done" if found == {DECIDED}:
                assert held.settled(_settling(delivery, first, end, Verdict.DONE)) == end - first
                states |= dict.fromkeys(inside, GONE)
            case "lease ends" if rng.random() < 0.2:
                held.lease_ended((0, delivery.delivery_id))
                mine = [at for at in range(delivery.first, delivery.end) if states[at] == LEASED]
                states |= dict.fromkeys(mine, GONE)
        assert held.count == sum([state != GONE for state in states.values()])
        for delivery in deliveries:
            mine = {states[offset] for offset in range(delivery.first, delivery.end)}
            assert held.is_leased(delivery) == (LEASED in mine)
