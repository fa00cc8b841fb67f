"""The transactions of one log: what is open, what is hidden, and a state that follows from the log, also in parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from engine_cases import dram_in, segmented_log_in
from hypothesis import given
from hypothesis import strategies as st

from linn.core.batch.batch import CONTROL, TRANSACTIONAL, RecordBatch
from linn.core.batch.builder import build_marker, pick_batch
from linn.core.env.real.env import RealEnv
from linn.core.log.facts import LogFacts
from linn.core.log.storage import PartitionLog
from linn.core.log.transactions import LogTransactions, OpenTransaction
from linn.testing.engines import make_batch

SPAN = 2
"""Offsets of each batch, but for markers and some with gaps."""


class Step(NamedTuple):
    """One batch of a log."""

    producer: int
    kind: str


PLAIN, DATA, GAPS, COMMIT, ABORT = "plain", "data", "gaps", "commit", "abort"
KINDS = st.sampled_from([PLAIN, DATA, DATA, DATA, GAPS, COMMIT, ABORT])
STEPS = st.lists(st.builds(Step, st.integers(1, 3), KINDS), max_size=40)


def written(steps: Sequence[Step]) -> list[RecordBatch]:
    """A log with these batches. A marker is of the producer's transaction, if it has one, as a partition writes it."""
    numbers, is_open, log = dict.fromkeys((1, 2, 3), 1), set[int](), list[RecordBatch]()
    for at, (producer, kind) in enumerate(steps):
        if kind in (COMMIT, ABORT):
            if producer not in is_open:
                continue
            batch = build_marker(producer, 0, numbers[producer], 0, is_commit=kind == COMMIT)
            numbers[producer] += 1
            is_open.discard(producer)
        else:
            batch = make_batch(SPAN)
            if kind == GAPS:
                batch.stamp(0, 0)
                batch = RecordBatch(bytearray(pick_batch(batch, [at % SPAN], range(SPAN + at % 2)).message))
            batch.number(producer, 0, SPAN * at, *((TRANSACTIONAL, numbers[producer]) if kind == DATA else (0, 0)))
            if kind == DATA:
                is_open.add(producer)
        batch.stamp(log[-1].end_offset if log else 0, 0, 0, 1)
        log.append(batch)
    return log


def noted(log: Sequence[RecordBatch]) -> LogTransactions:
    found = LogTransactions()
    for batch in log:
        found.note(batch)
    return found


class Naive:
    """The answer of a search of the whole log."""

    def __init__(self, log: Sequence[RecordBatch]) -> None:
        self.open: dict[int, OpenTransaction] = {}
        self.hidden: set[int] = set()
        self.markers = 0
        self.unreadable: set[int] = set()
        for batch in log:
            records = set() if batch.attributes & CONTROL else {batch.offset(index) for index in range(batch.count)}
            self.unreadable.update(set(range(batch.base_offset, batch.end_offset)) - records)
        for at, batch in enumerate(log):
            if not batch.attributes & TRANSACTIONAL:
                continue
            mine = [each for each in log[:at] if each.transaction == batch.transaction and is_of(each, batch)]
            if batch.attributes != TRANSACTIONAL:
                self.markers += 1
                self.hidden.add(batch.base_offset)
                self.open.pop(batch.producer_id)
                if not batch.first_sequence:
                    self.hidden.update(each.base_offset for each in mine)
                    for each in mine:
                        self.unreadable.update(range(each.base_offset, each.end_offset))
            elif not mine:
                self.open[batch.producer_id] = OpenTransaction(batch.transaction, batch.base_offset)


def is_of(batch: RecordBatch, other: RecordBatch) -> bool:
    return batch.attributes == TRANSACTIONAL and batch.producer_id == other.producer_id


def check(found: LogTransactions, log: Sequence[RecordBatch], start: int = 0) -> None:
    """Compare with the naive model, for the batches from `start` on."""
    wanted = Naive(log)
    assert found.open == wanted.open
    assert list(found.open) == list(wanted.open), "the one that began first is in front"
    assert found.first_open == min((each.first for each in wanted.open.values()), default=None)
    assert found.markers == wanted.markers
    stable = found.first_open if found.first_open is not None else 1 << 40
    for batch in log:
        if start <= batch.base_offset < stable:
            assert found.hides(batch) == (batch.base_offset in wanted.hidden), batch.base_offset
    end = min(stable, log[-1].end_offset) if log else 0
    for first in range(start, end + 1):
        assert found.hidden.count(first, end) == len(wanted.unreadable & set(range(first, end))), first
    for producer, opened in wanted.open.items():
        assert found.is_open(producer, opened.number)
        assert not found.is_open(producer, opened.number + 1)


@given(STEPS)
def test_what_is_open_and_hidden_follows_from_the_log(steps: list[Step]) -> None:
    log = written(steps)
    check(noted(log), log)


@given(STEPS)
def test_the_facts_of_parts_are_those_of_the_whole_wherever_it_is_split(steps: list[Step]) -> None:
    log = written(steps)
    for place in range(len(log) + 1):
        found = noted(log[:place])
        found.extend(noted(log[place:]))
        check(found, log)


