"""Partitions of keys, a whole column at a time: the hash of `linn.core.batch.key_hash`, in numpy.

Law: a key gets the partition that every other client gives it. One by one, keys would cost more than everything else
that a write does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)


def by_key(batch: Any, partitions: int) -> Iterator[tuple[int | None, Any]]:
    """Yield the rows of an Arrow batch by the partition of their key, in order; None: those without a key."""
    keys = batch.column("key").cast(pa.binary())
    chosen = (key_hashes(keys) % np.uint32(partitions)).astype(np.int64)
    if keys.null_count:
        chosen[np.asarray(keys.is_null())] = -1
    for partition in np.unique(chosen).tolist():
        yield (None if partition < 0 else partition), batch.take(pa.array(np.nonzero(chosen == partition)[0]))


def key_hashes(keys: Any) -> Any:
    """Return the hashes of an Arrow array of binary keys, without their sign bit; that of a null is any number."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    sizes = np.diff(offsets)
    found = np.zeros(len(keys), np.uint32)
    for size in np.unique(sizes).tolist():
        rows = np.nonzero(sizes == size)[0]
        found[rows] = _alike(data[offsets[rows].astype(np.int64)[:, None] + np.arange(size)], size)
    return found & np.uint32(0x7FFFFFFF)


def _alike(keys: Any, size: int) -> Any:
    """Return murmur2 of keys of one size, as rows of bytes."""
    whole = size & ~3
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4")
    hashed = np.full(len(keys), _SEED ^ size, np.uint32)
    for place in range(whole // 4):
        word = words[:, place] * _M
        hashed = hashed * _M ^ (word ^ word >> np.uint32(24)) * _M
    if size != whole:
        tail = np.zeros(len(keys), np.uint32)
        for place in range(whole, size):
            tail |= keys[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
        hashed = (hashed ^ tail) * _M
    hashed = (hashed ^ hashed >> np.uint32(13)) * _M
    return hashed ^ hashed >> np.uint32(15)
