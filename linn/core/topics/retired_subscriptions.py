"""State of a queue that a topic lost in a change of its kind, kept until another change brings it back.

Law: a retired state log refers to no record that a power failure could take. A start checks the logs of existing
subscriptions against the records, and drops events about missing ones; a retired log is read only at the next change of
kind, when new records may have the offsets of lost ones.

A replicated state log stays open, because it is still replicated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import StorageError, SyncFailed
from linn.core.log.partition import Partition, Role
from linn.core.queue.event import SubscriptionEvent
from linn.core.queue.queue import Queue
from linn.core.topics.change import close_log

logger = logging.getLogger("linn.topic")


class RetiredSubscriptions:
    """The retired subscriptions of one topic. Call `prepare` before new settings are saved, the others after."""

    def __init__(self) -> None:
        self._left_off: list[Sequence[SubscriptionEvent]] = []
        """State of the queue that no log has, by partition."""

    def left_off(self, partition: int) -> Sequence[SubscriptionEvent]:
        """The state of a queue's partition that no log has."""
        return self._left_off[partition] if partition < len(self._left_off) else ()

    @staticmethod
    async def prepare(partitions: Iterable[Partition]) -> None:
        """Sync and commit the records, whatever the storage's policy is. Raises StorageError."""
        for partition in partitions:
            await partition.make_durable()

    async def retire_queue(self, queue: Queue, partitions: Iterable[Partition]) -> None:
        """Close a queue and retire its state logs. Raises SyncFailed."""
        await queue.close()
        await _sync_last(partitions)
        self._left_off = [partition_queue.log.left_off() for partition_queue in queue.partition_queues]
        for partition_queue in queue.partition_queues:
            state = partition_queue.log.state
            if state is not None and not state.is_replicated:
                await close_log(state.partition)


async def _sync_last(partitions: Iterable[Partition]) -> None:
    """Sync records appended after `prepare`. There is no way back: errors other than a failed sync are logged.

    Replicas are not waited for, which may take long: state logs refer to committed records alone.
    """
    for partition in partitions:
        try:
            await (partition.make_durable() if partition.role is Role.ALONE else partition.log.sync())
        except SyncFailed:
            raise
        except StorageError as error:
            about = {"partition": str(partition.id), "topic": partition.id.topic} | log_fields(error)
            logger.warning("%(partition)s was not synced: %(error)s", about)
