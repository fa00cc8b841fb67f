"""Requests that are cheap one by one: many entries of a settle, many fetches that wait."""

from __future__ import annotations

import wire
from attack import WatchedBroker, attacked, request

from linn.wire import messages as m

CONFIG = """
[topics.leased]
lease = "1h"
[topics.counted]
kind = "stream"
"""
LEASED = 16_384
FETCHES = 300


def test_a_lease_that_is_settled_in_gaps_costs_each_entry_the_same(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=0.6) as attack:
        peer = attack.connect()
        peer.ask(m.Publish("leased"), wire.plain([b""] * LEASED))
        subscription = peer.subscribe("leased", credit=LEASED)
        _, deliver, _ = peer.event()
        assert isinstance(deliver, m.Deliver), deliver
        acks = [m.Settlement(0, deliver.delivery_id, at, at + 1, m.Verdict.ACK) for at in range(1, LEASED, 2)]
        peer.send(request(m.Settle(subscription, acks)))
        peer.is_failed("limit.exceeded")
        for first in range(0, len(acks), m.SETTLE_ENTRIES_MAX):
            answer = peer.ask(m.Settle(subscription, acks[first : first + m.SETTLE_ENTRIES_MAX]))
            assert answer == m.Settled([])
        peer.is_served()


def test_fetches_that_wait_for_more_keep_no_batches_in_memory(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=0.6) as attack:
        peer = attack.connect()
        for _ in range(7):
            peer.ask(m.Publish("counted"), wire.plain([bytes(128 << 10)]))
        for number in range(FETCHES):
            peer.send(request(m.Fetch("counted", 0, 0, 16 << 20, 1 << 20, 60_000), number + 1_000))
        other = attack.connect()
        for _ in range(5):
            other.ask(m.Publish("counted"), wire.plain([b""]))
        other.is_served()
        peer.leaves()
