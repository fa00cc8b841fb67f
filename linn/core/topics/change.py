"""Changes of a topic's settings: the new parts are made and opened while it works, and then taken over at once.

Law: everything that needs room on the disk is done before the settings are saved, so a full disk refuses a change
completely.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain

from linn.core.config.topic_settings import TopicSettings
from linn.core.env.env import Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import StorageError, SyncFailed
from linn.core.log.partition import Partition
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.queue import Queue
from linn.core.queue.semantics import DeliverySemantics
from linn.core.topics.message_index import MessageIndex
from linn.core.topics.message_status import MessageStatuses

logger = logging.getLogger("linn.topic")


class TopicChange:
    """A prepared change. Made by `Topic.prepare`; ended by `Topic.switch` or by `abandon`."""

    def __init__(
        self, settings: TopicSettings, semantics: DeliverySemantics, spawn: Spawn, *, has_logs: bool = True
    ) -> None:
        """`has_logs`: whether the topic closes its logs itself."""
        self._has_logs = has_logs
        self.settings = settings
        self.semantics = semantics
        self.partitions: dict[int, Partition] = {}
        """The new partitions."""
        self.subscriptions: dict[str, Queue] = {}
        """The topic's subscriptions after the change, new or unchanged; "" is its own queue."""
        self.added: dict[str, list[PartitionQueue]] = {}
        """New parts of subscriptions, by name."""
        self.indexes: list[MessageIndex] = []
        """New indexes of ids."""
        self.statuses: MessageStatuses | None = None
        """The ids that the topic knows after the change."""
        self._spawn = spawn
        self._chores: list[Callable[[], Awaitable[None]]] | None = []
        """Background tasks, held back because they deliver, trim and copy; None: the change is in effect."""

    @property
    def partition_queues(self) -> list[PartitionQueue]:
        """All new parts of subscriptions."""
        return list(chain.from_iterable(self.added.values()))

    def spawn(self, chore: Callable[[], Awaitable[None]]) -> None:
        """Start a background task of a prepared part, or hold it back; a `Spawn`."""
        if self._chores is None:
            self._spawn(chore)
        else:
            self._chores.append(chore)

    def begin(self) -> None:
        """Start the background tasks that were held back: the change is in effect."""
        chores, self._chores = self._chores or [], None
        for chore in chores:
            self._spawn(chore)

    async def abandon(self, *, keeps_empty: bool = False) -> None:
        """Delete new logs and close unchanged ones. Raises SyncFailed.

        A log that can't be deleted is harmless: an empty one, which the next try reuses. `keeps_empty`: delete nothing,
        for a start, whose empty logs are not new: on a full disk there may be no room to make them again.
        """
        if not self._has_logs:
            for partition_queue in self.partition_queues:
                partition_queue.abandon(NotLeader("the change was not made"))
            return
        for partition_queue in self.partition_queues:
            await partition_queue.close()
        states = [
            partition_queue.log.state.partition
            for partition_queue in self.partition_queues
            if partition_queue.log.state is not None
        ]
        states += [index.log.partition for index in self.indexes]
        for partition in (*states, *self.partitions.values()):
            # A log that has ever been written to is not new, whatever its origin.
            is_kept = keeps_empty or partition.log.bounds()[1]
            await (close_log(partition) if is_kept else _tolerate(partition, partition.delete))


async def sync_names(logs: Iterable[Partition]) -> None:
    """Make the names of new logs durable: a sync of one covers all of the same topic. Raises StorageError."""
    for log in {log.id.topic: log for log in logs}.values():
        await log.log.sync()


async def close_log(partition: Partition) -> None:
    """Close a log that is not needed now; a failure to sync it or to write its index is logged. Raises SyncFailed."""
    await _tolerate(partition, partition.close)


async def _tolerate(partition: Partition, end: Callable[[], Awaitable[None]]) -> None:
    try:
        await end()
    except SyncFailed:
        raise
    except StorageError as error:
        about = {"partition": str(partition.id), "topic": partition.id.topic} | log_fields(error)
        logger.warning("%(partition)s was not closed in order: %(error)s", about)
