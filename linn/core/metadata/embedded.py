"""The embedded metadata store: one file in the data folder of a broker that has no cluster, or of a supervisor.

Laws: the file is JSON and is replaced atomically; a crash leaves the old one or the new one. Its first line has the
CRC-32C of the others, and the file is used only if it matches. It is written before any topic is made, so a topic's
folder proves that it existed. A reserve file beside it is given up when the disk is full, so that topics can be deleted
and retention shortened to make room. Keys under a lease are only in memory: their holders end with this process.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import trio
from crc32c import crc32c

from linn.core.env.env import Clock, Disk, File, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.metadata import LeaseLost, MetadataUnavailable, RevisionConflict
from linn.core.errors.tree import DescriptorsExhausted, DiskFull, LogCorrupt, StorageError
from linn.core.metadata.store import NO_LEASE, REMOVED, Changes, Snapshot, Stored, Watch

FORMAT = 4
"""Format of everything in the data folder, the batches included. It grows when an older folder can't be read."""
_KEYS = {"format", "revision", "entries"}
"""Keys of the file, besides the checksum, which a file written by hand does not have."""
REVISIONS_AHEAD = 1000
"""Revisions for writes of leased keys, which are not in the file: one write of it allows so many of these."""
SYNC_RETRY_S = 0.5
FILE = "metadata.json"
"""Name of the file in its folder."""
RESERVE = "metadata.reserve"
RESERVE_BYTES = 64 << 10
"""Space reserved for entries on a full disk: enough for a few hundred topics."""
CHANGES_WAITING_MAX = 1_000
"""Limit of the writes that wait for a watch's reader; beyond it the watch is lost."""

logger = logging.getLogger("linn.metadata")


class _Entry(NamedTuple):
    """The revision and value of one key."""

    revision: int
    text: str
    """Both, encoded: each change writes all entries, so each is encoded only once."""

    @classmethod
    def of(cls, revision: int, value: Any) -> _Entry:
        return cls(revision, msgspec.json.encode([revision, value]).decode())

    def decoded(self) -> Stored:
        return Stored(self.revision, msgspec.json.decode(self.text)[1])


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


