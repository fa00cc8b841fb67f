"""One topic: its partitions, and what its kind makes of them: a queue, consumer groups, or both.

Law: a change of kind changes which subscriptions there are and what retention keeps; it moves no data. A topic that
becomes a queue begins it at the oldest record that is kept, or where its queue left off when it was one before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import add, sub

from linn.core.batch import Format, RecordBatch
from linn.core.column import any_step_over
from linn.core.delivery import ReadySignal
from linn.core.env import Clock
from linn.core.errors import FeatureUnsupported, LinnError, MessageTooLarge, PartitionUnknown, TopicFull
from linn.core.group_consumer import Groups
from linn.core.group_event import GroupEvent
from linn.core.interceptor import BoundInterceptor, intercepted
from linn.core.partition import Partition, Spawn
from linn.core.partition_choice import PartitionChoice
from linn.core.queue import Queue
from linn.core.semantics import DeliverySemantics
from linn.core.shared_dispatch import SharedDispatch
from linn.core.state_log import StateLog
from linn.core.storage import PartitionId, StorageEngine
from linn.core.storage_traffic import StorageTraffic
from linn.core.stream_reader import StreamReader
from linn.core.subscription_event import SubscriptionEvent
from linn.core.topic_settings import BindingSettings, TopicSettings

logger = logging.getLogger("linn.topic")

QUEUE_STATE = "__s."
"""Internal topics with this prefix hold the events of a queue's partitions."""
GROUP_STATE = "__g."
"""Internal topics with this prefix hold the offsets of consumer groups."""

DROP_HEAD_SHARE = 16
"""With `overflow = "drop-head"` this part of `bytes_max` is dropped at once, so that it need not be for each batch."""


