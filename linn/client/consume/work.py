"""Work: records of one delivery whose effects are stored in one local transaction. Pure: no I/O.

Law: redelivered records have smaller transactions, and finally one for each record, so that a record which can't be
applied does not make others dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat

from linn.client.consume.message import Batch, Message
from linn.client.consume.settling import Delivery
from linn.client.participants.participant import Floor, Mark, Place

Piece = tuple[Batch, int, int]
"""Batch, index of the first record, and index after the last."""


class Work:
    """Records of one place: a delivery, or a part of it."""

    __slots__ = ("_pieces", "delivery", "floor", "is_asked", "is_decided", "is_tried", "marks", "place", "spans")

    def __init__(self, pieces: Sequence[Piece], place: Place, floor: Floor) -> None:
        self.place = place
        self.floor = floor
        """The floor that the participant may raise once these records are applied."""
        delivery = pieces[0][0]._delivery
        assert delivery is not None, "a consumer's batches are delivered"
        self.delivery: Delivery = delivery
        self.is_asked = False
        """Whether the broker was asked for the decision, and may have decided."""
        self.is_decided = delivery.is_decided
        """Whether the broker has decided these records for this consumer."""
        self.is_tried = False
        """Whether the application got a part of the work, which counts as an attempt."""
        self._hold(pieces)

    def _hold(self, pieces: Sequence[Piece]) -> None:
        self._pieces = list(pieces)
        self.spans: list[Mark] = []
        """Marks of all records, and of no others: what lies in the gaps of a queue with an order comes later."""
        for batch, start, stop in pieces:
            for first, end in _runs(batch, start, stop) if self.delivery.sparse else [_bounds(batch, start, stop)]:
                mark = Mark(batch.leader_epoch, first, end)
                if self.spans and self.spans[-1].epoch == mark.epoch and self.spans[-1].end == mark.first:
                    mark = Mark(mark.epoch, self.spans.pop().first, mark.end)
                self.spans.append(mark)
        self.marks = self.spans
        """Marks of the records without an earlier effect, as `messages` determines them."""

    @property
    def batches(self) -> list[Batch]:
        """The batches that its records are in."""
        return [batch for batch, _, _ in self._pieces]

    @property
    def first(self) -> int:
        """Offset of the first record."""
        batch, start, _ = self._pieces[0]
        return batch._offset(start)

    @property
    def end(self) -> int:
        """Offset behind the last record."""
        batch, _, stop = self._pieces[-1]
        return batch._offset(stop)

    @property
    def rejected_count(self) -> int:
        """Number of records that the application has rejected."""
        first, end, count = self.first, self.end, self.delivery.count
        rejected = [(max(start, first), min(stop, end)) for start, stop in self.delivery.rejected]
        return sum([count(start, stop) for start, stop in rejected if start < stop])

    def messages(self, applied: Sequence[tuple[int, int]]) -> Iterator[Message]:
        """Return the messages without an effect yet; `applied`: the parts of `spans` with one, in order."""
        pieces = chain.from_iterable(map(Message, repeat(batch), range(at, end)) for batch, at, end in self._pieces)
        self.marks = [left for mark in self.spans for left in _without(mark, applied)]
        if not applied:
            return pieces
        return iter([it for it in pieces if not any(first <= it.offset < end for first, end in applied)])

    def split(self, offset: int) -> Work | None:
        """Cut off the part from `offset` on; None if it is empty. The broker's decision applies to both parts."""
        mine: list[Piece] = []
        rest: list[Piece] = []
        for batch, start, stop in self._pieces:
            at = next((index for index in range(start, stop) if batch._offset(index) >= offset), stop)
            if start < at:
                mine.append((batch, start, at))
            if at < stop:
                rest.append((batch, at, stop))
        if not rest or not mine:
            return None
        cut = Work(rest, self.place, self.floor)
        cut.is_asked, cut.is_decided = self.is_asked, self.is_decided
        done = [mark for mark in self.marks if mark.first < offset]
        last, _, stop = mine[-1]
        self._hold(mine)
        self.floor = min(self.floor, Floor(last.leader_epoch, last._offset(stop)), key=_offset_of)
        self.marks = [Mark(mark.epoch, mark.first, min(mark.end, offset)) for mark in done]
        return cut

    def parts(self, records_max: int) -> list[Work]:
        """Yield the same records in parts of at most `records_max`, each within one batch."""
        return [
            Work([(batch, at, min(at + records_max, stop))], self.place, self.floor)
            for batch, start, stop in self._pieces
            for at in range(start, stop, records_max)
        ]


def _bounds(batch: Batch, start: int, stop: int) -> tuple[int, int]:
    return batch._offset(start), batch._offset(stop)


def _runs(batch: Batch, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of adjoining offsets of some records of a batch."""
    first = end = batch._offset(start)
    for offset in map(batch._offset, range(start, stop)):
        if offset != end:
            yield first, end
            first = offset
        end = offset + 1
    yield first, end


def _offset_of(floor: Floor) -> int:
    return floor.offset


def _without(mark: Mark, ranges: Sequence[tuple[int, int]]) -> Iterator[Mark]:
    """Return the parts of a mark outside of the ranges."""
    first = mark.first
    for start, stop in ranges:
        if start >= mark.end or stop <= first:
            continue
        if first < start:
            yield Mark(mark.epoch, first, start)
        first = max(first, stop)
    if first < mark.end:
        yield Mark(mark.epoch, first, mark.end)
