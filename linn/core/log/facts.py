"""Facts of one log that follow from its batches: its producers, its epochs and its transactions.

Law: recovery rebuilds them from the stamps and numbers of the batches, or from a snapshot and the batches behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from linn.core.batch.batch import RecordBatch
from linn.core.log.epochs import Epochs
from linn.core.log.producers import Producers
from linn.core.log.transactions import LogTransactions

_LENGTHS = struct.Struct("<II")


class LogFacts:
    """The producers, epochs and transactions of one log."""

    __slots__ = ("epochs", "producers", "transactions")

    def __init__(self) -> None:
        self.producers = Producers()
        self.epochs = Epochs()
        self.transactions = LogTransactions()

    @classmethod
    def of(cls, batches: Iterable[RecordBatch]) -> LogFacts:
        """The facts of a log that consists of these batches."""
        found = cls()
        for batch in batches:
            found.note(batch)
        return found

    def note(self, batch: RecordBatch) -> None:
        """Record a stamped batch of the log: for an engine that opens its log again."""
        self.epochs.note(batch.leader_epoch, batch.base_offset)
        self.producers.note(batch)
        self.transactions.note(batch)

    def extend(self, later: LogFacts) -> None:
        """Add what the part of the log that follows says."""
        self.epochs.extend(later.epochs)
        self.producers.extend(later.producers)
        self.transactions.extend(later.transactions)

    def encode(self) -> bytes:
        """A snapshot, for an engine to keep beside the part of the log that it covers."""
        epochs, producers = self.epochs.encode(), self.producers.encode()
        lengths = _LENGTHS.pack(len(epochs), len(producers))
        return b"".join([lengths, epochs, producers, self.transactions.encode()])

    @classmethod
    def decode(cls, data: bytes) -> LogFacts:
        """Decode a snapshot. Raises ValueError if it is not one."""
        if len(data) < _LENGTHS.size:
            raise ValueError("the snapshot of a log's facts is cut short")
        epochs, producers = _LENGTHS.unpack_from(data)
        at = _LENGTHS.size
        found = cls()
        found.epochs = Epochs.decode(data[at : at + epochs])
        found.producers = Producers.decode(data[at + epochs : at + epochs + producers])
        found.transactions = LogTransactions.decode(data[at + epochs + producers :])
        return found
