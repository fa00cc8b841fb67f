"""Few bytes that would cost much: what is compressed, has many headers, goes to many places, or is not a client's."""

from __future__ import annotations

import struct

import pytest
import wire
import zstandard
from attack import WatchedBroker, attacked, request

from linn.core.batch.body import HEADERS_AT_ONCE_MAX
from linn.core.batch.routes import Pair, encode_routes
from linn.wire import messages as m

TOPICS = 40
PARTITIONS = 4_096
CONFIG = f"""
[topics.one]
kind = "stream"
storage = "dram"
[topics.roomy]
kind = "stream"
storage = "dram"
partitions = {PARTITIONS}
bytes_max = "100MiB"
[topics.full]
storage = "dram"
bytes_max = "1MiB"
[exchanges.all]
type = "fanout"
[exchanges.split]
type = "direct"
[exchanges.looks]
type = "content"
[topics.seen]
kind = "stream"
[[topics.seen.bindings]]
exchange = "looks"
when = "header.x = '1'"
""" + "".join(
    f"""
[topics.t{topic}]
kind = "stream"
storage = "dram"
[[topics.t{topic}.bindings]]
exchange = "all"
[[topics.t{topic}.bindings]]
exchange = "split"
key = "{topic}"
"""
    for topic in range(TOPICS)
)
TOO_MUCH = "failed limit.exceeded"


def compressed(count: int, fields: dict[int, bytes], routes: dict[int, bytes] | None = None, pairs: int = 0) -> bytes:
    body = wire.flat(b"", fields, 13)
    content = zstandard.ZstdCompressor().compress(body)
    return wire.batch(count, {wire.BODY: content, **(routes or {})}, codec=1, body_bytes=len(body), pair_count=pairs)


def ends(count: int, size: int = 0) -> bytes:
    return struct.pack(f"<{count + 1}i", *range(0, size * (count + 1), size) if size else [0] * (count + 1))


def with_headers(records: int, each: int, *, routed: bool = False) -> bytes:
    """Records with so many empty headers."""
    names = values = ends(records * each)
    fields = {wire.VALUE_OFFSETS: ends(records), 7: ends(records, each), 8: names, 9: b"", 10: values, 11: b""}
    if not routed:
        return compressed(records, fields)
    routes = encode_routes([Pair("0", ()), Pair("1", ())])
    index = struct.pack(f"<{records}H", *[number % 2 for number in range(records)])
    return compressed(records, fields, {wire.ROUTES: routes, wire.ROUTE_INDEX: index}, 2)


def publish(target: str, *batches: bytes, to_exchange: bool = False) -> bytes:
    message = m.Publish(target, to_exchange=to_exchange, acks=0)
    return request(message, wire.CORRELATION, len(batches)) + b"".join(batches)


# --- 19: what one publish becomes -------------------------------------------------------------------------------------


