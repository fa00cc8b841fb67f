"""The partitioner port, and the hash that places keys: murmur2, exactly as Kafka's default partitioner has it.

Law: where a topic's partitioner is `murmur2`, the same key and the same number of partitions give the same partition,
in the broker and in every client of every language. With any other partitioner the broker chooses, and nobody else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from linn.core.batch.batch import RecordBatch

DEFAULT_PARTITIONER = "murmur2"
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
KEYS_CACHED_MAX = 65_536
"""Keys whose hash is remembered; keys repeat, and a hash in Python costs about as much as its key has bytes / 4."""
KEY_CACHED_BYTES_MAX = 256
"""Of a key that is remembered, so that all of them together stay below 24 MiB; most keys are ids."""


def murmur2(data: bytes) -> int:
    """The 32-bit hash of `data` as Kafka's `Utils.murmur2` has it, as an unsigned number."""
    size = len(data)
    whole = size & ~3
    h = _SEED ^ size
    for k in struct.unpack_from(f"<{whole >> 2}I", data):
        k = k * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if size != whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def key_hash(key: bytes | None) -> int:
    """What a batch's `keyHashes` column holds: murmur2 without the sign bit; 0 for a record without a key."""
    if key is None:
        return 0
    return remembered(key) if len(key) <= KEY_CACHED_BYTES_MAX else _hash(key)


def _hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


remembered = lru_cache(maxsize=KEYS_CACHED_MAX)(_hash)
"""The hash of a short key."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of `key` in a topic of so many partitions."""
    return key_hash(key) % partitions


class Partitioner(Protocol):
    """Chooses among the partitions of one topic, which has more than one, for batches whose producer did not."""

    def place(self, batch: RecordBatch, partitions: int) -> int | Sequence[int]:
        """The partition for the whole batch, or one for each of its records.

        Synchronous, in the broker's loop, once per batch; a publish that waits for room is asked about again when it is
        tried again. An exception, or a place that is none, fails the publish; nothing of it is stored.
        """


@dataclass(frozen=True, slots=True)
class PartitionerKind:
    """What a plugin registers."""

    name: str
    """The value of `partitioner =` in a topic."""
    make: Callable[[], Partitioner]
    """Makes the partitioner of one topic. Does no I/O."""
    settings: None = None
    """There is no table for them."""
