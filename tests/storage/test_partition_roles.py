"""A partition appends only where it leads, confirms by the watermark of its replicas, and follows another's log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing
from engine_cases import dram_in, segmented_log_in

from linn.core.batch.batch import TRANSACTIONAL, RecordBatch
from linn.core.batch.builder import build_marker
from linn.core.env.real.env import RealEnv
from linn.core.errors.replication import CopyMisplaced, NotLeader
from linn.core.errors.tree import LinnError, OffsetOutOfRange
from linn.core.log.partition import Partition, Role
from linn.core.log.producers import Numbered
from linn.core.log.state_log import StateLog
from linn.core.log.storage import PartitionLog
from linn.core.log.storage_stats import StorageStats
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.subscription import SharedSubscription
from linn.core.queue.subscription_log import SubscriptionLog
from linn.semantics.at_least_once import AtLeastOnce
from linn.testing.engines import PARTITION, EngineHarness, make_batch, messages_of

LEADER, EPOCH = 3, 5


@dataclass
class World:
    """A replicated partition whose log is synced before anything counts, and what it told."""

    partition: Partition
    storage: StorageStats
    durable: list[int] = field(default_factory=list)
    told: list[tuple[str, LinnError | None]] = field(default_factory=list)

    def note_durable(self) -> None:
        self.durable.append(self.partition.durable.offset)

    def lead(self, epoch: int = EPOCH) -> None:
        self.partition.lead(epoch, self.note_durable)

    def follow(self, epoch: int = EPOCH) -> None:
        self.partition.follow(LEADER, epoch, self.note_durable)

    def await_mark(self, name: str, end: int) -> None:
        mark = self.partition.durable if name == "durable" else self.partition.committed
        mark.when_passed(end, lambda failure: self.told.append((name, failure)))

    async def sync(self) -> None:
        await self.partition._sync_until_durable()


def copies(*epochs: int, first: int = 0, producer: int = 0) -> list[RecordBatch]:
    """Batches of one record of the leader's log, in these epochs."""
    found = []
    for at, epoch in enumerate(epochs):
        batch = make_batch(1)
        if producer:
            batch.number(producer, 0, at, TRANSACTIONAL, 1)
        batch.stamp(first + at, 1_000, 0, epoch)
        found.append(batch)
    return found


