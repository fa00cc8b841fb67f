"""SimDisk: a file system in memory that can lose power, tear, fill, fail a sync and become read-only, by a seed.

The model, which is what POSIX promises and no more:

- A file's bytes and a folder's entries exist twice: as a process sees them, and as they surely are on stable storage.
  What lies between is a list of pending changes. `sync` moves those of one file over, `sync_dir` those of one folder;
  neither does the other's work, so a synced file whose folder was not synced may be gone after a crash.
- Power loss (`crash`) decides each pending write: kept, lost or torn. A torn write leaves a prefix, of any length in
  bytes, or any of its 512-byte sectors; where the file grew over sectors that are missing there are zeros or garbage.
  Truncations are kept or lost. Bytes that no pending change covers are as they were.
- A folder's pending creations, renames and removals are kept up to one of them and lost from there on. A rename is one
  change. Renames stay within one folder; linn needs no other, and a rename between folders is asserted out.
- The death of the process (`kill`) loses nothing, but handles and locks die with it.
- After a failed sync what it covered is decided as in a crash, and no later sync repairs it, while the process goes on
  reading what it wrote. (So does Linux since 4.13: https://wiki.postgresql.org/wiki/Fsync_Errors.)

Whoever uses a dead disk gets `SimulatedCrash`, which no `except Exception` holds. `restart()` gives the disk to the
next process. Every operation that changes something has a number, its index in `operations`: a run without faults tells
how many there are, and `crash_at = n` loses power before the n-th, in the middle of it or after it.
"""

from __future__ import annotations

import copy
import enum
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from linn.core.errors import DataDirLocked, DiskFull, DiskReadOnly, StorageError, SyncFailed
from linn.core.flat_message import Buffer

SECTOR_BYTES = 512
LOST_POWER = "lost power"
WAS_KILLED = "was killed"
_CAPACITY_BYTES = 1 << 40


class SimulatedCrash(BaseException):
    """The machine or the process that would go on here is dead. Not an error of linn's: nothing may handle it."""


class Fate(enum.Enum):
    """What becomes of a pending change when power is lost."""

    LOST = "lost"
    TORN = "torn"
    KEPT = "kept"


_FATES = tuple(Fate)
_Fates = Callable[[random.Random, int], list[Fate]]


def _all_lost(rng: random.Random, count: int) -> list[Fate]:
    return [Fate.LOST] * count


def _all_kept(rng: random.Random, count: int) -> list[Fate]:
    return [Fate.KEPT] * count


def _cut_once(rng: random.Random, count: int) -> list[Fate]:
    kept = rng.randint(0, count)
    return [*[Fate.KEPT] * kept, Fate.TORN, *[Fate.LOST] * count][:count]


def _each_its_own(rng: random.Random, count: int) -> list[Fate]:
    return rng.choices(_FATES, k=count)


_MOODS: tuple[_Fates, ...] = (_all_lost, _all_kept, _cut_once, _each_its_own)
"""One is chosen per crash, because independent choices alone would hardly ever lose, or keep, many writes at once."""


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    """Write `data` at `position`, or cut to `position` bytes where it is None."""
    if data is None:
        del content[position:]
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _tear(rng: random.Random, content: bytearray, position: int, data: bytes) -> None:
    """Write a part of `data`: a prefix, or some sectors over zeros or over garbage."""
    manner = rng.randrange(3)
    if manner == 0:
        _apply(content, position, data[: rng.randrange(len(data) + 1)])
        return
    end = position + len(data)
    grown = max(0, end - len(content))
    content.extend(bytes(grown) if manner == 1 else rng.randbytes(grown))
    for sector in range(position - position % SECTOR_BYTES, end, SECTOR_BYTES):
        start, stop = max(sector, position), min(sector + SECTOR_BYTES, end)
        if rng.random() < 0.5:
            content[start:stop] = data[start - position : stop - position]


class _Inode:
    """A file's bytes. A pending change is (position, bytes), or (size, None) for a truncation."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        self.settled = 0
        """Changes that have left `pending`, ever: with it a sync names those it covers, whatever settles meanwhile."""
        self.linked = True

    def change(self, position: int, data: bytes | None) -> None:
        _apply(self.data, position, data)
        self.pending.append((position, data))

    def make_durable(self, covered: int) -> None:
        """Put the first `covered` changes, counted from the file's birth, on stable storage."""
        count = max(0, covered - self.settled)
        for position, data in self.pending[:count]:
            _apply(self.durable, position, data)
        self._forget(count)

    def decide(self, covered: int, rng: random.Random, mood: _Fates, *, tear_last: bool = False) -> None:
        """Let power loss or a failed sync have its way with the first `covered` changes."""
        count = max(0, covered - self.settled)
        fates = mood(rng, count)
        if tear_last and fates:
            fates[-1] = Fate.TORN
        for (position, data), fate in zip(self.pending[:count], fates, strict=True):
            if fate is Fate.TORN and data is not None:
                _tear(rng, self.durable, position, data)
            elif fate is Fate.KEPT:
                _apply(self.durable, position, data)
        self._forget(count)

    def _forget(self, count: int) -> None:
        del self.pending[:count]
        self.settled += count

    def reboot(self) -> None:
        self.data = bytearray(self.durable)


