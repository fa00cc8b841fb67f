"""Routing keys and labels: encoded the same each time, and read within bounds whatever they say."""

from __future__ import annotations

import struct

import pytest
from bounds import bounded
from hypothesis import given, settings
from hypothesis import strategies as st
from stopwatch import at_most

from linn.core.batch import schema
from linn.core.batch.routes import ROUTES_BYTES_MAX, Pair, decode_routes, encode_routes
from linn.core.errors.tree import BatchMalformed


def struct_at(offset: int, number_words: int, pointers: int) -> int:
    return (offset & 0x3FFFFFFF) << 2 | number_words << 32 | pointers << 48


def list_at(offset: int, kind: int, size: int) -> int:
    return 1 | (offset & 0x3FFFFFFF) << 2 | kind << 32 | size << 35


def tag(count: int, number_words: int, pointers: int) -> int:
    return count << 2 | number_words << 32 | pointers << 48


def message(*words: int) -> bytes:
    return struct.pack(f"<II{len(words)}Q", 0, len(words), *words)


ROOT = struct_at(0, 0, 1)
ONE_PAIR = (ROOT, list_at(0, 7, 2), tag(1, 0, 2), 0)  # The labels' pointer comes next.


def sharing(pairs: int, labels: int, label_words: int) -> bytes:
    """Pairs that all point to the same list of labels."""
    words = [ROOT, list_at(0, 7, 2 * pairs), tag(pairs, 0, 2)]
    end = 3 + 2 * pairs
    for _ in range(pairs):
        words += [0, list_at(end - len(words) - 2, 7, labels * label_words)]
    return message(*words, tag(labels, 0, label_words), *[0] * (labels * label_words))


HOSTILE = {
    "nothing": (b"", 1),
    "no message": (bytes(7), 1),
    "segment count 2^32-1": (struct.pack("<II", 2**32 - 1, 1) + bytes(8), 1),
    "segment longer than the field": (struct.pack("<II", 0, 1_000) + bytes(8), 1),
    "five million empty pairs": (message(ROOT, list_at(0, 7, 0), tag(5_000_000, 0, 0)), 65_535),
    "65,535 empty pairs": (message(ROOT, list_at(0, 7, 0), tag(65_535, 0, 0)), 65_535),
    "five million empty labels": (message(*ONE_PAIR, list_at(0, 7, 0), tag(5_000_000, 0, 0)), 1),
    "2^29-1 labels": (message(*ONE_PAIR, list_at(0, 7, 0), tag(2**29 - 1, 0, 0)), 1),
    "pairs that share 250 empty labels": (sharing(60_000, 250, 0), 60_000),
    "pairs that share a label": (sharing(60_000, 1, 1), 60_000),
    "pairs that share 250 labels": (sharing(60_000, 250, 2), 60_000),
    "a struct that points to itself": (message(struct_at(-1, 0, 1)), 1),
    "pairs that point back to themselves": (message(ROOT, list_at(-1, 7, 1), tag(1, 0, 1)), 1),
    "a far pointer to another segment": (message(2 | 5 << 32), 1),
    "a list of bits for pairs": (message(ROOT, list_at(0, 1, 64), 0), 64),
    "text without NUL": (message(*ONE_PAIR[:3], list_at(1, 2, 4), 0, 0x64636261), 1),
    "text of no bytes at all": (message(*ONE_PAIR[:3], list_at(1, 2, 0), 0), 1),
    "text that is not UTF-8": (message(*ONE_PAIR[:3], list_at(1, 2, 3), 0, 0x00FFFE), 1),
    "an unknown kind of label": (message(*ONE_PAIR, list_at(0, 7, 4), tag(1, 2, 2), 9, 0, 0, 0), 1),
    "a name that repeats": (message(*ONE_PAIR, list_at(0, 7, 8), tag(2, 2, 2), *[1, 0, 0, 0] * 2), 1),
    "zero padding over the limit": (message(ROOT, *[0] * (ROUTES_BYTES_MAX // 8)), 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_crafted_routes_are_refused_in_bounded_time_and_memory(name: str) -> None:
    data, count = HOSTILE[name]
    schema.load("batch")
    with bounded(peak_bytes=4 * len(data) + (1 << 20)), pytest.raises(BatchMalformed):
        decode_routes(data, count)


def test_deep_nesting_in_ignored_fields_costs_nothing() -> None:
    chain = [struct_at(0, 0, 1)] * 100_000
    data = message(struct_at(0, 0, 2), list_at(1, 7, 2), struct_at(3, 0, 1), tag(1, 0, 2), 0, 0, *chain, 0)
    with bounded():
        assert decode_routes(data, 1) == [Pair("", ())]


def test_the_largest_honest_routes_are_decoded_in_under_a_second() -> None:
    labels = tuple((f"{number:03}", number) for number in range(200))
    data = encode_routes([Pair(str(number), labels) for number in range(240)])
    assert ROUTES_BYTES_MAX * 0.9 < len(data) <= ROUTES_BYTES_MAX
    with at_most(cpu_s=1):
        assert len(decode_routes(data, 240)) == 240


@pytest.mark.parametrize(
    "labels", [[("b", 1), ("a", 1)], [("a", 1), ("a", 2)], [("n" * 4_097, 1)], [("n", "é" * 2_049)]]
)
def test_labels_out_of_order_repeated_or_too_long_are_refused(labels: list[tuple[str, int | str]]) -> None:
    routes = schema.load("batch").Routes.new_message()
    targets = routes.init("pairs", 1)[0].init("labels", len(labels))
    for target, (name, value) in zip(targets, labels, strict=True):
        target.name = name
        setattr(target.value, "text" if isinstance(value, str) else "int", value)
    with pytest.raises(BatchMalformed):
        decode_routes(routes.to_bytes(), 1)


def test_257_labels_on_one_pair_are_refused() -> None:
    routes = schema.load("batch").Routes.new_message()
    for number, target in enumerate(routes.init("pairs", 1)[0].init("labels", 257)):
        target.name = f"{number:03}"
    with pytest.raises(BatchMalformed, match="257"):
        decode_routes(routes.to_bytes(), 1)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_to_routes_gives_pairs_or_batch_malformed(data: st.DataObject) -> None:
    good = encode_routes([Pair("a.b", (("x", True), ("y", "text"))), Pair("é", (("x", 1.5),)), Pair("", ())])
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decode_routes(damaged, 3)) == 3
    except BatchMalformed:
        return


def test_equal_pairs_give_equal_bytes_in_one_segment() -> None:
    pairs = [Pair("départ", (("a", "ü" * 1_000), ("b", 1.5))), Pair("x" * 4_096, ())]
    assert encode_routes(pairs) == encode_routes(list(pairs))
    assert struct.unpack_from("<I", encode_routes(pairs)) == (0,)
