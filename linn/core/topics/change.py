"""What new settings of a topic need: made and opened beside it while it works on, and then taken on at once.

Law: whatever needs room on the disk is done before the settings are saved, so a full disk refuses a change whole.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from linn.core.config.topic_settings import TopicSettings
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import StorageError, SyncFailed
from linn.core.groups.consumer import Groups
from linn.core.log.partition import Partition, Spawn
from linn.core.queue.queue import Queue
from linn.core.queue.semantics import DeliverySemantics
from linn.core.queue.shared_dispatch import SharedDispatch

logger = logging.getLogger("linn.topic")


class TopicChange:
    """Made by `Topic.prepare`; ended by `Topic.switch` or by `abandon`."""

    def __init__(self, settings: TopicSettings, semantics: DeliverySemantics, spawn: Spawn) -> None:
        self.settings = settings
        self.semantics = semantics
        self.partitions: dict[int, Partition] = {}
        """Those that are new."""
        self.queue: Queue | None = None
        """The topic's queue afterwards, new or as it is."""
        self.dispatches: list[SharedDispatch] = []
        """Those that the queue gets."""
        self.groups: Groups | None = None
        """New ones, where there are none yet."""
        self._spawn = spawn
        self._chores: list[Callable[[], Awaitable[None]]] | None = []
        """Kept back, because they deliver, trim and copy; None: the change holds."""

    def spawn(self, chore: Callable[[], Awaitable[None]]) -> None:
        """The `Spawn` of what was prepared."""
        if self._chores is None:
            self._spawn(chore)
        else:
            self._chores.append(chore)

    def begin(self) -> None:
        """The change holds: let what was prepared do its chores."""
        chores, self._chores = self._chores or [], None
        for chore in chores:
            self._spawn(chore)

    async def abandon(self) -> None:
        """Take new partitions away again and close state logs, in which nothing has changed. Raises SyncFailed.

        What can't be taken away is harmless: an empty log, which the next try goes on with.
        """
        for dispatch in self.dispatches:
            await dispatch.close()
        states = [dispatch.state for dispatch in self.dispatches]
        if self.groups is not None:
            states.append(self.groups.state)
        for state in states:
            if state is not None:
                await close_log(state.partition)
        for partition in self.partitions.values():
            # A log that was ever written to is none of ours, whoever put it there.
            await (close_log(partition) if partition.log.bounds()[1] else _tolerate(partition, partition.delete))


async def close_log(partition: Partition) -> None:
    """Close a log that is not needed now; what hinders its sync or its index is logged. Raises SyncFailed."""
    await _tolerate(partition, partition.close)


async def _tolerate(partition: Partition, end: Callable[[], Awaitable[None]]) -> None:
    try:
        await end()
    except SyncFailed:
        raise
    except StorageError as error:
        about = {"partition": str(partition.id), "topic": partition.id.topic} | log_fields(error)
        logger.warning("%(partition)s was not closed in order: %(error)s", about)
