"""Epochs of one log: which leader epoch appended which offsets.

A leader epoch is the number of the start in which a broker leads a partition. Offsets that a power loss took are given
again, in a later epoch: (leader epoch, offset) never names two records. A reader that says in which epoch the record
before its place was appended is told where its log and this one part (after KIP-101 and KIP-320).

Law: the epochs are a function of the log, like its producers: recovery rebuilds them from the batches' stamps.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

EPOCHS_MAX = 1_000
"""Epochs that a log remembers. Positions from before the oldest of them are taken as they are: a client would have to
miss as many starts of the broker, each with new records.
"""
_COUNT = struct.Struct("<I")


class Epochs:
    """The epochs in which a log was appended to, each with its first offset. `len` is their number."""

    __slots__ = ("_epochs", "_firsts")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return len(self._epochs)

    def note(self, epoch: int, offset: int) -> None:
        """Record that a batch was appended at an offset, the end of the log so far."""
        if not self._epochs or epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._firsts.append(offset)
            if len(self._epochs) > EPOCHS_MAX:
                del self._epochs[0], self._firsts[0]

    def at(self, offset: int) -> int:
        """The epoch in which the record at an offset was appended; 0 where it is not known."""
        place = bisect_right(self._firsts, offset) - 1
        return self._epochs[place] if place >= 0 else 0

    def end_of(self, epoch: int, log_end: int) -> int:
        """The offset before which the log holds what leaders appended up to an epoch, and nothing of later ones."""
        place = bisect_right(self._epochs, epoch)
        return self._firsts[place] if place < len(self._firsts) else log_end

    def extend(self, later: Epochs) -> None:
        """Add the epochs of the part of the log that follows."""
        for epoch, first in zip(later._epochs, later._firsts, strict=True):
            self.note(epoch, first)

    # --- snapshots ---

    def encode(self) -> bytes:
        """A snapshot, for an engine to keep beside the part of the log that it covers."""
        count = len(self._epochs)
        return _COUNT.pack(count) + struct.pack(f"<{2 * count}q", *self._epochs, *self._firsts)

    @classmethod
    def decode(cls, data: bytes) -> Epochs:
        """Decode a snapshot. Raises ValueError if it is not one."""
        found = cls()
        try:
            (count,) = _COUNT.unpack_from(data)
            numbers = struct.unpack(f"<{2 * count}q", data[_COUNT.size :])
        except struct.error as error:
            raise ValueError(f"the snapshot of epochs has another length than it says: {error}") from error
        found._epochs, found._firsts = list(numbers[:count]), list(numbers[count:])
        return found