def test_many_bodies_that_get_large_are_opened_one_after_the_other(broker: WatchedBroker) -> None:
    size = 7 << 20
    bomb = compressed(16, {wire.VALUE_OFFSETS: ends(16, size // 16), wire.VALUES: bytes(size)})
    assert len(bomb) < 1_000
    with attacked(broker, cpu_s=2, memory_bytes=32 << 20) as attack:
        attack.tries({"64 of them": (publish("one", *[bomb] * 64), "answered")})
        attack.tries({"1,024 of them": (publish("one", *[bomb] * 1_024), TOO_MUCH)})


def test_a_batch_for_many_topics_counts_once_for_each(broker: WatchedBroker) -> None:
    large = wire.plain([bytes(1_000_000)] * 7)
    with attacked(broker, cpu_s=1, memory_bytes=48 << 20) as attack:
        attack.tries(
            {
                "1,024 small batches": (publish("all", *[wire.plain([b"x"])] * 1_024, to_exchange=True), TOO_MUCH),
                "one of 7 MB": (publish("all", large, to_exchange=True), TOO_MUCH),
            }
        )


@pytest.mark.parametrize("batches", [1, 8])
def test_records_of_a_million_headers_are_not_routed(broker: WatchedBroker, batches: int) -> None:
    many = 1_000_000
    with attacked(broker, cpu_s=1, memory_bytes=64 << 20) as attack:
        attack.tries(
            {
                "looked at": (publish("looks", *[with_headers(1, many)] * batches, to_exchange=True), TOO_MUCH),
                "split": (
                    publish("split", *[with_headers(3, many // 3, routed=True)] * batches, to_exchange=True),
                    TOO_MUCH,
                ),
            }
        )


def test_records_of_many_headers_are_routed_in_turns(broker: WatchedBroker) -> None:
    batch = with_headers(640, HEADERS_AT_ONCE_MAX // 2, routed=True)
    with attacked(broker, cpu_s=3, memory_bytes=64 << 20) as attack:
        attack.tries({"640 records": (publish("split", batch, to_exchange=True), "answered")})


def test_a_large_header_does_not_make_one_step_visit_all_records(broker: WatchedBroker) -> None:
    records, size = 600_000, (1 << 20) - 10
    fields = {
        wire.VALUE_OFFSETS: ends(records)[:-4] + struct.pack("<i", 200),
        wire.VALUES: bytes(200),
        7: bytes(4) + struct.pack("<i", 1) * records,
        8: struct.pack("<2i", 0, 0),
        9: b"",
        10: struct.pack("<2i", 0, size),
        11: bytes(size),
    }
    with attacked(broker, cpu_s=2, memory_bytes=64 << 20) as attack:
        attack.tries({"600,000 records": (publish("one", compressed(records, fields)), "answered")})


def test_a_topics_size_limit_is_not_computed_anew_for_each_of_thousands_of_partitions(broker: WatchedBroker) -> None:
    hashes = struct.pack(f"<{PARTITIONS}I", *range(PARTITIONS))
    batch = wire.batch(PARTITIONS, {wire.KEY_HASHES: hashes, wire.BODY: wire.body([b"x"] * PARTITIONS)})
    with attacked(broker, cpu_s=2, memory_bytes=32 << 20) as attack:
        attack.tries({"a record for each": (publish("roomy", batch), "answered")})


# --- 24: what waits ---------------------------------------------------------------------------------------------------


def test_publishes_that_wait_count_with_all_that_they_hold(broker: WatchedBroker) -> None:
    with attacked(broker, cpu_s=2, memory_bytes=96 << 20, answer_s=10) as attack:
        peer = attack.connect()
        large = wire.plain([bytes(1_000_000)])
        assert isinstance(peer.ask(m.Publish("full"), large), m.Published)
        peer.send(publish("full", large))
        behind = publish("x" * (4 << 20), wire.plain([b"x"]))
        peer.socket.settimeout(2)
        with pytest.raises(TimeoutError):  # It is not read any more.
            peer.socket.sendall(behind * 50)
        other = attack.connect()
        other.is_served()
        peer.leaves()
        assert other.administer("topic.purge", name="full")["purged"] == 1


# --- 9: what is no client's to say ------------------------------------------------------------------------------------


def test_lists_that_only_brokers_send_are_refused_unread(broker: WatchedBroker) -> None:
    partitions = [m.PartitionInfo(0, 0, 0)] * 60_000
    topics = [m.TopicInfo("t", "", partitions, "", 0, "") for _ in range(8)]
    unasked = {
        "a description": m.Description("b", [], topics),
        "what was published": m.Published([m.Placement(0, 0, 0, [1] * 60_000) for _ in range(60)]),
    }
    with attacked(broker, cpu_s=0.5, memory_bytes=96 << 20) as attack:
        attack.tries({name: (request(message), "refused protocol.malformed") for name, message in unasked.items()})


def test_a_settle_of_very_many_entries_is_refused_unread_and_small_ones_are_read_in_turns(
    broker: WatchedBroker,
) -> None:
    entry = m.Settlement(0, 1, 2, 3)
    with attacked(broker, cpu_s=2, memory_bytes=24 << 20) as attack:
        attack.tries({"65,536 entries": (request(m.Settle(1, [entry] * 65_536)), TOO_MUCH)})
        peer, count = attack.connect(), 2_400
        peer.send(b"".join([request(m.Settle(1, [m.Settlement(0, number, 2, 3)])) for number in range(count)]))
        assert {peer.frame()[0] for _ in range(count)} == {wire.CORRELATION}
        peer.is_served()
