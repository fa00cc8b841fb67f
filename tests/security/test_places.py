"""Places of connections: who gets one, who loses his to another, and that all are given back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.connections.places import YOUNG_S, Places
from linn.core.env.env import AcceptedStream
from linn.core.errors.tree import BrokerFull
from linn.core.security.machine import machine_of

pytestmark = pytest.mark.quick


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class From:
    """The end of a connection from this machine."""

    def __init__(self, machine: str) -> None:
        self.peer = f"{machine}:1"


def streams(machine: str, count: int) -> Iterator[AcceptedStream]:
    return (cast(AcceptedStream, From(machine)) for _ in range(count))


def one(machine: str) -> AcceptedStream:
    return next(streams(machine, 1))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("peer", "machine"),
    [
        ("192.0.2.7:4711", "192.0.2.7"),
        ("[::ffff:192.0.2.7]:4711", "192.0.2.7"),
        ("[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::1]:4711", "2001:db8:1:2::/64"),
        ("[2001:db8:1:3::1]:4711", "2001:db8:1:3::/64"),
        ("127.0.0.1:4711", ""),
        ("[::1]:4711", ""),
        ("[::ffff:127.0.0.1]:4711", ""),
        ("unix:/run/linn.sock", ""),
        ("client:3", "client"),
    ],
)
def test_a_machine_has_one_name_whatever_address_it_uses(peer: str, machine: str) -> None:
    assert machine_of(peer) == machine


def test_an_address_has_its_limit_and_this_machine_none(clock: Clock) -> None:
    places = Places(10, 2, 10, clock)
    first = one("192.0.2.7")
    places.take(first)
    places.take(one("192.0.2.7"))
    with pytest.raises(BrokerFull, match=r"192\.0\.2\.7 has 2 connections, as many as address_connections_max allows"):
        places.take(one("192.0.2.7"))
    for stream in (*streams("192.0.2.8", 2), *streams("127.0.0.1", 5)):
        places.take(stream)
    places.leave(first)
    places.take(one("192.0.2.7"))


def test_who_takes_all_places_loses_them_to_others(clock: Clock) -> None:
    places = Places(100, 100, 5, clock)
    hogs = list(streams("192.0.2.7", 5))
    for hog in hogs:
        assert places.take(hog) is None
    assert places.take(one("192.0.2.8")) is hogs[0]
    assert places.take(one("192.0.2.9")) is hogs[1]
    assert (places.count, places.waiting_count) == (5, 5)


def test_clients_that_come_back_together_do_not_end_each_other(clock: Clock) -> None:
    places = Places(100, 100, 3, clock)
    first = list(streams("192.0.2.7", 3))
    for stream in first:
        places.take(stream)
    with pytest.raises(BrokerFull, match="3 connections did not log in yet, as many as handshakes_max allows"):
        places.take(one("192.0.2.7"))
    clock.now_s += YOUNG_S
    assert places.take(one("192.0.2.7")) is first[0]


def test_the_slowest_of_all_makes_way_where_no_machine_has_more(clock: Clock) -> None:
    places = Places(100, 100, 3, clock)
    slow = one("192.0.2.6")
    places.take(slow)
    clock.now_s += YOUNG_S
    for stream in streams("192.0.2.7", 2):
        places.take(stream)
    assert places.take(one("192.0.2.7")) is slow


def test_only_waiting_connections_make_way(clock: Clock) -> None:
    places = Places(2, 2, 2, clock)
    known, other = one("192.0.2.7"), one("192.0.2.7")
    places.take(known)
    places.end_waiting(known)
    places.take(other)
    clock.now_s += 60
    assert places.take(one("192.0.2.8")) is other
    places.begin_waiting(other)  # Its task does not know yet.
    assert (places.count, places.waiting_count) == (2, 1)
    clock.now_s += 60
    places.begin_waiting(known)
    assert places.take(one("192.0.2.8")) is not known, "it has waited for longer"
    places.end_waiting(known)
    with pytest.raises(BrokerFull, match="as many as connections_max allows"):
        places.take(one("192.0.2.9"))


@given(st.lists(st.tuples(st.sampled_from(["take", "wait", "serve", "leave"]), st.integers(0, 9), st.floats(0, 2))))
def test_no_place_is_lost_and_none_is_given_twice(steps: list[tuple[str, int, float]]) -> None:
    clock = Clock()
    places, there, waiting = Places(6, 3, 4, clock), list[AcceptedStream](), set[AcceptedStream]()
    for step, number, wait_s in steps:
        clock.now_s += wait_s
        if step == "take":
            new = one(f"192.0.2.{number % 4}")
            try:
                loser = places.take(new)
            except BrokerFull:
                continue
            if loser is not None:
                assert loser in waiting
                there.remove(loser)
                waiting.discard(loser)
            there.append(new)
            waiting.add(new)
        elif there:
            stream = there[number % len(there)]
            if step == "leave":
                places.leave(stream)
                there.remove(stream)
                waiting.discard(stream)
            elif step == "serve":
                places.end_waiting(stream)
                waiting.discard(stream)
            else:
                places.begin_waiting(stream)
                waiting.add(stream)
        assert (places.count, places.waiting_count) == (len(there), len(waiting))
        assert places.count <= 6
    for stream in there:
        places.leave(stream)
    assert (places.count, places.waiting_count) == (0, 0)