class Topic:
    """Made by `open_topic`."""

    def __init__(
        self,
        name: str,
        settings: TopicSettings,
        engine: StorageEngine,
        storage: StorageTraffic,
        semantics: DeliverySemantics,
        choice: PartitionChoice,
        clock: Clock,
        spawn: Spawn,
        copy_dead_letters: Callable[[Topic, SharedDispatch], Awaitable[None]],
    ) -> None:
        self.name = name
        self.settings = settings
        self.semantics = semantics
        self.partitions: dict[int, Partition] = {}
        self.queue: Queue | None = None
        self.groups: Groups | None = None
        self.live_bindings: list[BindingSettings] = []
        """Bindings that were made while the broker ran, beside those of the settings."""
        self.interceptors: tuple[BoundInterceptor, ...] = ()
        self.readers: dict[StreamReader, None] = {}
        """Readers without a group."""
        self.choice = choice
        self.storage = storage
        self._engine = engine
        self._clock = clock
        self._spawn = spawn
        self._copy_dead_letters = copy_dead_letters
        self.publish_errors = 0
        """Publishes to this topic, by its name, that failed."""
        self.dropped_records = 0
        """By `overflow = "drop-head"`; of a queue only what was not settled."""
        self._left_off: list[Sequence[SubscriptionEvent]] = []
        """By partition, what a queue without a state log knew when the topic became a stream."""
        self._places: Mapping[str, Sequence[GroupEvent]] = {}
        """By group, the same of groups when it became a queue."""
        self._room = ReadySignal()
        self._waits_for_room = False
        self._dropping = False

    # --- opening and changing ---

    async def open(self) -> None:
        """Open all logs and rebuild what is kept in memory.

        Raises LogCorrupt, StorageError: what was opened is closed again.
        """
        try:
            await self._open_partitions()
            await self._configure()
        except LinnError:
            await self.close()
            raise

    async def _open_partitions(self) -> None:
        for index in range(len(self.partitions), self.settings.partitions):
            self.partitions[index] = await self._open_partition(self.name, index)

    async def _open_partition(self, topic: str, index: int) -> Partition:
        id = PartitionId(topic, index)
        return Partition(id, await self._engine.open(id), self.storage, self._clock, self._spawn)

    async def _open_state(self, prefix: str, index: int) -> StateLog | None:
        if not (self._engine.capabilities.survives_restart and self.semantics.survives_restart):
            return None
        return StateLog(await self._open_partition(prefix + self.name, index), self._clock)

    async def _configure(self) -> None:
        """Bring the subscriptions in line with the settings."""
        kind = self.settings.kind
        if self.queue is not None and kind == "stream":
            queue, self.queue = self.queue, None
            await self._close_queue(queue)
            self._left_off = [dispatch.left_off() for dispatch in queue.dispatches]
        elif self.queue is None and kind != "stream":
            self.queue = Queue(self.name, ReadySignal())
        if self.queue is not None:
            await self._extend_queue(self.queue)
        if self.groups is None and kind != "queue":
            groups = Groups(
                self.name,
                self.partitions,
                await self._open_state(GROUP_STATE, 0),
                self.semantics.settles_on_delivery,
                self._spawn,
            )
            await groups.recover(self._places)
            self.groups = groups
        elif self.groups is not None and kind == "queue":
            groups, self.groups = self.groups, None
            self._end_readers()
            await groups.close()
            self._places = groups.left_off()

    async def _extend_queue(self, queue: Queue) -> None:
        settings = self.semantics.shared_subscription(0).settings
        for dispatch in queue.dispatches:
            dispatch.trims = self.settings.kind == "queue"
            dispatch.subscription.settings = settings
        for index in range(len(queue.dispatches), len(self.partitions)):
            dispatch = SharedDispatch(
                self.partitions[index],
                self.semantics,
                await self._open_state(QUEUE_STATE, index),
                queue.ready,
                self._clock,
                self._spawn,
                self._copy,
            )
            dispatch.trims = self.settings.kind == "queue"
            dispatch.on_room = self.tell_room
            await dispatch.recover(self._left_off[index] if index < len(self._left_off) else ())
            queue.dispatches.append(dispatch)
        queue.ready.notify()

    async def _copy(self, dispatch: SharedDispatch) -> None:
        await self._copy_dead_letters(self, dispatch)

    async def alter(self, settings: TopicSettings, semantics: DeliverySemantics) -> None:
        """Take on new settings, checked before with `what_changed`. Raises StorageError, LogCorrupt."""
        groups, count = self.groups, len(self.partitions)
        self.settings, self.semantics = settings, semantics
        await self._open_partitions()
        await self._configure()
        if groups is not None and groups is self.groups and len(self.partitions) > count:
            groups.grow()
        self._room.notify_all()
        # At once: who shortens retention may have a full disk.
        self._spawn(self.enforce_retention)

    def read(self) -> StreamReader:
        """A new reader without a group."""
        reader = StreamReader(self.name, self.partitions, self._reader_closed)
        self.readers[reader] = None
        return reader

    def _reader_closed(self, reader: StreamReader) -> None:
        del self.readers[reader]

    def _end_readers(self) -> None:
        for reader in list(self.readers):
            reader.close()

    # --- publishing ---

    def partition(self, index: int) -> Partition:
        """Raises PartitionUnknown."""
        partition = self.partitions.get(index)
        if partition is None:
            raise PartitionUnknown(f"topic {self.name} has no partition {index}, but 0 to {len(self.partitions) - 1}")
        return partition

    def admit(self, batch: RecordBatch) -> RecordBatch | None:
        """What is to be stored of a verified batch, whatever room there is; None: nothing, an interceptor dropped it.

        Raises MessageTooLarge, FeatureUnsupported, BatchMalformed, InterceptorFailed.
        """
        if self.interceptors:
            left = intercepted(self.interceptors, self.name, batch)
            if left is None:
                return None
            batch = left
        limit = self.settings.message_bytes_max
        if limit is not None and batch.body_bytes > limit and batch.format == Format.NATIVE:
            check_message_bytes(batch, limit)
        if batch.attributes or batch.producer_id or batch.transaction:
            # Nobody would deduplicate or hold them back: what a producer asks for by them would not happen.
            raise FeatureUnsupported("the batch belongs to a producer id or a transaction, which are not served yet")
        if batch.is_plain or self.queue is None:
            return batch
        if batch.delays_ms is not None or batch.ttls_ms is not None:
            raise FeatureUnsupported(f"topic {self.name} is a queue, which does not serve delays and TTLs yet")
        return batch

    def has_room(self, batch: RecordBatch) -> bool:
        """Whether the batch may be appended now; False: wait with `wait_room`, and ask again.

        Raises TopicFull where the topic rejects what it has no room for.
        """
        bytes_max = self.settings.bytes_max
        if bytes_max is None:
            return True
        held = self.held_bytes()
        if held + batch.size <= bytes_max or held == 0:
            return True
        if self.settings.overflow == "reject":
            raise TopicFull(f"topic {self.name} holds {held} bytes of {bytes_max}")
        if self.settings.overflow == "drop-head":
            self._waits_for_room = True
            return True
        return False

    async def wait_room(self) -> None:
        """Wait until something was settled, trimmed or changed."""
        await self._room.wait()

    def tell_room(self) -> None:
        """Let all who wait for room look again."""
        self._room.notify_all()

    def append(self, partition: Partition, batch: RecordBatch) -> int:
        """Store a batch in one of the topic's partitions; returns its base offset. Raises StorageError."""
        base_offset = partition.append(batch)
        if self._waits_for_room and not self._dropping:
            self._waits_for_room = False
            self._dropping = True
            self._spawn(self._drop_head)
        return base_offset

    def held_bytes(self) -> int:
        """Bytes of records that are kept: for a queue, its share that is not settled."""
        held = 0
        for index, partition in self.partitions.items():
            size = partition.log.size_bytes()
            start, end = partition.log.bounds()
            dispatches = self.queue.dispatches if self.settings.kind == "queue" and self.queue is not None else []
            if index < len(dispatches) and end > start:  # A partition that is being added has no dispatch yet.
                # In between are records that were settled and not trimmed yet, as large as others on the average.
                unsettled = end - max(start, dispatches[index].subscription.settled_before())
                size = size * unsettled // (end - start)
            held += size
        return held

    # --- keeping ---

    async def _drop_head(self) -> None:
        """Make room by dropping the oldest records, as the overflow setting says."""
        self._dropping = False
        bytes_max = self.settings.bytes_max
        if bytes_max is None:
            return
        share = (bytes_max - bytes_max // DROP_HEAD_SHARE) // len(self.partitions)
        trimmed, missed = 0, self.missed_records
        for partition in self.partitions.values():
            log = partition.log
            start, end = log.bounds()
            surplus = log.size_bytes() - share
            if surplus > 0 and end > start:
                drop = -(-surplus * (end - start) // log.size_bytes())
                await log.trim(before=min(end, start + drop, partition.high_watermark))
                trimmed += log.bounds()[0] - start
        self._follow_start()
        self.dropped_records += self.missed_records - missed if self.settings.kind == "queue" else trimmed

    @property
    def missed_records(self) -> int:
        """Records that retention or overflow took before the queue settled them."""
        return sum(dispatch.missed_records for dispatch in self.queue.dispatches) if self.queue is not None else 0

    async def enforce_retention(self) -> None:
        """Drop what a stream no longer keeps, and let all logs do their housekeeping.

        A queue's settled records are trimmed as they are settled, state logs when they are compacted.
        """
        now_ms, is_queue = self._clock.now_ms(), self.settings.kind == "queue"
        age_ms = None if is_queue else self.settings.retention_ms
        bytes_max = None if is_queue else self.settings.retention_bytes
        for partition in list(self.partitions.values()):
            await partition.enforce_retention(now_ms, age_ms, bytes_max)
        for state in self.state_logs():
            await state.partition.enforce_retention(now_ms)
        self._follow_start()
        self._room.notify_all()

    def state_logs(self) -> list[StateLog]:
        """The state logs that are open."""
        logs = [dispatch.state for dispatch in self.queue.dispatches] if self.queue is not None else []
        logs.append(self.groups.state if self.groups is not None else None)
        return [log for log in logs if log is not None]

    def _follow_start(self) -> None:
        if self.queue is not None:
            for dispatch in self.queue.dispatches:
                dispatch.skip_to_start()

    # --- closing ---

    async def _close_queue(self, queue: Queue) -> None:
        await queue.close()
        for dispatch in queue.dispatches:
            if dispatch.state is not None:
                await dispatch.state.partition.close()

    async def close(self) -> None:
        """End all subscriptions; sync and close all logs."""
        self._end_readers()
        if self.queue is not None:
            await self._close_queue(self.queue)
        if self.groups is not None:
            await self.groups.close()
        for partition in self.partitions.values():
            await partition.close()
        self._room.notify_all()

    async def delete(self) -> None:
        """Close, and remove everything that was stored. What was published is confirmed before.

        Also of a topic that was never opened, whose deletion a crash or an error broke off.
        """
        await self._open_partitions()
        for partition in self.partitions.values():
            await partition.commit_all()
        self._end_readers()
        if self.queue is not None:
            await self.queue.close()
        if self.groups is not None:
            self.groups.end_members()
        # First what is large: on a full disk, opening a state log that is not there takes room.
        for partition in self.partitions.values():
            await partition.delete()
        state = [await self._open_state(GROUP_STATE, 0)] if self.groups is None else [self.groups.state]
        if self.queue is not None:
            state += [dispatch.state for dispatch in self.queue.dispatches]
        else:
            state += [await self._open_state(QUEUE_STATE, index) for index in self.partitions]
        for log in state:
            if log is not None:
                await log.partition.delete()
        self._room.notify_all()


_QUICK_BYTES_MAX = 1 << 30
"""Of a body whose sizes are added up as 31-bit digits: there are two columns of them."""


def check_message_bytes(batch: RecordBatch, limit: int) -> None:
    """Whether no record's value, key and headers together are over the limit; only asked where the whole body is.

    Raises MessageTooLarge, BatchMalformed.
    """
    body = batch.body()
    columns = [body.values.offsets] if body.keys is None else [body.values.offsets, body.keys.offsets]
    headers_bytes = len(body.headers.names.data) + len(body.headers.values.data) if body.headers is not None else 0
    if batch.body_bytes < _QUICK_BYTES_MAX and headers_bytes <= limit:
        # Without a loop over the records: a few bytes that are compressed may hold a million.
        is_over = any_step_over(limit - headers_bytes, columns)
        if is_over and not headers_bytes:
            raise MessageTooLarge(f"a message of more than {limit} bytes")
        if not is_over:
            return
    sizes = _sizes(body.values.offsets.cast("i"))
    if body.keys is not None:
        sizes = list(map(add, sizes, _sizes(body.keys.offsets.cast("i"))))
    if body.headers is not None:
        entries = memoryview(body.headers.offsets).cast("i")
        for column in (body.headers.names, body.headers.values):
            ends = column.offsets.cast("i")
            sizes = list(map(add, sizes, _sizes([ends[entry] for entry in entries])))
    largest = max(sizes)
    if largest > limit:
        raise MessageTooLarge(f"a message of {largest} bytes, more than {limit}")


def _sizes(ends: Sequence[int]) -> list[int]:
    return list(map(sub, ends[1:], ends))