class _Folder:
    """A folder's entries. A pending change is some (name, node or None for none) that happen together."""

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Folder] = {}
        self.durable: dict[str, _Inode | _Folder] = {}
        self.pending: list[_Effects] = []
        self.settled = 0

    def change(self, effects: _Effects) -> None:
        _rewrite(self.entries, effects)
        self.pending.append(effects)

    def make_durable(self, covered: int) -> None:
        count = max(0, covered - self.settled)
        self._settle(count, [Fate.KEPT] * count)

    def decide(self, covered: int, rng: random.Random, mood: _Fates, *, tear_last: bool = False) -> None:
        count = max(0, covered - self.settled)
        self._settle(count, mood(rng, count))

    def _settle(self, count: int, fates: list[Fate]) -> None:
        for effects, fate in zip(self.pending[:count], fates, strict=True):
            if fate is not Fate.KEPT:
                break
            _rewrite(self.durable, effects)
        del self.pending[:count]
        self.settled += count

    def reboot(self) -> None:
        self.entries = dict(self.durable)


_Effects = tuple[tuple[str, _Inode | _Folder | None], ...]
_Node = TypeVar("_Node", _Inode, _Folder)


def _rewrite(entries: dict[str, _Inode | _Folder], effects: _Effects) -> None:
    for name, node in effects:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    assert ".." not in parts, f"linn makes no path with '..': {path}"
    return parts


