"""The engine: one database file per partition, in a folder per topic."""

from __future__ import annotations

from pathlib import PurePosixPath

import trio

from linn.api import Capabilities, Env, PartitionId, StorageEngine, StorageError
from linn_sqlite_engine.database import Database
from linn_sqlite_engine.log import SqliteLog
from linn_sqlite_engine.settings import SqliteSettings


class SqliteEngine(StorageEngine):
    """Opens `folder`/TOPIC/INDEX.db. SQLite opens files itself, so the folder is one of this machine's disks."""

    def __init__(self, folder: str, settings: SqliteSettings, env: Env) -> None:
        self._folder = folder
        self._env = env
        self.capabilities = Capabilities(survives_restart=True, confirm_after_sync=settings.fsync == "always")

    async def open(self, partition: PartitionId) -> SqliteLog:
        """As the port says. Cancellation: the log is opened or not; either way it can be opened again."""
        if partition.topic in ("", ".", "..") or "/" in partition.topic or "\0" in partition.topic:
            raise StorageError(f"no folder can be named after the topic {partition.topic[:80]!r}")
        path = PurePosixPath(self._folder, partition.topic, f"{partition.index}.db")
        self._env.disk.make_dir(str(path.parent))
        # Making the schema, and reading what a WAL holds, wait for the disk.
        database = await trio.to_thread.run_sync(Database, str(path))  # noqa: TID251
        log = SqliteLog(str(partition), database, self._env, self.capabilities)
        await log.find_facts()
        await log.sync()
        # Behind the sync, which makes the WAL file where there is none: its name has to be durable as well.
        for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
            await self._env.disk.sync_dir(str(folder))
        return log

    async def close(self) -> None:
        """Nothing is held beside the logs."""
