"""What exists: topics and exchanges that were made or changed live. A port, and the embedded store behind it.

Law: every write is a compare-and-swap on the key's revision, as a cluster's store will want it. The embedded store is
one JSON file, replaced atomically; a crash leaves the old one or the new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from linn.core.env import Disk
from linn.core.errors import LogCorrupt, TopicError

FORMAT = 1


class RevisionConflict(TopicError):
    """Somebody else changed the same topic or exchange meanwhile; look again and retry."""

    code = "metadata.conflict"
    retriable = True


class MetadataStore(Protocol):
    """Small values by key, with revisions."""

    async def load(self) -> Mapping[str, tuple[int, Any]]:
        """(revision, value) by key, all of them. Raises LogCorrupt, StorageError."""

    async def put(self, key: str, value: Any, revision: int) -> int:
        """Write a JSON value where the key's revision is `revision` (0: it is not there); returns the new one.

        Durable when this returns. Raises RevisionConflict, StorageError.
        Cancellation: the value is the old one or the new one.
        """

    async def delete(self, key: str, revision: int) -> None:
        """Remove a key. Raises RevisionConflict, StorageError."""


class EmbeddedMetadata:
    """A `MetadataStore` in one file of the data folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/metadata.json"
        self._revision = 0
        self._entries: dict[str, tuple[int, Any]] = {}

    async def load(self) -> Mapping[str, tuple[int, Any]]:
        """See `MetadataStore.load`."""
        if not self._disk.exists(self._path):
            return {}
        file = self._disk.open(self._path)
        try:
            data = await file.read(0, file.size())
        finally:
            file.close()
        try:
            found = json.loads(bytes(data))
            if found["format"] != FORMAT:
                raise LogCorrupt(f"{self._path} is of format {found['format']}, which this version does not know")
            self._revision = int(found["revision"])
            self._entries = {key: (int(revision), value) for key, (revision, value) in found["entries"].items()}
        except (ValueError, KeyError, TypeError) as error:
            raise LogCorrupt(f"{self._path} can't be read: {error}. Nothing was changed") from error
        return dict(self._entries)

    async def put(self, key: str, value: Any, revision: int) -> int:
        """See `MetadataStore.put`."""
        self._check(key, revision)
        entries = {**self._entries, key: (self._revision + 1, value)}
        await self._write(entries)
        return self._revision

    async def delete(self, key: str, revision: int) -> None:
        """See `MetadataStore.delete`."""
        self._check(key, revision)
        await self._write({name: entry for name, entry in self._entries.items() if name != key})

    def _check(self, key: str, revision: int) -> None:
        current = self._entries.get(key, (0, None))[0]
        if current != revision:
            raise RevisionConflict(f"{key} is at revision {current}, not {revision}")

    async def _write(self, entries: dict[str, tuple[int, Any]]) -> None:
        revision = self._revision + 1
        content = json.dumps({"format": FORMAT, "revision": revision, "entries": entries}, indent=1).encode()
        scratch = f"{self._path}.new"
        self._disk.unlink(scratch)
        file = self._disk.open(scratch, create=True)
        try:
            file.write([content])
            await file.sync()
        finally:
            file.close()
        self._disk.rename(scratch, self._path)
        self._revision, self._entries = revision, entries
        await self._disk.sync_dir(self._folder)
