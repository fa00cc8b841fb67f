"""Clients that begin and never finish: they are let go in time, and hold next to nothing until then."""

from __future__ import annotations

import select
import struct
import time

import wire
from attack import Peer, WatchedBroker, attacked, request
from stopwatch import MEASURES

from linn.wire import messages as m
from linn.wire.connection import hello

HELLO_TIMEOUT_S, KEEPALIVE_S = 0.8, 0.3
CONFIG = f"""
[listeners.native]
address = "127.0.0.1:0"
hello_timeout = "{1000 * HELLO_TIMEOUT_S:.0f}ms"
keepalive = "{1000 * KEEPALIVE_S:.0f}ms"
[topics.t]
kind = "stream"
"""
BYTE_EVERY_S = 0.04
LET_GO_S = 4 * KEEPALIVE_S + 1.0
"""Three keepalives in which nothing whole came, counted from the beginning of one; and a second for a busy machine."""


def trickle(peers: dict[Peer, bytes], told: Peer | None = None) -> dict[Peer, float]:
    """Send one byte after the other to each until the broker has closed it; how long that took, by peer.

    `told`: who hears before that it did not say hello in time.
    """
    began = time.monotonic()
    took: dict[Peer, float] = {}
    sent = 0
    while len(took) < len(peers):
        assert time.monotonic() - began < 10 * LET_GO_S, "some were never let go"
        # Each byte once: on a busy machine several are due at a time, and whoever is let go wakes this before its time.
        due = int((time.monotonic() - began) / BYTE_EVERY_S) + 1
        for peer, data in peers.items():
            if peer not in took and sent < min(due, len(data)) and not peer.send(data[sent:due]):
                took[peer] = time.monotonic() - began
        sent = due
        readable, _, _ = select.select([peer.socket for peer in peers if peer not in took], [], [], BYTE_EVERY_S)
        for peer in peers:
            if peer.socket in readable and peer not in took:
                if peer is told:
                    peer.is_refused("request.timeout")
                peer.is_closed()
                took[peer] = time.monotonic() - began
    return took


def test_one_byte_after_the_other_is_as_good_as_silence(broker: WatchedBroker) -> None:
    publish = request(m.Publish("t"), wire.CORRELATION, 1)
    with attacked(broker, memory_bytes=8 << 20, cpu_s=0.3) as attack:
        slow = attack.connect(greeted=False)
        strangers = {slow: request(hello("slow"), 1), attack.connect(greeted=False): b""}
        greeted = {
            attack.connect(): data
            for data in (
                request(m.Administer("topic.create", "x" * 1000)),
                wire.plain([bytes(1000)]),
                struct.pack("<II", 0, (8 << 20) // 8 - 1),
                struct.pack("<II", 0, 1 << 14),
                b"",
            )
        }
        for peer in list(greeted)[1:3]:
            peer.send(publish)
        took = trickle(strangers | greeted, told=slow)
        if MEASURES:
            assert max(took[peer] for peer in strangers) < HELLO_TIMEOUT_S + 1
            assert max(took[peer] for peer in greeted) < LET_GO_S
        for peer in took:
            peer.is_closed()


def test_an_announced_frame_takes_at_most_a_mebibyte_before_it_arrives(broker: WatchedBroker) -> None:
    announced = request(m.Publish("t"), wire.CORRELATION, 1) + struct.pack("<II", 0, (8 << 20) // 8 - 1)
    with attacked(broker, memory_bytes=24 << 20) as attack:
        peers = [attack.connect() for _ in range(20)]
        for peer in peers:
            peer.send(announced + bytes(200))
        for peer in peers:
            peer.is_closed()
