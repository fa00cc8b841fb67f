"""Batches that deceive about their bytes: what a broker refuses, what consumers see, and who is not disturbed."""

from __future__ import annotations

import struct
import time
from functools import cache
from typing import Any

import pytest
import wire
import zstandard
from attack import Attack, Peer, WatchedBroker, attacked, request

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import BatchError
from linn.wire import messages as m

CONFIG = """
[topics.t]
kind = "stream"
[topics.held]
kind = "stream"
storage = "dram"
[topics.q]
dead_letter = "dead"
[topics.quick]
delivery = "at-most-once"
[topics.dead]
kind = "stream"
[topics.many]
"""
BATCH_MALFORMED = "failed batch.malformed"
BATCH_TOO_LARGE = "failed batch.too_large"
ZSTD = 1
GOOD = [b"one", b"two", b"three"]
READS = {"t": "", "held": "g"}
"""Streams on a disk and in memory, and who reads them: nobody in particular, and a group."""


def publish(batch: bytes, topic: str = "t") -> bytes:
    return request(m.Publish(topic), wire.CORRELATION, 1) + batch


def compressed(frame: bytes, body_bytes: int, count: int = 1) -> bytes:
    """A batch whose body is this frame, and says that it has so many bytes."""
    return wire.batch(count, {wire.BODY: frame}, codec=ZSTD, body_bytes=body_bytes)


@cache
def bomb(said: int, count: int = 4) -> bytes:
    """A batch of a few KiB whose body says so many bytes, and has 50 million."""
    compressor = zstandard.ZstdCompressor().compressobj(size=50_000_000)
    frame = bytearray(compressor.compress(bytes(50_000_000)) + compressor.flush())
    assert struct.unpack_from("<I", frame, 6)[0] == 50_000_000, "behind magic, descriptor and window"
    struct.pack_into("<I", frame, 6, said)
    return compressed(bytes(frame), said, count)


