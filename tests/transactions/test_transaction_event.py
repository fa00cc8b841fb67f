"""Records of the transactions' log: any events survive, and whatever no broker can have written is LogCorrupt."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.errors.tree import LogCorrupt
from linn.core.transactions.event import (
    IDENTITY_CHARACTERS_MAX,
    TRANSACTION_EVENT_VERSION,
    Aborted,
    Branches,
    Committed,
    Joined,
    Led,
    Named,
    NameForgotten,
    Started,
    TransactionEvent,
    decode_transaction_events,
    encode_transaction_events,
)

NUMBERS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 2**16 - 1)
NAMES = st.sampled_from(["billing", "b", "Ä\u2028", "x" * 249])
EVENTS: st.SearchStrategy[TransactionEvent] = st.one_of(
    st.builds(
        Named,
        NAMES,
        NUMBERS,
        EPOCHS,
        NUMBERS,
        NUMBERS,
        st.integers(-1, 2**16 - 1),
        st.text(max_size=9),
        NUMBERS,
        st.lists(st.integers(0, 2**64 - 1), max_size=3),
    ),
    st.builds(Branches, NAMES, st.lists(NUMBERS, max_size=3), NUMBERS),
    st.builds(Aborted, NAMES, NUMBERS, st.text(max_size=9), NUMBERS),
    st.builds(Started, st.text(max_size=9)),
    st.builds(
        Committed,
        NAMES,
        NUMBERS,
        st.lists(NUMBERS, max_size=3),
        NUMBERS,
        st.text(max_size=IDENTITY_CHARACTERS_MAX),
    ),
    st.builds(NameForgotten, NAMES),
    st.builds(Joined, NAMES, NUMBERS, NUMBERS, NAMES, st.uuids().map(lambda id: id.hex)),
    st.just(Led()),
)
HEAD = bytes((TRANSACTION_EVENT_VERSION, 0))


def record(*events: object) -> bytes:
    """A record whose events are these arrays."""
    return HEAD + msgspec.msgpack.encode(list(events))


@given(st.lists(EVENTS), st.booleans())
def test_any_events_survive_the_codec(events: list[TransactionEvent], restart: bool) -> None:
    data = encode_transaction_events(events, restart=restart)
    for form in (data, bytearray(data), memoryview(data)):
        assert decode_transaction_events(form) == (restart, events)


@given(st.lists(EVENTS, min_size=1), st.data())
def test_a_record_that_is_cut_is_corrupt(events: list[TransactionEvent], data: st.DataObject) -> None:
    whole = encode_transaction_events(events)
    with pytest.raises(LogCorrupt):
        decode_transaction_events(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(EVENTS, st.binary(min_size=1, max_size=4))
def test_a_record_with_something_behind_it_is_corrupt(event: TransactionEvent, rest: bytes) -> None:
    with pytest.raises(LogCorrupt):
        decode_transaction_events(encode_transaction_events([event]) + rest)


@given(st.binary(max_size=40))
def test_any_bytes_are_events_or_corrupt(data: bytes) -> None:
    for form in (data, HEAD + data):
        try:
            _, events = decode_transaction_events(form)
        except LogCorrupt:
            continue
        assert encode_transaction_events(events)


@given(st.lists(EVENTS, min_size=1, max_size=3), st.data())
def test_a_record_with_one_wrong_byte_is_events_or_corrupt(events: list[TransactionEvent], data: st.DataObject) -> None:
    changed = bytearray(encode_transaction_events(events))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        _, found = decode_transaction_events(changed)
    except LogCorrupt:
        return
    assert encode_transaction_events(found)


@pytest.mark.parametrize("version", [version for version in (0, 1, 2, 255) if version != TRANSACTION_EVENT_VERSION])
def test_a_record_of_another_version_is_corrupt(version: int) -> None:
    data = bytearray(encode_transaction_events([NameForgotten("a")]))
    data[0] = version
    with pytest.raises(LogCorrupt, match="version"):
        decode_transaction_events(data)


@pytest.mark.parametrize("data", [b"", HEAD[:1], HEAD, bytes((TRANSACTION_EVENT_VERSION, 2)) + b"\x90"])
def test_a_record_without_a_whole_head_or_body_is_corrupt(data: bytes) -> None:
    with pytest.raises(LogCorrupt):
        decode_transaction_events(data)


NAMED: list[Any] = [1, "a", 7, 0, 1, 2]
COMMITTED: list[Any] = [2, "a", 1, [7]]
OTHERS: list[Any] = [[3, "a"], [4, "a", [7]], [5, "a", 7], [6, "boot"]]


@pytest.mark.parametrize(
    "event",
    [
        [0, "a"],
        [7, "a"],
        ["a"],
        [],
        {"name": "a"},
        None,
        "a",
        [1],
        [1, "", 7, 0, 1, 2],
        [1, 7, 7, 0, 1, 2],
        [1, "a", -1, 0, 1, 2],
        [1, "a", 2**63, 0, 1, 2],
        [1, "a", 7, 2**16, 1, 2],
        [1, "a", 7, -1, 1, 2],
        [1, "a", 7, 0, -1, 2],
        [1, "a", 7, 0, 1, "2"],
        [1, "a", 7, 0, 1, 2.5],
        [*NAMED, -2],
        [*NAMED, 2**16],
        [*NAMED, None],
        [*NAMED, 3, 7],
        [*NAMED, 3, "ann", -1],
        [*NAMED, 3, "ann", 1, ["7"]],
        [*NAMED, 3, "ann", 1, [7], "more"],
        [2, "", 1, [7]],
        [2, "a", 1],
        [2, "a", -1, [7]],
        [2, "a", 1, [-7]],
        [2, "a", 1, ["7"]],
        [2, "a", 1, 7],
        [*COMMITTED, "more"],
        [3],
        [3, ""],
        [3, b"a"],
        [3, "a", "more"],
        [4, "a"],
        [4, "a", [-1]],
        [4, "", [1]],
        [5, "a"],
        [5, "a", -1],
        [5, "a", 1, 7],
        [6],
        [6, 7],
    ],
    ids=str,
)
def test_an_event_of_a_wrong_shape_is_corrupt(event: object) -> None:
    with pytest.raises(LogCorrupt):
        decode_transaction_events(record(event))
    with pytest.raises(LogCorrupt):
        decode_transaction_events(record(NAMED, event))


@pytest.mark.parametrize("event", [NAMED, COMMITTED, *OTHERS], ids=str)
def test_the_right_shapes_are_taken(event: object) -> None:
    assert len(decode_transaction_events(record(event))[1]) == 1


@pytest.mark.parametrize("body", [b"\xc0", b"\x80", b"\x07", b"\xa1a", b"\xdd\xff\xff\xff\xff", b"\x91\xa2\xc3\x28"])
def test_a_body_that_is_no_list_of_events_is_corrupt(body: bytes) -> None:
    with pytest.raises(LogCorrupt):
        decode_transaction_events(HEAD + body)


def test_a_name_that_is_not_utf_8_is_corrupt() -> None:
    with pytest.raises(LogCorrupt):
        decode_transaction_events(HEAD + b"\x91\x92\x03\xa2\xc3\x28")
