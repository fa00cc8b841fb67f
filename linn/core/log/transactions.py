"""Transactions of one log: the open ones, the offsets of aborted ones, and the number of offsets that readers never
get.

A transaction is identified by its producer, which has at most one at a time in a log, and its number, which grows. It
is open from its first batch to its marker, a control batch of one record with the outcome (after KIP-98).

Law: like the producers, this is a function of the log: `note` changes it, called for each batch in order, so that
recovery rebuilds it, also from the facts of consecutive parts.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from linn.core.batch.batch import CONTROL, TRANSACTIONAL, RecordBatch
from linn.core.errors.tree import BatchMalformed
from linn.core.log.offset_tally import OffsetTally

_COUNTS = struct.Struct("<QIIIII")
_OPEN = struct.Struct("<qQq")
_ENDED = struct.Struct("<qQq?")
_ABORTED = struct.Struct("<qqq")
_HIDDEN = struct.Struct("<qqq")
_WRITTEN = struct.Struct("<qqqq")

Span = tuple[int, int]
"""Offsets: the first one, and the one after the last."""


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
    """A producer's first marker in a part of a log: its transaction may have begun before that part."""

    producer_id: int
    number: int
    offset: int
    is_commit: bool


class LogTransactions:
    """The transactions of a log, or of a part of one."""

    __slots__ = ("_aborted", "_ended", "_written", "hidden", "markers", "open")

    def __init__(self) -> None:
        self.open: dict[int, OpenTransaction] = {}
        """Open transactions by producer, oldest first."""
        self.markers = 0
        """Number of markers so far. 0: every batch is visible to readers once no transaction is open."""
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        """By producer: offsets of the first batch and the marker of each aborted transaction, ascending."""
        self._ended: dict[int, _Ended] = {}
        """First marker by producer, of a part of a log."""
        self.hidden = OffsetTally()
        """The offsets that readers never get: markers, aborted records, and the gaps of batches."""
        self._written: dict[int, OffsetTally] = {}
        """By producer, the offsets of its open transaction."""

    @property
    def first_open(self) -> int | None:
        """The offset of the first batch of an open transaction; None if none is open."""
        return next(iter(self.open.values())).first if self.open else None

    def note(self, batch: RecordBatch) -> Sequence[Span]:
        """Record a stamped batch of the log; returns the offsets that readers will never get because of it.

        For an aborted transaction with very many pieces, it returns only some of them.
        """
        attributes = batch.attributes
        spans: list[Span] = []
        if batch.offset_span != batch.count:
            spans = _gaps(batch)
        if attributes & CONTROL:
            spans = self._end(
                _Ended(batch.producer_id, batch.transaction, batch.base_offset, bool(batch.first_sequence))
            )
        elif attributes & TRANSACTIONAL:
            producer_id = batch.producer_id
            if producer_id not in self.open:
                self.open[producer_id] = OpenTransaction(batch.transaction, batch.base_offset)
                self._written[producer_id] = OffsetTally()
            self._written[producer_id].add(batch.base_offset, batch.end_offset)
        for span in spans:
            self.hidden.add(*span)
        return spans

    def _end(self, marker: _Ended) -> list[Span]:
        self.markers += 1
        known = self.open.pop(marker.producer_id, None)
        written = self._written.pop(marker.producer_id, None)
        self._ended.setdefault(marker.producer_id, marker)
        spans = [(marker.offset, marker.offset + 1)]
        if known is not None and written is not None and not marker.is_commit:
            self._aborted.setdefault(marker.producer_id, []).append((known.first, marker.offset))
            self.hidden.merge(written)
            spans = [*written.exact(0), *spans]
        return spans

    def is_open(self, producer_id: int, number: int) -> bool:
        """Whether the transaction of that number has batches and no marker."""
        known = self.open.get(producer_id)
        return known is not None and known.number == number

    def hides(self, batch: Stamped) -> bool:
        """Whether a batch below the stable offset is hidden: a marker, or a batch of an aborted transaction."""
        if batch.attributes & CONTROL:
            return True
        if not batch.attributes & TRANSACTIONAL or (spans := self._aborted.get(batch.producer_id)) is None:
            return False
        at = bisect_right(spans, batch.base_offset, key=lambda span: span[0]) - 1
        return at >= 0 and batch.base_offset < spans[at][1]

    def hide_all_but(self, first: int, end: int, count: int) -> None:
        """Record that only `count` of the offsets [first, end) have a record: the others were thinned out."""
        more = end - first - count - self.hidden.count(first, end)
        if more > 0:
            self.hidden.put(first, end, more)

    def forget_before(self, offset: int) -> None:
        """Forget aborted transactions that ended before `offset`, the first one stored, in a whole log's facts."""
        self._ended.clear()
        for tally in (self.hidden, *self._written.values()):
            tally.forget_before(offset)
        for producer_id, spans in list(self._aborted.items()):
            if spans[0][1] < offset:
                kept = [span for span in spans if span[1] >= offset]
                if kept:
                    self._aborted[producer_id] = kept
                else:
                    del self._aborted[producer_id]

    def extend(self, later: LogTransactions) -> None:
        """Add the transactions of the following part of the log."""
        aborted = {producer_id: list(spans) for producer_id, spans in later._aborted.items()}
        self.hidden.merge(later.hidden)
        for producer_id, marker in later._ended.items():
            self._ended.setdefault(producer_id, marker)
            if producer_id in self.open:
                first, written = self.open.pop(producer_id).first, self._written.pop(producer_id)
                if not marker.is_commit:
                    self.hidden.merge(written)
                    spans = aborted.setdefault(producer_id, [])
                    spans[:] = [(first, marker.offset), *[span for span in spans if span[0] > marker.offset]]
        self.markers += later.markers
        for producer_id, spans in aborted.items():
            self._aborted.setdefault(producer_id, []).extend(spans)
        for producer_id, opened in later.open.items():
            self.open.setdefault(producer_id, opened)
            self._written.setdefault(producer_id, OffsetTally()).merge(later._written[producer_id])

    # --- snapshots ---

    def encode(self) -> bytes:
        """A snapshot, for an engine to keep beside the part of the log that it covers."""
        aborted = [(producer_id, *span) for producer_id, spans in self._aborted.items() for span in spans]
        written = [(producer_id, *row) for producer_id, tally in self._written.items() for row in tally]
        counts = len(self.open), len(self._ended), len(aborted), len(self.hidden), len(written)
        parts = [_COUNTS.pack(self.markers, *counts)]
        parts += [_OPEN.pack(producer_id, *opened) for producer_id, opened in self.open.items()]
        parts += [_ENDED.pack(*marker) for marker in self._ended.values()]
        parts += [_ABORTED.pack(*row) for row in aborted]
        parts += [_HIDDEN.pack(*row) for row in self.hidden]
        parts += [_WRITTEN.pack(*row) for row in written]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> LogTransactions:
        """Decode a snapshot. Raises ValueError."""
        found, layouts = cls(), (_OPEN, _ENDED, _ABORTED, _HIDDEN, _WRITTEN)
        tables, at = list[list[tuple[int, ...]]](), _COUNTS.size
        try:
            found.markers, *counts = _COUNTS.unpack_from(data)
            for layout, count in zip(layouts, counts, strict=True):
                tables.append(list(layout.iter_unpack(data[at : at + count * layout.size])))
                at += count * layout.size
        except struct.error as error:
            raise ValueError(f"the snapshot of transactions is cut short: {error}") from error
        if at != len(data):
            raise ValueError("the snapshot of transactions has another length than it says")
        opened, ended, aborted, hidden, written = tables
        for producer_id, number, first in opened:
            found.open[producer_id] = OpenTransaction(number, first)
            found._written[producer_id] = OffsetTally()
        for producer_id, number, offset, is_commit in ended:
            found._ended[producer_id] = _Ended(producer_id, number, offset, bool(is_commit))
        for producer_id, first, end in aborted:
            found._aborted.setdefault(producer_id, []).append((first, end))
        found.hidden = OffsetTally((first, end, count) for first, end, count in hidden)
        for producer_id, *row in written:
            found._written[producer_id].put(*row)
        return found


def _gaps(batch: RecordBatch) -> list[Span]:
    """The offsets of a batch without a record. Producers send no such batch, so plain batches never loop here."""
    spans, behind = list[Span](), batch.base_offset
    try:
        for index in range(batch.count):
            offset = batch.offset(index)
            if offset > behind:
                spans.append((behind, offset))
            behind = offset + 1
    except BatchMalformed:
        return []  # Reading reports it.
    return spans if behind == batch.end_offset else [*spans, (behind, batch.end_offset)]
