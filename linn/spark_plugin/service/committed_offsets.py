"""CommittedOffsets: the position of each pipeline, kept in files, so that a broker knows it before a driver reports it.

Laws: the files only serve to show the lag; a pipeline goes on where its checkpoint says. A file names the checkpoint of
its offsets, and counts for no other. An unreadable file is ignored. If a file can't be written the older one stays, and
the lag shown is too large until the next report of a driver.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from linn.core.env.env import Disk
from linn.core.errors.tree import StorageError

logger = logging.getLogger("linn.spark")

Offsets = dict[str, dict[int, int]]
"""The offset behind the last record that is in the sink, by topic and partition."""
_BYTES_MAX = 16 << 20
"""Limit of a file that is read: offsets in hundreds of thousands of partitions."""
_END = ".json"


class _Entry(NamedTuple):
    checkpoint: str
    offsets: Offsets


class CommittedOffsets:
    """Committed offsets of pipelines, by name, with one file for each pipeline in a folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._entries: dict[str, _Entry] = {}

    async def load(self) -> None:
        """Read all files."""
        if not self._disk.exists(self._folder):
            return
        for file in self._disk.list_dir(self._folder):
            if file.endswith(_END):
                await self._load(file)

    async def _load(self, name: str) -> None:
        try:
            file = self._disk.open(f"{self._folder}/{name}")
            try:
                found = bytes(await file.read(0, _BYTES_MAX))
            finally:
                file.close()
            self._entries[name.removesuffix(_END)] = msgspec.json.decode(found, type=_Entry)
        except (StorageError, msgspec.MsgspecError) as error:
            about = {"name": name.removesuffix(_END), "error": str(error)}
            logger.warning("how far Spark pipeline %(name)s was is not known until it runs: %(error)s", about)

    def of(self, pipeline: str, checkpoint: str) -> Offsets | None:
        """Return the offsets of a pipeline with this checkpoint; None if they are not known."""
        entry = self._entries.get(pipeline)
        return entry.offsets if entry is not None and entry.checkpoint == checkpoint else None

    def note(self, pipeline: str, checkpoint: str, offsets: Offsets) -> None:
        """Store the offsets that a driver reports."""
        entry = _Entry(checkpoint, offsets)
        if self._entries.get(pipeline) != entry:
            self._entries[pipeline] = entry
            self._keep(pipeline, entry)

    def forget_topic(self, topic: str) -> None:
        """Forget the offsets in a deleted topic: a new topic of its name begins anew."""
        for pipeline, entry in self._entries.items():
            if entry.offsets.pop(topic, None) is not None:
                self._keep(pipeline, entry)

    def _keep(self, pipeline: str, entry: _Entry) -> None:
        path = f"{self._folder}/{pipeline}{_END}"
        scratch = f"{path}.new"
        try:
            self._disk.make_dir(self._folder)
            self._disk.unlink(scratch)
            file = self._disk.open(scratch, create=True)
            try:
                file.write([msgspec.json.encode(entry)])
            finally:
                file.close()
            self._disk.rename(scratch, path)
        except StorageError as error:
            logger.warning("%(error)s: a restart shows too large a lag", {"error": error.text})
