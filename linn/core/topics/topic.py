"""One topic: its partitions, its queue if it is one, its named subscriptions, and its readers without a group.

Law: a change of kind changes which subscriptions exist and what retention keeps; it moves no data. A topic that becomes
a queue starts it at the oldest record, or where its queue stopped if it was one before. A named subscription belongs to
a stream, or to a queue with `keep`, and holds back nothing that these drop.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from linn.core.batch.batch import SCATTERED, TRANSACTIONAL, RecordBatch
from linn.core.batch.format import Formats
from linn.core.batch.steps import run_steps
from linn.core.config.topic_settings import BindingSettings, TopicSettings
from linn.core.env.env import Clock, Spawn
from linn.core.errors.replication import NotLeader
from linn.core.errors.texts import counted
from linn.core.errors.tree import (
    BatchMalformed,
    LinnError,
    LogClosed,
    PartitionUnknown,
    SharedUnknown,
    TopicReplaced,
)
from linn.core.groups.coordinator import GroupCoordinator, Stream
from linn.core.groups.reader import StreamReader
from linn.core.groups.topic_positions import groups_log
from linn.core.log.partition import Partition
from linn.core.log.producers import Numbered
from linn.core.log.state_log import StateLog
from linn.core.log.storage import PartitionId, StorageEngine
from linn.core.log.storage_stats import StorageStats
from linn.core.log.uncommitted import UncommittedViews
from linn.core.ports.interceptor import BoundInterceptor, intercepted
from linn.core.queue.dispatch_order import TopicOrder
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.queue import Queue
from linn.core.queue.semantics import DeliverySemantics
from linn.core.routing.budget import PublishBudget
from linn.core.routing.partition_choice import PartitionChoice
from linn.core.topics.change import TopicChange, close_log, sync_names
from linn.core.topics.clipped_logs import ClippedLogs
from linn.core.topics.deletion import TopicDeletion
from linn.core.topics.holder import Holder
from linn.core.topics.message_limit import check_steps
from linn.core.topics.retired_subscriptions import RetiredSubscriptions
from linn.core.topics.room import Room
from linn.core.topics.served_columns import add_key_hashes
from linn.core.topics.shared_entry import OWN_QUEUE, SharedEntry, state_topic
from linn.core.topics.timing_logs import BESIDE, TimingLogs
from linn.core.topics.topic_ids import TopicIds
from linn.core.topics.topic_logs import TopicLogs
from linn.core.topics.topic_use import TopicUse

logger = logging.getLogger("linn.topic")


@dataclass(frozen=True, slots=True, eq=False)
class TopicHost:
    """The parts of a broker that one of its topics works with."""

    engine: StorageEngine
    storage: StorageStats
    """Counts of the topic's storage."""
    formats: Formats
    clock: Clock
    spawn: Spawn
    move_dead_letters: Callable[[Topic, PartitionQueue], Awaitable[None]]
    delete_unused: Callable[[Topic], Awaitable[None]]
    leader_epoch: int
    """The epoch in which partitions that have no replicas are led: the number of the broker's start."""
    order_of: Callable[[TopicSettings], TopicOrder | None]
    """The order in which a topic's queue delivers."""


