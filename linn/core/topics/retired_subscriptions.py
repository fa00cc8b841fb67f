"""What a topic keeps of the subscriptions that it has no more since its kind changed, until it has them again.

Law: a state log that is put away speaks of no record that a power failure could take. A start holds the logs of the
subscriptions that there are against the records, and takes from them what is said of others; one that was put away is
read at the next change of kind only, when new records may have the offsets of those that were taken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import StorageError, SyncFailed
from linn.core.groups.consumer import Groups
from linn.core.groups.event import GroupEvent
from linn.core.log.partition import Partition
from linn.core.queue.event import SubscriptionEvent
from linn.core.queue.queue import Queue
from linn.core.topics.change import close_log

logger = logging.getLogger("linn.topic")


class RetiredSubscriptions:
    """Those of one topic. Call `prepare` before new settings are saved, the others once they hold."""

    def __init__(self) -> None:
        self.places: Mapping[str, Sequence[GroupEvent]] = {}
        """By group, what groups knew that no log has."""
        self._left_off: list[Sequence[SubscriptionEvent]] = []
        """By partition, the same of a queue."""

    def left_off(self, partition: int) -> Sequence[SubscriptionEvent]:
        """What a queue knew of a partition that no log has."""
        return self._left_off[partition] if partition < len(self._left_off) else ()

    @staticmethod
    async def prepare(partitions: Iterable[Partition]) -> None:
        """Sync the records, whatever the storage's policy is. Raises StorageError."""
        for partition in partitions:
            await partition.log.sync()

    async def retire_queue(self, queue: Queue, partitions: Iterable[Partition]) -> None:
        """Close a queue and put its state logs away. Raises SyncFailed."""
        await queue.close()
        await _sync_last(partitions)
        self._left_off = [dispatch.left_off() for dispatch in queue.dispatches]
        for dispatch in queue.dispatches:
            if dispatch.state is not None:
                await close_log(dispatch.state.partition)

    async def retire_groups(self, groups: Groups, partitions: Iterable[Partition]) -> None:
        """End groups and put their state log away. Raises SyncFailed."""
        groups.end_members()
        await _sync_last(partitions)
        if groups.state is not None:
            await close_log(groups.state.partition)
        self.places = groups.left_off()


async def _sync_last(partitions: Iterable[Partition]) -> None:
    """Sync what came after `prepare`. There is no way back: what hinders it, but for the sync itself, is logged."""
    for partition in partitions:
        try:
            await partition.log.sync()
        except SyncFailed:
            raise
        except StorageError as error:
            about = {"partition": str(partition.id), "topic": partition.id.topic} | log_fields(error)
            logger.warning("%(partition)s was not synced: %(error)s", about)
