"""Transactions of one log: which are open, and which ranges of offsets an aborted one has left.

A transaction is known by its producer, which has at most one at a time in a log, and its number, which grows. It is
open from its first batch to its marker: a control batch of one record that says how it ended (after KIP-98).

Law: like its producers, this is a function of the log: it changes by `note`, called for each batch in order, and so
recovery rebuilds it, also from the facts of consecutive parts.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple, Protocol

from linn.core.batch.batch import CONTROL, TRANSACTIONAL, RecordBatch

_COUNTS = struct.Struct("<QIII")
_OPEN = struct.Struct("<qQq")
_ENDED = struct.Struct("<qQq?")
_ABORTED = struct.Struct("<qqq")


class Stamped(Protocol):
    """A stored batch, or its head."""

    @property
    def producer_id(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def base_offset(self) -> int: ...


class OpenTransaction(NamedTuple):
    """A transaction without a marker."""

    number: int
    first: int
    """Offset of its first batch."""


class _Ended(NamedTuple):
    """A producer's first marker: its transaction may have begun before the part of the log that is known."""

    producer_id: int
    number: int
    offset: int
    is_commit: bool


class LogTransactions:
    """The transactions of one log, or of a part of one."""

    __slots__ = ("_aborted", "_ended", "markers", "open")

    def __init__(self) -> None:
        self.open: dict[int, OpenTransaction] = {}
        """Open transactions by producer, the one that began first in front."""
        self.markers = 0
        """Number of markers so far. 0: every batch can be handed to anybody once no transaction is open."""
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        """By producer: the offset of an aborted transaction's first batch, and that of its marker, ascending."""
        self._ended: dict[int, _Ended] = {}
        """By producer, the first marker of a part of a log."""

    @property
    def first_open(self) -> int | None:
        """The offset of the first batch of an open transaction; None if none is open."""
        return next(iter(self.open.values())).first if self.open else None

    def note(self, batch: RecordBatch) -> None:
        """Record a stamped batch of the log."""
        attributes = batch.attributes
        if not attributes & TRANSACTIONAL:
            return
        if attributes & CONTROL:
            self._end(_Ended(batch.producer_id, batch.transaction, batch.base_offset, bool(batch.first_sequence)))
        elif batch.producer_id not in self.open:
            self.open[batch.producer_id] = OpenTransaction(batch.transaction, batch.base_offset)

    def _end(self, marker: _Ended) -> None:
        self.markers += 1
        known = self.open.pop(marker.producer_id, None)
        self._ended.setdefault(marker.producer_id, marker)
        if known is not None and not marker.is_commit:
            self._aborted.setdefault(marker.producer_id, []).append((known.first, marker.offset))

    def is_open(self, producer_id: int, number: int) -> bool:
        """Whether a transaction of that number has batches and no marker."""
        known = self.open.get(producer_id)
        return known is not None and known.number == number

    def hides(self, batch: Stamped) -> bool:
        """Whether a batch below the stable offset is for nobody: a marker, or of an aborted transaction."""
        if batch.attributes & CONTROL:
            return True
        if not batch.attributes & TRANSACTIONAL or (spans := self._aborted.get(batch.producer_id)) is None:
            return False
        at = bisect_right(spans, batch.base_offset, key=lambda span: span[0]) - 1
        return at >= 0 and batch.base_offset < spans[at][1]

    def forget_before(self, offset: int) -> None:
        """Forget aborted transactions that ended before the log's start. These are the transactions of a whole log."""
        self._ended.clear()
        for producer_id, spans in list(self._aborted.items()):
            if spans[0][1] < offset:
                kept = [span for span in spans if span[1] >= offset]
                if kept:
                    self._aborted[producer_id] = kept
                else:
                    del self._aborted[producer_id]

    def extend(self, later: LogTransactions) -> None:
        """Add what the part of the log that follows says."""
        aborted = {producer_id: list(spans) for producer_id, spans in later._aborted.items()}
        for producer_id, marker in later._ended.items():
            self._ended.setdefault(producer_id, marker)
            if producer_id in self.open:
                first = self.open.pop(producer_id).first
                if not marker.is_commit:
                    spans = aborted.setdefault(producer_id, [])
                    spans[:] = [(first, marker.offset), *[span for span in spans if span[0] > marker.offset]]
        self.markers += later.markers
        for producer_id, spans in aborted.items():
            self._aborted.setdefault(producer_id, []).extend(spans)
        for producer_id, opened in later.open.items():
            self.open.setdefault(producer_id, opened)

    # --- snapshots ---

    def encode(self) -> bytes:
        """A snapshot, for an engine to keep beside the part of the log that it covers."""
        aborted = [(producer_id, *span) for producer_id, spans in self._aborted.items() for span in spans]
        parts = [_COUNTS.pack(self.markers, len(self.open), len(self._ended), len(aborted))]
        parts += [_OPEN.pack(producer_id, *opened) for producer_id, opened in self.open.items()]
        parts += [_ENDED.pack(*marker) for marker in self._ended.values()]
        parts += [_ABORTED.pack(*row) for row in aborted]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> LogTransactions:
        """Decode a snapshot. Raises ValueError if it is not one."""
        found = cls()
        try:
            found.markers, opened, ended, aborted = _COUNTS.unpack_from(data)
            at = _COUNTS.size
            if len(data) != at + opened * _OPEN.size + ended * _ENDED.size + aborted * _ABORTED.size:
                raise ValueError("the snapshot of transactions has another length than it says")
            for _ in range(opened):
                producer_id, *rest = _OPEN.unpack_from(data, at)
                found.open[producer_id] = OpenTransaction(*rest)
                at += _OPEN.size
            for _ in range(ended):
                marker = _Ended(*_ENDED.unpack_from(data, at))
                found._ended[marker.producer_id] = marker
                at += _ENDED.size
            for _ in range(aborted):
                producer_id, first, end = _ABORTED.unpack_from(data, at)
                found._aborted.setdefault(producer_id, []).append((first, end))
                at += _ABORTED.size
        except struct.error as error:
            raise ValueError(f"the snapshot of transactions is cut short: {error}") from error
        return found
