"""Deletion of a topic's storage: its open logs, and everything else.

Law: it can be interrupted anywhere, by an error or a crash, and repeated; nothing is opened in order to be deleted if
the engine can do without.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import StorageError, SyncFailed
from linn.core.log.partition import Partition
from linn.core.log.storage import PartitionId, StorageEngine

logger = logging.getLogger("linn.topic")


class TopicDeletion:
    """The deletion of one topic, which remembers its progress."""

    def __init__(self, engine: StorageEngine, open: Callable[[PartitionId], Awaitable[Partition]]) -> None:
        self._engine = engine
        self._open = open
        self._gone: set[PartitionId] = set()

    async def delete_open(self, logs: Sequence[Partition]) -> None:
        """Delete open logs, each one regardless of failures of the others. Raises SyncFailed.

        One that can't be deleted takes no more work, and is deleted with the rest.
        """
        for log in logs:
            if log.id in self._gone:
                continue
            try:
                await log.delete()
                self._gone.add(log.id)
            except SyncFailed:
                raise
            except StorageError as error:
                about = {"partition": str(log.id), "topic": log.id.topic} | log_fields(error)
                logger.warning("%(partition)s is deleted in a second attempt: %(error)s", about)

    async def delete_rest(self, ids: Sequence[PartitionId]) -> None:
        """Delete the rest of these logs, none of which is open, and of other logs of the same topics.

        In this order: large files come first, because opening a missing log takes room. Raises StorageError.
        """
        engine = self._engine
        topics = dict.fromkeys(id.topic for id in ids)
        left = {topic for topic in topics if not await engine.delete_topic(topic)}
        if not engine.capabilities.survives_restart:
            return
        for id in ids:
            if id.topic in left and id not in self._gone:
                await (await self._open(id)).delete()
                self._gone.add(id)
