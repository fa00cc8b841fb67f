"""Framing and connections as pure objects: any chunking gives the same, nothing hostile costs more than its bytes."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import FrameTooLarge, LinnError, ProtocolError, VersionUnsupported
from linn.wire import messages as m
from linn.wire.connection import Connection, agree, check_welcome, frames_of, hello
from linn.wire.framing import BUFFER_BYTES_MIN, FRAME_BYTES_MAX_BEFORE_HELLO, FrameReader
from linn.wire.receive_buffers import SHARED_BYTES_MAX, ReceiveBuffers


def feed(connection: Connection, data: bytes, sizes: Iterable[int]) -> Iterator[object]:
    """Give `data` to a connection in pieces of these sizes, then of whatever fits; what it says."""
    position, pieces = 0, iter(sizes)
    while position < len(data):
        buffers = connection.buffers()
        assert all(len(buffer) > 0 for buffer in buffers)
        room = sum(map(len, buffers))
        count = left = min(max(1, next(pieces, len(data))), room, len(data) - position)
        for buffer in buffers:
            part = min(left, len(buffer))
            buffer[:part] = data[position : position + part]
            position, left = position + part, left - part
        try:
            for event in connection.received(count):
                yield event.correlation, event.message, [bytes(batch.message) for batch in event.batches]
        except LinnError as error:
            yield error.code
            return


def wire(*frames: tuple[m.Message, int, list[bytes]]) -> bytes:
    """The bytes that a client sends."""
    parts: list[bytes] = []
    for message, correlation, contents in frames:
        batches = [build_from_records([Record(value=value)], base_id=1) for value in contents]
        parts += [bytes(frame) for frame in frames_of(message, correlation, batches)]
    return b"".join(parts)


CONVERSATION = wire(
    (hello("test"), 1, []),
    (m.Publish("t"), 2, [b"x" * 10, b"y" * 9_000, b"z"]),
    (m.Ping(), 3, []),
    (m.Fetch("t", 0, 5), 4, []),
    (m.Settle(1, [m.Settlement(0, 1, 0, 5), m.Settlement(1, 2, 3, 4, m.Verdict.NACK, 7)]), 5, []),
    (m.Publish("other", True, partition=3), 6, [b"x" * 300_000]),
    (m.Goodbye("bye"), 0, []),
)


def talk(sizes: Iterable[int], data: bytes = CONVERSATION) -> list[object]:
    connection = Connection()
    connection.allow_frames(1 << 20)
    return list(feed(connection, data, sizes))


WHOLE = talk([])


def test_a_conversation_round_trips() -> None:
    assert [event[:2] for event in WHOLE] == [  # type: ignore[index]
        (1, hello("test")),
        (2, m.Publish("t")),
        (3, m.Ping()),
        (4, m.Fetch("t", 0, 5)),
        (5, m.Settle(1, [m.Settlement(0, 1, 0, 5), m.Settlement(1, 2, 3, 4, m.Verdict.NACK, 7)])),
        (6, m.Publish("other", True, partition=3)),
        (0, m.Goodbye("bye")),
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20_000), max_size=100))
def test_any_chunking_gives_the_same_events(sizes: list[int]) -> None:
    assert talk(sizes) == WHOLE


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20_000), st.booleans()), max_size=100))
def test_connections_that_share_buffers_get_each_its_own(turns: list[tuple[int, int, bool]]) -> None:
    free = ReceiveBuffers(SHARED_BYTES_MAX)
    connections = [Connection(free) for _ in range(3)]
    places, events = [0, 0, 0], [[], [], []]  # type: ignore[var-annotated]
    for connection in connections:
        connection.allow_frames(1 << 20)
    for who, size, releases in [*turns, *[(who, len(CONVERSATION), True) for who in range(3) for _ in range(20)]]:
        piece = CONVERSATION[places[who] : places[who] + size]
        for part in pieces_that_fit(connections[who], piece):
            places[who] += part
            events[who] += [event[:2] for event in connections[who].received(part)]
            if releases:
                connections[who].release()
    assert events == [[event[:2] for event in WHOLE]] * 3  # type: ignore[index]


def pieces_that_fit(connection: Connection, data: bytes) -> Iterator[int]:
    """Put data into a connection's buffers; how many bytes each time."""
    while data:
        buffer = connection.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        yield count


