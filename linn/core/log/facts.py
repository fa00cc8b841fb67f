"""Facts derived from a log's batches: its producers, its epochs, its transactions, and where its timed records end.

Law: recovery rebuilds them from the stamps and numbers of the batches, or from a snapshot and the batches after it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import BatchMalformed
from linn.core.log.producers import Producers
from linn.core.log.transactions import LogTransactions

_LENGTHS = struct.Struct("<IIq")


class LogFacts:
    """The producers, epochs and transactions of one log, and the end of its timed records."""

    __slots__ = ("epochs", "producers", "timed_end", "transactions")

    def __init__(self) -> None:
        self.producers = Producers()
        self.epochs = Epochs()
        self.transactions = LogTransactions()
        self.timed_end = 0
        """The end of the last batch whose records have TTLs or delays of their own; 0: there was none."""

    @classmethod
    def of(cls, batches: Iterable[RecordBatch]) -> LogFacts:
        """Collect the facts of a log that consists of these batches."""
        found = cls()
        for batch in batches:
            found.note(batch)
        return found

    def note(self, batch: RecordBatch) -> None:
        """Record a stamped batch of the log: for an engine that opens its log again."""
        self.epochs.note(batch.leader_epoch, batch.base_offset)
        self.producers.note(batch)
        self.transactions.note(batch)
        with suppress(BatchMalformed):  # It is found where it is read.
            if batch.is_timed:
                self.timed_end = batch.end_offset

    def extend(self, later: LogFacts) -> None:
        """Add the facts of the following part of the log."""
        self.epochs.extend(later.epochs)
        self.producers.extend(later.producers)
        self.transactions.extend(later.transactions)
        self.timed_end = max(self.timed_end, later.timed_end)

    def encode(self) -> bytes:
        """A snapshot, for an engine to keep beside the part of the log that it covers."""
        epochs, producers = self.epochs.encode(), self.producers.encode()
        lengths = _LENGTHS.pack(len(epochs), len(producers), self.timed_end)
        return b"".join([lengths, epochs, producers, self.transactions.encode()])

    @classmethod
    def decode(cls, data: bytes) -> LogFacts:
        """Decode a snapshot. Raises ValueError."""
        if len(data) < _LENGTHS.size:
            raise ValueError("the snapshot of a log's facts is cut short")
        epochs, producers, timed_end = _LENGTHS.unpack_from(data)
        at = _LENGTHS.size
        found = cls()
        found.timed_end = timed_end
        found.epochs = Epochs.decode(data[at : at + epochs])
        found.producers = Producers.decode(data[at + epochs : at + epochs + producers])
        found.transactions = LogTransactions.decode(data[at + epochs + producers :])
        return found


EPOCHS_MAX = 1_000
"""Epochs that a log remembers. Positions from before the oldest epoch are not checked: a client would have to miss that
many starts of the broker, each with new records."""
_COUNT = struct.Struct("<I")


class Epochs:
    """The epochs in which a log was appended to, each with its first offset. `len` is their number.

    A leader epoch is the number of the start in which a broker leads a partition. Offsets lost in a power failure are
    assigned again, in a later epoch: (leader epoch, offset) never names two records. A reader that gives the epoch of
    the record before its position learns where its log and this one diverge (after KIP-101 and KIP-320).

    Law: the epochs are a function of the log, like its producers: recovery rebuilds them from the batches' stamps.
    """

    __slots__ = ("_epochs", "_firsts")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return len(self._epochs)

    def note(self, epoch: int, offset: int) -> None:
        """Record that a batch was appended at an offset, which was the end of the log."""
        if not self._epochs or epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._firsts.append(offset)
            if len(self._epochs) > EPOCHS_MAX:
                del self._epochs[0], self._firsts[0]

    def rows(self) -> list[tuple[int, int]]:
        """(epoch, first offset) of each epoch, ascending."""
        return list(zip(self._epochs, self._firsts, strict=True))

    @property
    def last(self) -> int:
        """The epoch of the last batch; 0 if none is known."""
        return self._epochs[-1] if self._epochs else 0

    def at(self, offset: int) -> int:
        """The epoch in which the record at an offset was appended; 0 if unknown."""
        place = bisect_right(self._firsts, offset) - 1
        return self._epochs[place] if place >= 0 else 0

    def end_of(self, epoch: int, log_end: int) -> int:
        """The end offset of the records appended up to and including an epoch."""
        place = bisect_right(self._epochs, epoch)
        return self._firsts[place] if place < len(self._firsts) else log_end

    def extend(self, later: Epochs) -> None:
        """Add the epochs of the following part of the log."""
        for epoch, first in zip(later._epochs, later._firsts, strict=True):
            self.note(epoch, first)

    # --- snapshots ---

    def encode(self) -> bytes:
        """A snapshot, for an engine to keep beside the part of the log that it covers."""
        count = len(self._epochs)
        return _COUNT.pack(count) + struct.pack(f"<{2 * count}q", *self._epochs, *self._firsts)

    @classmethod
    def decode(cls, data: bytes) -> Epochs:
        """Decode a snapshot. Raises ValueError."""
        found = cls()
        try:
            (count,) = _COUNT.unpack_from(data)
            numbers = struct.unpack(f"<{2 * count}q", data[_COUNT.size :])
        except struct.error as error:
            raise ValueError(f"the snapshot of epochs has another length than it says: {error}") from error
        found._epochs, found._firsts = list(numbers[:count]), list(numbers[count:])
        return found