class Topic:
    """A topic, made by `TopicMaker`, and then opened."""

    def __init__(
        self,
        name: str,
        id: UUID,
        settings: TopicSettings,
        semantics: DeliverySemantics,
        choice: PartitionChoice,
        host: TopicHost,
    ) -> None:
        self.name = name
        self.id = id
        """The topic's own, and of no other topic that has its name before or after it."""
        self.id_halves = id.int >> 64, id.int & (1 << 64) - 1
        """The upper and the lower half of `id`."""
        self.is_own = name.startswith("__")
        """Whether only the broker writes to the topic and changes it."""
        self.leader_epoch = host.leader_epoch
        """The epoch in which new logs are opened."""
        self.led_by: Callable[[], NotLeader] | None = None
        """In a cluster, while the topic is closed here: makes the error that names its leader."""
        self.holder: Holder | None = None
        """In a cluster, the node that holds a transient topic; None: the topic is placed, or the broker is alone."""
        self.logs: TopicLogs | None = None
        """In a cluster, the holder of the topic's logs, which replicates them; None: the topic has them to itself."""
        self.settings = settings
        self.semantics = semantics
        self.order = host.order_of(settings)
        self.partitions: dict[int, Partition] = {}
        self.subscriptions: dict[str, Queue] = {}
        """Shared subscriptions by name: the named ones, and the topic's own queue, if it is one, as ""."""
        self.positions: StateLog | None = None
        """The log of the positions of groups; None: no group has read the topic yet, or its positions are in memory."""
        self.entries: dict[str, SharedEntry] = {}
        """Metadata of named subscriptions, also while some of their logs are still to be deleted."""
        self.live_bindings: list[BindingSettings] = []
        """Bindings that were made while the broker ran, in addition to the settings."""
        self.live_keys: tuple[str, ...] = ()
        """Settings that were set live, see `linn.core.topics.live_settings`."""
        self.interceptors: tuple[BoundInterceptor, ...] = ()
        self.use = TopicUse(name, host.clock, host.spawn, partial(host.delete_unused, self))
        self.readers: dict[StreamReader, None] = {}
        """Readers without a group."""
        self.choice = choice
        self.storage = host.storage
        self._host = host
        self.engine = host.engine
        self._clock = host.clock
        self._spawn = host.spawn
        self.publish_errors = 0
        """Failed publishes to this topic by its name."""
        self.room = Room(self, host.spawn)
        self._retired = RetiredSubscriptions()
        self._clipped = ClippedLogs(name)
        self.timing = TimingLogs(self, host.clock, host.spawn, self._move, self._clipped)
        self.ids = TopicIds(self.open_log, host.clock, host.spawn, self.timing.queues)
        self._deletion = TopicDeletion(host.engine, self.make_log)

    # --- opening and changing ---

    async def open(self) -> None:
        """Open all logs and rebuild the state in memory.

        Raises LogCorrupt, StorageError: opened logs are closed again, or left to their holder.
        """
        change = self._change(self.settings, self.semantics)
        change.begin()  # Nothing can refuse it any more.
        try:
            for index in range(self.settings.partitions):
                self.partitions[index] = await self.open_log(PartitionId(self.name, index))
            await self.ids.open(self.settings, self.partitions.values())
            await self._prepare(change)
        except LinnError:
            await change.abandon(keeps_empty=True)
            if self.logs is None:
                await self.close()
            raise
        await self._adopt(change)

    def resign(self, led_by: Callable[[], NotLeader]) -> None:
        """Close the topic, but not its logs, because another broker leads it: consumers end, publishes are refused."""
        self._leave(led_by())
        self.led_by, self.subscriptions, self.positions = led_by, {}, None
        self.partitions.clear()
        self.ids.forget()
        self.room.changed.clear()

    def _leave(self, reason: NotLeader) -> None:
        """End all consumers and subscriptions, and leave the logs to their holder as they are."""
        for reader in list(self.readers):
            reader.end(reason)
        for queue in list(self.subscriptions.values()):
            queue.abandon(reason)
        self.timing.abandon(reason)
        self.room.tell()

    def check_led(self) -> None:
        """Check that this broker leads the topic. Raises NotLeader."""
        if self.led_by is not None:
            raise self.led_by()

    async def make_durable(self) -> None:
        """Make the names of new logs durable. Raises StorageError."""
        await sync_names([*self.partitions.values(), *(state.partition for state in self.state_logs())])

    def _change(self, settings: TopicSettings, semantics: DeliverySemantics) -> TopicChange:
        return TopicChange(settings, semantics, self._spawn, has_logs=self.logs is None)

    async def make_log(self, id: PartitionId, *, is_replicated: bool = False) -> Partition:
        """Open one of the topic's logs, which is made if there is none. Raises LogCorrupt, StorageError."""
        log = await self.engine.open(id)
        host = self._host
        about = host.storage, host.clock, host.spawn, self.leader_epoch, host.formats
        return Partition(id, log, *about, is_replicated=is_replicated)

    async def open_log(self, id: PartitionId) -> Partition:
        """Open one of the topic's logs, which is made if there is none. Raises LogCorrupt, StorageError."""
        return await (self.make_log(id) if self.logs is None else self.logs.open(id))

    @property
    def closes_logs(self) -> bool:
        """Whether the topic has its logs to itself."""
        return self.logs is None

    @property
    def keeps_records(self) -> bool:
        """Whether records survive a restart of this broker, or its loss."""
        return self.engine.capabilities.survives_restart or self.settings.is_replicated

    @property
    def keeps_state(self) -> bool:
        """Whether the state of subscriptions is in logs: it survives a restart of this broker, or its loss."""
        return self.keeps_records and self.semantics.survives_restart

    @property
    def lacks_positions(self) -> bool:
        """Whether `open_positions` has to be called before a group may read the topic."""
        return self.positions is None and (self.logs is not None or self.engine.capabilities.survives_restart)

    async def open_positions(self, groups: GroupCoordinator) -> None:
        """Open the log of the positions of groups, which is made if there is none, unless it is open or not needed.

        Raises LogCorrupt, StorageError: call it again.
        """
        if self.lacks_positions:
            state = StateLog(await self.open_log(groups_log(self.name)), self._clock)
            try:
                self._clipped.add([await groups.adopt(self.name, state, self.ends())])
            except LinnError:
                if self.logs is None:
                    await close_log(state.partition)
                raise
            self.positions = state

    async def _open_state(self, number: int, index: int) -> StateLog | None:
        if not self.keeps_state:
            return None
        return StateLog(await self.open_log(PartitionId(state_topic(number, self.name), index)), self._clock)

    async def prepare(self, settings: TopicSettings, semantics: DeliverySemantics) -> TopicChange:
        """Make and open the parts for new settings, which `changed_keys` has checked. The topic works on unchanged.

        Raises StorageError, LogCorrupt: new parts are deleted again.
        """
        self._clipped.check()
        change = self._change(settings, semantics)
        if self.led_by is not None:
            return change
        if self.logs is not None and self._needs_logs(settings):
            await self.logs.begin_epoch()
        try:
            for index in range(len(self.partitions), settings.partitions):
                change.partitions[index] = await self.open_log(PartitionId(self.name, index))
            await self.ids.prepare(change, self.partitions | change.partitions)
            await self._prepare(change)
            states = [state.partition for state in _state_logs(change.partition_queues)]
            indexes = [index.log.partition for index in change.indexes]
            await sync_names([*change.partitions.values(), *states, *indexes])
            if settings.kind not in (self.settings.kind, "both"):
                await self._retired.prepare(self.partitions.values())
        except LinnError:
            await change.abandon()
            raise
        return change

    def _needs_logs(self, settings: TopicSettings) -> bool:
        """Whether logs have to be made or synced, for new settings or for a subscription that is not open yet."""
        wanted = {name for name, entry in self.entries.items() if not entry.deleted}
        is_larger = settings.partitions > len(self.partitions)
        is_larger = is_larger or (settings.status_ms is not None and self.ids.statuses is None)
        return is_larger or settings.kind != self.settings.kind or not wanted <= self.subscriptions.keys()

    async def _prepare(self, change: TopicChange) -> None:
        """Open the subscriptions of the new kind that do not exist yet."""
        partitions = self.partitions | change.partitions
        entries = {name: entry for name, entry in self.entries.items() if not entry.deleted}
        if change.settings.kind != "stream":
            entries[""] = SharedEntry(OWN_QUEUE)
        for name, entry in entries.items():
            queue = change.subscriptions[name] = self.subscriptions.get(name) or Queue(self.name, name)
            change.added[name] = []
            for index in range(len(queue.partition_queues), len(partitions)):
                await self._prepare_partition_queue(change, queue, entry, partitions[index])

    async def _prepare_partition_queue(
        self, change: TopicChange, queue: Queue, entry: SharedEntry, partition: Partition
    ) -> None:
        index = partition.id.index
        state = await self._open_state(entry.number, index)
        on_ready = partial(queue.has_ready, index)
        partition_queue = PartitionQueue(
            partition, change.semantics, state, on_ready, self._clock, change.spawn, self._move, queue.name
        )
        change.added[queue.name].append(partition_queue)
        partition_queue.set_order(self._host.order_of(change.settings))
        partition_queue.set_keeping(**_keeping(change.settings))
        partition_queue.trimming.on_room = partial(self.room.freed, index)
        partition_queue.trimming.kept_from = self.ids.keeper(change.settings, index)
        left_off = () if queue.name else self._retired.left_off(index)
        await partition_queue.recover(left_off, entry.starts[index] if index < len(entry.starts) else 0)

    async def _move(self, partition_queue: PartitionQueue) -> None:
        await self._host.move_dead_letters(self, partition_queue)

    async def switch(self, change: TopicChange) -> None:
        """Put a prepared change into effect, all at once; this needs no room. Raises SyncFailed."""
        await self._adopt(change)
        self.room.limits_changed()
        # Now: the reason for a shorter retention may be a full disk.
        self._spawn(self.enforce_retention)

    async def _adopt(self, change: TopicChange) -> None:
        queue = self.queue
        self.settings, self.semantics, self.subscriptions = change.settings, change.semantics, change.subscriptions
        self.order = self._host.order_of(self.settings)
        self.partitions.update(change.partitions)
        self.room.changed.update(dict.fromkeys(self.partitions))
        self._clipped.add([partition_queue.log for partition_queue in change.partition_queues])
        await self.ids.adopt(change, self.queue, closes=self.logs is None)
        for name, subscription in self.subscriptions.items():
            self._extend_queue(subscription, change.added[name])
        change.begin()
        # Subscriptions see the new topic at once; the ones that it no longer has are closed afterwards.
        if queue is not None and self.queue is None:
            await self._retired.retire_queue(queue, self.partitions.values())
        if self.settings.kind == "queue":
            self._end_readers()

    def _extend_queue(self, queue: Queue, partition_queues: Sequence[PartitionQueue]) -> None:
        for partition_queue in queue.partition_queues:
            partition_queue.set_keeping(**_keeping(self.settings))
            partition_queue.subscription.semantics = self.semantics
            partition_queue.set_order(self.order)
        queue.extend(partition_queues, is_single=self.settings.consumers == "one")
        self.use.follow(queue, self.settings)
        for index, partition_queue in enumerate(queue.partition_queues):
            partition_queue.trimming.kept_from = self.ids.keeper(self.settings, index)

    @property
    def queue(self) -> Queue | None:
        """The topic's own queue; None: it is a stream."""
        return self.subscriptions.get("")

    def shared(self, name: str) -> Queue:
        """The shared subscription of that name. Raises SharedUnknown."""
        queue = self.subscriptions.get(name)
        if queue is None:
            self.check_led()
            raise SharedUnknown(f'topic {self.name} has no shared subscription "{name[:80]}"')
        return queue

    async def drop_shared(self, name: str) -> None:
        """Close a named subscription, and delete its logs. After an error, another call continues.

        Raises StorageError: some logs are left.
        """
        queue, entry = self.subscriptions.pop(name, None), self.entries[name]
        deletion = TopicDeletion(self.engine, self.make_log)
        topic = state_topic(entry.number, self.name)
        logs = [PartitionId(topic, index) for index in range(self.settings.partitions)]
        if queue is not None:
            await queue.close()
            await deletion.delete_open([state.partition for state in _state_logs(queue.partition_queues)])
            for partition_queue in queue.partition_queues:
                partition_queue.log.clipped = False  # Its log is replaced by none.
        if self.logs is not None:
            await self.logs.forget(logs)
        if self.semantics.survives_restart:
            await deletion.delete_rest(logs)

    def ends(self) -> dict[int, int]:
        """The end of each partition's log."""
        return {index: partition.log.bounds()[1] for index, partition in self.partitions.items()}

    @property
    def stream(self) -> Stream | None:
        """The topic as groups read it; None: it is a queue."""
        if self.settings.kind == "queue":
            return None
        return Stream(self.partitions, self.semantics.settles_on_delivery, self.id.bytes)

    def check_id(self, high: int, low: int) -> None:
        """Check that a reader means this topic, by the halves of the id that it knows; 0: it knows none.

        Raises TopicReplaced.
        """
        if (high or low) and (high, low) != self.id_halves:
            raise TopicReplaced(f"topic {self.name} was deleted and made again: its offsets are of other records now")

    def read(self, *, is_uncommitted: bool = False) -> StreamReader:
        """Make a reader without a group; `is_uncommitted`: also of transactions that are open, or were aborted."""
        partitions = UncommittedViews(self.partitions) if is_uncommitted else self.partitions
        reader = StreamReader(self.name, partitions, self._reader_closed)
        self.readers[reader] = None
        return reader

    def _reader_closed(self, reader: StreamReader) -> None:
        del self.readers[reader]

    def _end_readers(self) -> None:
        for reader in list(self.readers):
            reader.close()

    # --- publishing ---

    def written_logs(self) -> list[Partition]:
        """The logs that producers write to: the partitions, and their timing logs."""
        return [*self.partitions.values(), *self.timing.partitions()]

    def partition(self, index: int) -> Partition:
        """The partition of that number. Raises PartitionUnknown."""
        partition = self.partitions.get(index)
        if partition is None:
            self.check_led()
            has = counted(len(self.partitions), "partition")
            raise PartitionUnknown(f"topic {self.name} has no partition {index}: it has {has}, counted from 0")
        return partition

    def admit(self, batch: RecordBatch, budget: PublishBudget) -> RecordBatch | None:
        """The batch to store for a verified one, regardless of room; None: an interceptor dropped it. `check_served`
        comes next.

        A transferred one was published before: the limit of a message is no reason to lose it.

        Raises:
            MessageTooLarge: with the indexes of the messages that the topic does not take.
            BatchMalformed, InterceptorFailed. LimitExceeded: it is over the budget.
        """
        if self.interceptors:
            left = intercepted(self.interceptors, self.name, batch)
            if left is None:
                return None
            if left.producer_id != batch.producer_id:
                numbers = batch.producer_id, batch.producer_epoch, batch.first_sequence
                left.number(*numbers, batch.attributes, batch.transaction)
            batch = left
        if batch.producer_id < 0:  # `is_internal`, spelled here to save a call per batch.
            return batch
        limit = self.settings.message_bytes_max
        if limit is not None and (batch.body_bytes > limit or batch.format):
            run_steps(check_steps(batch, limit, budget))
        if batch.attributes & ~(SCATTERED | TRANSACTIONAL):
            raise BatchMalformed("only a broker writes the markers of transactions")
        if self.order is not None and self.order.needs_key_hashes:
            return add_key_hashes(batch, budget)
        return batch

    def append(self, partition: Partition, batch: RecordBatch, numbers: Numbered | None = None) -> int:
        """Store a batch in one of the topic's partitions; returns its base offset. Raises StorageError.

        `numbers`: the numbers of an idempotent producer's batch, which `Partition.find` has found to be new.
        """
        if self._clipped.holders:
            self._clipped.check()
        base_offset = partition.append(batch) if numbers is None else partition.append_numbered(batch, numbers)
        if self.ids.dedup is not None:
            self.ids.dedup.appended(partition, batch)
        if self.ids.statuses is not None:
            self.ids.statuses.appended(partition, batch)
        room = self.room
        room.changed[partition.id.index] = None
        if room.is_over:
            room.make()
        return base_offset

    def append_delayed(self, partition: Partition, batch: RecordBatch, numbers: Numbered | None) -> int:
        """Store a batch in one of the timing logs; returns and raises as `append`."""
        self._clipped.check()
        if numbers is None:
            return partition.append(batch)
        return partition.append_numbered(batch, numbers)

    # --- keeping ---

    @property
    def missed_records(self) -> int:
        """The number of records that retention or overflow dropped before the queue settled them."""
        queue = self.queue
        return sum(it.missed_records for it in queue.partition_queues) if queue is not None else 0

    async def enforce_retention(self, *, drops_old: bool = True) -> None:
        """Drop records that the topic no longer keeps, by age if `drops_old`, and let all logs do their housekeeping.

        Without `keep`, a queue's records are trimmed as they are settled, and thinned behind one that is not. State
        logs are trimmed when they are compacted.
        """
        now_ms, settings, is_queue = self._clock.now_ms(), self.settings, self.settings.kind == "queue"
        age_ms = settings.keep_ms if is_queue else settings.retention_ms
        bytes_max = settings.retention_bytes if settings.keeps_settled else None
        for index, partition in list(self.partitions.items()):
            queue = self.queue if is_queue and partition.leads else None
            keep = queue.partition_queues[index].trimming.trimmable_before() if queue is not None else None
            await partition.enforce_retention(now_ms, age_ms if drops_old else None, bytes_max, keep)
        for log in [*self.timing.partitions(), *(state.partition for state in self.state_logs())]:
            await log.enforce_retention(now_ms)
        self.follow_start(self.partitions)
        if self.ids.statuses is not None:
            self.ids.statuses.tidy()
        for partition_queue in self.partition_queues():
            partition_queue.trimming.begin_if_due()
            partition_queue.trimming.begin_thinning_if_due()
        self.room.tell()

    def state_logs(self) -> list[StateLog]:
        """The open state logs, including the logs of groups and of ids."""
        groups = [self.positions] if self.positions is not None else []
        indexes = self.ids.statuses.indexes.values() if self.ids.statuses is not None else ()
        return [*groups, *[index.log for index in indexes], *_state_logs(self.partition_queues())]

    def partition_queues(self) -> Iterator[PartitionQueue]:
        """The partitions of all subscriptions, and the timing logs."""
        for queue in list(self.subscriptions.values()):
            yield from queue.partition_queues
        yield from list(self.timing.queues.values())

    def follow_start(self, indexes: Collection[int]) -> None:
        """Let the subscriptions go on at the new starts of these partitions."""
        self.room.changed.update(dict.fromkeys(indexes))
        for queue in list(self.subscriptions.values()):
            for index in indexes:
                queue.partition_queues[index].skip_to_start()

    # --- closing ---

    async def close(self) -> None:
        """End all subscriptions; sync and close all logs."""
        if self.logs is not None:
            self._leave(NotLeader(f"the broker that leads topic {self.name} is stopping"))
            await self.logs.close()
            return
        self._end_readers()
        for queue in list(self.subscriptions.values()):
            await queue.close()
        await self.timing.stop()
        states = [state.partition for state in self.state_logs()]
        for partition in [*states, *self.written_logs()]:
            await partition.close()
        self.room.tell()

    async def delete(self) -> None:
        """Close the topic, and remove everything stored. Published records and commits of groups are confirmed before.

        Also for a topic that was never opened. After an error, another call continues.

        Raises StorageError.
        """
        published = self.written_logs()
        for partition in [*published, *([self.positions.partition] if self.positions else ())]:
            with contextlib.suppress(LogClosed):  # An earlier call came further.
                await partition.commit_all()
        self._end_readers()
        for queue in list(self.subscriptions.values()):
            if not queue.closed:
                await queue.close()
        await self.timing.stop()
        await self._deletion.delete_open([*published, *(log.partition for log in self.state_logs())])
        self.room.tell()
        indexes = range(self.settings.partitions)
        numbers = [OWN_QUEUE, *(entry.number for entry in self.entries.values())]
        internal = [PartitionId(state_topic(number, self.name), index) for number in numbers for index in indexes]
        others = [PartitionId(named(self.name), index) for named in BESIDE for index in indexes]
        ids = [*(PartitionId(self.name, index) for index in indexes), *others, groups_log(self.name)]
        await self._deletion.delete_rest([*ids, *(internal if self.semantics.survives_restart else ())])


def _keeping(settings: TopicSettings) -> dict[str, Any]:
    """The arguments of `PartitionQueue.set_keeping`."""
    return {
        "trims": not settings.keeps_settled,
        "ttl_ms": settings.ttl_ms,
        "endings": settings.status_ms is not None,
    }


def _state_logs(partition_queues: Iterable[PartitionQueue]) -> list[StateLog]:
    return [it.log.state for it in partition_queues if it.log.state is not None]
