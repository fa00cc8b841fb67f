"""The conformance suite of dispatch orders: `OrderConformance`, to subclass.

    class TestYoungest(OrderConformance):
        @pytest.fixture
        def harness(self) -> OrderHarness:
            return OrderHarness(make=YoungestFirst)

Laws: a test does not know which record should be next; it checks that the broker can rely on the answers. No record is
lost or taken twice, a batch is classified without its body, and two orders that were told the same have the same
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch, wrap_body
from linn.core.batch.key_hash import key_hash
from linn.core.batch.routes import Pair
from linn.core.queue.dispatch_order import DispatchOrder
from linn.testing.interceptors import SAMPLES

SEARCHES_MAX = 1_000
"""Maximum number of answers in a row with `has_more` and no offsets."""
_FOREIGN_FORMAT = 99

Step = tuple[str, int, int]
"""(deed, first number, second number)."""
_steps = st.lists(
    st.tuples(st.sampled_from(["arrive", "take", "settle", "come back"]), st.integers(0, 40), st.integers(0, 9)),
    max_size=60,
)


@dataclass(frozen=True)
class OrderHarness:
    """Dispatch order, and typical batches for it, besides the `SAMPLES` of interceptors."""

    make: Callable[[], DispatchOrder]
    """Make the order of a partition."""
    batches: Sequence[RecordBatch] = ()

    def all_batches(self) -> list[RecordBatch]:
        """Return fresh copies of all batches."""
        return [RecordBatch(bytearray(batch.message)) for batch in (*SAMPLES.values(), *self.batches)]


class OrderUser:
    """A caller of one order, as a queue is, with a record of what the order was told."""

    def __init__(self, order: DispatchOrder) -> None:
        self.order = order
        self.added: dict[int, int] = {}
        """The classes of added records by offset."""
        self.taken: dict[int, int] = {}
        """The classes of taken records by offset."""
        self.end = 0

    def arrive(self, batch: RecordBatch) -> None:
        """Add the records of a batch."""
        classes = list(self.order.classify(batch))
        assert len(classes) == batch.count, f"{len(classes)} classes for {batch.count} records"
        offsets = range(self.end, self.end + batch.count)
        self.end = offsets.stop
        self.added.update(zip(offsets, classes, strict=True))
        self.order.add(offsets, classes)

    def take(self, records_max: int) -> list[int]:
        """Take records, and return their offsets. Asserts that they were added, with these classes."""
        for _ in range(SEARCHES_MAX):
            taken = self.order.take(records_max)
            offsets = list(taken.offsets)
            assert len(offsets) <= records_max, f"{len(offsets)} records, where {records_max} were asked for"
            assert len({*offsets}) == len(offsets), "a record was taken twice"
            for offset, one in zip(offsets, taken.classes, strict=True):
                assert offset in self.added, f"{offset} was not added, or taken before"
                assert one == self.added[offset], f"{offset} has another class than it was given"
                self.taken[offset] = self.added.pop(offset)
            if offsets or not taken.has_more:
                return offsets
        raise AssertionError(f"the order searched {SEARCHES_MAX} times and found nothing")

    def release(self, offsets: Iterable[int]) -> tuple[list[int], list[int]]:
        """Release taken records; returns them in order, with their classes."""
        some = sorted(offsets)
        classes = [self.taken.pop(offset) for offset in some]
        if some:
            self.order.release(some, classes)
        return some, classes

    def come_back(self, offsets: Iterable[int]) -> None:
        """Return taken records to their places."""
        some, classes = self.release(offsets)
        self.added.update(zip(some, classes, strict=True))
        if some:
            self.order.add(some, classes)

    def step(self, step: Step) -> list[int]:
        """Do something; returns the offsets that were taken."""
        deed, first, second = step
        if deed == "arrive":
            self.arrive(mixed_batch(first + 1, second))
        elif deed == "take":
            return self.take(first + 1)
        elif self.taken:
            some = sorted(self.taken)[first % len(self.taken) :: second + 1]
            self.release(some) if deed == "settle" else self.come_back(some)
        return []


def mixed_batch(count: int, seed: int) -> RecordBatch:
    """Make a batch with priorities, keys and labels of several values."""
    numbers = [(seed + 7 * number) % 11 for number in range(count)]
    pairs = [Pair(f"key.{one}", (("tenant", f"t{one % 4}"),)) for one in range(11)]
    return build_batch(
        BatchColumns(
            [b"v"] * count,
            1,
            1,
            keys=[b"%d" % one for one in numbers],
            pairs=tuple(pairs),
            pair_index=numbers,
            priorities=[25 * one for one in numbers],
            key_hashes=[key_hash(b"%d" % one) for one in numbers],
        )
    )


class OrderConformance:
    """The promises of `linn.core.queue.dispatch_order`. A subclass gives the fixture `harness`."""

    def test_every_record_of_any_batch_has_a_class(self, harness: OrderHarness) -> None:
        order = harness.make()
        for batch in [*harness.all_batches(), mixed_batch(20, 3)]:
            before = bytes(batch.message)
            classes = list(order.classify(batch))
            assert len(classes) == batch.count
            assert all(isinstance(one, int) for one in classes)
            assert bytes(batch.message) == before, "the batch was changed"

    def test_a_batch_is_classified_without_its_body(self, harness: OrderHarness) -> None:
        batch = wrap_body(_FOREIGN_FORMAT, b"?", 3, base_id=1, first_timestamp_ms=1, max_timestamp_ms=1)
        assert len(list(harness.make().classify(batch))) == 3

    def test_an_order_without_records_has_none(self, harness: OrderHarness) -> None:
        assert OrderUser(harness.make()).take(5) == []

    def test_no_record_is_lost_or_taken_twice(self, harness: OrderHarness) -> None:
        @settings(deadline=None)
        @given(steps=_steps)
        def run(steps: list[Step]) -> None:
            user = OrderUser(harness.make())
            for step in steps:
                user.step(step)
            while user.added or user.taken:
                before = len(user.added)
                user.release(list(user.taken))
                found = user.take(7)
                assert found or not user.added, f"{before} records are never taken, although nothing else is"

        run()

    def test_the_same_calls_have_the_same_answers(self, harness: OrderHarness) -> None:
        @settings(deadline=None)
        @given(steps=_steps)
        def run(steps: list[Step]) -> None:
            one, other = OrderUser(harness.make()), OrderUser(harness.make())
            for step in steps:
                assert one.step(step) == other.step(step)

        run()

    def test_records_may_be_taken_before_they_were_added(self, harness: OrderHarness) -> None:
        user = OrderUser(harness.make())
        batch = mixed_batch(10, 0)
        classes = list(user.order.classify(batch))
        user.order.hold(range(5), classes[:5])
        user.order.add(range(5, 10), classes[5:])
        user.taken, user.added = dict(enumerate(classes[:5])), dict(enumerate(classes[5:], 5))
        user.come_back(range(5))
        found: list[int] = []
        while some := user.take(3):
            found += some
            user.release(some)
        assert sorted(found) == list(range(10))