class _Watch:
    """A watch, to which the store hands each write."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._waiting: deque[Changes] = deque()
        self._told = trio.Event()
        self._lost = ""

    def tell(self, changes: Changes) -> None:
        if len(self._waiting) >= CHANGES_WAITING_MAX:
            self.lose(f"{CHANGES_WAITING_MAX:,} changes waited for their reader")
        else:
            self._waiting.append(changes)
            self._told.set()

    def lose(self, why: str) -> None:
        self._lost = why
        self._waiting.clear()
        self._told.set()

    async def next(self) -> Changes:
        """See `Watch.next`."""
        await self._told.wait()
        if self._lost:
            raise MetadataUnavailable(f"a watch of the metadata is lost: {self._lost}")
        changes = self._waiting.popleft()
        if not self._waiting:
            self._told = trio.Event()
        return changes


class _Lease:
    """A lease: its time to live, when it ends unless it is renewed, and its keys."""

    def __init__(self, ttl_s: float, now: float) -> None:
        self.ttl_s = ttl_s
        self.ends_at = now + ttl_s
        self.keys: dict[str, None] = {}


class EmbeddedMetadata:
    """A `MetadataStore` in one file of the data folder."""

    changes_max = sys.maxsize

    def __init__(
        self, disk: Disk, folder: str, clock: Clock, spawn: Spawn, proofs: Callable[[], Iterable[str]] = tuple
    ) -> None:
        """`proofs`: finds paths that prove that data was stored here before; called if there is no file."""
        self._disk = disk
        self._clock = clock
        self._spawn = spawn
        self._proofs = proofs
        self._folder = folder
        self._path = f"{folder}/{FILE}"
        self._reserve = f"{folder}/{RESERVE}"
        self._revision = 0
        self._revision_stored = 0
        """The revision in the file, at which the store goes on after a restart: none is used twice."""
        self._entries: dict[str, _Entry] = {}
        self._leased: dict[str, _Entry] = {}
        self._leases: dict[int, _Lease] = {}
        self._lease_of: dict[str, int] = {}
        self._leases_granted = 0
        self._watches: dict[_Watch, None] = {}
        self._loaded = False
        self._lock = trio.Lock()

    async def load(self) -> Snapshot:
        """See `MetadataStore.load`. The first call reads the file, or creates it if there is none."""
        async with self._writing():
            if not self._loaded:
                await self._read()
                self._loaded = True
            return self._snapshot()

    async def _read(self) -> None:
        if not self._disk.exists(self._path):
            self._check_first_start()
            await self._write({})
            return
        file = self._disk.open(self._path)
        try:
            content = bytes(await file.read(0, file.size()))
        finally:
            file.close()
        try:
            self._revision, self._entries = _decoded(content)
            self._revision_stored = self._revision
        except ValueError as error:
            raise LogCorrupt(f"{self._path} can't be read: {error}. Nothing was changed") from error
        except StorageError as error:
            raise StorageError(f"{self._path}: {error.text}. Nothing was changed") from error

    def _check_first_start(self) -> None:
        """Check that this is the first start. Raises LogCorrupt if there was a file before."""
        own = (self._reserve,) if self._disk.exists(self._reserve) else ()
        for proof in chain(own, self._proofs()):
            raise LogCorrupt(f"{self._path} is lost: it was there before {proof} was made. Nothing was changed")

    def _snapshot(self) -> Snapshot:
        entries = {**self._entries, **self._leased}
        return Snapshot(self._revision, {key: entry.decoded() for key, entry in entries.items()})

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        """See `MetadataStore.watch`."""
        await self.load()
        watch = _Watch(self._snapshot())
        self._watches[watch] = None
        try:
            yield watch
        finally:
            del self._watches[watch]

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        """See `MetadataStore.put_all`."""
        async with self._writing():
            for key, revision in conditions.items():
                self._check(key, revision)
            if lease != NO_LEASE and lease not in self._leases:
                raise LeaseLost(f"the lease {lease} has ended")
            revision = self._revision + 1
            made = {key: None if value is REMOVED else _Entry.of(revision, value) for key, value in changes.items()}
            entries = dict(self._entries)
            for key, entry in made.items():
                if entry is None or lease != NO_LEASE:
                    entries.pop(key, None)
                else:
                    entries[key] = entry
            try:
                if entries != self._entries or revision + len(self._leases) > self._revision_stored:
                    await self._write(entries)
                self._revision = revision
            finally:
                if self._revision == revision:  # The new file is in place, and can't be undone.
                    self._attach(made, lease)
                    self._tell(made)
            return revision

    def _attach(self, made: Mapping[str, _Entry | None], lease: int) -> None:
        """Keep written keys under their lease, if any."""
        for key, entry in made.items():
            self._leased.pop(key, None)
            if (before := self._lease_of.pop(key, None)) is not None:
                self._leases[before].keys.pop(key, None)
            if lease != NO_LEASE and entry is not None:
                self._leased[key] = entry
                self._lease_of[key] = lease
                self._leases[lease].keys[key] = None

    def _tell(self, made: Mapping[str, _Entry | None]) -> None:
        if self._watches:
            found = {key: entry.decoded() if entry is not None else None for key, entry in made.items()}
            for watch in self._watches:
                watch.tell(Changes(self._revision, found))

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Let one write at a time go on; a single writer does not even yield."""
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _check(self, key: str, revision: int) -> None:
        entry = self._leased.get(key) or self._entries.get(key)
        current = entry.revision if entry is not None else 0
        if current != revision:
            raise RevisionConflict(f"{key} is at revision {current}, not {revision}")

    async def grant_lease(self, ttl_s: float) -> int:
        """See `MetadataStore.grant_lease`."""
        self._leases_granted += 1
        lease = self._leases_granted
        self._leases[lease] = _Lease(ttl_s, self._clock.monotonic())
        self._spawn(lambda: self._end_in_time(lease))
        return lease

    async def renew_lease(self, lease: int) -> None:
        """See `MetadataStore.renew_lease`."""
        found = self._leases.get(lease)
        if found is None:
            raise LeaseLost(f"the lease {lease} has ended")
        found.ends_at = self._clock.monotonic() + found.ttl_s

    async def revoke_lease(self, lease: int) -> None:
        """See `MetadataStore.revoke_lease`."""
        async with self._writing():
            found = self._leases.get(lease)
            if found is None:
                return
            gone = dict(found.keys)
            if gone:
                self._revision += 1
                self._attach(gone, NO_LEASE)
                self._tell(gone)
            del self._leases[lease]

    async def _end_in_time(self, lease: int) -> None:
        while (found := self._leases.get(lease)) is not None:
            left_s = found.ends_at - self._clock.monotonic()
            if left_s <= 0:
                await self.revoke_lease(lease)
                return
            await self._clock.sleep(left_s)

    async def aclose(self) -> None:
        """See `MetadataStore.aclose`. There are no connections."""

    async def _write(self, entries: dict[str, _Entry]) -> None:
        """Replace the file. Raises DiskFull, StorageError: nothing has changed."""
        revision = self._revision + 1
        # Each lease takes one at its end, which must not fail.
        stored = revision + (len(self._leases) + REVISIONS_AHEAD if self._leases else 0)
        content = _encoded(stored, entries)
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
        self._revision, self._revision_stored, self._entries = revision, stored, entries
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
