"""A consumer's filter says of each batch what its predicate says of each record, in steps that are short."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch, build_from_records
from linn.core.batch.record import Record
from linn.core.batch.routes import pair_of
from linn.core.batch.steps import run_steps
from linn.core.errors.tree import PredicateInvalid
from linn.core.routing.exchange import Subject
from linn.core.routing.predicate.predicate import Predicate
from linn.core.routing.record_filter import (
    CACHED_ROUTES_BYTES_MAX,
    CACHED_ROUTES_MAX,
    PAIRS_A_STEP,
    RECORDS_A_STEP,
    RecordFilter,
)

WHERE = 'label.n in (1, 2) or routing_key starts_with "a"'
RECORDS = st.builds(
    Record,
    value=st.just(b""),
    routing_key=st.sampled_from(["", "a", "ab", "b"]),
    labels=st.dictionaries(st.sampled_from("nm"), st.sampled_from([1, 2, 3, "1", True]), max_size=2),
)


def wanted(records: Sequence[Record], where: str = WHERE) -> list[int]:
    """The indexes of the records that the predicate is true of, one by one."""
    predicate = Predicate.parse(where)
    return [
        index
        for index, record in enumerate(records)
        if predicate.matches(Subject(record.routing_key, dict(record.labels)))
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(RECORDS, min_size=1, max_size=12), min_size=1, max_size=5), st.data())
def test_a_filter_chooses_the_records_that_its_predicate_is_true_of(
    batches: list[list[Record]], data: st.DataObject
) -> None:
    chooses = RecordFilter.parse(WHERE)
    for records in batches * 2:  # The second time from its cache.
        batch = build_from_records(records, base_id=1)
        start, enough = data.draw(st.integers(0, len(records))), data.draw(st.integers(1, len(records) + 1))
        chosen = list(run_steps(chooses.choose(RecordBatch(batch.message), start, enough)))
        expected = [index for index in wanted(records) if index >= start]
        assert chosen == expected[: len(chosen)]
        assert len(chosen) >= min(enough, len(expected))


def test_a_batch_of_many_pairs_or_records_takes_many_steps() -> None:
    pairs = tuple(pair_of(f"{number}", {}) for number in range(20 * PAIRS_A_STEP))
    index = [record % len(pairs) for record in range(5 * RECORDS_A_STEP)]
    batch = build_batch(BatchColumns([b""] * len(index), 1, 1, pairs=pairs, pair_index=index))
    chooses = RecordFilter.parse('routing_key = "7"')
    assert sum(1 for _ in chooses.choose(batch, 0, batch.count)) >= 20 + 5


def test_a_filter_keeps_few_and_small_routes() -> None:
    chooses = RecordFilter.parse(WHERE)
    for number in range(3 * CACHED_ROUTES_MAX):
        for size in (1, CACHED_ROUTES_BYTES_MAX):
            run_steps(chooses.choose(build_from_records([Record(routing_key=f"{number}" * size)], base_id=1), 0, 1))
    assert len(chooses._known) <= CACHED_ROUTES_MAX
    assert max(map(len, chooses._known)) <= CACHED_ROUTES_BYTES_MAX


@pytest.mark.parametrize("where", ["key exists", "size > 3", 'header.x = "1" and label.a exists', "label.a = "])
def test_a_filter_that_looks_at_more_than_pairs_is_refused(where: str) -> None:
    with pytest.raises(PredicateInvalid):
        RecordFilter.parse(where)