def test_a_waiting_connection_keeps_no_buffer_after_any_input() -> None:
    free = ReceiveBuffers(SHARED_BYTES_MAX)
    connections = [Connection(free) for _ in range(100)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for connection in connections:
            connection.allow_frames(1 << 20)
            assert len(list(feed(connection, CONVERSATION, []))) == len(WHOLE)
            connection.release()
        assert tracemalloc.get_traced_memory()[0] - before < SHARED_BYTES_MAX + 100 * 500
    finally:
        tracemalloc.stop()


def test_one_byte_at_a_time_gives_the_same_events() -> None:
    data = CONVERSATION[:12_000]
    assert talk([1] * len(data), data) == talk([], data)


@settings(max_examples=60, deadline=None)
@given(
    good=st.integers(0, 3),
    garbage=st.binary(min_size=8, max_size=64).filter(lambda g: struct.unpack_from("<I", g)[0] >= 64),
    sizes=st.lists(st.integers(1, 400), max_size=50),
)
def test_valid_frames_before_garbage_count_however_they_are_chunked(
    good: int, garbage: bytes, sizes: list[int]
) -> None:
    data = wire(*[(m.Ping(), number + 1, []) for number in range(good)]) + garbage
    said = talk(sizes, data)
    assert said == [*((number + 1, m.Ping(), []) for number in range(good)), "protocol.malformed"]


def _table(*sizes: int) -> bytes:
    return struct.pack(f"<{len(sizes) + 1}I", len(sizes) - 1, *sizes) + bytes(4 if len(sizes) % 2 == 0 else 0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (_table(0), "protocol.malformed"),
        (_table(2**31), "protocol.frame_too_large"),
        (_table(2**32 - 1), "protocol.frame_too_large"),
        (struct.pack("<II", 2**32 - 1, 1), "protocol.malformed"),
        (struct.pack("<II", 64, 1), "protocol.malformed"),
        (_table(*[2**32 - 1] * 64), "protocol.frame_too_large"),
        (_table(1, 2**31), "protocol.frame_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "protocol.malformed"),
        (bytes.fromhex("16030100f5010000f10303") + bytes(50), "protocol.malformed"),
        (b"\0" * 64, "protocol.malformed"),
        (b"AMQP\x00\x00\x09\x01", "protocol.malformed"),
    ],
)
def test_an_invalid_frame_is_refused_before_memory_is_allocated(data: bytes, code: str) -> None:
    connection = Connection()
    tracemalloc.start()
    try:
        assert list(feed(connection, data, [])) == [code]
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    with pytest.raises(ProtocolError):
        list(connection.received(0))


def test_a_large_frame_is_refused_before_hello_and_taken_after() -> None:
    data = wire((m.Administer("x", "y" * 70_000), 1, []))
    assert list(feed(Connection(), data, [])) == ["protocol.frame_too_large"]
    assert talk([], data) == [(1, m.Administer("x", "y" * 70_000), [])]


def test_the_buffer_of_a_frame_that_has_begun_grows_only_with_its_bytes() -> None:
    reader = FrameReader()
    frame = wire_frame(60_000)
    for sent in range(1, len(frame)):
        reader.buffer()[:1] = frame[sent - 1 : sent]
        assert reader.received(1) == []
        assert len(reader.buffer()) + sent <= max(BUFFER_BYTES_MIN, min(4 * sent, FRAME_BYTES_MAX_BEFORE_HELLO))
    reader.buffer()[:1] = frame[-1:]
    assert [bytes(each) for each in reader.received(1)] == [frame]


def wire_frame(size: int) -> bytes:
    """A frame of one segment."""
    return struct.pack("<II", 0, size // 8 - 1) + (bytes(range(256)) * (size // 256 + 1))[: size - 8]


def test_a_huge_frame_round_trips_and_takes_memory_only_while_it_arrives() -> None:
    data = wire((m.Publish("t"), 1, [bytes(range(256)) * 20_000]), (m.Ping(), 2, []))
    connection = Connection()
    connection.allow_frames(16 << 20)
    events = list(feed(connection, data, []))
    assert events == talk_with_frames_of(16 << 20, data)
    assert [event[0] for event in events] == [1, 2]  # type: ignore[index]

    waiting = Connection()
    waiting.allow_frames(16 << 20)
    tracemalloc.start()
    try:
        assert list(feed(waiting, data[:100_000], [])) == []
        assert tracemalloc.get_traced_memory()[1] < 2 << 20, "5 MB were announced and 0.1 MB came"
    finally:
        tracemalloc.stop()


def talk_with_frames_of(frame_bytes_max: int, data: bytes) -> list[object]:
    """The events for a stream in pieces of 50,001 bytes."""
    connection = Connection()
    connection.allow_frames(frame_bytes_max)
    return list(feed(connection, data, [50_001] * 1_000))


def test_the_batches_behind_one_frame_are_bounded_in_number_and_in_bytes() -> None:
    many = frames_of(m.Publish("t"), 1, [build_from_records([Record(value=b"x")], base_id=1)] * 1_025)
    assert talk([], b"".join(bytes(frame) for frame in many)) == ["protocol.malformed"]
    large = wire((m.Publish("t"), 1, [b"x" * (1 << 19)] * 20))
    connection = Connection()
    connection.allow_frames(1 << 20)
    assert list(feed(connection, large, [])) == ["protocol.frame_too_large"]


def test_a_batch_that_is_none_ends_the_connection() -> None:
    frame = bytes(frames_of(m.Publish("t"), 1, [build_from_records([Record(value=b"x")], base_id=1)])[0])
    assert talk([], frame + wire((m.Ping(), 1, []))) == ["batch.malformed"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_to_a_conversation_raises_anything_but_a_named_error(data: st.DataObject) -> None:
    damaged = bytearray(CONVERSATION[:10_000])
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    talk([], bytes(damaged))


def test_version_and_features_are_agreed_on() -> None:
    assert agree(m.Hello(1, 9, ["zstd", "other"], "x")) == (1, ["zstd"])
    assert agree(m.Hello(0, 1, [], "x")) == (1, [])
    for least, most in ((2, 3), (0, 0), (65_535, 65_535), (2, 1)):
        with pytest.raises(VersionUnsupported):
            agree(m.Hello(least, most, [], "x"))
    with pytest.raises(ProtocolError):
        agree(m.Ping())
    with pytest.raises(ProtocolError):
        check_welcome(m.Pong())
    with pytest.raises(VersionUnsupported):
        check_welcome(m.Welcome(2, [], "x", 1, 1, 1, 1, 1, 1))


def test_a_frame_over_the_limit_is_reported() -> None:
    connection = Connection()
    connection.buffer()[:8] = struct.pack("<II", 0, 1 << 20)
    events = connection.received(8)
    with pytest.raises(FrameTooLarge):
        list(events)
