"""The engine `dram`: logs in memory, with scratch files for batches that do not fit."""

from __future__ import annotations

from itertools import count

from linn.api import Capabilities, Env, MemoryShare, PartitionId, StorageEngine
from linn.storage_engines.dram.log import DramLog
from linn.storage_engines.dram.scratch import ScratchFolder
from linn.storage_engines.dram.settings import DramSettings


class DramEngine(StorageEngine):
    """An engine that uses `folder` only for scratch files, and creates it when needed."""

    def __init__(self, folder: str, settings: DramSettings, env: Env) -> None:
        self._settings = settings
        self._env = env
        self._scratch = ScratchFolder(folder, env.disk, count())
        self._cleared = False
        self._memory = MemoryShare("dram")
        self.capabilities = Capabilities(survives_restart=False)

    def count_in(self, share: MemoryShare) -> None:
        """See `StorageEngine.count_in`."""
        self._memory = share

    async def open(self, partition: PartitionId) -> DramLog:
        """Open an empty log. The first one opened deletes the scratch files of an earlier process."""
        if not self._cleared:
            self._scratch.clear()
            self._cleared = True
        return DramLog(str(partition), self._settings, self._env, self._scratch, self._memory, self.capabilities)

    async def close(self) -> None:
        """Do nothing: the engine holds nothing besides its logs."""
