"""Metadata of topics and exchanges that were made or changed live: a port, and the embedded store behind it.

Law: every write is a compare-and-swap on the key's revision, as a cluster's store will require. The embedded store is
one JSON file, replaced atomically; a crash leaves the old one or the new one. Its first line has the CRC-32C of the
others, and the file is used only if it matches. It is written before any topic is made, so a topic's folder proves that
it existed. A reserve file beside it is given up when the disk is full, so that topics can be deleted and retention
shortened to make room.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple, Protocol

import msgspec
from crc32c import crc32c

from linn.core.env.env import Clock, Disk, File
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import DescriptorsExhausted, DiskFull, LogCorrupt, RevisionConflict, StorageError

FORMAT = 4
"""Format of everything in the data folder, the batches included. It grows when an older folder can't be read."""
_KEYS = {"format", "revision", "entries"}
"""Keys of the file, besides the checksum, which a file written by hand does not have."""
SYNC_RETRY_S = 0.5
RESERVE_BYTES = 64 << 10
"""Space reserved for entries on a full disk: enough for a few hundred topics."""

logger = logging.getLogger("linn.metadata")


class MetadataStore(Protocol):
    """Small values by key, with revisions."""

    async def load(self, proofs: Iterable[str]) -> Mapping[str, tuple[int, Any]]:
        """Load (revision, value) of all keys; call it before any other method.

        `proofs`: paths that prove that data was stored here before; checked only if the store finds no data of its own.

        Raises LogCorrupt: the metadata is damaged or lost. StorageError, also if it is of an earlier version.
        """

    async def put(self, key: str, value: Any, revision: int) -> int:
        """Write a value if the key's revision is `revision` (0: the key does not exist); returns the new one.

        The value is JSON, or has `msgspec.Struct`s in it, which are written as objects.

        Durable when this returns. Raises RevisionConflict, StorageError.
        Cancellation: the value is the old one or the new one.
        """

    async def put_all(self, changes: Mapping[str, tuple[Any, int]]) -> Mapping[str, int]:
        """Put several keys atomically: (value, revision) by key; returns their new revisions.

        Writes all or nothing. Raises and is cancelled as `put`.
        """

    async def delete(self, key: str, revision: int) -> None:
        """Remove a key. Raises RevisionConflict, StorageError."""


class _Entry(NamedTuple):
    """The revision and value of one key."""

    revision: int
    value: Any
    text: str
    """The encoded value: each change writes all entries, so each is encoded only once."""

    @classmethod
    def of(cls, revision: int, value: Any) -> _Entry:
        return cls(revision, value, msgspec.json.encode([revision, value]).decode())


def _encoded(revision: int, entries: Mapping[str, _Entry]) -> bytes:
    """Encode the file: one JSON object, one entry per line."""
    lines = ",\n".join([f"{json.dumps(key)}: {entry.text}" for key, entry in entries.items()])
    body = f'"revision": {revision}, "entries": {{\n{lines}\n}}}}\n'.encode()
    return _first_line(body) + body


def _first_line(body: bytes) -> bytes:
    return b'{"format": %d, "crc32c": "%08x",\n' % (FORMAT, crc32c(body))


def _decoded(content: bytes) -> tuple[int, dict[str, _Entry]]:
    """Decode a file to its revision and entries.

    Raises:
        ValueError: the content is damaged; worded as the end of one line.
        StorageError: an earlier version wrote it.
    """
    first, newline, body = content.partition(b"\n")
    try:
        found = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    format_ = found.get("format")
    if format_ in range(1, FORMAT):
        raise StorageError(
            f"an earlier version of linn wrote this data folder, in format {format_}, and this version reads format "
            f"{FORMAT} alone: go on with that version, or begin with an empty folder"
        )
    if format_ != FORMAT:
        raise ValueError(f"its format is {format_!r:.20}, which this version does not know")
    if "crc32c" in found and first + newline != _first_line(body):
        raise ValueError("its CRC-32C is wrong")
    if found.keys() - {"crc32c"} != _KEYS:
        raise ValueError(f"its keys are not {', '.join(sorted(_KEYS))}")
    entries = found["entries"]
    if not _is_revision(found["revision"], 0) or not isinstance(entries, dict):
        raise ValueError("its revision is no number, or its entries are no JSON object")
    return found["revision"], {key: _decoded_entry(key, entry) for key, entry in entries.items()}


def _decoded_entry(key: str, entry: object) -> _Entry:
    """Decode one entry. Raises ValueError."""
    if not isinstance(entry, list) or len(entry) != 2 or not _is_revision(entry[0], 1):
        raise ValueError(f"the entry {key:.80} is no pair of a revision and a value")
    return _Entry.of(entry[0], entry[1])


def _is_revision(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class EmbeddedMetadata:
    """A `MetadataStore` in one file of the data folder."""

    def __init__(self, disk: Disk, folder: str, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._folder = folder
        self._path = f"{folder}/metadata.json"
        self._reserve = f"{folder}/metadata.reserve"
        self._revision = 0
        self._entries: dict[str, _Entry] = {}

    async def load(self, proofs: Iterable[str]) -> Mapping[str, tuple[int, Any]]:
        """See `MetadataStore.load`. Creates the file if there is none."""
        if not self._disk.exists(self._path):
            self._check_first_start(proofs)
            await self._write({})
            return {}
        file = self._disk.open(self._path)
        try:
            content = bytes(await file.read(0, file.size()))
        finally:
            file.close()
        try:
            self._revision, self._entries = _decoded(content)
        except ValueError as error:
            raise LogCorrupt(f"{self._path} can't be read: {error}. Nothing was changed") from error
        except StorageError as error:
            raise StorageError(f"{self._path}: {error.text}. Nothing was changed") from error
        return {key: (entry.revision, entry.value) for key, entry in self._entries.items()}

    def _check_first_start(self, proofs: Iterable[str]) -> None:
        """Check that this is the first start. Raises LogCorrupt if there was a file before."""
        own = (self._reserve,) if self._disk.exists(self._reserve) else ()
        for proof in chain(own, proofs):
            raise LogCorrupt(f"{self._path} is lost: it was there before {proof} was made. Nothing was changed")

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
        content = _encoded(revision, entries)
        scratch = f"{self._path}.new"
        try:
            file = self._scratch_file(scratch, content)
        except DiskFull:
            if len(entries) > len(self._entries):
                raise  # The new entries need space of their own.
            self._disk.unlink(self._reserve)
            file = self._scratch_file(scratch, content)
        try:
            await file.sync()
        finally:
            file.close()
        self._disk.rename(scratch, self._path)
        self._revision, self._entries = revision, entries
        await self._sync_patiently()
        self._keep_reserve()

    async def _sync_patiently(self) -> None:
        """Sync the folder, waiting for a descriptor if there is none: the new file is in place and can't be undone.

        Raises SyncFailed.
        """
        while True:
            try:
                await self._disk.sync_dir(self._folder)
            except DescriptorsExhausted as error:
                logger.warning("a change waits: %(error)s", log_fields(error))
                await self._clock.sleep(SYNC_RETRY_S)
            else:
                return

    def _scratch_file(self, path: str, content: bytes) -> File:
        """Write a scratch file. Raises DiskFull, StorageError: the file does not exist then."""
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
        """Restore the reserve, as far as there is space."""
        try:
            if not self._disk.exists(self._reserve):
                self._scratch_file(self._reserve, bytes(RESERVE_BYTES)).close()
        except StorageError as error:
            logger.warning("%(error)s: there is no reserve for changes on a full disk", log_fields(error))
