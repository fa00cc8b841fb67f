"""The folder of one partition."""

from __future__ import annotations

from pathlib import PurePosixPath

from linn.api import Disk


async def delete_folder(disk: Disk, folder: str, *, holds_records: bool = True) -> None:
    """Delete a partition's folder with its files; the checkpoint is deleted last, so that an interrupted deletion is
    recognised.

    Durably, in this order, if it holds records. Raises StorageError. Cancellation or a crash: some files are gone, and
    the call can be repeated.
    """
    for name in disk.list_dir(folder):
        if name != "checkpoint":
            disk.unlink(f"{folder}/{name}")
    if holds_records:
        await disk.sync_dir(folder)
    disk.unlink(f"{folder}/checkpoint")
    if holds_records:
        await disk.sync_dir(folder)
    disk.remove_dir(folder)


async def sync_way_to(disk: Disk, folder: str) -> None:
    """Sync the names of a log's folder, its topic's folder and the engine's folder.

    Raises SyncFailed, StorageError.
    """
    for parent in list(PurePosixPath(folder).parents)[:3]:
        await disk.sync_dir(str(parent))
