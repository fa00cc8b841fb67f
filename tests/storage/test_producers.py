"""The producers of one partition: duplicates, batches out of order, and a state that follows from the log."""

from __future__ import annotations

import pytest
import trio
from engine_cases import segmented_log_in
from hypothesis import given
from hypothesis import strategies as st
from producer_walks import live_and_lose_power, outcome, walk

from linn.core.batch.batch import SCATTERED
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import ProducerDuplicate, ProducerFenced, ProducerOutOfOrder
from linn.core.log.partition import Partition
from linn.core.log.producers import IDLE_S, WINDOW, Numbered, Producers, numbers_of
from linn.core.log.storage import PartitionLog
from linn.core.log.storage_stats import StorageStats
from linn.testing.deterministic import run_simulation
from linn.testing.engines import PARTITION, make_batch
from linn.testing.sim_env import SimEnv


def numbered(first: int, count: int = 1, epoch: int = 0, producer_id: int = 7, *, scattered: bool = False) -> Numbered:
    return Numbered(producer_id, epoch, first, first + count, scattered)


def with_batches(count: int) -> Producers:
    """A producer that has sent so many batches of one record, stored at every tenth offset."""
    producers = Producers()
    for first in range(count):
        producers.stored(numbered(first), 10 * first, now_s=first)
    return producers


def test_the_next_batch_is_new_and_a_stored_one_is_found_at_its_offset() -> None:
    producers = with_batches(3)
    assert producers.check(numbered(3)) is None
    assert [producers.check(numbered(first)) for first in range(3)] == [0, 10, 20]


def test_a_gap_is_refused_and_changes_nothing() -> None:
    producers = with_batches(3)
    with pytest.raises(ProducerOutOfOrder, match="sent sequence 4 where 3 is next"):
        producers.check(numbered(4))
    assert producers.check(numbered(3)) is None


def test_an_unknown_producer_begins_with_sequence_0() -> None:
    producers = Producers()
    assert producers.check(numbered(0)) is None
    with pytest.raises(ProducerOutOfOrder, match="can't be the first"):
        producers.check(numbered(5))
    assert producers.check(numbered(5, scattered=True)) is None


def test_the_last_batches_are_remembered_and_older_ones_are_refused() -> None:
    producers = with_batches(WINDOW + 1)
    assert producers.check(numbered(1)) == 10
    with pytest.raises(ProducerDuplicate):
        producers.check(numbered(0))
    with pytest.raises(ProducerDuplicate):
        producers.check(numbered(0, scattered=True))


def test_an_earlier_epoch_is_fenced_and_a_later_one_begins_at_0() -> None:
    producers = with_batches(3)
    assert producers.check(numbered(0, epoch=1)) is None
    with pytest.raises(ProducerOutOfOrder):
        producers.check(numbered(3, epoch=1))
    producers.stored(numbered(0, epoch=1), 30, now_s=9)
    with pytest.raises(ProducerFenced, match="epoch 0 of producer 7 was replaced by epoch 1"):
        producers.check(numbered(3))
    assert producers.check(numbered(0, epoch=1)) == 30


def test_where_the_broker_chooses_partitions_gaps_are_no_fault() -> None:
    producers = Producers()
    for first in (0, 4, 9):
        producers.stored(numbered(first, scattered=True), 10 * first, now_s=0)
    assert producers.check(numbered(12, scattered=True)) is None
    assert producers.check(numbered(4, scattered=True)) == 40
    assert producers.check(numbered(5, scattered=True)) is None
    producers.stored(numbered(5, scattered=True), 50, now_s=0)
    assert producers.check(numbered(9, scattered=True)) == 90
    assert producers.check(numbered(10, scattered=True)) is None


def test_a_batch_of_which_nothing_is_stored_counts_in_the_sequence() -> None:
    producers = with_batches(2)
    producers.passed_over(numbered(2), now_s=0)
    assert producers.check(numbered(3)) is None
    producers.passed_over(numbered(0, producer_id=8), now_s=0)
    assert producers.check(numbered(1, producer_id=8)) is None


def test_only_idle_producers_are_forgotten() -> None:
    producers = Producers()
    for producer_id, now_s in ((1, 100), (2, 200), (3, 300), (1, 400)):
        first = 1 if now_s == 400 else 0
        producers.stored(numbered(first, producer_id=producer_id), 0, now_s)
    producers.expire(before_s=300)
    assert [producer_id in producers for producer_id in (1, 2, 3)] == [True, False, True]


