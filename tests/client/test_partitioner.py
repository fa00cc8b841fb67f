from __future__ import annotations

import pytest

from linn.core.partitioner import key_hash, murmur2, partition_of


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
