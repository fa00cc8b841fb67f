"""The engine `dram`: logs in memory, with scratch files for what does not fit."""

from __future__ import annotations

from itertools import count

from linn.core.env.env import Env
from linn.core.log.storage import Capabilities, PartitionId
from linn.core.loop.memory_budget import MemoryShare
from linn.storage_engines.dram.log import DramLog
from linn.storage_engines.dram.scratch import ScratchFolder
from linn.storage_engines.dram.settings import DramSettings


class DramEngine:
    """Opens logs; `folder` is for scratch files only and is not made before one is needed."""

    def __init__(self, folder: str, settings: DramSettings, env: Env) -> None:
        self._settings = settings
        self._env = env
        self._scratch = ScratchFolder(folder, env.disk, count())
        self._cleared = False
        self._memory = MemoryShare("dram")
        self.capabilities = Capabilities(survives_restart=False, reads_at_once=True, keeps_in_memory=True)

    def count_in(self, share: MemoryShare) -> None:
        """As `MemoryEngine` says."""
        self._memory = share

    async def open(self, partition: PartitionId) -> DramLog:
        """An empty log. The first one opened deletes what an earlier process left in the folder."""
        if not self._cleared:
            self._scratch.clear()
            self._cleared = True
        return DramLog(str(partition), self._settings, self._env, self._scratch, self._memory, self.capabilities)

    async def close(self) -> None:
        """Nothing is held beside the logs."""
