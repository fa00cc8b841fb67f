"""Control messages: each comes back as it was, and hostile ones cost what their bytes cost."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import typing
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stopwatch import at_most

from linn.core.batch import schema
from linn.core.errors.tree import MessageInvalid, ProtocolError
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.settle_reader import read_settle

NARROW = {
    "version_min": 16, "version_max": 16, "version": 16, "frame_bytes_max": 32, "batch_bytes_max": 32,
    "message_bytes_max": 32, "keepalive_ms": 32, "inflight_max": 32, "subscriptions_max": 32, "copies": 32,
    "bytes_min": 32, "bytes_max": 32, "wait_max_ms": 32, "credit": 32, "records": 32, "records_max": 32,
    "subscription": 32, "lease_ms": 32, "ms": 32, "entry": 32, "epoch": 32, "session_ms": 32,
    "topic_id_high": 64, "topic_id_low": 64, "id_high": 64, "id_low": 64, "delivery_id": 64,
    "attempt": 16, "id": 32, "timeout_ms": 32, "number": 64, "sequence": 64, "opening": 64,
    "producer_key": 64,
    "lanes_max": 32, "lane_requests_max": 32, "lane_bytes_max": 32, "requests_max": 32, "node": 32, "to_node": 32,
    "leader": 32, "returned": 32, "formats": 32, "reason": 16, "log": 32, "batches": 16,
}  # fmt: skip
ENUMS = {"acks": 3, "kind": 3, "verdict": 6, "phase": 2, "place": 3}
SIGNED_32 = ("partition", "partitions", "revoked", "leader_epoch", "owner_epoch", "priority")
TEXT = st.text(max_size=20)


def _value(name: str, hint: object) -> st.SearchStrategy[object]:
    item = next(iter(typing.get_args(hint)), None)
    if isinstance(item, type) and issubclass(item, m.Message):
        return st.lists(_message(item), max_size=3)
    if item is not None:
        return st.lists(TEXT if item is str else _number(name), max_size=3)
    if hint is str:
        return TEXT
    if hint is bytes:
        return st.binary(max_size=20)
    if hint is bool:
        return st.booleans()
    return _number(name)


def _number(name: str) -> st.SearchStrategy[object]:
    if name in ENUMS:
        return st.integers(0, ENUMS[name] - 1)
    if name in NARROW:
        return st.integers(0, 2 ** NARROW[name] - 1)
    bits = 31 if name in SIGNED_32 else 63
    return st.integers(-(2**bits), 2**bits - 1)


def _message(cls: type[m.Message]) -> st.SearchStrategy[m.Message]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{name: _value(name, hint) for name, hint in hints.items()})


FRAMES = [
    field.name
    for field in schema.load("protocol").Frame.schema.node.struct.fields
    if field.name not in ("correlation", "batches", "lane")
]
BY_FRAME = {codec.camel(cls.__name__[0].lower() + cls.__name__[1:]): cls for cls in m.Message.__subclasses__()}


@pytest.mark.parametrize("member", FRAMES)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), correlation=st.integers(0, 2**64 - 1), batches=st.integers(0, 1000))
def test_every_message_round_trips(member: str, data: st.DataObject, correlation: int, batches: int) -> None:
    message = data.draw(_message(BY_FRAME[member]))
    quick = not isinstance(message, m.Published) or len(message.placements) != 1
    encoded = codec.encode(message, correlation, batches if quick else 0)
    for _ in range(2):
        assert codec.decode(memoryview(bytes(encoded))) == (correlation, batches if quick else 0, message)
    with schema.load("protocol").Frame.from_bytes(bytes(encoded)) as frame:
        assert (str(frame.which()), frame.correlation) == (member, correlation), "as any Cap'n Proto reader sees it"


def _frame(pointers: bytes, data: bytes = b"", member: int = 17, batches: int = 0) -> bytes:
    """A Frame whose union's one pointer, and what is behind it, are these bytes. Settle is member 17 of the union."""
    numbers = struct.pack("<QHHI", 7, batches, member, 0)
    body = struct.pack("<HHHH", 0, 0, 2, 1) + numbers + pointers + data
    return struct.pack("<II", 0, len(body) // 8) + body


def _struct_pointer(offset: int, data_words: int, pointers: int) -> bytes:
    return struct.pack("<iHH", offset << 2, data_words, pointers)


def _list_pointer(offset: int, kind: int, count: int) -> bytes:
    return struct.pack("<iI", offset << 2 | 1, count << 3 | kind)


SETTLE = FRAMES.index("settle")
EMPTY_STRUCTS = (
    _struct_pointer(0, 1, 1) + bytes(8) + _list_pointer(0, 7, 0) + struct.pack("<iHH", (2**29 - 1) << 2, 0, 0)
)
FAR = struct.pack("<II", 2 | 0 << 2, 1)
HOSTILE = {
    "a list of 2^29-1 empty structs": _frame(EMPTY_STRUCTS, member=SETTLE),
    "a struct that points to itself": _frame(_struct_pointer(-1, 0, 1), member=SETTLE),
    "a list beyond the end": _frame(_struct_pointer(0, 1, 1) + bytes(8) + _list_pointer(0, 7, 10_000), member=SETTLE),
    "a pointer before the start": _frame(_struct_pointer(-5_000, 1, 1), member=SETTLE),
    "a far pointer to no segment": _frame(FAR, member=SETTLE),
    "a capability": _frame(struct.pack("<II", 3, 0), member=SETTLE),
    "a list of pointers to itself": _frame(
        _struct_pointer(0, 1, 1) + bytes(8) + _list_pointer(-1, 6, 1), member=SETTLE
    ),
}
HARMLESS = ("a list of pointers to itself",)
"""Inputs that a reader may turn into a small message."""


@pytest.mark.measured
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_message_is_refused_at_once(name: str) -> None:
    tracemalloc.start()
    try:
        with at_most(cpu_s=0.5):
            with contextlib.suppress(ProtocolError) if name in HARMLESS else pytest.raises(ProtocolError):
                codec.decode(memoryview(HOSTILE[name]))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.measured
def test_a_list_of_empty_structs_within_the_limit_costs_little() -> None:
    count = codec.ENTRIES_MAX
    pointers = _struct_pointer(0, 1, 1) + bytes(8) + _list_pointer(0, 7, 0) + struct.pack("<iHH", count << 2, 0, 0)
    with at_most(cpu_s=2), contextlib.suppress(ProtocolError):
        assert isinstance(codec.decode(memoryview(_frame(pointers, member=SETTLE))).message, m.Settle)


def test_overlapping_pointers_make_no_message_larger_than_its_bytes() -> None:
    """A list of texts that all point to the same 64 KiB."""
    count, size = 4_000, 1 << 16
    texts = [_list_pointer(count - 1 - number, 2, size) for number in range(count)]
    pointers = _struct_pointer(0, 0, 1) + _list_pointer(0, 6, count) + b"".join(texts)
    frame = _frame(pointers, b"x" * (size - 1) + b"\0", member=FRAMES.index("describe"))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            codec.decode(memoryview(frame))
        assert tracemalloc.get_traced_memory()[1] < 8 * len(frame)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [b"abc", b"\xff\xfe\0", b"\xed\xa0\x80\0", b""])
