"""Consumers that take everything, settle nothing, never read, or speak of deliveries and offsets that are not theirs."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import wire
from attack import Attack, Peer, WatchedBroker, attacked, request

from linn.core.batch import RecordBatch
from linn.protocols.capnp import messages as m

CONFIG = """
[broker]
connection_bytes_max = "256KiB"
[topics.q]
storage = "dram"
[topics.leased]
lease = "1h"
partitions = 2
[topics.other]
[topics.again]
[topics.buried]
max_deliveries = 5
dead_letter = "dead"
[topics.dead]
kind = "stream"
[topics.s]
kind = "stream"
partitions = 2
[topics.wide-0]
kind = "stream"
storage = "dram"
partitions = 4096
[topics.wide-1]
kind = "stream"
storage = "dram"
partitions = 4096
[topics.wide-2]
kind = "stream"
storage = "dram"
partitions = 1808
"""
UINT32_MAX, INT64_MAX, UINT64_MAX = 2**32 - 1, 2**63 - 1, 2**64 - 1
WIDE = {"wide-0": 4096, "wide-1": 4096, "wide-2": 1808}
ODD_OFFSETS = (-1, -2, -(2**63), INT64_MAX, INT64_MAX - 1)


def publish(peer: Peer, topic: str, count: int = 1, *, size: int = 10, batches: int = 1, partition: int = -1) -> int:
    """Publish batches of equal records; the offset of the last batch."""
    batch = wire.plain([bytes(size)] * count)
    answer = peer.ask(m.Publish(topic, partition=partition), *[batch] * batches)
    assert isinstance(answer, m.Published), answer
    return answer.placements[-1].base_offset


def subscribe(peer: Peer, topic: str, **options: Any) -> int:
    answer = peer.ask(m.Subscribe(topic, **options))
    assert isinstance(answer, m.Subscribed), answer
    return answer.subscription


def delivered(peer: Peer, records: int) -> list[tuple[m.Deliver, RecordBatch]]:
    """The next deliveries, until there were so many records."""
    found: list[tuple[m.Deliver, RecordBatch]] = []
    while sum(batch.count for _, batch in found) < records:
        _, message, batches = peer.event()
        assert not isinstance(message, m.Failed | m.Ended), message
        if isinstance(message, m.Deliver):
            found += [(message, RecordBatch(batch)) for batch in batches]
    return found


def refused(peer: Peer, subscription: int, *entries: m.Settlement) -> dict[int, str]:
    """The codes of the settlements that are refused, by their place."""
    answer = peer.ask(m.Settle(subscription, list(entries)))
    assert isinstance(answer, m.Settled), answer
    return {refusal.entry: refusal.code for refusal in answer.refused}


def administer(peer: Peer, verb: str, **arguments: object) -> Any:
    """What a verb gives, or the code of its error."""
    answer = peer.ask(m.Administer(verb, json.dumps(arguments)))
    if isinstance(answer, m.Failed):
        return answer.code
    assert isinstance(answer, m.Administered)
    return json.loads(answer.result)


# --- 21: takes everything ---------------------------------------------------------------------------------------------


def test_who_takes_everything_and_settles_nothing_gives_it_all_back(broker: WatchedBroker) -> None:
    records = 20_000
    with attacked(broker, cpu_s=1, memory_bytes=16 << 20) as attack:
        greedy = attack.connect()
        publish(greedy, "q", 1_000, size=100, batches=records // 1_000)
        subscription = subscribe(greedy, "q", credit=UINT32_MAX)
        for _ in range(100):
            greedy.send(request(m.Credit(subscription, UINT32_MAX), 0))
        taken = delivered(greedy, records)
        assert {message.attempt for message, _ in taken} == {1}
        greedy.is_served()
        greedy.close()
        other = attack.connect()
        subscribe(other, "q", credit=records)
        given_back = delivered(other, records)
        assert {message.attempt for message, _ in given_back} == {2}
        assert sorted(batch.base_offset for _, batch in given_back) == sorted({b.base_offset for _, b in given_back})
        other.is_served()
        administer(other, "topic.purge", name="q")


# --- 22: never reads ---------------------------------------------------------------------------------------------------


def send_without_reading(peer: Peer, requests: list[bytes]) -> bytes:
    """Send until all is sent or nothing more is taken for a while; what is left."""
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.socket.settimeout(0.3)
    rest = memoryview(b"".join(requests))
    try:
        while rest:
            rest = rest[peer.socket.send(rest) :]
    except TimeoutError:
        pass
    peer.socket.settimeout(30)
    return bytes(rest)


def read_after_all(peer: Peer, rest: bytes, answers: int) -> None:
    """Read what was not read, so that the rest can be sent; nothing was lost."""
    sender = threading.Thread(target=peer.send, args=(rest,))
    sender.start()
    found = 0
    while found < answers:
        correlation, message = peer.frame()
        assert not isinstance(message, m.Failed), message
        found += correlation == wire.CORRELATION
    sender.join()
    peer.is_served()


def test_who_reads_no_replies_is_not_read_from_and_fills_no_memory(broker: WatchedBroker) -> None:
    batch = wire.plain([bytes(10)])
    kinds = {
        "publishes": [request(m.Publish("s", partition=0), wire.CORRELATION, 1) + batch] * 8_000,
        "fetches": [request(m.Fetch("s", 1, 0, bytes_max=UINT32_MAX))] * 100,
        "descriptions": [request(m.Describe([]))] * 500,
        "pings": [request(m.Ping())] * 20_000,
    }
    with attacked(broker, cpu_s=4, memory_bytes=32 << 20, answer_s=20) as attack:
        publish(attack.connect(), "s", 10, size=10_000, batches=10, partition=1)
        peers = {kind: attack.connect() for kind in kinds}
        rests = {kind: send_without_reading(peers[kind], requests) for kind, requests in kinds.items()}
        reader = attack.connect()
        subscribe(reader, "s", credit=UINT32_MAX)
        for kind, peer in peers.items():
            read_after_all(peer, rests[kind], len(kinds[kind]))
        reader.is_served()
        attack.connect_judged()


# --- 23: fetches everything at once --------------------------------------------------------------------------------------


def test_fetches_of_the_largest_size_on_ten_thousand_partitions_hold_next_to_nothing(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=8, memory_bytes=128 << 20, answer_s=20) as attack:
        places = [(topic, partition) for topic, count in WIDE.items() for partition in range(count)]
        peers = [attack.connect() for _ in range(10)]
        for number, (topic, partition) in enumerate(places):
            fetch = m.Fetch(topic, partition, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX)
            peers[number % len(peers)].send(request(fetch))
        other = attack.connect()
        for topic in WIDE:
            publish(other, topic, 10, size=1_000, partition=7)
        other.is_served()
        for peer in peers:
            peer.is_served_later()
