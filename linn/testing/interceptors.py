"""The conformance suite of interceptors: `InterceptorConformance`, to subclass.

    class TestStamp(InterceptorConformance):
        @pytest.fixture
        def harness(self) -> InterceptorHarness:
            return InterceptorHarness(make=lambda: Stamp("orders", TopicSettings(), StampSettings()))

Laws: a test does not know the purpose of the interceptor; it checks that the broker can process the results. An
interceptor may refuse any of these batches with a LinnError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from linn.core.batch.batch import BatchLimits, Codec, RecordBatch
from linn.core.batch.builder import build_from_records, slice_batch
from linn.core.batch.record import Record
from linn.core.errors.tree import LinnError
from linn.core.ports.interceptor import Interceptor

TOPIC = "orders"
_PLAIN = [Record(value=b"value %d" % number, timestamp_ms=number) for number in range(20)]
_FULL = [
    Record(
        value=None if number % 7 == 3 else b'{"n": %d}' % number,
        key=None if number % 3 == 0 else b"key %d" % number,
        routing_key=("", "a.b", "ü")[number % 3],
        labels={"bool": number % 2 == 0, "float": 1.5, "int": -1, "text": "é"} if number % 4 else {},
        headers=(("again", b"1"), ("again", None), ("ünicode", b"\xff")) if number % 5 == 0 else (),
        timestamp_ms=1_000 + number,
    )
    for number in range(60)
]
SAMPLES: dict[str, RecordBatch] = {
    "one empty record": build_from_records([Record()], base_id=1),
    "plain": build_from_records(_PLAIN, base_id=1),
    "every column": build_from_records(_FULL, base_id=(1 << 128) - 5),
    "compressed": build_from_records(_FULL, base_id=1, codec=Codec.ZSTD),
    "a slice": slice_batch(build_from_records(_FULL, base_id=1), 10, 30),
    "tombstones": build_from_records([Record(value=None, key=b"k")] * 3, base_id=1),
    "not text": build_from_records([Record(value=bytes(range(256)), key=b"\xff\xfe")] * 3, base_id=1),
    "large": build_from_records([Record(value=b"x" * 500_000)] * 2, base_id=1),
}
"""Batches of every shape that a producer can send."""
LIMITS = BatchLimits()


@dataclass(frozen=True)
class InterceptorHarness:
    """Interceptor, and typical batches for it, besides `SAMPLES`."""

    make: Callable[[], Interceptor]
    """Make an interceptor for the topic `orders`."""
    batches: Sequence[RecordBatch] = ()

    def all_batches(self) -> list[RecordBatch]:
        """Return fresh copies of all batches."""
        found = [*SAMPLES.values(), *self.batches]
        return [RecordBatch(bytearray(batch.message)) for batch in found]


def left_of(interceptor: Interceptor, batch: RecordBatch) -> RecordBatch | str | None:
    """Return the result of an interceptor: another batch, None, or the code of its error."""
    try:
        return interceptor.intercept(TOPIC, batch)
    except LinnError as error:
        return error.code


class InterceptorConformance:
    """The promises of `linn.core.ports.interceptor`. A subclass gives the fixture `harness`."""

    def test_any_batch_gets_a_batch_nothing_or_a_linn_error(self, harness: InterceptorHarness) -> None:
        interceptor = harness.make()
        for batch in harness.all_batches():
            left = left_of(interceptor, batch)
            assert left is None or isinstance(left, RecordBatch | str)

    def test_results_can_be_stored(self, harness: InterceptorHarness) -> None:
        interceptor = harness.make()
        for batch in harness.all_batches():
            left = left_of(interceptor, batch)
            if isinstance(left, RecordBatch):
                left.verify(LIMITS)
                left.stamp(7, 8)
                stored = RecordBatch(bytes(left.message))
                stored.check_stored()
                assert len(stored.records()) == stored.count

    def test_a_batch_keeps_its_records_with_their_ids_and_times(self, harness: InterceptorHarness) -> None:
        interceptor = harness.make()
        for batch in harness.all_batches():
            left = left_of(interceptor, batch)
            if isinstance(left, RecordBatch):
                assert left.count == batch.count
                for old, new in zip(batch.records(), left.records(), strict=True):
                    assert (new.id, new.timestamp_ms) == (old.id, old.timestamp_ms)

    def test_the_batch_that_is_given_is_not_changed(self, harness: InterceptorHarness) -> None:
        interceptor = harness.make()
        for batch in harness.all_batches():
            before = bytes(batch.message)
            left_of(interceptor, batch)
            assert bytes(batch.message) == before

    def test_a_read_only_batch_is_accepted(self, harness: InterceptorHarness) -> None:
        interceptor = harness.make()
        for batch in harness.all_batches():
            left_of(interceptor, RecordBatch(bytes(batch.message)))

    def test_equal_batches_get_equal_answers(self, harness: InterceptorHarness) -> None:
        one, other = harness.make(), harness.make()
        batches = harness.all_batches()
        first = [_comparable(left_of(one, batch)) for batch in batches]
        assert [_comparable(left_of(one, batch)) for batch in reversed(batches)] == first[::-1]
        assert [_comparable(left_of(other, batch)) for batch in batches] == first

    def test_a_new_batch_is_its_own(self, harness: InterceptorHarness) -> None:
        interceptor = harness.make()
        for batch in harness.all_batches():
            left, again = left_of(interceptor, batch), left_of(interceptor, batch)
            if isinstance(left, RecordBatch) and left is not batch:
                assert left is not again, "each topic's log stamps the batch that it gets"


def _comparable(left: RecordBatch | str | None) -> bytes | str | None:
    return bytes(left.message) if isinstance(left, RecordBatch) else left
