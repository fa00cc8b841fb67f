"""What exists: topics and exchanges that were made or changed live. A port, and the embedded store behind it.

Law: every write is a compare-and-swap on the key's revision, as a cluster's store will want it. The embedded store is
one JSON file, replaced atomically; a crash leaves the old one or the new one. A reserve beside it is given up where
the disk is full, so that topics can be deleted and retention shortened, which make room.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from linn.core.env import Disk, File
from linn.core.errors import DiskFull, LogCorrupt, StorageError, TopicError
from linn.core.log_fields import log_fields

FORMAT = 1
RESERVE_BYTES = 64 << 10
"""Room that is kept for the entries of a full disk: enough for those of a few hundred topics."""

logger = logging.getLogger("linn.metadata")


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

    async def put_all(self, changes: Mapping[str, tuple[Any, int]]) -> Mapping[str, int]:
        """`put` for several keys at once: (value, revision) by key; returns their new revisions.

        All of it or nothing. Raises and is cancelled as `put`.
        """

    async def delete(self, key: str, revision: int) -> None:
        """Remove a key. Raises RevisionConflict, StorageError."""


class _Entry(NamedTuple):
    """One key's."""

    revision: int
    value: Any
    text: str
    """As it stands in the file: encoded once, for each change writes all entries."""

    @classmethod
    def of(cls, revision: int, value: Any) -> _Entry:
        return cls(revision, value, json.dumps([revision, value]))


class EmbeddedMetadata:
    """A `MetadataStore` in one file of the data folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/metadata.json"
        self._reserve = f"{folder}/metadata.reserve"
        self._revision = 0
        self._entries: dict[str, _Entry] = {}

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
            self._entries = {
                key: _Entry.of(int(revision), value) for key, (revision, value) in found["entries"].items()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise LogCorrupt(f"{self._path} can't be read: {error}. Nothing was changed") from error
        return {key: (entry.revision, entry.value) for key, entry in self._entries.items()}

    async def put(self, key: str, value: Any, revision: int) -> int:
        """See `MetadataStore.put`."""
        return (await self.put_all({key: (value, revision)}))[key]

    async def put_all(self, changes: Mapping[str, tuple[Any, int]]) -> Mapping[str, int]:
        """See `MetadataStore.put_all`."""
        entries = dict(self._entries)
        for key, (value, revision) in changes.items():
            self._check(key, revision)
            entries[key] = _Entry.of(self._revision + 1, value)
        await self._write(entries)
        return dict.fromkeys(changes, self._revision)

    async def delete(self, key: str, revision: int) -> None:
        """See `MetadataStore.delete`."""
        self._check(key, revision)
        await self._write({name: entry for name, entry in self._entries.items() if name != key})

    def _check(self, key: str, revision: int) -> None:
        entry = self._entries.get(key)
        current = entry.revision if entry is not None else 0
        if current != revision:
            raise RevisionConflict(f"{key} is at revision {current}, not {revision}")

    async def _write(self, entries: dict[str, _Entry]) -> None:
        revision = self._revision + 1
        lines = ",\n".join([f"{json.dumps(key)}: {entry.text}" for key, entry in entries.items()])
        content = f'{{"format": {FORMAT}, "revision": {revision}, "entries": {{\n{lines}\n}}}}\n'.encode()
        scratch = f"{self._path}.new"
        try:
            file = self._scratch_file(scratch, content)
        except DiskFull:
            if len(entries) > len(self._entries):
                raise  # What is new needs room of its own.
            self._disk.unlink(self._reserve)
            file = self._scratch_file(scratch, content)
        try:
            await file.sync()
        finally:
            file.close()
        self._disk.rename(scratch, self._path)
        self._revision, self._entries = revision, entries
        self._keep_reserve()
        await self._disk.sync_dir(self._folder)

    def _scratch_file(self, path: str, content: bytes) -> File:
        """Raises DiskFull, StorageError: there is no such file."""
        self._disk.unlink(path)
        file = self._disk.open(path, create=True)
        try:
            file.write([content])
        except BaseException:
            file.close()
            self._disk.unlink(path)
            raise
        return file

    def _keep_reserve(self) -> None:
        """Take the reserve, or what there is of it, again."""
        try:
            if not self._disk.exists(self._reserve):
                self._scratch_file(self._reserve, bytes(RESERVE_BYTES)).close()
        except StorageError as error:
            logger.warning("%(error)s: there is no reserve for changes on a full disk", log_fields(error))
