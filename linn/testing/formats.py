"""The conformance suite of formats: `FormatConformance`, to subclass.

    class TestPages(FormatConformance):
        @pytest.fixture
        def harness(self) -> FormatHarness:
            return FormatHarness(make=Pages)

Law: a test does not know the format. It writes bodies with it, damages them, and compares the records with linn's own
encoding of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import pick_batch
from linn.core.batch.format import BodyFormat, BoundFormat, Formats
from linn.core.batch.record import Record
from linn.core.env.env import Rng
from linn.core.errors.tree import BatchMalformed
from linn.testing.interceptors import SAMPLES
from linn.testing.sim_env import SimEnv

BYTES_MAX = 8 << 20
_NUMBER = 255
_DAMAGES = 300


@dataclass(frozen=True)
class FormatHarness:
    """Format, and bodies in it."""

    make: Callable[[], BodyFormat]
    """Make the codec."""
    bodies: Sequence[tuple[bytes, int]] = ()
    """Bodies with their numbers of records, as another program writes them, such as compressed ones."""

    def written(self) -> Iterator[tuple[RecordBatch, bytes]]:
        """Return every sample that the format can carry, in linn's own format and in this one; at least one."""
        codec, found = self.make(), 0
        for sample in SAMPLES.values():
            batch = RecordBatch(bytearray(sample.message))
            batch.stamp(40, 1)
            gaps = pick_batch(batch, range(0, batch.count, 2), range(batch.base_offset, batch.end_offset))
            for each in (batch, gaps):
                try:
                    body = codec.from_native(each)
                except BatchMalformed:
                    continue
                found += 1
                yield each, body
        assert found, "no sample can be carried"

    def all_bodies(self) -> list[tuple[bytes, int]]:
        """Return all bodies, with their numbers of records."""
        return [*self.bodies, *((body, batch.count) for batch, body in self.written() if len(body) < 100_000)]


def content_of(record: Record) -> tuple[object, ...]:
    """Return the part of a record that a body holds."""
    return record.value, record.key, tuple(record.headers), record.timestamp_ms


class FormatConformance:
    """The promises of `linn.core.batch.format`. A subclass gives the fixture `harness`."""

    def test_records_that_are_written_are_read_again_with_all_they_have(self, harness: FormatHarness) -> None:
        formats = Formats([BoundFormat(_NUMBER, "tested", "this suite", harness.make())], BYTES_MAX)
        for batch, _ in harness.written():
            there = formats.translated("there", batch, _NUMBER)
            back = Formats([BoundFormat(_NUMBER, "tested", "this suite", harness.make())]).translated("back", there, 0)
            assert [content_of(record) for record in back.records()] == [content_of(r) for r in batch.records()]
            assert back.records() == batch.records()
            assert [back.offset(index) for index in range(back.count)] == [
                batch.offset(index) for index in range(batch.count)
            ]

    def test_a_whole_body_is_accepted_and_its_bound_holds(self, harness: FormatHarness) -> None:
        codec = harness.make()
        for body, count in harness.all_bodies():
            bound = codec.check(memoryview(body), count, BYTES_MAX)
            columns = codec.to_native(memoryview(body), count, BYTES_MAX)
            sizes = [len(value or b"") for value in columns.values]
            if columns.keys is not None:
                sizes = [size + len(key or b"") for size, key in zip(sizes, columns.keys, strict=True)]
            assert max(sizes) <= bound, f"a record of {max(sizes)} bytes, over the bound {bound}"

    def test_another_number_of_records_is_refused(self, harness: FormatHarness) -> None:
        codec = harness.make()
        for body, count in harness.all_bodies():
            for wrong in (count + 1, count - 1, 2 * count):
                with pytest.raises(BatchMalformed):
                    codec.check(memoryview(body), wrong, BYTES_MAX)

    def test_what_is_too_large_when_decompressed_is_refused(self, harness: FormatHarness) -> None:
        codec = harness.make()
        for body, count in harness.bodies:
            if codec.check(memoryview(body), count, BYTES_MAX) > len(body):
                with pytest.raises(BatchMalformed):
                    codec.check(memoryview(body), count, len(body))

    def test_damaged_bodies_raise_nothing_but_linns_errors(self, harness: FormatHarness) -> None:
        codec, rng = harness.make(), SimEnv(7).rng
        for body, count in harness.all_bodies():
            for damaged in _damaged(body, rng):
                for read in (codec.check, codec.to_native):
                    try:
                        read(memoryview(damaged), count, BYTES_MAX)
                    except BatchMalformed:
                        continue

    def test_bodies_and_batches_are_not_changed_and_may_be_read_only(self, harness: FormatHarness) -> None:
        codec = harness.make()
        for batch, body in harness.written():
            before = bytes(batch.message)
            assert codec.from_native(RecordBatch(before)) == body
            assert bytes(batch.message) == before
        for body, count in harness.all_bodies():
            copy = bytearray(body)
            codec.check(memoryview(copy), count, BYTES_MAX)
            codec.to_native(memoryview(copy).toreadonly(), count, BYTES_MAX)
            assert copy == body


def _damaged(body: bytes, rng: Rng) -> Iterator[bytes]:
    """Yield the body cut short, made longer, and with some bytes changed."""
    yield from (b"", body + b"\0", body + body)
    for _ in range(_DAMAGES):
        yield body[: rng.integer(len(body))]
        changed = bytearray(body)
        for _ in range(1 + rng.integer(4)):
            changed[rng.integer(len(changed))] = rng.integer(256)
        yield bytes(changed)