def test_a_broker_s_own_producer_is_kept_for_longer_and_not_counted() -> None:
    producers = Producers()
    for producer_id in (-7, 1):
        producers.stored(numbered(0, producer_id=producer_id), 5, 100)
    assert len(producers) == 1
    producers.expire(before_s=1000, internal_before_s=100)
    assert [producer_id in producers for producer_id in (-7, 1)] == [True, False]
    again = Producers.decode(producers.encode())
    assert again.check(numbered(0, producer_id=-7)) == 5
    assert again.before(5).check(numbered(0, producer_id=-7)) is None
    later = Producers()
    later.extend(again)
    assert (later.check(numbered(0, producer_id=-7)), len(later)) == (5, 0)
    producers.expire(before_s=1000, internal_before_s=101)
    assert -7 not in producers


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_a_snapshot_that_is_cut_short_is_refused(cut: int) -> None:
    snapshot = with_batches(3).encode()
    with pytest.raises(ValueError, match="snapshot of producers"):
        Producers.decode(snapshot[:cut])
    with pytest.raises(ValueError, match="another length"):
        Producers.decode(snapshot + b"x")


def test_the_numbers_of_a_batch_are_sealed() -> None:
    batch = build_from_records([Record(value=b"a"), Record(value=b"b")], base_id=1)
    batch.number(9, 2, 40, SCATTERED)
    batch.check_crc()
    assert numbers_of(batch) == Numbered(9, 2, 40, 42, scattered=True)


# --- beside a model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_any_history_gives_what_a_search_of_the_whole_log_gives(seed: int) -> None:
    walk(seed)


@pytest.mark.parametrize("seed", range(40))
def test_a_log_that_loses_power_knows_the_producers_of_what_is_left(seed: int) -> None:
    live_and_lose_power(seed)


SENDS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 14), st.integers(1, 3), st.booleans()), max_size=60
)


@given(SENDS, st.integers(0, 60), st.integers(0, 60))
def test_a_snapshot_and_what_was_scanned_behind_it_are_the_whole(
    sends: list[tuple[int, int, int, int, bool]], snapshot_at: int, scan_at: int
) -> None:
    producers, log = Producers(), list[Numbered]()
    for at, (producer_id, epoch, first, count, scattered) in enumerate(sends):
        batch = Numbered(producer_id, epoch, first, first + count, scattered)
        if outcome(producers, batch) is None:
            producers.stored(batch, len(log), now_s=at)
            log.append(batch)
    places = sorted(min(place, len(log)) for place in (snapshot_at, scan_at))
    parts = [Producers(), Producers(), Producers()]
    for offset, batch in enumerate(log):
        parts[sum(offset >= place for place in places)].stored(batch, offset, now_s=offset)
    rebuilt = Producers.decode(parts[0].encode())
    rebuilt.extend(parts[1])
    rebuilt.extend(Producers.decode(parts[2].encode()))
    for producer_id, epoch, first, count, scattered in sends:
        batch = Numbered(producer_id, epoch, first, first + count, scattered)
        assert outcome(rebuilt, batch) == outcome(producers, batch)


# --- idle time --------------------------------------------------------------------------------------------------------

YEAR_MS = 365 * 86_400_000


def partition_of(env: SimEnv, log: PartitionLog) -> Partition:
    return Partition(PARTITION, log, StorageStats("t"), env.clock, lambda task: None)


def append_numbered(partition: Partition, producer_id: int) -> None:
    batch = make_batch(1)
    batch.number(producer_id, 0, 0, 0)
    partition.append_numbered(batch, numbers_of(batch))


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS])
def test_idle_producers_are_forgotten_after_a_day_whatever_the_clock_was(jump_ms: int) -> None:
    async def scenario(env: SimEnv) -> None:
        async with segmented_log_in("storage", env).log() as log:
            partition = partition_of(env, log)
            append_numbered(partition, 1)
            env.clock.jump(jump_ms)
            append_numbered(partition, 2)
            await partition.enforce_retention(env.clock.now_ms())
            env.clock.jump(-jump_ms)
            for idle_s, left in ((IDLE_S / 2, 2), (IDLE_S, 0)):
                await trio.sleep(idle_s)
                await partition.enforce_retention(env.clock.now_ms())
                assert len(log.facts.producers) == left

    run_simulation(0, scenario, virtual_s_max=4 * IDLE_S)


def test_producers_that_a_start_finds_are_forgotten_a_day_later() -> None:
    async def scenario(env: SimEnv) -> None:
        harness = segmented_log_in("storage", env)
        async with harness.log() as log:
            append_numbered(partition_of(env, log), 1)
        await trio.sleep(2 * IDLE_S)
        async with harness.log() as log:
            partition = partition_of(env, log)
            for idle_s, left in ((IDLE_S / 2, 1), (IDLE_S, 0)):
                await trio.sleep(idle_s)
                await partition.enforce_retention(env.clock.now_ms())
                assert len(log.facts.producers) == left

    run_simulation(0, scenario, virtual_s_max=4 * IDLE_S)
