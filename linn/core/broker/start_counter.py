"""The number of a broker's start, greater than the numbers of all earlier starts.

Values that must differ from start to start are derived from it: the epoch in which a leader appends, and the ids of
idempotent producers. It is the time of the start in seconds, or the last number plus one, so that it also differs from
the numbers of earlier data folders: a client may outlive a folder.

Law: no number is used twice. The file has two slots; a start overwrites the older one and syncs it before it continues,
so that a full disk does not prevent a start, and a torn write leaves the other slot.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from linn.core.env.env import Disk
from linn.core.errors.tree import LogCorrupt

_SLOT = struct.Struct("<8sQI")
_MAGIC = b"LINNSTA1"
_SLOT_BYTES = 4096
"""The largest sector in use: tearing one slot leaves the other."""
_FIRST_S = 1_577_836_800
"""The beginning of 2020, in seconds since 1970: numbers fit into 31 bits until 2088."""


class StartCounter:
    """The file `starts` in a data folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/starts"
        self._last = 0

    async def count(self, now_ms: int) -> int:
        """Count a start durably; returns its number. Raises LogCorrupt, DiskFull, StorageError, SyncFailed."""
        return await self._next(now_ms // 1000 - _FIRST_S)

    async def raise_to(self, number: int) -> None:
        """Note durably that the start just counted has this number, which is not less. Raises as `count`."""
        if number > self._last:
            await self._next(number)

    async def _next(self, least: int) -> int:
        if not self._disk.exists(self._path):
            await self._make()
        file = self._disk.open(self._path)
        try:
            data = bytes(await file.read(0, 2 * _SLOT_BYTES))
            found = [_decode(data[at : at + _SLOT.size]) for at in (0, _SLOT_BYTES)]
            if max(found) < 0:
                raise LogCorrupt(f"{self._path} is damaged: neither of its two slots is whole")
            number = self._last = max(max(found) + 1, least)
            file.write_at(_encode(number), found.index(min(found)) * _SLOT_BYTES)
            await file.sync()
        finally:
            file.close()
        return number

    async def _make(self) -> None:
        scratch = f"{self._path}.new"
        self._disk.unlink(scratch)
        file = self._disk.open(scratch, create=True)
        try:
            file.write((_encode(0), bytes(_SLOT_BYTES)))
            await file.sync()
        finally:
            file.close()
        self._disk.rename(scratch, self._path)
        await self._disk.sync_dir(self._folder)


def _encode(number: int) -> bytes:
    slot = _SLOT.pack(_MAGIC, number, 0)[:-4]
    return (slot + struct.pack("<I", crc32c(slot))).ljust(_SLOT_BYTES, b"\0")


def _decode(slot: bytes) -> int:
    """The number in a slot; -1 if the slot is damaged."""
    if len(slot) < _SLOT.size:
        return -1
    magic, number, crc = _SLOT.unpack(slot)
    return int(number) if magic == _MAGIC and crc == crc32c(slot[:-4]) else -1
