"""The engine `segmented-log`: one folder per partition below the engine's own."""

from __future__ import annotations

from collections.abc import Awaitable

import trio

from linn.api import Capabilities, DamagedTail, Env, PartitionId, StorageEngine, StorageError
from linn.storage_engines.segmented_log.folder import delete_folder
from linn.storage_engines.segmented_log.log import SegmentedLog
from linn.storage_engines.segmented_log.settings import SegmentedLogSettings


class SegmentedLogEngine(StorageEngine):
    """An engine of logs in `folder`/TOPIC/INDEX. The broker has created the parent of `folder` durably."""

    def __init__(self, folder: str, settings: SegmentedLogSettings, env: Env) -> None:
        self._folder = folder
        self._settings = settings
        self._env = env
        self._examined: dict[PartitionId, SegmentedLog] = {}
        self.capabilities = Capabilities(
            survives_restart=True,
            confirm_after_sync=settings.fsync == "always",
            flush_interval_s=settings.flush_interval_ms / 1000 if settings.fsync == "interval" else None,
        )

    async def open(self, partition: PartitionId) -> SegmentedLog:
        """Open as the port says. Cancellation: the log may be open or not; it can be opened again in either case."""
        folder = f"{self._topic_folder(partition.topic)}/{partition.index}"
        await trio.lowlevel.checkpoint()  # A new log does not wait, and there may be thousands of them.
        if not self._env.disk.exists(folder):
            self._env.disk.make_dir(folder)
        log = self._examined.pop(partition, None) or await self._examine(folder)
        await log.begin()
        return log

    def _examine(self, folder: str) -> Awaitable[SegmentedLog]:
        return SegmentedLog.examined(folder, self._settings, self._env, self.capabilities)

    async def examine_topic(self, topic: str) -> list[int]:
        """See `StorageEngine.examine_topic`."""
        found = self._indexes(topic)
        for index in found:
            self._examined[PartitionId(topic, index)] = await self._examine(f"{self._topic_folder(topic)}/{index}")
        return found

    async def damaged_tail(self, partition: PartitionId, *, cut: bool) -> DamagedTail | None:
        """See `StorageEngine.damaged_tail`."""
        folder = f"{self._topic_folder(partition.topic)}/{partition.index}"
        if not self._env.disk.exists(folder):
            return None
        log = SegmentedLog(folder, self._settings, self._env, self.capabilities)
        return await log.damaged_tail(cut=cut)

    def partitions(self) -> list[PartitionId]:
        """See `StorageEngine.partitions`."""
        disk = self._env.disk
        topics = disk.list_dir(self._folder) if disk.exists(self._folder) else ()
        return [PartitionId(topic, index) for topic in sorted(topics) for index in self._indexes(topic)]

    def _indexes(self, topic: str) -> list[int]:
        disk, folder = self._env.disk, self._topic_folder(topic)
        names = disk.list_dir(folder) if disk.exists(folder) else ()
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _topic_folder(self, topic: str) -> str:
        if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
            raise StorageError(f"no folder can be named after the topic {topic[:80]!r}")
        return f"{self._folder}/{topic}"

    async def delete_topic(self, topic: str) -> bool:
        """See `StorageEngine.delete_topic`."""
        disk, folder = self._env.disk, self._topic_folder(topic)
        if not disk.exists(folder):
            return True
        for index in self._indexes(topic):
            await delete_folder(disk, f"{folder}/{index}")
        if not disk.list_dir(folder):
            disk.remove_dir(folder)
        return True

    async def close(self) -> None:
        """Do nothing: the engine holds nothing besides its logs."""
