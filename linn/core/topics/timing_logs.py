"""The timing logs of a topic: one beside each partition, with the records that come into it later.

Laws: they are made with the first delayed publish, and led, replicated and deleted with the topic. A record in one has
no offset in the topic, and counts against none of its limits, until it is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from typing import Protocol

from linn.core.batch.batch import DELAYS_MS, DUES_MS, RecordBatch
from linn.core.batch.builder import take_batch, with_dues
from linn.core.batch.record import DUE_MS_MAX
from linn.core.config.topic_settings import TopicSettings
from linn.core.delivery.consumer import do_nothing
from linn.core.env.env import Clock, Spawn
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError, MessageInvalid
from linn.core.log.partition import Partition
from linn.core.log.state_log import StateLog
from linn.core.log.storage import PartitionId
from linn.core.queue.partition_queue import MoveDeadLetters
from linn.core.queue.scheduled_queue import ScheduledQueue
from linn.core.queue.semantics import DeliverySemantics
from linn.core.topics.change import close_log, sync_names
from linn.core.topics.clipped_logs import ClippedLogs
from linn.core.topics.message_index import index_topic


class TimingLogMissing(Exception):
    """A delayed record came before the timing logs of its topic were made."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


TIMING_TOPIC = "__d."


def timing_topic(topic: str) -> str:
    """The internal topic that holds the records of a topic's partitions that wait for their time."""
    return TIMING_TOPIC + topic


def timing_state_topic(topic: str) -> str:
    """The internal topic that holds the events of these records."""
    return f"__t.{topic}"


BESIDE = timing_topic, timing_state_topic, index_topic
"""The functions that name the topics which may stand beside a topic, with a log for each of its partitions. Besides
these there are the state logs of subscriptions, and the log of the positions of groups."""


def is_delayed(batch: RecordBatch) -> bool:
    """Whether a verified batch has a column of delays or times."""
    if batch.is_plain:
        return False
    fields = batch.raw_fields
    return fields[DELAYS_MS] is not None or fields[DUES_MS] is not None


def with_times(batch: RecordBatch, now_ms: int) -> tuple[RecordBatch | None, RecordBatch | None]:
    """The parts of a batch that are for now, and for later; the latter has times in place of delays.

    Raises MessageInvalid, with the indexes of the messages whose times no broker can keep.
    """
    count, delays, dues = batch.count, batch.delays_ms, batch.dues_ms
    later = [bool(delay) for delay in delays] if delays is not None else [False] * count
    if dues is not None:
        wrong = [due < 0 or due > DUE_MS_MAX for due in dues]
        if any(wrong):
            text = "a time lies between 1970 and the year 9999, in milliseconds since 1970"
            raise MessageInvalid(text).of_messages(list(compress(range(count), wrong)))
        both = [delay and due != 0 for delay, due in zip(later, dues, strict=True)]
        if any(both):
            text = "a message has a delay or a time, not both"
            raise MessageInvalid(text).of_messages(list(compress(range(count), both)))
        later = [delay or due != 0 for delay, due in zip(later, dues, strict=True)]
    if not any(later):
        return batch, None
    timed = with_dues(batch, now_ms)
    if all(later):
        return None, timed
    now = [index for index, is_later in enumerate(later) if not is_later]
    return take_batch(batch, now), take_batch(timed, list(compress(range(count), later)))


class Timed(Protocol):
    """The topic, as far as its timing logs are concerned."""

    name: str
    settings: TopicSettings
    semantics: DeliverySemantics
    partitions: dict[int, Partition]

    @property
    def keeps_records(self) -> bool:
        """Whether its records survive a restart of this broker, or its loss."""

    @property
    def closes_logs(self) -> bool:
        """Whether it has its logs to itself."""

    async def open_log(self, id: PartitionId) -> Partition:
        """Open one of the topic's logs, which is made if there is none. Raises LogCorrupt, StorageError."""


class TimingLogs:
    """The timing logs of one topic, by partition."""

    def __init__(
        self,
        topic: Timed,
        clock: Clock,
        spawn: Spawn,
        move: MoveDeadLetters,
        clipped: ClippedLogs,
    ) -> None:
        """`clipped` takes state logs that are ahead of the records."""
        self.queues: dict[int, ScheduledQueue] = {}
        self._topic = topic
        self._clock = clock
        self._spawn = spawn
        self._move = move
        self._clipped = clipped

    def partitions(self) -> Iterator[Partition]:
        """The logs with the records."""
        yield from [queue.partition for queue in self.queues.values()]

    def at(self, index: int) -> ScheduledQueue:
        """The timing log of a partition. Raises TimingLogMissing."""
        queue = self.queues.get(index)
        if queue is None:
            raise TimingLogMissing(self._topic.name)
        return queue

    async def open(self) -> None:
        """Open the timing logs of all partitions, which are made if there are none. Raises LogCorrupt, StorageError."""
        opened = list[Partition]()
        for index in sorted(self._topic.partitions.keys() - self.queues.keys()):
            logs = list[Partition]()
            try:
                self.queues[index] = await self._open(index, logs)
            except LinnError:
                for log in logs if self._topic.closes_logs else ():
                    await close_log(log)
                raise
            opened += logs
        await sync_names(opened)

    async def _open(self, index: int, opened: list[Partition]) -> ScheduledQueue:
        topic, state = self._topic, None
        opened.append(partition := await topic.open_log(PartitionId(timing_topic(topic.name), index)))
        if topic.keeps_records:
            opened.append(log := await topic.open_log(PartitionId(timing_state_topic(topic.name), index)))
            state = StateLog(log, self._clock)
        queue = ScheduledQueue(partition, topic.semantics, state, do_nothing, self._clock, self._spawn, self._move)
        queue.keep_ids(keeps=topic.settings.status_ms is not None)
        await queue.recover()
        self._clipped.add([queue.log])
        return queue

    def split(self, batch: RecordBatch) -> tuple[RecordBatch | None, RecordBatch | None]:
        """See `with_times`; delays begin now."""
        return with_times(batch, self._clock.now_ms())

    @property
    def waiting_count(self) -> int:
        """The number of records that wait for their time."""
        return sum([queue.waiting_count for queue in self.queues.values()])

    def abandon(self, reason: NotLeader) -> None:
        """Leave the logs to their holder as they are."""
        for queue in self.queues.values():
            queue.abandon(reason)
        self.queues.clear()

    async def stop(self) -> None:
        """Let nothing leave any more; the logs stay open. Raises SyncFailed."""
        for queue in self.queues.values():
            if not queue.is_closed:
                await queue.close()