class SimFile:
    """A handle. As with `RealFile`, one handle at a time writes a file; here a second one is caught."""

    def __init__(self, disk: SimDisk, inode: _Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._end = len(inode.data)
        self._closed = False

    def _live(self, deed: str) -> _Inode:
        self._disk.check_alive()
        if self._closed:
            raise StorageError(f"can't {deed} {self._path}: it is closed")
        return self._inode

    def _writer(self, deed: str) -> _Inode:
        inode = self._live(deed)
        assert self._end == len(inode.data), f"two handles write {self._path}"
        self._disk.check_writable(deed, self._path)
        return inode

    def write(self, buffers: Sequence[Buffer]) -> int:
        inode, disk, data = self._writer("append to"), self._disk, b"".join(buffers)
        dying = disk.begin("write", self._path)
        room = disk.room_bytes()
        if len(data) > room:
            # As the real one: write what fits, then cut it off. A crash may keep the first without the second.
            disk.change(inode, self._end, data[:room])
            disk.change(inode, self._end, None)
            disk.end(dying)
            raise DiskFull(f"can't append to {self._path}: No space left on device")
        disk.change(inode, self._end, data)
        self._end += len(data)
        disk.end(dying, torn=inode)
        return len(data)

    def write_at(self, data: Buffer, position: int) -> None:
        inode, disk = self._writer("write"), self._disk
        dying = disk.begin("write_at", self._path)
        if position + len(data) - self._end > disk.room_bytes():
            disk.end(dying)
            raise DiskFull(f"can't write {self._path}: No space left on device")
        disk.change(inode, position, bytes(data))
        self._end = len(inode.data)
        disk.end(dying, torn=inode)

    def size(self) -> int:
        return len(self._live("measure").data)

    def truncate(self, size: int) -> None:
        inode = self._writer("truncate")
        assert size <= self._end, "truncate cuts, it does not extend"
        dying = self._disk.begin("truncate", self._path)
        self._disk.change(inode, size, None)
        self._end = size
        self._disk.end(dying)

    async def read(self, position: int, bytes_max: int) -> bytearray:
        self._live("read")
        if self._disk.rng.random() < 0.5:
            await trio.lowlevel.checkpoint()
        else:
            # The real one doesn't yield for what the page cache holds.
            await trio.lowlevel.checkpoint_if_cancelled()
        self._disk.check_alive()
        return self._inode.data[position : position + max(0, bytes_max)]

    async def sync(self) -> None:
        try:
            inode = self._live("sync")
        except StorageError as error:
            raise SyncFailed(error.text) from error
        await self._disk.sync_node("sync", self._path, inode)

    def close(self) -> None:
        self._closed = True


class SimDisk:
    """One process's view of a simulated disk, until the process dies."""

    def __init__(self, seed: int | str) -> None:
        self.rng = random.Random(f"{seed}/disk")
        self.capacity_bytes = _CAPACITY_BYTES
        self.read_only = False
        self.sync_delay_s_max = 0.002
        self._root = _Folder()
        self._dirty: dict[_Inode | _Folder, None] = {}
        self.used_bytes = 0
        self._be_born()

    def _be_born(self) -> None:
        self.operations: list[tuple[str, str]] = []
        """(operation, path) of everything this process changed; the index is the number that `crash_at` takes."""
        self.crash_at: int | None = None
        self.fail_sync_at: int | None = None
        """The number, counted from 0, of the sync of a file or folder that fails."""
        self.sync_count = 0
        self.death: str | None = None
        self.on_death: list[Callable[[], None]] = []
        """Called at once when the disk dies, before anything can notice."""
        self._locked: list[_Inode] = []

    # --- faults ------------------------------------------------------------------------------------------------------

    def crash(self, *, torn: _Inode | None = None) -> None:
        """Lose power. What was not synced is decided now; this process's handles refuse everything from here on."""
        if self.death is not None:
            return
        mood = self.rng.choice(_MOODS)
        for node in self._dirty:
            node.decide(node.settled + len(node.pending), self.rng, mood, tear_last=node is torn)
            node.reboot()
        self._dirty.clear()
        self._die(LOST_POWER)

    def kill(self) -> None:
        """Kill the process: its handles and locks are gone, what it wrote is not (but a later crash may take it)."""
        if self.death is None:
            self._die(WAS_KILLED)

    def _die(self, death: str) -> None:
        self.death = death
        for call in self.on_death:
            call()

    def restart(self) -> SimDisk:
        """The disk as the next process finds it, without planned faults; the same capacity."""
        assert self.death is not None, "only a dead process is followed by another"
        successor = copy.copy(self)
        successor._be_born()
        successor.used_bytes = _take_stock(successor._root)
        return successor

    def fail_next_sync(self) -> None:
        """Make the next sync, of a file or a folder, fail."""
        self.fail_sync_at = self.sync_count

    def check_alive(self) -> None:
        if self.death is not None:
            raise SimulatedCrash(f"the simulated machine {self.death}")

    def check_writable(self, deed: str, path: str) -> None:
        self.check_alive()
        if self.read_only:
            raise DiskReadOnly(f"can't {deed} {path}: Read-only file system")

    def begin(self, operation: str, path: str) -> bool:
        """Number an operation. Raises SimulatedCrash if power is lost before it; else whether it is lost by its end."""
        self.check_alive()
        self.operations.append((operation, path))
        if len(self.operations) - 1 != self.crash_at:
            return False
        if self.rng.random() < 0.5:
            return True
        self.crash()
        raise SimulatedCrash(f"lost power before operation {self.crash_at}, {operation} {path}")

    def end(self, dying: bool, *, torn: _Inode | None = None) -> None:
        """End an operation. If it is `dying`, lose power after it, or in the middle of the write to `torn`."""
        if dying:
            self.crash(torn=torn if self.rng.random() < 0.5 else None)
            raise SimulatedCrash(f"lost power in operation {self.crash_at}")

    # --- contents ----------------------------------------------------------------------------------------------------

    def room_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    def change(self, inode: _Inode, position: int, data: bytes | None) -> None:
        before = len(inode.data)
        inode.change(position, data)
        self._dirty[inode] = None
        if inode.linked:
            self.used_bytes += len(inode.data) - before

    def _change_folder(self, folder: _Folder, *effects: tuple[str, _Inode | _Folder | None]) -> None:
        for name, node in effects:
            replaced = folder.entries.get(name)
            if isinstance(replaced, _Inode) and not any(replaced is kept for _, kept in effects):
                replaced.linked = False
                self.used_bytes -= len(replaced.data)
            assert node is not replaced, "the entry is there already"
        folder.change(effects)
        self._dirty[folder] = None

    async def sync_node(self, operation: str, path: str, node: _Inode | _Folder) -> None:
        """Sync, with a virtual delay in which other tasks go on; what they change meanwhile is not covered."""
        self.end(self.begin(f"{operation} begin", path))
        failing = self.sync_count == self.fail_sync_at
        self.sync_count += 1
        covered = node.settled + len(node.pending)
        try:
            await trio.sleep(self.rng.uniform(0, self.sync_delay_s_max))
        except trio.Cancelled:
            if self.death is None and not failing and self.rng.random() < 0.5:
                node.make_durable(covered)
            raise
        dying = self.begin(f"{operation} end", path)
        if failing:
            node.decide(covered, self.rng, _each_its_own)
            self.end(dying)
            raise SyncFailed(f"can't sync {path}: Input/output error")
        node.make_durable(covered)
        self.end(dying)

    def _find(self, path: str) -> _Inode | _Folder | None:
        self.check_alive()
        node: _Inode | _Folder | None = self._root
        for part in _parts(path):
            node = node.entries.get(part) if isinstance(node, _Folder) else None
        return node

    def _folder(self, deed: str, path: str, *, at: str | None = None) -> _Folder:
        """The folder `at`, or at `path`, which is what the error names."""
        node = self._find(path if at is None else at)
        if not isinstance(node, _Folder):
            reason = "No such file or directory" if node is None else "Not a directory"
            raise StorageError(f"can't {deed} {path}: {reason}")
        return node

    def _place(self, deed: str, path: str) -> tuple[_Folder, str]:
        """The folder that a path lies in, and its name there."""
        parts = _parts(path)
        assert parts, "the root has no name"
        return self._folder(deed, path, at="/".join(parts[:-1])), parts[-1]

    # --- the port ----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        folder, name = self._place("open", path)
        node = folder.entries.get(name)
        if isinstance(node, _Folder):
            raise StorageError(f"can't open {path}: Is a directory")
        self.check_writable("open", path)
        if node is None:
            if not create:
                raise StorageError(f"can't open {path}: No such file or directory")
            node = self._create("create", folder, name, path, _Inode())
        return SimFile(self, node, path)

    def _create(self, operation: str, folder: _Folder, name: str, path: str, node: _Node) -> _Node:
        if not self.room_bytes():
            raise DiskFull(f"can't {operation} {path}: No space left on device")
        dying = self.begin(operation, path)
        self._change_folder(folder, (name, node))
        self.end(dying)
        return node

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._folder("list", path).entries)

    def make_dir(self, path: str) -> None:
        self.check_alive()
        folder, so_far = self._root, ""
        for part in _parts(path):
            so_far += f"/{part}"
            node = folder.entries.get(part)
            if node is None:
                self.check_writable("make the folder", so_far)
                node = self._create("make_dir", folder, part, so_far, _Folder())
            if not isinstance(node, _Folder):
                raise StorageError(f"can't make the folder {path}: File exists")
            folder = node

    def rename(self, source: str, target: str) -> None:
        folder, name = self._place(f"rename {source} to", target)
        source_folder, source_name = self._place("rename", source)
        assert folder is source_folder, f"renames stay in one folder: {source} to {target}"
        node = folder.entries.get(source_name)
        if node is None or isinstance(folder.entries.get(name), _Folder):
            raise StorageError(f"can't rename {source} to {target}: {'Is a directory' if node else 'No such file'}")
        self.check_writable(f"rename {source} to", target)
        dying = self.begin("rename", target)
        if name != source_name:
            self._change_folder(folder, (source_name, None), (name, node))
        self.end(dying)

    def unlink(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, _Folder):
            raise StorageError(f"can't delete {path}: Is a directory")
        if node is not None:
            self._remove("unlink", path)

    def remove_dir(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, _Inode) or (node is not None and node.entries):
            reason = "Not a directory" if isinstance(node, _Inode) else "Directory not empty"
            raise StorageError(f"can't delete the folder {path}: {reason}")
        if node is not None:
            self._remove("remove_dir", path)

    def _remove(self, operation: str, path: str) -> None:
        self.check_writable("delete", path)
        folder, name = self._place("delete", path)
        dying = self.begin(operation, path)
        self._change_folder(folder, (name, None))
        self.end(dying)

    async def sync_dir(self, path: str) -> None:
        try:
            folder = self._folder("sync the folder", path)
        except StorageError as error:
            raise SyncFailed(error.text) from error
        await self.sync_node("sync_dir", path, folder)

    def free_bytes(self, path: str) -> int:
        if self._find(path) is None:
            raise StorageError(f"can't measure the disk of {path}: No such file or directory")
        return self.room_bytes()

    def lock(self, path: str) -> Callable[[], None]:
        inode = self.open(path, create=True)._inode
        if inode in self._locked:
            raise DataDirLocked(f"another process holds {path}")
        self._locked.append(inode)

        def release() -> None:
            if inode in self._locked:
                self._locked.remove(inode)

        return release


def _take_stock(folder: _Folder) -> int:
    """Mark the files below `folder` as linked, those too whose removal was lost; the sum of their bytes."""
    total = 0
    for node in folder.entries.values():
        if isinstance(node, _Folder):
            total += _take_stock(node)
        else:
            node.linked = True
            total += len(node.data)
    return total
