"""Small requests that make many large batches of one, or make the broker look at a million records or batches."""

from __future__ import annotations

import random
import struct

import wire
import zstandard
from attack import Peer, WatchedBroker, attacked, request

from linn.core.batch.routes import Pair, encode_routes
from linn.wire import messages as m

PAIRS, TOPICS, PARTITIONS = 16, 40, 64
RECORDS_MAX = 1 << 20
BATCHES = 20_000
"""The number of batches in one dram topic, for searches by time."""


def _bound_topics() -> str:
    rng, text = random.Random(1), '[exchanges.split]\ntype = "direct"\n'
    for topic in range(TOPICS):
        text += f'[topics.t{topic}]\nkind = "queue"\nstorage = "dram"\n'
        for pair in rng.sample(range(PAIRS), PAIRS // 2):
            text += f'[[topics.t{topic}.bindings]]\nexchange = "split"\nkey = "k{pair}"\n'
    return text


CONFIG = f"""
{_bound_topics()}
[topics.cut]
kind = "stream"
storage = "dram"
partitions = {PARTITIONS}
[topics.times]
kind = "stream"
storage = "dram"
[exchanges.looks]
type = "content"
[topics.seen]
kind = "stream"
[[topics.seen.bindings]]
exchange = "looks"
key = ""
when = "key = 'x'"
"""


def empty_values(count: int, fields: dict[int, bytes], pairs: int = 0) -> bytes:
    """A batch of `count` records without a value, which nearly vanish when they are compressed."""
    body = wire.flat(b"", {wire.VALUE_OFFSETS: bytes(4 * (count + 1))}, 13)
    content = zstandard.ZstdCompressor().compress(body)
    return wire.batch(count, {wire.BODY: content, **fields}, codec=1, body_bytes=len(body), pair_count=pairs)


def spread(count: int) -> bytes:
    """Return a batch whose records have the pairs in turn."""
    routes = encode_routes([Pair(f"k{number}", ()) for number in range(PAIRS)])
    index = struct.pack(f"<{count}H", *[number % PAIRS for number in range(count)])
    return empty_values(count, {wire.ROUTES: routes, wire.ROUTE_INDEX: index}, PAIRS)


def keyed(count: int) -> bytes:
    """Return a batch in which each record has a key of its own."""
    ends = struct.pack(f"<{count + 1}i", *range(0, 4 * (count + 1), 4))
    keys = struct.pack(f"<{count}I", *range(count))
    body = wire.flat(b"", {wire.VALUE_OFFSETS: bytes(4 * (count + 1)), 3: ends, 4: keys}, 13)
    return wire.batch(count, {wire.BODY: body}, body_bytes=len(body))


def publish(target: str, batch: bytes, *, to_exchange: bool) -> bytes:
    return request(m.Publish(target, to_exchange=to_exchange, acks=0), wire.CORRELATION, 1) + batch


def test_a_batch_that_would_become_many_more_is_refused_before_they_are_made(broker: WatchedBroker) -> None:
    batch = spread(RECORDS_MAX)
    with attacked(broker, cpu_s=1, memory_bytes=48 << 20) as attack:
        attack.tries(
            {f"{TOPICS} halves": (publish("split", batch, to_exchange=True), "failed limit.exceeded")},
        )


def test_a_batch_that_becomes_many_is_taken_apart_in_turns(broker: WatchedBroker) -> None:
    batch = spread(1 << 16)
    with attacked(broker, cpu_s=4, memory_bytes=96 << 20, answer_s=15) as attack:
        attack.tries({f"{TOPICS} halves": (publish("split", batch, to_exchange=True), "answered")})


def test_a_million_keys_are_cut_in_turns(broker: WatchedBroker) -> None:
    batch = empty_values(RECORDS_MAX, {wire.KEY_HASHES: struct.pack(f"<{RECORDS_MAX}I", *range(RECORDS_MAX))})
    with attacked(broker, cpu_s=4, memory_bytes=96 << 20, answer_s=15) as attack:
        attack.tries({"a million keys": (publish("cut", batch, to_exchange=False), "answered")})


def test_distinct_contents_are_asked_about_in_turns(broker: WatchedBroker) -> None:
    batch = keyed(1 << 16)
    with attacked(broker, cpu_s=4, memory_bytes=64 << 20, answer_s=15) as attack:
        attack.tries({"65,536 keys": (publish("looks", batch, to_exchange=True), "answered")})


def test_looking_up_a_time_does_not_scan_the_log(broker: WatchedBroker) -> None:
    one, asks = publish("times", wire.plain([b""]), to_exchange=False), 500
    latest = request(m.FindOffset("times", 0, (1 << 63) - 1))
    filler = Peer(broker.address, True)
    for _ in range(BATCHES // 1_000):
        filler.send(one * 1_000)
        for _ in range(1_000):
            filler.frame()
    filler.close()
    with attacked(broker) as attack:
        peer = attack.connect()
        peer.send(latest * asks)
        for _ in range(asks):
            _, found = peer.frame()
            assert isinstance(found, m.FoundOffset), found
        peer.is_served()
