from __future__ import annotations

import pytest

from linn.core.batch.key_hash import KEY_CACHED_BYTES_MAX, key_hash, murmur2, partition_of, remembered


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (bytes([12, 42, 56, 24, 109, 111]), 274204207),
        (b"", 275646681),
    ],
)
def test_the_hash_is_that_of_kafkas_own_test(key: bytes, expected: int) -> None:
    """The vectors of `UtilsTest.testMurmur2` in Kafka's clients, and two that others made with them."""
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_the_sign_bit_is_masked_as_kafka_does_it() -> None:
    assert key_hash(b"21") == -973932308 & 0x7FFFFFFF
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
    assert key_hash(None) == 0


@pytest.mark.parametrize("size", [KEY_CACHED_BYTES_MAX, KEY_CACHED_BYTES_MAX + 1])
def test_cached_and_uncached_keys_have_the_same_hash_and_only_short_ones_are_cached(size: int) -> None:
    key = b"k" * size
    before = remembered.cache_info().currsize
    for _ in range(2):
        assert key_hash(key) == murmur2(key) & 0x7FFFFFFF
    assert remembered.cache_info().currsize - before == (size <= KEY_CACHED_BYTES_MAX)
