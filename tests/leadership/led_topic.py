"""Replicas of one topic's logs, as brokers have them, without the rules of replication: a test commits and elects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_single
from linn.core.batch.steps import run_steps
from linn.core.delivery.settlement import Settlement, SettleOutcome
from linn.core.delivery.vocabulary import Verdict
from linn.core.env.env import Env
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import ProducerDuplicate
from linn.core.log.partition import Partition
from linn.core.log.producers import numbers_of
from linn.core.log.state_log import StateLog
from linn.core.log.storage import PartitionId
from linn.core.log.storage_stats import StorageStats
from linn.core.loop.waiting import WaitDeadline
from linn.core.queue.consumer import QueueConsumer
from linn.core.queue.dead_letter_source import DeadLetterSource
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.queue import Queue
from linn.core.queue.semantics import DeliverySemantics
from linn.core.queue.transfer import Numbers, StepLimits, transfer_step
from linn.semantics.at_least_once import AtLeastOnce
from linn.storage_engines.dram.engine import DramEngine
from linn.storage_engines.dram.settings import DramSettings
from linn.testing.sim_env import SimEnv

DATA, STATE, DEAD, GROUPS = (
    PartitionId("t", 0),
    PartitionId("__s/t", 0),
    PartitionId("dead", 0),
    PartitionId("__g/t", 0),
)
LOGS = DATA, STATE, DEAD, GROUPS
READ_ALL = 1 << 40


class LedTopic:
    """One broker's replicas: a queue's records and its events, its dead letters, and the positions of groups.

    An error of a background task ends the test.
    """

    def __init__(self, env: Env, nursery: trio.Nursery, number: int = 1) -> None:
        self.env = env
        self.number = number
        self.epoch = 0
        self.commits_at_once = False
        """Whether what is durable here is committed."""
        self.partitions: dict[PartitionId, Partition] = {}
        self.queue = Queue("t")
        self.running = 0
        """Background tasks that have not ended."""
        self._numbers = Numbers(env.rng)
        self._nursery = nursery

    async def make(self) -> LedTopic:
        engine, storage = DramEngine(f"scratch{self.number}", DramSettings(), self.env), StorageStats("t")
        for id in LOGS:
            log, clock = await engine.open(id), self.env.clock
            self.partitions[id] = Partition(id, log, storage, clock, self.spawn, is_replicated=True)
        return self

    def spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        self.running += 1
        self._nursery.start_soon(self._run, task)

    async def _run(self, task: Callable[[], Awaitable[None]]) -> None:
        await task()
        self.running -= 1

    # --- roles -------------------------------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """Become the leader; what the logs have is committed, as it is when state machines begin."""
        self.epoch = epoch
        for id, partition in self.partitions.items():
            partition.lead(epoch, partial(self._durable, id))
        self.commit()

    def _durable(self, id: PartitionId) -> None:
        if self.commits_at_once:
            self.partitions[id].commit(self.end(id))

    def commit(self, *ids: PartitionId) -> None:
        """Commit everything of these logs; without any: of all."""
        for id in ids or LOGS:
            self.partitions[id].commit(self.end(id))

    def lose(self, leader: int = 2) -> None:
        """Follow another broker: the topic abandons its queue."""
        self.lose_logs(leader)
        self.queue.abandon(self.partitions[STATE].not_leader())

    def lose_logs(self, leader: int = 2) -> None:
        """Only the logs know already."""
        for partition in self.partitions.values():
            partition.follow(leader, self.epoch + 1, lambda: None)

    def end(self, id: PartitionId) -> int:
        return self.partitions[id].log.bounds()[1]

    def committed(self, id: PartitionId) -> int:
        return self.partitions[id].high_watermark

    async def batch_ends(self, id: PartitionId) -> list[int]:
        """The ends of the batches above the watermark."""
        found, log = [self.committed(id)], self.partitions[id].log
        while found[-1] < log.bounds()[1]:
            found += [batch.end_offset for batch in await log.read(found[-1], READ_ALL)]
        return found[1:]

    async def copied(self, number: int, ends: Mapping[PartitionId, int] | None = None) -> LedTopic:
        """Another broker's replicas, which end at these offsets; where none is given, with what is committed."""
        other = await LedTopic(self.env, self._nursery, number).make()
        for id, mine in self.partitions.items():
            theirs, (offset, _) = other.partitions[id], mine.log.bounds()
            end = (ends or {}).get(id, mine.high_watermark)
            theirs.follow(self.number, self.epoch, lambda: None)
            if offset:
                await theirs.restart_at(offset)
            while offset < end:
                batches = [it for it in await mine.log.read(offset, READ_ALL) if it.end_offset <= end]
                theirs.append_copy([type(batch)(bytearray(batch.message)) for batch in batches])
                offset = theirs.log.bounds()[1]
        return other

    # --- the queue ---------------------------------------------------------------------------------------------------

    def partition_queue(self, semantics: DeliverySemantics) -> PartitionQueue:
        data, clock = self.partitions[DATA], self.env.clock
        state, on_ready = StateLog(self.partitions[STATE], clock), partial(self.queue.has_ready, 0)
        return PartitionQueue(data, semantics, state, on_ready, clock, self.spawn, self._move_dead)

    async def _move_dead(self, partition_queue: PartitionQueue) -> None:
        source = DeadLetterSource(partition_queue, self._numbers, self.env.clock)
        await transfer_step(source, self._carry, StepLimits(1 << 20))

    async def _carry(self, batch: RecordBatch) -> None:
        target, numbers = self.partitions[DEAD], numbers_of(batch)
        try:
            known = target.find(numbers, batch.count)
        except ProducerDuplicate:  # A part of the step was settled before: it is stored, as in `publish.plan`.
            known = 0
        if known is None:
            target.append_numbered(batch, numbers)
        await target.committed.wait(target.log.bounds()[1])

    async def open_queue(self, semantics: DeliverySemantics | None = None) -> PartitionQueue:
        """Open the queue, as a new leader does."""
        queue = self.partition_queue(semantics or AtLeastOnce(LeaseSettings()))
        await queue.recover()
        self.queue.extend([queue])
        return queue

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self.partitions[DATA].append(build_single(b"record", 0, 0))

    def consumer(self, name: str = "") -> QueueConsumer:
        return self.queue.join(0 if self._settles else 30_000, name)

    @property
    def _settles(self) -> bool:
        return self.queue.partition_queues[0].subscription.semantics.settles_on_delivery


