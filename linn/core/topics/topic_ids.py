"""The ids of messages that a topic knows: not to store one again, and to be asked about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from linn.core.config.topic_settings import TopicSettings
from linn.core.env.env import Clock, Spawn
from linn.core.log.partition import Partition
from linn.core.queue.queue import Queue
from linn.core.queue.scheduled_queue import ScheduledQueue
from linn.core.topics.change import TopicChange
from linn.core.topics.dedup import Dedup
from linn.core.topics.message_status import MessageStatuses, OpenLog


class TopicIds:
    """The ids that one topic knows, while it is open."""

    def __init__(self, open_log: OpenLog, clock: Clock, spawn: Spawn, scheduled: Mapping[int, ScheduledQueue]) -> None:
        """`scheduled`: the topic's timing logs, by partition."""
        self.dedup: Dedup | None = None
        """The ids of messages that are not stored again; None: ids don't count."""
        self.statuses: MessageStatuses | None = None
        """The ids of messages that the topic can be asked about; None: it can't."""
        self._open_log = open_log
        self._clock = clock
        self._spawn = spawn
        self._scheduled = scheduled

    async def open(self, settings: TopicSettings, partitions: Collection[Partition]) -> None:
        """Know the messages of a topic that is opened. Raises LogCorrupt, StorageError: some logs are open."""
        if settings.dedup_ms is not None:
            self.dedup = Dedup(self._clock, settings.dedup_ms)
            for partition in partitions:
                await self.dedup.load(partition)
        if settings.status_ms is not None:
            self.statuses = self._new(settings.status_ms)
            await self.statuses.open(partitions)

    def _new(self, status_ms: int) -> MessageStatuses:
        return MessageStatuses(status_ms, self._open_log, self._clock, self._spawn, self._scheduled)

    async def prepare(self, change: TopicChange, partitions: dict[int, Partition]) -> None:
        """Open the logs that new settings need, into the change. Raises LogCorrupt, StorageError: some are open."""
        if change.settings.status_ms is not None:
            change.statuses = self.statuses or self._new(change.settings.status_ms)
            await change.statuses.prepare(partitions, change.indexes)

    async def adopt(self, change: TopicChange, queue: Queue | None, *, closes: bool) -> None:
        """Put new settings into effect; `queue`: the topic's own. `closes`: close logs that are not needed any more.

        Raises SyncFailed.
        """
        dedup_ms, status_ms, former = change.settings.dedup_ms, change.settings.status_ms, self.statuses
        self.dedup = None if dedup_ms is None else self.dedup or Dedup(self._clock, dedup_ms)
        if self.dedup is not None and dedup_ms is not None:
            self.dedup.window_s = dedup_ms / 1000
        self.statuses = None if status_ms is None else change.statuses or former
        if self.statuses is not None and status_ms is not None:
            self.statuses.adopt(status_ms, queue, change.indexes)
        elif former is not None and closes:
            await former.close()
        for scheduled in self._scheduled.values():
            scheduled.keep_ids(keeps=self.statuses is not None)

    def forget(self) -> None:
        """Know nothing: another broker leads the topic."""
        self.dedup = self.statuses = None

    def keeper(self, settings: TopicSettings, index: int) -> Callable[[], int | None] | None:
        """The function that tells from where on a partition's records are kept for their ids; None: none are."""
        return partial(self._kept_from, index) if settings.dedup_ms or settings.status_ms else None

    def _kept_from(self, index: int) -> int | None:
        kept = [known.kept_from(index) for known in (self.dedup, self.statuses) if known is not None]
        return min([offset for offset in kept if offset is not None], default=None)
