"""Thousands that come and go: connections, half handshakes, subscriptions, members of groups."""

from __future__ import annotations

import socket
import struct

from attack import Attack, Peer, WatchedBroker, attacked, request

from linn.wire import messages as m
from linn.wire.connection import hello

CONFIG = """
[broker]
connections_max = 2000
[log]
level = "warning"
[topics.s]
kind = "stream"
partitions = 8
[topics.q]
[topics.wide]
kind = "stream"
storage = "dram"
partitions = 1000
"""
HELLO = request(hello("storm"), 1)
RESET = struct.pack("ii", 1, 0)
"""Linger for no time: what is unread or unsent is thrown away, and the other side is told by a reset."""


def come_and_go(broker: WatchedBroker, said: bytes, *, reset: bool) -> None:
    host, port = broker.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=300) as stranger:
        if said:
            stranger.sendall(said)
        if reset:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def test_thousands_that_connect_and_leave_at_any_moment_leave_nothing_behind(broker: WatchedBroker) -> None:
    moments = [b"", HELLO[:1], HELLO[: len(HELLO) // 2], HELLO, HELLO + request(m.Subscribe("s", group="g", credit=9))]
    with attacked(broker, cpu_s=2) as attack:
        for number in range(2_000):
            come_and_go(broker, moments[number % len(moments)], reset=number % 3 == 0)
        attack.connect().is_served()
        peer = attack.connect()
        assert members(peer, "s", "g") == 0
        peer.is_served()


def members(peer: Peer, topic: str, group: str) -> int:
    return sum(each["members"] for each in peer.administer("group.list", topic=topic) if each["group"] == group)


def test_a_thousand_incomplete_handshakes_at_a_time_do_not_lock_clients_out(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=1, memory_bytes=160 << 20) as attack:
        halves = [attack.connect(greeted=False) for _ in range(1_000)]
        for number, half in enumerate(halves):
            half.send(HELLO[: 1 + number % (len(HELLO) - 1)])
        attack.connect().is_served()
        for half in halves:
            half.leaves()


def test_connections_beyond_the_limit_are_refused_by_name_and_the_others_go_on(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=2, memory_bytes=256 << 20) as attack:
        many = [attack.connect() for _ in range(1_950)]
        late = [attack.connect(greeted=False) for _ in range(150)]
        for each in late[:50]:  # They are silent, and have made way for later ones.
            each.is_refused("broker.full")
        for each in (*many, *late[50:]):
            each.leaves()


def test_a_storm_of_joins_on_one_connection_costs_only_the_moved_partitions(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=3, memory_bytes=32 << 20, answer_s=20) as attack:
        peer = attack.connect()
        for topic in ("s", "wide"):
            joined = [request(m.Subscribe(topic, group="g", credit=1), 7) for _ in range(500)]
            subscriptions = answers(peer, joined)
            assert len({answer.subscription for answer in subscriptions}) == 500  # type: ignore[attr-defined]
            left = [request(m.Unsubscribe(answer.subscription), 7) for answer in subscriptions]  # type: ignore[attr-defined]
            assert set(map(type, answers(peer, left))) == {m.Done}
            assert members(peer, topic, "g") == 0
        peer.is_served()


def answers(peer: Peer, requests: list[bytes]) -> list[m.Message]:
    """Send them at once; what each is answered."""
    peer.send(*requests)
    found: list[m.Message] = []
    while len(found) < len(requests):
        correlation, answer = peer.frame()
        if correlation:
            assert not isinstance(answer, m.Failed), answer
            found.append(answer)
    return found


def test_after_a_storm_of_joins_and_leaves_the_remaining_members_own_the_group(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=2) as attack:
        stays = attack.connect()
        stays.ask(m.Subscribe("s", group="storm"))
        for _ in range(30):
            hasty = [joined(attack) for _ in range(10)]
            for peer in hasty:
                peer.leaves()
        other = attack.connect()
        attack.until(lambda: members(other, "s", "storm") == 1, "all but one are gone")
        other.is_served()
        wait_for_share(stays, list(range(8)))
        stays.is_served()


def joined(attack: Attack) -> Peer:
    peer = attack.connect()
    peer.send(request(m.Subscribe("s", group="storm", credit=100)))
    return peer


def wait_for_share(member: Peer, share: list[int]) -> None:
    """Wait until a member of "storm" was given these partitions."""
    while True:
        _, message = member.frame()
        if isinstance(message, m.Assigned) and message.partitions == share:
            return
