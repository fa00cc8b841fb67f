"""Routes read by hand and by pycapnp: where the quick reader answers, both say the same, whatever the bytes."""

from __future__ import annotations

import math
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.batch import schema
from linn.core.batch.flat_routes import read_routes
from linn.core.batch.routes import LABELS_MAX, TEXT_BYTES_MAX, Pair, decode_any_routes, decode_routes, encode_routes
from linn.core.errors.tree import BatchMalformed

TEXT = st.text(max_size=12)
VALUE = st.one_of(TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats())
LABELS = st.dictionaries(TEXT, VALUE, max_size=5).map(lambda labels: tuple(sorted(labels.items())))
PAIRS = st.lists(st.builds(Pair, TEXT, LABELS), min_size=1, max_size=8)


def flat(data: bytes, count: int) -> list[Pair] | None:
    found = read_routes(data, count, LABELS_MAX, TEXT_BYTES_MAX)
    return None if found is None else [Pair(*pair) for pair in found]


def by_library(data: bytes, count: int) -> list[Pair] | None:
    try:
        return decode_any_routes(data, count)
    except BatchMalformed:
        return None


def exact(pairs: list[Pair] | None) -> object:
    """Values with their types, and NaN equal to itself."""
    if pairs is None:
        return None
    return [
        (key, [(name, type(value), repr(value) if isinstance(value, float) else value) for name, value in labels])
        for key, labels in pairs
    ]


@settings(max_examples=200, deadline=None)
@given(pairs=PAIRS)
def test_routes_written_by_linn_are_read_without_a_library(pairs: list[Pair]) -> None:
    data = encode_routes(pairs)
    assert exact(flat(data, len(pairs))) == exact(pairs) == exact(by_library(data, len(pairs)))


@settings(max_examples=300, deadline=None)
@given(pairs=PAIRS, seed=st.integers(0, 2**32), count=st.integers(-1, 1))
def test_damaged_bytes_are_read_only_if_the_library_reads_them(pairs: list[Pair], seed: int, count: int) -> None:
    rng, whole = random.Random(seed), encode_routes(pairs)
    for _ in range(20):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data))]
        read = flat(bytes(data), max(0, len(pairs) + count))
        assert read is None or exact(read) == exact(by_library(bytes(data), max(0, len(pairs) + count)))


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 64).map(lambda n: n << 2 | 1), max_size=12))
def test_arbitrary_words_are_read_only_if_the_library_reads_them(words: list[int]) -> None:
    data = struct.pack(f"<II{len(words) + 1}Q", 0, len(words) + 1, 1 << 48, *words)
    for count in (0, 1, 2):
        read = flat(data, count)
        assert read is None or exact(read) == exact(by_library(data, count))


def test_another_layout_of_the_same_is_read_as_well() -> None:
    message = schema.load("batch").Routes.new_message(num_first_segment_words=2)
    targets = message.init("pairs", 2)
    for target, name in zip(targets, ("a", "b"), strict=True):
        target.routingKey = name * 100
    data = bytes(message.to_bytes())
    assert data[0] > 0, "more than one segment"
    assert flat(data, 2) is None
    assert decode_routes(data, 2) == [Pair("a" * 100, ()), Pair("b" * 100, ())]


@pytest.mark.parametrize("value", [math.nan, -0.0, math.inf, -(2**63), 2**63 - 1, True, "", "ä" * 1_000])
def test_extreme_labels_are_read(value: object) -> None:
    pairs = [Pair("k", (("name", value),))]
    assert exact(flat(encode_routes(pairs), 1)) == exact(pairs)
