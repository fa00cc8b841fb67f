"""Facts of one log that follow from its batches: its producers and its epochs.

Law: recovery rebuilds them from the stamps and numbers of the batches, or from a snapshot and the batches behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from linn.core.batch.batch import RecordBatch
from linn.core.log.epochs import Epochs
from linn.core.log.producers import Producers

_LENGTH = struct.Struct("<I")


class LogFacts:
    """The producers and epochs of one log."""

    __slots__ = ("epochs", "producers")

    def __init__(self) -> None:
        self.producers = Producers()
        self.epochs = Epochs()

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

    def extend(self, later: LogFacts) -> None:
        """Add what the part of the log that follows says."""
        self.epochs.extend(later.epochs)
        self.producers.extend(later.producers)

    def encode(self) -> bytes:
        """A snapshot, for an engine to keep beside the part of the log that it covers."""
        epochs = self.epochs.encode()
        return _LENGTH.pack(len(epochs)) + epochs + self.producers.encode()

    @classmethod
    def decode(cls, data: bytes) -> LogFacts:
        """Decode a snapshot. Raises ValueError if it is not one."""
        if len(data) < _LENGTH.size:
            raise ValueError("the snapshot of a log's facts is cut short")
        (length,) = _LENGTH.unpack_from(data)
        behind = _LENGTH.size + length
        found = cls()
        found.epochs = Epochs.decode(data[_LENGTH.size : behind])
        found.producers = Producers.decode(data[behind:])
        return found
