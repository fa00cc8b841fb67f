"""The hash that places keys: murmur2, exactly as in Kafka's default partitioner.

Law: if a topic's partitioner is `murmur2`, the same key and the same number of partitions give the same partition,
in the broker and in every client of every language.
"""

from __future__ import annotations

import struct
from functools import lru_cache

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
KEYS_CACHED_MAX = 65_536
"""Keys whose hashes are cached: keys repeat, and a hash in Python takes one loop per four bytes of the key."""
KEY_CACHED_BYTES_MAX = 256
"""Longest key whose hash is cached, to keep the cache below 24 MiB; most keys are ids."""


def murmur2(data: bytes) -> int:
    """Compute the 32-bit hash of `data`, as Kafka's `Utils.murmur2`, as an unsigned number."""
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
    """The hash in a batch's `keyHashes` column: murmur2 without the sign bit; 0 for a record without a key."""
    if key is None:
        return 0
    return remembered(key) if len(key) <= KEY_CACHED_BYTES_MAX else _hash(key)


def _hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


remembered = lru_cache(maxsize=KEYS_CACHED_MAX)(_hash)
"""The cached hash of a short key."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of `key` in a topic of `partitions` partitions."""
    return key_hash(key) % partitions
