"""How what is stored of a topic goes: the logs that are open, and whatever else there is.

Law: it can be broken off anywhere, by an error or a crash, and begun again; nothing is opened to be deleted where the
engine can do without.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import StorageError, SyncFailed
from linn.core.log.partition import Partition
from linn.core.log.storage import DeletingEngine, PartitionId, StorageEngine

logger = logging.getLogger("linn.topic")


class TopicDeletion:
    """One topic's; it remembers what is gone already."""

    def __init__(self, engine: StorageEngine, open: Callable[[PartitionId], Awaitable[Partition]]) -> None:
        self._engine = engine
        self._open = open
        self._gone: set[PartitionId] = set()

    async def delete_open(self, logs: Sequence[Partition]) -> None:
        """Delete logs that are open, each of them whatever becomes of the others. Raises SyncFailed.

        One that can't be deleted takes no more work, and goes with the rest.
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
        """Delete what is left of these logs, none of which is open, and of others of the same topics.

        In this order: what is large comes first, because opening what is not there takes room. Raises StorageError.
        """
        capabilities = self._engine.capabilities
        if capabilities.deletes_topics:
            for topic in dict.fromkeys(id.topic for id in ids):
                await cast(DeletingEngine, self._engine).delete_topic(topic)
        elif capabilities.survives_restart:
            for id in ids:
                if id not in self._gone:
                    await (await self._open(id)).delete()
                    self._gone.add(id)
