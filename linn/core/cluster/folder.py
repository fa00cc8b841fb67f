"""The file `node` of a data folder: the cluster and the node to which the folder belongs, and its losses.

Law: a loss is noted durably before the node tells it, and until the controller has handled it: a process may be killed
between the two. The folder belongs to a node from the first note on, and is never used for another one.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from linn.core.cluster.entries import LOSSES, ClusterState, Loss
from linn.core.env.env import Disk
from linn.core.errors.cluster import ClusterEmptied, ClusterForeign
from linn.core.errors.tree import LogCorrupt

_FILE_BYTES_MAX = 4096


class FolderNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    folder_id: str
    """Drawn when the file was made."""
    cluster_id: str
    node: int
    boot_id: str
    """The boot of the machine in which the node last ran; "": it was stopped in order, and all of it was synced."""
    lost: Loss
    """Loss that the controller has not handled, as far as the node knows."""
    told: str = ""
    """The session that has told it; "": none has."""


def loss_at_start(note: FolderNote, boot_id: str, handled: str) -> Loss:
    """The loss that a process tells when it starts on a folder that was used before.

    `handled`: the session whose loss the controller has handled; "": none.

    Every restart loses the data in memory. A power failure loses the unsynced ends of logs: the machine has booted
    again, and the node was not stopped in order before.
    """
    lost_now: Loss = "memory" if note.boot_id in ("", boot_id) else "tail"
    return lost_now if is_handled(note, handled) else max(note.lost, lost_now, key=LOSSES.index)


def is_handled(note: FolderNote, handled: str) -> bool:
    """Whether the loss in a note was told by the session whose loss the controller has handled."""
    return note.told != "" and note.told == handled


class Folder:
    """The file in one data folder."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._path = f"{data_dir}/node"
        self.note: FolderNote | None = None

    async def load(self) -> FolderNote | None:
        """Read the file; None: the folder has never belonged to a cluster. Raises LogCorrupt, StorageError."""
        if not self._disk.exists(self._path):
            return None
        file = self._disk.open(self._path)
        try:
            content = bytes(await file.read(0, _FILE_BYTES_MAX))
        finally:
            file.close()
        checksum, _, body = content.partition(b"\n")
        try:
            if checksum != b"%08x" % crc32c(body):
                raise LogCorrupt(f"{self._path} is damaged: its CRC-32C is wrong. Nothing was changed")
            self.note = msgspec.json.decode(body, type=FolderNote)
        except msgspec.MsgspecError as error:
            raise LogCorrupt(f"{self._path} can't be read: {error}. Nothing was changed") from error
        return self.note

    def check(self, node: int) -> None:
        """Refuse a folder of another node. Raises ClusterForeign."""
        if self.note is not None and self.note.node != node:
            text = f"the data folder {self._data_dir} belongs to node {self.note.node}, and this is node {node}"
            raise ClusterForeign(f"{text}: give it its own folder, or the folder's number")

    def check_cluster(self, state: ClusterState) -> None:
        """Refuse a folder of another cluster, or of one that the store does not have: it was emptied.

        Raises ClusterForeign, ClusterEmptied.
        """
        cluster_id = state.cluster.id if state.cluster is not None else None
        if self.note is None or self.note.cluster_id == cluster_id:
            return
        text = f"the data folder {self._data_dir} belongs to the cluster {self.note.cluster_id}"
        if cluster_id is None:
            text = f"{text}, and the metadata store has none: bring the store's data back, or begin with empty folders"
            raise ClusterEmptied(f"{text}. Nothing was deleted")
        raise ClusterForeign(f"{text}, and the metadata store has the cluster {cluster_id}")

    async def save(self, note: FolderNote) -> None:
        """Replace the file durably. Raises DiskFull, StorageError, SyncFailed."""
        if note == self.note:
            return
        body = msgspec.json.encode(note)
        scratch = f"{self._path}.new"
        self._disk.unlink(scratch)
        file = self._disk.open(scratch, create=True)
        try:
            file.write([b"%08x\n" % crc32c(body), body])
            await file.sync()
        finally:
            file.close()
        self._disk.rename(scratch, self._path)
        await self._disk.sync_dir(self._data_dir)
        self.note = note