@given(STEPS, st.lists(st.integers(0, 40), max_size=4))
def test_parts_and_snapshots_of_them_in_any_number_are_the_whole(steps: list[Step], places: list[int]) -> None:
    log = written(steps)
    ends = sorted({0, len(log), *(min(place, len(log)) for place in places)})
    found = LogTransactions()
    for first, end in pairwise(ends):
        found.extend(LogTransactions.decode(noted(log[first:end]).encode()))
        found = LogTransactions.decode(found.encode())
    check(found, log)


@given(STEPS, st.integers(0, 100))
def test_what_ended_before_the_start_is_forgotten_and_the_rest_is_not(steps: list[Step], start: int) -> None:
    log = written(steps)
    found = noted(log)
    found.forget_before(start)
    check(found, log, start)
    if log:
        found.forget_before(log[-1].end_offset + 1)
        assert len(found.encode()) == len(LogTransactions().encode()) + 24 * len(found.open), "no row is left"


@given(STEPS, st.integers(0, 40))
def test_a_log_that_lost_its_beginning_hides_the_same_of_the_rest(steps: list[Step], place: int) -> None:
    log = written(steps)
    rest = log[place:]
    whole, found = noted(log), noted(rest)
    stable = whole.first_open if whole.first_open is not None else 1 << 40
    for batch in rest:
        if batch.base_offset < stable:
            assert found.hides(batch) == whole.hides(batch)


@pytest.mark.parametrize("cut", [0, 3, 19, 30, -1])
def test_a_snapshot_that_is_cut_short_is_refused(cut: int) -> None:
    steps = [Step(1, DATA), Step(1, ABORT), Step(2, DATA), Step(3, DATA), Step(3, COMMIT)]
    snapshot = noted(written(steps)).encode()
    with pytest.raises(ValueError, match="snapshot of transactions"):
        LogTransactions.decode(snapshot[:cut])
    with pytest.raises(ValueError, match="another length"):
        LogTransactions.decode(snapshot + b"x")


# --- in the engines ---------------------------------------------------------------------------------------------------

LONG = [
    Step(1, DATA),
    *[Step(2, PLAIN)] * 30,
    Step(1, DATA),
    *[Step(2, PLAIN)] * 30,
    Step(3, DATA),
    Step(1, ABORT),
    *[Step(2, PLAIN)] * 30,
    Step(1, DATA),
    Step(3, DATA),
    *[Step(2, PLAIN)] * 30,
    Step(3, COMMIT),
    Step(2, DATA),
    *[Step(3, PLAIN)] * 30,
]
"""Transactions over several segments: one is aborted, one committed, and two are open in the end."""


def stored_in(log: PartitionLog, steps: Sequence[Step]) -> list[RecordBatch]:
    """Append a log's batches, and note them as a partition does."""
    batches = written(steps)
    for batch in batches:
        offset = log.append(RecordBatch(bytearray(batch.message)), 1)
        assert offset == batch.base_offset
        log.facts.transactions.note(batch)
    return batches


def index_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.idx*")) or sorted(folder.rglob("*.index"))


@pytest.mark.parametrize("damage", ["none", "missing", "cut", "flipped", "last missing"])
@pytest.mark.parametrize("part", [len(LONG), 33, 64, 65, 97, 130])
async def test_an_opening_knows_them_whatever_became_of_its_index_files(tmp_path: Path, part: int, damage: str) -> None:
    harness = segmented_log_in(str(tmp_path), RealEnv())
    async with harness.log() as log:
        batches = stored_in(log, LONG[:part])
        await log.sync()
    files = index_files(tmp_path)
    assert len(files) > part // 35
    for path in files[-1:] if damage == "last missing" else files:
        if "missing" in damage:
            path.unlink()
        elif damage != "none":
            content = path.read_bytes()
            path.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    async with harness.log() as log:
        check(log.facts.transactions, batches)
        for batch in batches:
            [found] = (await log.read(batch.base_offset, 1))[:1]
            assert found.transaction == batch.transaction


@pytest.mark.parametrize("start", [1, 40, 64, 130, 134, 190])
async def test_retention_that_drops_the_beginning_of_a_transaction_leaves_the_rest_of_it_hidden(
    tmp_path: Path, start: int
) -> None:
    harness = segmented_log_in(str(tmp_path), RealEnv())
    async with harness.log() as log:
        batches = stored_in(log, LONG)
        await log.trim(before=start)
        log.facts.transactions.forget_before(log.bounds()[0])
        check(log.facts.transactions, batches, start)
    for again in range(2):
        async with harness.log() as log:
            found, wanted = log.facts.transactions, noted(batches)
            stable = wanted.first_open
            assert stable is not None
            assert found.first_open is not None
            assert found.first_open >= min(stable, log.bounds()[0])
            for batch in batches:
                if log.bounds()[0] <= batch.base_offset < stable:
                    assert found.hides(batch) == wanted.hides(batch), (again, batch.base_offset)


async def test_a_log_in_memory_knows_them_as_well(tmp_path: Path) -> None:
    harness = dram_in(str(tmp_path), RealEnv())
    async with harness.log() as log:
        batches = stored_in(log, LONG)
        check(log.facts.transactions, batches)
        await log.trim(before=100)
        check(log.facts.transactions, batches, 100)


def test_the_facts_of_a_log_have_its_transactions() -> None:
    batches = written(LONG)
    for place in range(0, len(batches), 7):
        facts = LogFacts.decode(LogFacts.of(batches[:place]).encode())
        facts.extend(LogFacts.of(batches[place:]))
        check(facts.transactions, batches)