def test_text_without_its_end_or_that_is_not_utf_8_is_refused(text: bytes) -> None:
    padded = text + bytes(-len(text) % 8)
    pointers = _struct_pointer(0, 0, 1) + _list_pointer(0, 2, len(text)) + padded
    with pytest.raises(ProtocolError):
        codec.decode(memoryview(_frame(pointers, member=FRAMES.index("goodbye"))))


@pytest.mark.parametrize("size", [8, 16, 24, 31, 33])
def test_a_truncated_or_unaligned_frame_is_refused(size: int) -> None:
    whole = bytes(codec.encode(m.Publish("topic"), 1))
    with pytest.raises(ProtocolError):
        codec.decode(memoryview(whole[:size]))


def test_a_member_that_is_not_known_keeps_its_number() -> None:
    for member in (len(FRAMES), 1_000, 65_535):
        decoded = codec.decode(memoryview(_frame(bytes(8), member=member, batches=3)))
        assert decoded == (7, 3, m.Unknown())


def test_frames_with_several_segments_are_read() -> None:
    message = schema.load("protocol").Frame.new_message(num_first_segment_words=4)
    message.correlation = 9
    publish = message.init("publish")
    publish.target = "a topic whose name is in another segment"
    encoded = bytes(message.to_bytes())
    assert encoded[0] > 0, "more than one segment"
    decoded = codec.decode(memoryview(encoded))
    assert decoded == (9, 0, m.Publish("a topic whose name is in another segment", acks=0))


