"""The short look at a batch that holds values alone says what the long one says, whatever the bytes are."""

from __future__ import annotations

import random
import struct

import pytest

from linn.core.batch.batch import BATCH_BYTES_MIN, BODY, BatchLimits, Format, RecordBatch, seal
from linn.core.batch.body import Body
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.batch.flat_message import DATA_AT
from linn.core.errors.tree import BatchError, BatchMalformed

LIMITS = BatchLimits()
MUTANTS = 4_000
BODY_POINTER_AT = BATCH_BYTES_MIN - 8
BODY_BYTES_AT = DATA_AT + 76
POINTERS_AT = BATCH_BYTES_MIN + 16
"""Offset of the body's pointers, those of the values first."""
WORDS = [0, 8, BODY_POINTER_AT, BATCH_BYTES_MIN, BATCH_BYTES_MIN + 8, *range(POINTERS_AT, POINTERS_AT + 32, 8)]


def mutant(rng: random.Random) -> bytearray:
    """A batch of a few values with something wrong, more often than not where the short look looks."""
    few = rng.choice((1, 1, 2, 9))
    columns = BatchColumns([rng.choice((b"", b"a", b"seven b", bytes(rng.randrange(30)))) for _ in range(few)], 5, 7)
    if rng.random() < 0.1:
        columns.keys = [b"k"] * few
    if rng.random() < 0.1:
        columns.values = [None] * few
    message = bytearray(build_batch(columns).message)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.choice(WORDS)
        if rng.random() < 0.3 or at + 8 > len(message):
            message[rng.randrange(len(message))] ^= 1 << rng.randrange(8)
        else:
            (word,) = struct.unpack_from("<Q", message, at)
            step = rng.choice((4, -4, 8, 1 << 35, -(1 << 35), 8 << 35, 1 << 33, rng.randrange(-5, 5) << 2, -word))
            struct.pack_into("<Q", message, at, (word + step) % (1 << 64))
    if rng.random() < 0.3:
        message += bytes(8)
        body_bytes = len(message) - BATCH_BYTES_MIN
        struct.pack_into("<I", message, 4, len(message) // 8 - 1)
        struct.pack_into("<I", message, BODY_BYTES_AT, body_bytes)
        struct.pack_into("<Q", message, BODY_POINTER_AT, body_bytes << 35 | 2 << 32 | 1)
        struct.pack_into("<I", message, BATCH_BYTES_MIN + 4, body_bytes // 8 - 1)
    seal(message)
    return message


def looked_at_closely(batch: RecordBatch) -> Body | None:
    """Check a batch as `verify` does, without its shortcuts; returns an uncompressed body. Raises BatchError."""
    numbers_fit = batch.body_bytes <= LIMITS.batch_bytes_max and 0 < batch.count <= LIMITS.records_max
    if not numbers_fit or batch.offset_span != batch.count:
        raise BatchMalformed("its numbers")
    batch._check_columns()
    body = batch.raw_fields[BODY]
    assert body is not None
    if batch.format != Format.NATIVE:
        return None
    if batch.codec:
        batch._check_body()
        return None
    if len(body) != batch.body_bytes:
        raise BatchMalformed("its body's size")
    return Body.decode(body, batch.count)


@pytest.mark.parametrize("seed", range(5))
def test_the_quick_check_agrees_with_the_full_one(seed: int) -> None:
    rng, taken, plain = random.Random(seed), 0, 0
    for _ in range(MUTANTS):
        message = mutant(rng)
        try:
            batch = RecordBatch(message)
        except BatchMalformed:
            continue
        try:
            body, refused = looked_at_closely(RecordBatch(bytes(message))), False
        except BatchError:
            body, refused = None, True
        try:
            batch.verify(LIMITS)
        except BatchError:
            assert refused
            continue
        assert not refused
        taken += 1
        if batch.is_plain:
            plain += 1
            assert batch.raw_fields[1:] == [None] * 9
            assert body is not None
            assert (body.keys, body.timestamps_ms, body.headers, body.values.validity) == (None, None, None, None)
    assert MUTANTS > taken > plain > MUTANTS // 20
