"""Content of a simulated disk: bytes of files and entries of folders, as a process sees them and as they are durable.

`sim_device` describes the model; this module decides the fate of unsynced changes. It uses no task and no clock.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from typing import TypeVar

SECTOR_BYTES = 512


class Fate(enum.Enum):
    """The fate of a pending change when power is lost."""

    LOST = "lost"
    TORN = "torn"
    KEPT = "kept"


_FATES = tuple(Fate)
Fates = Callable[[random.Random, int], list[Fate]]


def _all_lost(rng: random.Random, count: int) -> list[Fate]:
    return [Fate.LOST] * count


def _all_kept(rng: random.Random, count: int) -> list[Fate]:
    return [Fate.KEPT] * count


def _cut_once(rng: random.Random, count: int) -> list[Fate]:
    kept = rng.randint(0, count)
    return [*[Fate.KEPT] * kept, Fate.TORN, *[Fate.LOST] * count][:count]


def each_its_own(rng: random.Random, count: int) -> list[Fate]:
    """Decide each of `count` changes independently."""
    return rng.choices(_FATES, k=count)


MOODS: tuple[Fates, ...] = (_all_lost, _all_kept, _cut_once, each_its_own)
"""A crash chooses one of them, as independent choices alone would hardly ever lose, or keep, many writes at once."""


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    """Write `data` at `position`, or cut to `position` bytes if it is None."""
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


class Inode:
    """A file's bytes. A pending change is (position, bytes), or (size, None) for a truncation."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        self.settled = 0
        """Number of changes that have ever left `pending`. A sync uses it to name the changes that it covers, as others
        may settle meanwhile.
        """
        self.linked = True

    def change(self, position: int, data: bytes | None) -> None:
        _apply(self.data, position, data)
        self.pending.append((position, data))

    def pending_bytes(self) -> int:
        """Return the number of bytes that a sync has to write."""
        return sum(len(data) for _, data in self.pending if data is not None)

    def make_durable(self, covered: int) -> None:
        """Make the first `covered` changes, counted from the file's creation, durable."""
        count = max(0, covered - self.settled)
        for position, data in self.pending[:count]:
            _apply(self.durable, position, data)
        self._forget(count)

    def decide(self, covered: int, rng: random.Random, mood: Fates, *, tear_last: bool = False) -> None:
        """Decide the fate of the first `covered` changes in a power loss or failed sync."""
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


class Folder:
    """A folder's entries. A pending change is some (name, node or None) that happen together."""

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}
        self.pending: list[Effects] = []
        self.settled = 0

    def change(self, effects: Effects) -> None:
        _rewrite(self.entries, effects)
        self.pending.append(effects)

    def pending_bytes(self) -> int:
        return 0

    def make_durable(self, covered: int) -> None:
        count = max(0, covered - self.settled)
        self._settle(count, [Fate.KEPT] * count)

    def decide(self, covered: int, rng: random.Random, mood: Fates, *, tear_last: bool = False) -> None:
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


Effects = tuple[tuple[str, Inode | Folder | None], ...]
Node = TypeVar("Node", Inode, Folder)


def _rewrite(entries: dict[str, Inode | Folder], effects: Effects) -> None:
    for name, node in effects:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def take_stock(folder: Folder) -> int:
    """Mark the files below `folder` as linked, including files whose removal was lost; return the sum of bytes."""
    total = 0
    for node in folder.entries.values():
        if isinstance(node, Folder):
            total += take_stock(node)
        else:
            node.linked = True
            total += len(node.data)
    return total