async def opened(nursery: trio.Nursery, semantics: DeliverySemantics | None = None, records: int = 3) -> LedTopic:
    """A leader with a queue of some committed records, of which the first delivery id is committed as well."""
    topic = await LedTopic(SimEnv(0), nursery).make()
    topic.lead(1)
    topic.publish(records)
    topic.commit()
    queue = await topic.open_queue(semantics)
    queue.log.flush()
    topic.commit()
    await queue.log._note_ids()
    return topic


async def offsets(consumer: QueueConsumer, records: int = 1, wait_s: float = 0.0) -> tuple[list[int], int, int]:
    """Take a delivery, and return (offsets, delivery id, attempt)."""
    delivery = await consumer.next(records, READ_ALL, WaitDeadline(wait_s))
    found = [offset for batch in delivery.batches for offset in range(batch.base_offset, batch.end_offset)]
    return found, delivery.delivery_id, delivery.attempt


def settle(
    consumer: QueueConsumer, delivery_id: int, offsets: Sequence[int], verdict: int = Verdict.ACK
) -> SettleOutcome:
    asked = [Settlement(0, delivery_id, offset, offset + 1, verdict) for offset in offsets]
    return run_steps(consumer.settle(asked))


def is_confirmed(outcome: SettleOutcome) -> bool:
    assert not outcome.refused
    return all(mark.offset >= end for mark, end in outcome.awaits)


def not_leader(topic: LedTopic) -> NotLeader:
    return topic.partitions[STATE].not_leader()
