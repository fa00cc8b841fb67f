"""SimDevice: storage in memory that can lose power, tear, fill, fail a sync and become read-only, by a seed.

The model follows POSIX and promises no more:

- A file's bytes and a folder's entries exist twice: as a process sees them, and as they surely are on stable storage.
  Changes between the two are pending. `sync` makes the changes of one file durable, `sync_dir` the changes of one
  folder; neither does the other's work, so a synced file whose folder was not synced may be gone after a crash.
- Power loss (`crash`) decides each pending write: kept, lost or torn. A torn write leaves a prefix, of any length in
  bytes, or any of its 512-byte sectors; where the file grew over sectors that are missing there are zeros or garbage.
  Truncations are kept or lost. Bytes that no pending change covers are as they were.
- A folder's pending creations, renames and removals are kept up to one of them and lost from there on. A rename is one
  change. Renames stay within one folder; linn needs no other, and a rename between folders is asserted out.
- The death of the process (`kill`) loses nothing, but handles and locks die with it.
- After a failed sync the writes that it covered are decided as in a crash, and no later sync
  repairs it, while the process goes on reading its own writes. (So does Linux since 4.13: https://wiki.postgresql.org/wiki/Fsync_Errors.)

A dead device raises `SimulatedCrash`, which no `except Exception` holds. `restart()` gives its content to the next
process. Every operation that changes something has a number, its index in `operations`: a run without faults tells how
many there are, and `crash_at = n` loses power before the n-th, in the middle of it or after it.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Self

import trio

from linn.core.errors.tree import DiskReadOnly, SyncFailed
from linn.testing.sim_platter import MOODS, Folder, Inode, each_its_own, take_stock

LOST_POWER = "lost power"
WAS_KILLED = "was killed"
_CAPACITY_BYTES = 1 << 40


class SimulatedCrash(BaseException):
    """Raised in code of a dead machine or process. Not an error of linn's: nothing may handle it."""


class SimDevice:
    """One process's view of a simulated storage device, until the process dies; `SimDisk` is the file system on it."""

    def __init__(self, seed: int | str) -> None:
        self.rng = random.Random(f"{seed}/disk")
        self.capacity_bytes = _CAPACITY_BYTES
        self.read_only = False
        self.sync_delay_s_max = 0.002
        self.sync_bytes_per_s = math.inf
        """Rate at which a sync writes a file's bytes, in addition to that delay. Files are synced in parallel."""
        self.root = Folder()
        self._dirty: dict[Inode | Folder, None] = {}
        self.used_bytes = 0
        self._be_born()

    def _be_born(self) -> None:
        self.operations: list[tuple[str, str]] = []
        """(operation, path) of every change by this process; the index is the number for `crash_at`."""
        self.crash_at: int | None = None
        self.fail_sync_at: int | None = None
        """The number, counted from 0, of the sync of a file or folder that is to fail."""
        self.sync_count = 0
        self.death: str | None = None
        self.on_death: list[Callable[[], None]] = []
        """Called when the device dies, before any other code can notice."""

    # --- faults ------------------------------------------------------------------------------------------------------

    def crash(self, *, torn: Inode | None = None) -> None:
        """Lose power. The fate of unsynced changes is decided now; from now on this process's handles refuse
        everything.
        """
        if self.death is not None:
            return
        mood = self.rng.choice(MOODS)
        for node in self._dirty:
            node.decide(node.settled + len(node.pending), self.rng, mood, tear_last=node is torn)
            node.reboot()
        self._dirty.clear()
        self._die(LOST_POWER)

    def kill(self) -> None:
        """Kill the process: its handles and locks are gone; its writes stay, but a later crash may take them."""
        if self.death is None:
            self._die(WAS_KILLED)

    def _die(self, death: str) -> None:
        self.death = death
        for call in self.on_death:
            call()

    def restart(self) -> Self:
        """Return the device as the next process finds it: the same capacity, and no planned faults."""
        assert self.death is not None, "only a dead process is followed by another"
        successor = copy.copy(self)
        successor._be_born()
        successor.used_bytes = take_stock(successor.root)
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
        """Number an operation; returns whether power is lost by its end. Raises SimulatedCrash if it is lost before."""
        self.check_alive()
        self.operations.append((operation, path))
        if len(self.operations) - 1 != self.crash_at:
            return False
        if self.rng.random() < 0.5:
            return True
        self.crash()
        raise SimulatedCrash(f"lost power before operation {self.crash_at}, {operation} {path}")

    def end(self, dying: bool, *, torn: Inode | None = None) -> None:
        """End an operation. If it is `dying`, lose power after it, or in the middle of the write to `torn`."""
        if dying:
            self.crash(torn=torn if self.rng.random() < 0.5 else None)
            raise SimulatedCrash(f"lost power in operation {self.crash_at}")

    # --- contents ----------------------------------------------------------------------------------------------------

    def room_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    def change(self, inode: Inode, position: int, data: bytes | None) -> None:
        before = len(inode.data)
        inode.change(position, data)
        self._dirty[inode] = None
        if inode.linked:
            self.used_bytes += len(inode.data) - before

    def change_folder(self, folder: Folder, *effects: tuple[str, Inode | Folder | None]) -> None:
        for name, node in effects:
            replaced = folder.entries.get(name)
            if isinstance(replaced, Inode) and not any(replaced is kept for _, kept in effects):
                replaced.linked = False
                self.used_bytes -= len(replaced.data)
            assert node is not replaced, "the entry is there already"
        folder.change(effects)
        self._dirty[folder] = None

    async def sync_node(self, operation: str, path: str, node: Inode | Folder) -> None:
        """Sync, with a virtual delay in which other tasks run; their changes are not covered."""
        self.end(self.begin(f"{operation} begin", path))
        failing = self.sync_count == self.fail_sync_at
        self.sync_count += 1
        covered = node.settled + len(node.pending)
        try:
            delay_s = self.rng.uniform(0, self.sync_delay_s_max)
            await trio.sleep(delay_s + node.pending_bytes() / self.sync_bytes_per_s)
        except trio.Cancelled:
            if self.death is None and not failing and self.rng.random() < 0.5:
                node.make_durable(covered)
            raise
        dying = self.begin(f"{operation} end", path)
        if failing:
            node.decide(covered, self.rng, each_its_own)
            self.end(dying)
            raise SyncFailed(f"can't sync {path}: Input/output error")
        node.make_durable(covered)
        self.end(dying)
