"""Places of connections: who gets one, who loses his to another, and that all are given back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.connections.connections import Connections
from linn.core.connections.listener_traffic import ListenerTraffic
from linn.core.connections.places import Places
from linn.core.env.env import AcceptedStream
from linn.core.env.real.rng import RealRng
from linn.core.errors.tree import BrokerFull, LinnError
from linn.core.security.machine import machine_of

pytestmark = pytest.mark.quick


class From:
    """The end of a connection from this machine."""

    def __init__(self, machine: str) -> None:
        self.peer = f"{machine}:1"


def streams(machine: str, count: int) -> Iterator[AcceptedStream]:
    return (cast(AcceptedStream, From(machine)) for _ in range(count))


def one(machine: str) -> AcceptedStream:
    return next(streams(machine, 1))


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


def test_an_address_has_its_limit_and_this_machine_none() -> None:
    places = Places(10, 2, 10)
    first = one("192.0.2.7")
    places.take(first)
    places.take(one("192.0.2.7"))
    with pytest.raises(BrokerFull, match=r"192\.0\.2\.7 has 2 connections, as many as address_connections_max allows"):
        places.take(one("192.0.2.7"))
    for stream in (*streams("192.0.2.8", 2), *streams("127.0.0.1", 5)):
        places.take(stream)
    places.leave(first)
    places.take(one("192.0.2.7"))


def test_who_takes_all_places_loses_them_to_others() -> None:
    places = Places(100, 100, 5)
    hogs = list(streams("192.0.2.7", 5))
    for hog in hogs:
        assert places.take(hog) is None
    assert places.take(one("192.0.2.8")) is hogs[0]
    assert places.take(one("192.0.2.9")) is hogs[1]
    assert places.take(one("192.0.2.7")) is hogs[2]
    assert (places.count, places.unknown_count) == (5, 5)


def test_clients_that_come_back_together_do_not_end_each_other() -> None:
    places = Places(100, 100, 3)
    first = list(streams("192.0.2.7", 3))
    for stream in first:
        places.take(stream)
        places.end_waiting(stream)  # Its handshake is being computed.
    with pytest.raises(BrokerFull, match="3 connections have not logged in yet, as many as handshakes_max allows"):
        places.take(one("192.0.2.8"))
    places.begin_waiting(first[1])
    assert places.take(one("192.0.2.7")) is first[1]


def test_known_connections_never_make_way() -> None:
    places = Places(2, 2, 2)
    known, other = one("192.0.2.7"), one("192.0.2.7")
    places.take(known)
    places.know(known)
    places.begin_waiting(known)
    places.take(other)
    new = one("192.0.2.8")
    assert places.take(new) is other
    places.begin_waiting(other)  # Its task has not heard of it.
    assert (places.count, places.unknown_count) == (2, 1)
    places.know(new)
    with pytest.raises(BrokerFull, match="2 connections, as many as connections_max allows"):
        places.take(one("192.0.2.9"))


def test_the_oldest_has_waited_longest_since_the_broker_last_worked_for_it() -> None:
    places = Places(2, 2, 2)
    first, second = streams("192.0.2.7", 2)
    places.take(first)
    places.take(second)
    places.end_waiting(first)
    places.begin_waiting(first)
    assert places.take(one("192.0.2.8")) is second


@given(st.lists(st.tuples(st.sampled_from(["take", "wait", "work", "know", "leave"]), st.integers(0, 9))))
def test_no_place_is_lost_and_none_is_given_twice(steps: list[tuple[str, int]]) -> None:
    places, there = Places(6, 3, 4), list[AcceptedStream]()
    unknown, waiting = set[AcceptedStream](), set[AcceptedStream]()
    for step, number in steps:
        if step == "take":
            new = one(f"192.0.2.{number % 4}")
            try:
                loser = places.take(new)
            except BrokerFull:
                continue
            if loser is not None:
                assert loser in waiting
                there.remove(loser)
                unknown.remove(loser)
                waiting.remove(loser)
            there.append(new)
            unknown.add(new)
            waiting.add(new)
        elif there:
            stream = there[number % len(there)]
            act = {"wait": places.begin_waiting, "work": places.end_waiting, "know": places.know, "leave": places.leave}
            act[step](stream)
            waiting.discard(stream)
            if step == "wait" and stream in unknown:
                waiting.add(stream)
            elif step in ("know", "leave"):
                unknown.discard(stream)
            if step == "leave":
                there.remove(stream)
        assert (places.count, places.unknown_count) == (len(there), len(unknown))
        assert (places.count <= 6, places.unknown_count <= 4) == (True, True)
    for stream in there:
        places.leave(stream)
    assert (places.count, places.unknown_count) == (0, 0)


def test_a_connection_that_makes_way_before_it_is_served_ends_when_it_is() -> None:
    connections, places = Connections(lambda: 0.0, 1, RealRng()), Places(1, None, 1)
    stream, told = one("client"), list[LinnError]()
    places.take(stream)
    connections.opened(stream, ListenerTraffic("native", "capnp", places))
    assert places.take(one("client")) is stream
    connections.make_way(stream, places.full())
    connections.ends_by(stream, told.append)
    assert [error.code for error in told] == ["broker.full"]
