"""The conformance suite of partitioners: `PartitionerConformance`, to subclass.

    class TestByCustomer(PartitionerConformance):
        @pytest.fixture
        def harness(self) -> PartitionerHarness:
            return PartitionerHarness(make=ByCustomer, by_key=True)

Law: a test does not know the purpose of the partitioner; it checks that the broker can use the chosen partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.batch.key_hash import key_hash
from linn.core.routing.partitioner import Partitioner
from linn.testing.interceptors import SAMPLES

_PARTITIONS = (2, 3, 7, 4_096, 5, 2)
"""Numbers of partitions, growing and shrinking: a topic may get more partitions while its partitioner is in use."""


@dataclass(frozen=True)
class PartitionerHarness:
    """Partitioner, and typical batches for it, besides the `SAMPLES` of interceptors."""

    make: Callable[[], Partitioner]
    """Make a partitioner for a topic."""
    by_key: bool = False
    """Whether the partition depends on the key alone: it is the same in any batch, and after a restart."""
    batches: Sequence[RecordBatch] = ()

    def all_batches(self) -> list[RecordBatch]:
        """Return fresh copies of all batches."""
        return [RecordBatch(bytearray(batch.message)) for batch in (*SAMPLES.values(), *self.batches)]


def places_of(partitioner: Partitioner, batch: RecordBatch, partitions: int) -> list[int]:
    """Return the partition of each record. Asserts that the partitioner chose one for the batch, or one for each
    record.
    """
    place = partitioner.place(batch, partitions)
    places = [place] * batch.count if isinstance(place, int) else list(place)
    assert len(places) == batch.count, f"{len(places)} places for {batch.count} records"
    for chosen in places:
        assert isinstance(chosen, int), f"{chosen!r} is no partition"
        assert 0 <= chosen < partitions, f"partition {chosen} of {partitions}"
    return places


class PartitionerConformance:
    """The promises of `linn.core.routing.partitioner`. A subclass gives the fixture `harness`."""

    def test_every_record_of_any_batch_gets_a_partition_that_is_there(self, harness: PartitionerHarness) -> None:
        partitioner = harness.make()
        for partitions in _PARTITIONS:
            for batch in harness.all_batches():
                places_of(partitioner, batch, partitions)

    def test_the_batch_that_is_given_is_not_changed(self, harness: PartitionerHarness) -> None:
        partitioner = harness.make()
        for batch in harness.all_batches():
            before = bytes(batch.message)
            places_of(partitioner, batch, 3)
            assert bytes(batch.message) == before

    def test_a_read_only_batch_is_accepted(self, harness: PartitionerHarness) -> None:
        partitioner = harness.make()
        for batch in harness.all_batches():
            places_of(partitioner, RecordBatch(bytes(batch.message)), 3)

    def test_it_may_be_asked_again_about_the_same_batch(self, harness: PartitionerHarness) -> None:
        partitioner = harness.make()
        for batch in harness.all_batches():
            for _ in range(3):
                places_of(partitioner, batch, 3)

    def test_a_key_has_one_partition_if_keys_decide(self, harness: PartitionerHarness) -> None:
        if not harness.by_key:
            return
        keys = [b"", b"\xff\x00", *(b"key %d" % number for number in range(40))]
        partitioner = harness.make()
        for partitions in _PARTITIONS:
            together = places_of(partitioner, _batch_of(keys), partitions)
            backwards = places_of(partitioner, _batch_of(keys[::-1]), partitions)
            assert backwards[::-1] == together
            alone = [places_of(partitioner, _batch_of([key]), partitions)[0] for key in keys]
            assert alone == together
            assert places_of(harness.make(), _batch_of(keys), partitions) == together, "after a restart"


def _batch_of(keys: Sequence[bytes]) -> RecordBatch:
    """Make a batch with a record for each key."""
    columns = BatchColumns([b"v"] * len(keys), 1, 1, keys=keys, key_hashes=list(map(key_hash, keys)))
    return build_batch(columns)
