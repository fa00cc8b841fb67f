"""The data folder of a broker: made durably, locked so that no two processes use it, and refused if it is another's.

Law: a folder with the data of a broker alone is used by no node of a cluster, and the other way around: the one would
delete logs that the cluster does not know, and the other would show topics as they once were.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from linn.core.broker.worker_folders import was_alone
from linn.core.cluster.folder import Folder
from linn.core.env.env import Disk
from linn.core.errors.cluster import ClusterForeign
from linn.core.metadata.embedded import FILE
from linn.core.metadata.store import MetadataStore


class DataFolder:
    """The folder of one broker."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._unlock: Callable[[], None] | None = None

    async def open(self, metadata: MetadataStore, *, is_alone: bool) -> None:
        """Make the folder and its missing parents so that a power failure does not remove them, and lock it.

        `metadata`: what the folder has. `is_alone`: whether the broker is in no cluster.

        Raises ClusterForeign, DataDirLocked, DiskReadOnly, DiskFull, StorageError, LogCorrupt, SyncFailed.
        """
        await self.lock()
        note = await Folder(self._disk, self._path).load()
        if is_alone and note is not None:
            text = f"the data folder {self._path} belongs to node {note.node} of a cluster, or to a worker"
            raise ClusterForeign(f"{text}: serve it with that cluster in [cluster], or with --workers")
        is_new = is_alone or note is not None or not self._disk.exists(f"{self._path}/{FILE}")
        if not is_new and was_alone(await metadata.load()):
            text = f"the data folder {self._path} has the topics of a broker without a cluster"
            raise ClusterForeign(f"{text}: begin with an empty one, and copy them with linn copy")

    async def lock(self) -> None:
        """Make and lock the folder. Raises DataDirLocked, DiskReadOnly, DiskFull, StorageError, SyncFailed."""
        folder = PurePosixPath(self._path)
        missing = [place for place in (folder, *folder.parents) if not self._disk.exists(str(place))]
        self._disk.make_dir(self._path)
        for place in missing:
            await self._disk.sync_dir(str(place.parent))
        self._unlock = self._disk.lock(f"{self._path}/lock")

    def release(self) -> None:
        """Let another process use it. Idempotent."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None