def of_unknown_size(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


def with_window(content: bytes, log: int) -> bytes:
    """A frame that says its size, and asks for a window of 2^log bytes."""
    parameters = zstandard.ZstdCompressionParameters(window_log=log, write_content_size=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    unsized = stream.compress(content) + stream.flush()
    return unsized[:4] + bytes([0x80, unsized[5]]) + struct.pack("<I", len(content)) + unsized[6:]


def decreasing(count: int = 4) -> bytes:
    """A batch whose end offsets go back and forth between a right beginning and a right end."""
    ends = [0, *([8 * count, 0] * count)[: count - 1], 8 * count]
    content = wire.flat(b"", {wire.VALUE_OFFSETS: wire.int32s(*ends), wire.VALUES: bytes(8 * count)}, 13)
    return wire.batch(count, {wire.BODY: content})


def test_a_zstd_bomb_a_size_that_lies_and_a_huge_window_are_refused_on_entry(broker: WatchedBroker) -> None:
    content = wire.body(GOOD)
    frame = zstandard.ZstdCompressor().compress(content)
    cases = {
        "a bomb that says its size": (publish(bomb(50_000_000)), BATCH_TOO_LARGE),
        "a body of 2^32-1 bytes": (publish(compressed(frame, 2**32 - 1, 3)), BATCH_TOO_LARGE),
        "another size than the batch's": (publish(compressed(frame, len(content) + 1, 3)), BATCH_MALFORMED),
        "no size": (publish(compressed(of_unknown_size(content), len(content), 3)), BATCH_MALFORMED),
        "a window of 128 MiB": (publish(compressed(with_window(content, 27), len(content), 3)), BATCH_MALFORMED),
        "a skippable frame": (publish(compressed(struct.pack("<II", 0x184D2A50, 4) + b"skip", 4)), BATCH_MALFORMED),
        "a frame that is cut": (publish(compressed(frame[:5], len(content), 3)), BATCH_MALFORMED),
        "no frame": (publish(compressed(b"not zstd", 8)), BATCH_MALFORMED),
    }
    with attacked(broker, memory_bytes=4 << 20) as attack:
        attack.tries(cases)


@pytest.mark.parametrize("topic", READS)
@pytest.mark.parametrize("credit", [1, 5, 1000])
def test_an_undecodable_batch_reaches_readers_unchanged_and_blocks_nothing(
    broker: WatchedBroker, topic: str, credit: int
) -> None:
    with attacked(broker, memory_bytes=8 << 20) as attack:
        begin, end = published_among_good(attack, topic)
        reader = attack.connect()
        reader.send(request(m.Subscribe(topic, READS[topic] and f"{READS[topic]}{credit}", credit, begin), 1))
        good, bad = consume(reader, credit, end)
        assert good == GOOD * 4
        assert bad == {"batch.malformed": 12}
        reader.is_served()


def published_among_good(attack: Attack, topic: str) -> tuple[int, int]:
    """Publish three batches that can't be decoded, between good ones; returns the first offset and the end."""
    peer = attack.connect()
    bad = [decreasing(), bomb(100_000), compressed(zstandard.ZstdCompressor().compress(bytes(500)), 500, 4)]
    placed = []
    for batch in [wire.plain(GOOD), *(part for malformed in bad for part in (malformed, wire.plain(GOOD)))]:
        answer = peer.ask(m.Publish(topic), batch)
        assert isinstance(answer, m.Published), answer
        placed.append(answer.placements[0])
    peer.is_served()
    return placed[0].base_offset, placed[-1].base_offset + len(GOOD)


def consume(peer: Peer, credit: int, end: int) -> tuple[list[bytes | None], dict[str, int]]:
    """Consume up to an offset, granting as much credit as records arrive; returns values, and record
    counts by error.
    """
    values: list[bytes | None] = []
    failed: dict[str, int] = {}
    offset = -1
    while offset < end:
        _, message, batches = peer.event()
        assert not isinstance(message, m.Ended | m.Failed), message
        for batch in map(RecordBatch, batches):
            offset = batch.end_offset
            try:
                values += [record.value for record in batch.records()]
            except BatchError as error:
                failed[error.code] = failed.get(error.code, 0) + batch.count
            peer.send(request(m.Credit(1, batch.count), 0))
    return values, failed


@pytest.mark.parametrize("topic", ["q", "quick"])
@pytest.mark.parametrize("credit", [1, 5, 1000])
def test_a_queue_dead_letters_undecodable_batches_and_delivers_all_others(
    broker: WatchedBroker, topic: str, credit: int
) -> None:
    with attacked(broker, memory_bytes=8 << 20) as attack:
        published_among_good(attack, topic)
        consumer = attack.connect()
        consumer.send(request(m.Subscribe(topic, credit=credit), 1))
        good: list[bytes | None] = []
        while len(good) < 12:
            _, message, batches = consumer.event()
            assert not isinstance(message, m.Ended | m.Failed), message
            if not isinstance(message, m.Deliver):
                continue
            for batch in map(RecordBatch, batches):
                values = values_of(batch)
                good += values or []
                verdict = m.Verdict.REJECT if values is None else m.Verdict.ACK
                settle = [m.Settlement(0, message.delivery_id, batch.base_offset, batch.end_offset, verdict)]
                consumer.send(request(m.Settle(1, settle), 0), request(m.Credit(1, batch.count), 0))
        assert good == GOOD * 4
        consumer.is_served()
        deadline = time.monotonic() + 30
        while show(attack, topic)["queue"]["unsettled"]:
            assert time.monotonic() < deadline, "what nobody can read is never settled"
        assert show(attack, "dead")["partitions"][0]["end"] == 0, "what nobody can read is no dead letter either"


def values_of(batch: RecordBatch) -> list[bytes | None] | None:
    """None where they can't be decoded."""
    try:
        return [record.value for record in batch.records()]
    except BatchError:
        return None


def show(attack: Attack, topic: str) -> dict[str, Any]:
    """A topic, asked by another client, once what is under way is done."""
    peer = attack.connect()
    shown: dict[str, Any] = peer.administer("topic.show", name=topic)
    peer.is_served()
    return shown


def test_a_million_records_in_a_few_bytes_are_cut_one_by_one_at_the_cost_of_one(broker: WatchedBroker) -> None:
    count = 1_000_000
    content = wire.flat(b"", {wire.VALUE_OFFSETS: bytes(4 * (count + 1)), wire.VALUES: b""}, 13)
    batch = compressed(zstandard.ZstdCompressor().compress(content), len(content), count)
    assert len(batch) < 500
    with attacked(broker, memory_bytes=40 << 20, cpu_s=0.5) as attack:
        peer = attack.connect()
        assert isinstance(peer.ask(m.Publish("many"), batch), m.Published)
        subscribed = peer.ask(m.Subscribe("many"))
        assert isinstance(subscribed, m.Subscribed)
        for _ in range(100):
            peer.send(request(m.Pull(subscribed.subscription, 1, 1_000)))
            _, _, batches = peer.event()
            assert [RecordBatch(part).count for part in batches] == [1]
        peer.is_served()


def test_a_wrong_crc_count_or_end_offset_is_refused_on_entry(broker: WatchedBroker) -> None:
    good = wire.plain(GOOD)
    content = wire.body(GOOD)
    damaged = {
        place: good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in (52, 90, 120, len(good) - 9)
    }
    beyond = wire.flat(b"", {wire.VALUE_OFFSETS: wire.int32s(0, 3, 6, 12), wire.VALUES: b"".join(GOOD)}, 13)
    later = wire.flat(b"", {wire.VALUE_OFFSETS: wire.int32s(1, 3, 6, 11), wire.VALUES: b"".join(GOOD)}, 13)
    cases = {f"byte {place} damaged": (publish(batch), "failed batch.corrupt") for place, batch in damaged.items()} | {
        "no CRC": (publish(good[:48] + bytes(4) + good[52:]), "failed batch.corrupt"),
        "no records": (publish(wire.batch(0, {wire.BODY: content})), BATCH_MALFORMED),
        "a record too few": (publish(wire.batch(2, {wire.BODY: content})), BATCH_MALFORMED),
        "a record too many": (publish(wire.batch(4, {wire.BODY: content})), BATCH_MALFORMED),
        "2^32-1 records": (publish(wire.batch(2**32 - 1, {wire.BODY: content})), BATCH_MALFORMED),
        "values beyond their end": (publish(wire.batch(3, {wire.BODY: beyond})), BATCH_MALFORMED),
        "values behind their beginning": (publish(wire.batch(3, {wire.BODY: later})), BATCH_MALFORMED),
        "a body that is shorter": (publish(wire.batch(3, {wire.BODY: content}, body_bytes=9)), BATCH_MALFORMED),
        "a column for one record more": (
            publish(wire.batch(3, {wire.BODY: content, wire.PRIORITIES: bytes(4)})),
            BATCH_MALFORMED,
        ),
        "no body": (publish(wire.batch(3, {})), BATCH_MALFORMED),
    }
    with attacked(broker, memory_bytes=2 << 20) as attack:
        attack.tries(cases)
