"""The status of a topic's messages, found by their ids.

Laws: a message is known from its append until it has ended for the time of the topic's `status`, whether or not its
record is there. Its status follows from logs: from the records, from the state of the topic's queue, and from the index
(`message_index`), which has the ids and the endings of records that are gone. While it waits for its time, its timing
log knows it.

Where several records have an id, the newest one of a partition counts, and of these the one that is furthest from its
end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError, StorageError, SyncFailed
from linn.core.log.partition import Partition
from linn.core.log.state_log import StateLog
from linn.core.log.storage import PartitionId
from linn.core.queue.queue import Queue
from linn.core.queue.scheduled_queue import ScheduledQueue
from linn.core.queue.subscription_view import ended_as
from linn.core.topics.message_index import IDS_IN_A_TURN, MessageIndex, index_topic
from linn.message_status import ENDED, MessageState, MessageStatus

logger = logging.getLogger("linn.topic")

OpenLog = Callable[[PartitionId], Awaitable[Partition]]
"""Opens one of the topic's logs, which is made if there is none. Raises LogCorrupt, StorageError."""


class MessageStatuses:
    """The messages of one topic. Its own queue has their states; a stream only stores them."""

    def __init__(
        self, status_ms: int, open_log: OpenLog, clock: Clock, spawn: Spawn, scheduled: Mapping[int, ScheduledQueue]
    ) -> None:
        """`scheduled`: the topic's timing logs, by partition."""
        self.status_ms = status_ms
        self._scheduled = scheduled
        self.indexes: dict[int, MessageIndex] = {}
        """By partition."""
        self.queue: Queue | None = None
        """The topic's own queue; None: it is a stream."""
        self._open_log = open_log
        self._clock = clock
        self._spawn = spawn
        self._tidying: set[int] = set()

    # --- opening and changing ---

    async def open(self, partitions: Iterable[Partition]) -> None:
        """Know the messages of a topic that is opened. Raises LogCorrupt, StorageError: some logs are open."""
        for partition in partitions:
            index = self.indexes[partition.id.index] = await self._open_index(partition)
            await index.load(self.status_ms)
            self._add(index)

    async def prepare(self, partitions: Mapping[int, Partition], into: list[MessageIndex]) -> None:
        """Open the indexes of other partitions than the known ones. Raises as `open`: those in `into` are open."""
        for number, partition in partitions.items():
            if number not in self.indexes:
                into.append(await self._open_index(partition))
                await into[-1].load_log(self.status_ms)

    def adopt(self, status_ms: int, queue: Queue | None, indexes: Iterable[MessageIndex]) -> None:
        """Take over the topic's queue, another time, and indexes that were prepared, which begin now."""
        self.status_ms, self.queue = status_ms, queue
        for index in indexes:
            index.begin()
            self._add(index)

    async def close(self) -> None:
        """Close all logs: the topic has no `status` any more. Raises SyncFailed."""
        for index in self.indexes.values():
            try:
                await index.log.partition.close()
            except SyncFailed:
                raise
            except StorageError as error:
                _warn(index, error)

    async def _open_index(self, partition: Partition) -> MessageIndex:
        log = await self._open_log(PartitionId(index_topic(partition.id.topic), partition.id.index))
        return MessageIndex(partition, StateLog(log, self._clock), self._clock)

    def _add(self, index: MessageIndex) -> None:
        number = index.partition.id.index
        self.indexes[number] = index
        index.on_due = lambda: self._spawn(partial(self._tidy, number))

    # --- new records, and questions ---

    def appended(self, partition: Partition, batch: RecordBatch) -> None:
        """Know the records of a batch that was appended."""
        self.indexes[partition.id.index].note(batch)

    def kept_from(self, number: int) -> int | None:
        """The offset from which on a partition's records are kept, so that a restart knows their ids; None: any."""
        index = self.indexes.get(number)
        return index.kept_from if index is not None else None

    async def find(self, asked: Sequence[UUID]) -> list[MessageStatus]:
        """The status of each message, in the order of the ids. Raises LogCorrupt, StorageError."""
        found = dict[bytes, MessageStatus]()
        ids = list(dict.fromkeys(id.bytes for id in asked))

        def note(id: bytes, *what: Any) -> None:
            status = _status(UUID(bytes=id), *what)
            if id not in found or _rank(found[id]) < _rank(status):
                found[id] = status

        for number, queue in list(self._scheduled.items()):  # First: a record that comes meanwhile is found then.
            await queue.until_built()
            for count, id in enumerate(ids):
                if not count % IDS_IN_A_TURN:
                    await trio.lowlevel.checkpoint()
                if (waiting := queue.state_of(id)) is not None:
                    offset, *state = waiting
                    note(id, *state, number, offset)
        for number, index in list(self.indexes.items()):
            for id, offset in (await index.find(ids)).items():
                note(id, *await self._state(index, offset), number, offset)
            for id in filter(index.was_cancelled, ids):
                note(id, "cancelled", "", number)
        return [found.get(id.bytes) or _status(id, "unknown") for id in asked]

    async def _state(self, index: MessageIndex, offset: int) -> tuple[MessageState, str]:
        """The state of the record at an offset, and the reason."""
        partition = index.partition
        for _, _, write in index.writes.pieces(offset, offset + 1):
            if partition.transactions.hides(write):
                return "aborted", ""
            if partition.transactions.is_open(write.producer_id, write.transaction):
                return "in_doubt", ""
        if offset >= partition.high_watermark:
            return "in_doubt", ""
        if self.queue is None:
            return "stored", ""
        state, reason = self.queue.partition_queue(partition.id.index).subscription.state_at(offset)
        ending = await index.ending_at(offset) if state == "settled" else None
        return (state, reason) if ending is None else ended_as(ending)

    async def cancelled(self, number: int, ids: Sequence[bytes]) -> None:
        """Know messages of a partition that were cancelled before they came. Durable, unless that fails: it is logged.

        Raises SyncFailed, NotLeader.
        """
        index = self.indexes[number]
        try:
            await index.note_cancelled(b"".join(ids))
        except (SyncFailed, NotLeader):
            raise
        except StorageError as error:
            _warn(index, error)

    def tidy(self) -> None:
        """Let all indexes write due runs and marks, and drop old ones, in the background: replicas may be awaited."""
        for number in [number for number in self.indexes if number not in self._tidying]:
            self._spawn(partial(self._tidy, number))

    async def _tidy(self, number: int) -> None:
        index = self.indexes[number]
        if number in self._tidying:
            return
        self._tidying.add(number)
        try:
            queue = self.queue.partition_queue(number) if self.queue is not None else None
            await index.tidy(queue, self.status_ms)
            if queue is not None:
                queue.trimming.begin_if_due()
        except SyncFailed:
            raise
        except NotLeader:
            return
        except LinnError as error:
            _warn(index, error)
        finally:
            self._tidying.discard(number)


def _warn(index: MessageIndex, error: LinnError) -> None:
    about = {"partition": str(index.log.partition.id), "topic": index.partition.id.topic} | log_fields(error)
    logger.warning("%(partition)s is not written now: %(error)s", about)


def _rank(status: MessageStatus) -> int:
    """The rank of a status where several records have one id."""
    state, lowest = status["state"], ("aborted", "cancelled", "in_doubt")
    if state in lowest:
        return lowest.index(state)
    if state == "scheduled":
        return 3 if status["reason"] else 5  # A record that is leaving may have come, and ended, already.
    return 4 if state in ENDED else 6


def _status(
    id: UUID, state: MessageState, reason: str = "", partition: int | None = None, offset: int | None = None
) -> MessageStatus:
    return {"id": str(id), "state": state, "reason": reason, "partition": partition, "offset": offset}