@pytest.fixture(params=["segments", "dram"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    harness = (dram_in if request.param == "dram" else segmented_log_in)(str(tmp_path), RealEnv())
    async with replicated(harness) as (world, _):
        yield world


@asynccontextmanager
async def replicated(harness: EngineHarness) -> AsyncIterator[tuple[World, PartitionLog]]:
    async with harness.log() as log:
        storage, env = StorageStats("t"), harness.env
        partition = Partition(PARTITION, log, storage, env.clock, ignore, is_replicated=True)
        yield World(partition, storage), log


def ignore(task: Callable[[], Awaitable[None]]) -> None:
    """Start nothing: a test syncs where it wants to."""


async def test_a_replica_is_offline_until_it_is_given_a_role(world: World) -> None:
    partition = world.partition
    assert partition.role is Role.OFFLINE
    with pytest.raises(NotLeader) as raised:
        partition.append(make_batch(1))
    assert (raised.value.leader, raised.value.retriable) == (0, True)


async def test_only_a_leader_appends_and_looks_up_what_is_stored(world: World) -> None:
    partition, numbers = world.partition, Numbered(7, 0, 0, 1, scattered=False)
    world.lead()
    assert partition.find(numbers, 1) is None
    assert partition.append(make_batch(2)) == 0
    assert [batch.leader_epoch for batch in await partition.log.read(0, 1)] == [EPOCH]
    world.follow(EPOCH + 1)
    for refused in (lambda: partition.append(make_batch(1)), lambda: partition.find(numbers, 1)):
        with pytest.raises(NotLeader) as raised:
            refused()
        assert (raised.value.leader, raised.value.epoch) == (LEADER, EPOCH + 1)
    assert partition.log.bounds() == (0, 2)


async def test_a_state_log_of_another_leader_takes_no_events(world: World) -> None:
    state = StateLog(world.partition, RealEnv().clock)
    world.lead()
    assert state.append(b"event") == 1
    world.follow(EPOCH + 1)
    with pytest.raises(NotLeader):
        state.append(b"event")
    assert world.partition.log.bounds() == (0, 1)


async def test_what_is_durable_here_is_not_yet_committed(world: World) -> None:
    partition = world.partition
    world.lead()
    partition.append(make_batch(3))
    world.await_mark("durable", 3)
    world.await_mark("committed", 3)
    await world.sync()
    assert (world.durable[-1], partition.durable.offset, partition.high_watermark) == (3, 3, 0)
    assert world.told == [("durable", None)]
    assert list(await partition.read(0, 1 << 20)) == []
    partition.commit(3)
    assert world.told == [("durable", None), ("committed", None)]
    assert len(await partition.read(0, 1 << 20)) == 1
    partition.commit(2)
    assert partition.high_watermark == 3


async def test_watchers_are_told_of_the_watermark(world: World) -> None:
    partition, told = world.partition, list[int]()
    partition.watchers.add(lambda: told.append(partition.stable_offset))
    world.lead()
    partition.append(make_batch(1))
    await world.sync()
    assert not told
    partition.commit(1)
    assert told == [1]


@pytest.mark.parametrize("lose", ["follow", "go_offline"])
async def test_losing_the_role_fails_what_waits(world: World, lose: str) -> None:
    partition = world.partition
    world.lead()
    partition.append(make_batch(1))
    await world.sync()
    partition.append(make_batch(1))
    world.await_mark("committed", 1)
    world.await_mark("committed", 2)
    kept = partition.committed
    partition.commit(1)
    world.follow(EPOCH + 1) if lose == "follow" else partition.go_offline(EPOCH + 1)
    assert [type(failure) for _, failure in world.told] == [type(None), NotLeader]
    partition.commit(2)
    with pytest.raises(NotLeader):  # Also where the offset is committed later: it may be another's record.
        await kept.wait(2)


async def test_a_leader_that_is_elected_again_confirms_what_waits(world: World) -> None:
    partition = world.partition
    world.lead()
    partition.append(make_batch(1))
    await world.sync()
    world.await_mark("committed", 1)
    world.lead(EPOCH + 2)
    assert partition.append(make_batch(1)) == 1
    partition.commit(1)
    assert world.told == [("committed", None)]
    assert partition.log.facts.epochs.end_of(EPOCH, 2) == 1


async def test_an_epoch_begins_with_its_first_batch(world: World) -> None:
    """A leader that appends nothing leaves no trace: a later one may have records of an earlier epoch for it."""
    partition = world.partition
    world.lead(4)
    partition.append(make_batch(2))
    world.lead(6)
    assert partition.log.facts.epochs.rows() == [(4, 0)]
    world.follow(7)
    partition.append_copy(copies(5, first=2))
    world.lead(8)
    partition.append(make_batch(1))
    assert partition.log.facts.epochs.rows() == [(4, 0), (5, 2), (8, 3)]


async def test_all_that_must_be_safe_waits_for_the_watermark(world: World) -> None:
    partition = world.partition
    for safe in (partition.make_durable, partition.commit_all):
        world.lead(partition.leader_epoch + 1)
        partition.append(make_batch(1))
        end, done = partition.log.bounds()[1], trio.Event()

        async def run(safe: Callable[[], Awaitable[None]] = safe, done: trio.Event = done) -> None:
            await safe()
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while partition.log.durable() < end:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert not done.is_set()
            partition.commit(end)
            with trio.fail_after(5):
                await done.wait()


async def test_compaction_keeps_the_old_events_until_the_snapshot_is_committed(world: World) -> None:
    partition = world.partition
    state = StateLog(partition, RealEnv().clock)
    world.lead()
    state.append(b"event")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: state.compact(lambda: [b"snapshot"], force=True))
        while partition.log.durable() < 2:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert partition.log.bounds() == (0, 2)
        partition.commit(2)
    assert partition.log.bounds() == (1, 2)


async def test_a_queue_that_has_lost_its_log_ends_without_a_snapshot(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    env, partition = RealEnv(), world.partition
    subscription = SharedSubscription(AtLeastOnce(LeaseSettings()), 0)
    log = SubscriptionLog(partition, subscription, StateLog(partition, env.clock), env.clock, ignore)
    world.lead()
    subscription.acquire(7, 1, 1, 0.0)
    log.flush()
    end = partition.log.bounds()[1]
    assert end == 1
    world.follow(EPOCH + 1)
    await log.close([])
    assert (partition.log.bounds(), caplog.records) == ((0, end), [])


async def test_a_follower_stores_the_leaders_batches_and_hears_the_watermark(world: World) -> None:
    partition, theirs = world.partition, copies(4, 4, 5)
    world.follow()
    partition.append_copy(theirs[:2])
    await world.sync()
    assert world.durable[-1] == 2
    partition.append_copy(theirs[2:])
    partition.commit(2)
    assert (partition.high_watermark, partition.log.bounds()) == (2, (0, 3))
    assert partition.appended_records == 0
    assert messages_of(await partition.read(0, 1 << 20)) == messages_of(theirs[:2])
    world.lead(EPOCH + 1)
    assert partition.high_watermark == 2, "a new leader begins with the watermark that it was told"
    assert partition.append(make_batch(1)) == 3


async def test_only_a_follower_takes_copies(world: World) -> None:
    world.lead()
    with pytest.raises(CopyMisplaced):
        world.partition.append_copy(copies(EPOCH))
    world.partition.go_offline(EPOCH + 1)
    with pytest.raises(CopyMisplaced):
        world.partition.append_copy(copies(EPOCH))
    assert world.partition.log.bounds() == (0, 0)


async def test_a_copy_of_a_later_epoch_is_not_its_leaders(world: World) -> None:
    world.follow()
    world.partition.append_copy(copies(EPOCH))
    with pytest.raises(CopyMisplaced):
        world.partition.append_copy(copies(EPOCH, EPOCH + 1, first=1))
    assert world.partition.log.bounds() == (0, 1)
    world.follow(EPOCH + 1)
    world.partition.append_copy(copies(EPOCH, EPOCH + 1, first=1))
    assert world.partition.log.bounds() == (0, 3)


async def test_a_cut_takes_producers_and_transactions_with_it(world: World) -> None:
    partition, storage = world.partition, world.storage
    world.follow()
    partition.append_copy(copies(4, 4))
    partition.append_copy(copies(5, 5, first=2, producer=9))
    await world.sync()
    partition.commit(4)
    assert (partition.stable_offset, storage.producers, storage.held) == (2, 1, {PARTITION})
    await partition.cut(2)
    assert (partition.stable_offset, partition.high_watermark, storage.producers, storage.held) == (2, 2, 0, set())
    assert not partition.open_transactions()
    marker = build_marker(9, 0, 1, 0, is_commit=True)
    marker.stamp(2, 1_000, 0, EPOCH)
    partition.append_copy([marker])
    assert partition.transactions is partition.log.facts.transactions
    assert partition.appended_records == 0
    with pytest.raises(OffsetOutOfRange):
        await partition.cut(7)


async def test_a_follower_goes_on_at_the_start_of_its_leader(world: World) -> None:
    partition = world.partition
    world.follow()
    partition.append_copy(copies(4, 4, 5))
    await partition.follow_start(2)
    assert partition.start_offset == 2
    await partition.restart_at(50)
    assert (partition.log.bounds(), partition.high_watermark, partition.durable.offset) == ((50, 50), 50, 50)
    partition.append_copy(copies(EPOCH, first=50))
    partition.commit(51)
    assert partition.appended_records == 0
    assert (await partition.batch_at(50)).leader_epoch == EPOCH


async def test_retention_of_a_follower_is_that_of_its_leader(world: World) -> None:
    partition, far_ms = world.partition, 1 << 50
    world.follow()
    partition.append_copy(copies(4, 4, 5))
    await partition.enforce_retention(far_ms, age_ms=1, bytes_max=1)
    assert partition.start_offset == 0
    world.lead(EPOCH + 1)
    for committed in (0, 1, 3):
        partition.commit(committed)
        await partition.enforce_retention(far_ms, age_ms=1, bytes_max=1)
        assert partition.start_offset <= committed, "followers still need what is not committed"
    assert partition.start_offset == 3
