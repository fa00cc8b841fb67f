"""A topic of two logs at its leader and at a follower, over real logs, with no store that moves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from uuid import UUID

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_single
from linn.core.cluster.following import NEWS_BATCHES_MAX, FollowLane, LogNews
from linn.core.env.env import Env
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import TopicUnknown
from linn.core.log.partition import Partition
from linn.core.log.replication.events import Commit, Cut, LogTable, Match, PartView
from linn.core.log.replication.leader import Leader
from linn.core.log.replication.replica import Replica
from linn.core.log.storage import Capabilities, PartitionId
from linn.core.log.storage_stats import StorageStats
from linn.core.loop.memory_budget import MemoryShare
from linn.storage_engines.dram.log import DramLog
from linn.storage_engines.dram.scratch import ScratchFolder
from linn.storage_engines.dram.settings import DramSettings

TOPIC = UUID(int=0x0123456789ABCDEF_FEDCBA9876543210)
LOGS = (0, 4096)
BYTES_MAX = 1 << 20


def nothing() -> None:
    pass


def partitions_of(env: Env) -> dict[int, Partition]:
    """Make empty logs in memory."""
    share, folder, storage = MemoryShare("t"), ScratchFolder("scratch", env.disk, count()), StorageStats("t")
    share.bytes_max = 1 << 30
    capabilities = Capabilities(survives_restart=False)
    found = {}
    for number in LOGS:
        log = DramLog(f"log {number}", DramSettings(), env, folder, share, capabilities)
        no_tasks = list[object]().append
        found[number] = Partition(PartitionId("t", number), log, storage, env.clock, no_tasks, is_replicated=True)
    return found


def part_of(leader: int, session: str, epoch: int = 1) -> PartView:
    """The entry of the store: nodes 1 and 2 are in sync."""
    return PartView(epoch, epoch, leader, session, frozenset({1, 2}), frozenset({1, 2}))


async def messages_in(partition: Partition) -> list[bytes]:
    """The bytes of all batches, without their stamps of what is durable here."""
    found, (offset, end) = list[bytes](), partition.log.bounds()
    while offset < end:
        for batch in await partition.log.read(offset, 1 << 30):
            twin = RecordBatch(bytearray(batch.message))
            twin.stamp(twin.base_offset, twin.append_time_ms, 0, twin.leader_epoch)
            found.append(bytes(twin.message))
            offset = batch.end_offset
    return found


class LedTopic:
    """The topic at its leader: the port `FollowedLogs`."""

    def __init__(self, env: Env, node: int = 2, session: str = "s2", epoch: int = 1) -> None:
        self.partitions = partitions_of(env)
        self.seats: list[LedSeat] = []
        self.followed_by: list[tuple[int, str]] = []
        self._clock = env.clock
        self._replica = Replica(node, session, {n: each.log for n, each in self.partitions.items()}, 1)
        self.elect(part_of(node, session, epoch))

    def elect(self, part: PartView) -> None:
        """Let the store name a leader."""
        self._replica.viewed(part, self._clock.monotonic())
        for number, partition in self.partitions.items():
            if self._replica.leader is not None:
                partition.lead(part.epoch, partial(self.durable, number))
                self.durable(number)
        self.obey()

    @property
    def leader(self) -> Leader:
        assert self._replica.leader is not None
        return self._replica.leader

    def append(self, number: int, values: Sequence[bytes]) -> None:
        """Append a batch for each value."""
        for value in values:
            self.partitions[number].append(build_single(value, 1_000, 1))
        self.durable(number)

    def durable(self, number: int) -> None:
        self.leader.durable(number, self.partitions[number].durable.offset)
        self.obey()

    def obey(self) -> None:
        for command in self._replica.take_commands():
            if isinstance(command, Commit):
                self.partitions[command.log].commit(command.offset)
        for seat in self.seats:
            seat.woken.unpark_all()

    def follow(
        self,
        node: int,
        session: str,
        topic_id: UUID,
        epoch: int,
        logs: Mapping[int, LogTable],
        silent_s: Callable[[], float],
    ) -> LedSeat:
        """See `FollowedLogs.follow`."""
        if topic_id != TOPIC:
            raise TopicUnknown(f"there is no topic {topic_id}")
        if self._replica.leader is None:
            raise NotLeader("another broker leads", leader=1, epoch=self._replica.epoch)
        matches = self.leader.followed(node, epoch, session, logs, silent_s, self._clock.monotonic())
        self.followed_by.append((node, session))
        seat = LedSeat(self, self.leader, node, session, matches)
        self.seats.append(seat)
        return seat


class LedSeat:
    """The port `FollowerSeat`."""

    def __init__(self, topic: LedTopic, leader: Leader, node: int, session: str, matches: Mapping[int, Match]) -> None:
        self.matches = matches
        self.woken = trio.lowlevel.ParkingLot()
        self.taken = 0
        """Calls of `take`."""
        self._topic = topic
        self._leader = leader
        self._who = node, session
        self._sent = {number: match.at for number, match in matches.items()}
        self._told: dict[int, tuple[int, int]] = {}

    def acknowledge(self, ends: Sequence[tuple[int, int]]) -> None:
        """See `FollowerSeat.acknowledge`."""
        self._leader.acknowledged(*self._who, ends)
        self._topic.obey()

    async def wait(self) -> None:
        """See `FollowerSeat.wait`."""
        while not any(self._has_news(number) for number in self._sent):
            await self.woken.park()

    def _has_news(self, number: int) -> bool:
        if self._topic._replica.leader is not self._leader:
            raise NotLeader("another broker leads", leader=1, epoch=self._topic._replica.epoch)
        return self._sent[number] < self._end(number) or self._told.get(number) != self._numbers(number)

    def _end(self, number: int) -> int:
        return self._topic.partitions[number].log.bounds()[1]

    def _numbers(self, number: int) -> tuple[int, int]:
        return self._topic.partitions[number].log.bounds()[0], self._leader.watermarks()[number]

    async def take(self, bytes_max: int) -> Sequence[LogNews[RecordBatch]]:
        """See `FollowerSeat.take`."""
        self.taken += 1
        await trio.lowlevel.checkpoint()  # As an engine that reads a file.
        news, room = list[LogNews[RecordBatch]](), NEWS_BATCHES_MAX
        for number in self._sent:
            if self._has_news(number) and bytes_max > 0:
                batches = list(await self._topic.partitions[number].log.read(self._sent[number], bytes_max))[:room]
                if batches:
                    self._sent[number] = batches[-1].end_offset
                self._told[number] = self._numbers(number)
                news.append(LogNews(number, *self._told[number], batches))
                bytes_max -= sum(batch.size for batch in batches)
                room -= len(batches)
        return news

    def leave(self) -> None:
        """See `FollowerSeat.leave`."""
        if self in self._topic.seats:
            self._topic.seats.remove(self)
            self._leader.unfollowed(*self._who, self._topic._clock.monotonic())


class FollowingTopic:
    """The topic at a follower."""

    def __init__(self, env: Env, node: int = 1, session: str = "s1", leader: int = 2, epoch: int = 1) -> None:
        self.partitions = partitions_of(env)
        self.answers = 0
        self.replica = Replica(node, session, {n: each.log for n, each in self.partitions.items()}, 1)
        self.view(part_of(leader, f"s{leader}", epoch))

    def view(self, part: PartView) -> None:
        """Let the store name a leader."""
        self.replica.viewed(part, 0.0)
        self.replica.take_commands()
        for partition in self.partitions.values():
            partition.follow(part.leader, part.epoch, nothing)

    @property
    def watermarks(self) -> dict[int, int]:
        return {number: self.replica.watermarks.get(number, 0) for number in LOGS}

    async def follow(self, lane: FollowLane) -> None:
        """Cut the logs as the leader says."""
        follower = self.replica.follower
        assert follower is not None
        matches = await lane.follow(TOPIC, follower.epoch, follower.request().request)
        follower.answered(matches)
        for number, match in matches.items():
            if isinstance(match, Cut):
                await self.partitions[number].cut(match.at)
            else:
                await self.partitions[number].restart_at(match.at)
            self.replica.cut(number)

    async def replicate(self, lane: FollowLane, bytes_max: int = BYTES_MAX) -> Sequence[LogNews[RecordBatch]]:
        """Acknowledge, and store the answer."""
        assert self.replica.follower is not None
        durable = {number: partition.durable.offset for number, partition in self.partitions.items()}
        news = await lane.replicate(self.replica.follower.acknowledge(durable), bytes_max)
        self.answers += 1
        for each in news:
            self.partitions[each.number].append_copy(each.batches)
            self.partitions[each.number].commit(self.replica.told(each.number, each.watermark))
        return news

    async def run(self, lane: FollowLane) -> None:
        """Follow for ever. Raises LinnErrors."""
        await self.follow(lane)
        while True:
            await self.replicate(lane)