def settle_frame(entries: list[m.Settlement], first_segment_words: int, reasons: Sequence[str] = ()) -> bytearray:
    """A settle as pycapnp writes it; in several segments if the first is small."""
    frame = schema.load("protocol").Frame.new_message(num_first_segment_words=first_segment_words)
    frame.correlation = 9
    codec._layout(m.Settle).write(frame.init("settle"), m.Settle(5, entries, list(reasons)))
    return bytearray(frame.to_bytes())


@pytest.mark.parametrize("words", [4, 1_024])
def test_a_settle_of_many_entries_is_read_without_pycapnp(words: int) -> None:
    entries = [m.Settlement(n % 3 - 1, 2**64 - 1 - n, -n, 2**62 + n, n % 5, 2**32 - 1 - n) for n in range(100)]
    frame = settle_frame(entries, words)
    assert (frame[0] > 0) == (words == 4), "whether it has several segments"
    assert read_settle(memoryview(frame)) == (9, m.Settle(5, entries))
    assert codec.decode(memoryview(frame), from_client=True) == (9, 0, m.Settle(5, entries))


@pytest.mark.parametrize("words", [4, 1_024])
def test_a_settle_with_reasons_is_read_without_pycapnp(words: int) -> None:
    reasons = ["first", "\N{EURO SIGN}" * 500, "a"]
    entries = [m.Settlement(0, 7, n, n + 1, m.Verdict.NACK, 0, n % 4) for n in range(100)]
    frame = settle_frame(entries, words, reasons)
    assert read_settle(memoryview(frame)) == (9, m.Settle(5, entries, reasons))
    for at in range(0, 8 * len(frame) if words == 4 else 0, 7):
        damaged = frame.copy()
        damaged[at // 8] ^= 1 << at % 8
        assert outcome(codec.decode, damaged) == outcome(codec._decode, damaged)


def test_a_settle_with_any_damaged_bit_is_read_or_refused_as_by_pycapnp() -> None:
    entries = [m.Settlement(0, 7, n, n + 1, m.Verdict.NACK, 0, n % 4) for n in range(12)]
    whole = settle_frame(entries, 4, ["first", "\N{EURO SIGN}" * 20, "a"])
    for at in range(8 * len(whole)):
        damaged = whole.copy()
        damaged[at // 8] ^= 1 << at % 8
        assert outcome(codec.decode, damaged) == outcome(codec._decode, damaged), at


def test_a_settle_behind_an_empty_segment_is_refused_as_by_pycapnp() -> None:
    whole = settle_frame([m.Settlement(0, 7, n, n + 1) for n in range(14)], 1_024)
    assert whole[:4] == bytes(4), "it has one segment"
    frame = struct.pack("<4I", 1, 0, len(whole) // 8 - 1, 0) + whole[8:]
    assert outcome(codec.decode, frame) == outcome(codec._decode, frame) == "protocol.malformed"


@pytest.mark.parametrize("words", [4, 1_024])
def test_a_damaged_settle_is_read_or_refused_as_by_pycapnp(words: int) -> None:
    whole = settle_frame([m.Settlement(1, n, n, n + 1) for n in range(14)], words)
    entries_at = len(whole) - 14 * 40 if words == 1_024 else len(whole)
    read = 0
    for at in range(8 * min(entries_at, 120)):
        frame = whole.copy()
        frame[at // 8] ^= 1 << at % 8
        view = memoryview(frame)
        read += read_settle(view) is not None
        assert outcome(codec.decode, frame) == outcome(codec._decode, frame)
    assert read > 100, "a correlation and a subscription are numbers like any other"
    assert read_settle(memoryview(whole)[:-8]) is None


@pytest.mark.parametrize("target", ["a" * 600, "a" * 65_000, "\N{GRINNING FACE}" * 249])
def test_a_publish_to_a_target_longer_than_any_name_is_the_broker_s_to_refuse(target: str) -> None:
    for correlation in (0, 2**64 - 1):
        encoded = memoryview(bytes(codec.encode(m.Publish(target), correlation, 3)))
        assert codec.decode(encoded) == (correlation, 3, m.Publish(target))


def test_the_cache_of_messages_mistakes_none_for_another() -> None:
    for number in range(3):
        for message in (m.Publish(f"t{number}"), m.Pull(number, 5), m.Credit(number, 7), m.Ping()):
            for correlation in (0, 1, 2**64 - 1):
                encoded = memoryview(bytes(codec.encode(message, correlation, number)))
                for _ in range(2):
                    assert codec.decode(encoded) == (correlation, number, message)


def outcome(read: typing.Callable[[memoryview], object], frame: bytes) -> object:
    """The result of reading a frame, or the code of the error."""
    try:
        return read(memoryview(frame))
    except ProtocolError as error:
        return error.code


@pytest.mark.parametrize(
    "message",
    [
        m.Published([m.Placement(3, 1 << 40, 7)]),
        m.Published([m.Placement(-1, -1, 7, [0, 1, 5, 9])]),
        m.Deliver(5, 1, 1 << 50, 2),
        m.Settle(5, [m.Settlement(-1, 1 << 50, 0, 1 << 40, m.Verdict.NACK, 1 << 31)]),
        m.Settle(5, [m.Settlement(1, 1, 0, 1), m.Settlement(1, 2, 1, 2)]),
        m.Settle(5, [m.Settlement(1, 1, 0, 1, m.Verdict.NACK, 0, 1)], ["why"]),
        m.Settled([]),
        m.Settled([m.Refusal(0, "delivery.not_current", "it ended")]),
        m.Publish("t", False, 1, -1),
        m.Publish("t", True, 1, -1, True),
        m.Done(),
        m.EndTransaction(1 << 62, 1 << 31, 1 << 63, True, [-1]),
        m.EndTransaction(1 << 62, 1 << 31, 1 << 63, False, [-1]),
        m.EndTransaction(1, 2, 3, True, [4], producer_key=1 << 63),
        m.EndTransaction(1, 2, 3, True, [4, 5]),
        m.EndTransaction(1, 2, 3, True),
        m.EndTransaction(1, 2, 3, True, [4], 5),
        m.EndTransaction(1, 2, 3, True, [4], 5, "rows 7"),
        m.EndTransaction(1, 2, 3, True, [4], identity="rows 7"),
    ],
)
def test_templates_and_caches_read_the_same_as_the_schema(message: m.Message) -> None:
    frame = bytes(codec.encode(message, 9))
    assert codec.decode(memoryview(frame)) == codec._decode(frame) == (9, 0, message)
    for place in range(len(frame)):
        for mask in (1, 0x80):
            damaged = bytearray(frame)
            damaged[place] ^= mask
            assert outcome(codec.decode, bytes(damaged)) == outcome(codec._decode, bytes(damaged)), (place, mask)


def test_a_commit_whose_number_does_not_fit_is_refused_by_name() -> None:
    for wrong in (m.EndTransaction(1, -1, 2, True, [3]), m.EndTransaction(1, 1 << 32, 2, True, [3])):
        with pytest.raises(MessageInvalid, match="epoch can't be"):
            codec.encode(wrong)
    assert codec.decode(memoryview(bytes(codec.encode(m.EndTransaction(1, 2, 3, True, [4]), 5, 6)))) == (
        5,
        6,
        m.EndTransaction(1, 2, 3, True, [4]),
    )


@given(frame=st.binary(min_size=8, max_size=64), lane=st.integers(0, 2**32 - 1))
def test_the_lane_of_any_bytes_is_read_or_refused(frame: bytes, lane: int) -> None:
    with contextlib.suppress(ProtocolError):
        codec.take_out_of_lane(memoryview(bytearray(frame)))
    for message in (m.CloseLane(), m.Administer("topic.list", "x" * 5_000)):
        encoded = codec.encode(message, 7)
        laned = memoryview(bytearray(codec.put_in_lane(encoded, lane)))
        assert codec.take_out_of_lane(laned) == lane
        assert bytes(laned) == bytes(encoded)


@pytest.mark.parametrize(
    ("message", "is_follower"),
    [
        (m.Follow(0, 0, 1, []), True),
        (m.Followed([]), False),
        (m.Replicate([], 1), True),
        (m.Replicated([]), False),
        (m.PeerPong(1), True),
    ],
)
def test_the_messages_of_followers_are_read_from_brokers_alone(message: m.Message, is_follower: bool) -> None:
    frame = memoryview(bytearray(codec.encode(message, 1)))
    with pytest.raises(ProtocolError, match="nothing that brokers send"):
        codec.decode(frame, from_client=True)
    if is_follower:
        assert codec.decode(frame, from_client=True, from_peer=True).message == message
    else:
        with pytest.raises(ProtocolError, match="a client does not send"):
            codec.decode(frame, from_client=True, from_peer=True)
    assert codec.decode(frame, from_peer=True).message == message
