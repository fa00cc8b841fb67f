"""Arithmetic of marks and floors, the same for every participant: a span is a range of offsets [first, end).

Laws: no I/O. The spans of a store belong to one place and one epoch, and never overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from linn.client.participants.participant import Floor, Mark, Place
from linn.core.errors.tree import ParticipantConflict

Span = tuple[int, int]


def raised_floor(now: Floor, wanted: Floor) -> Floor:
    """Return the floor after a commit: raised if neither epoch nor offset gets lower, and otherwise unchanged."""
    return wanted if wanted.epoch >= now.epoch and wanted.offset >= now.offset else now


def is_below(mark: Mark, floor: Floor) -> bool:
    """Tell whether a floor covers all of a mark, so that the mark need not be kept."""
    return mark.epoch <= floor.epoch and mark.end <= floor.offset


def applied_parts(mark: Mark, floor: Floor, stored: Iterable[Span]) -> list[Span]:
    """Return the parts of a mark that the floor or the spans of its epoch cover, in order and joined."""
    spans = sorted(stored)
    if mark.epoch <= floor.epoch:
        spans.insert(0, (min(mark.first, floor.offset), floor.offset))
    parts: list[Span] = []
    for first, end in spans:
        first, end = max(first, mark.first), min(end, mark.end)
        if parts and first <= parts[-1][1]:
            parts[-1] = (parts[-1][0], max(end, parts[-1][1]))
        elif first < end:
            parts.append((first, end))
    return parts


def merged_span(mark: Mark, stored: Iterable[Span]) -> Span:
    """Return the span of a mark joined with adjoining spans."""
    touching = [span for span in stored if span[1] >= mark.first and span[0] <= mark.end]
    return min([mark.first, *(first for first, _ in touching)]), max([mark.end, *(end for _, end in touching)])


class Change(NamedTuple):
    """Rows of marks that a commit removes from a store and adds to it, not counting rows that its floor covers."""

    removed: list[Mark]
    added: list[Mark]


def planned_change(place: Place, marks: Sequence[Mark], now: Floor, floor: Floor, stored: Sequence[Mark]) -> Change:
    """Plan how marks join the stored rows. `stored` holds at least the rows that overlap or adjoin them.

    Raises:
        ParticipantConflict: records of the marks are below the floor `now`, or stored.
    """
    rows = list(stored)
    for mark in marks:
        touching = [row for row in rows if row.epoch == mark.epoch and row.end >= mark.first and row.first <= mark.end]
        spans = [(row.first, row.end) for row in touching]
        parts = applied_parts(mark, now, spans)
        if parts:
            raise conflict(place, mark, parts)
        rows = [row for row in rows if row not in touching]
        rows.append(Mark(mark.epoch, *merged_span(mark, spans)))
    kept = [row for row in rows if not is_below(row, floor)]
    before, after = set(stored), set(kept)
    return Change([row for row in stored if row not in after], [row for row in kept if row not in before])


def conflict(place: Place, mark: Mark, parts: Sequence[Span]) -> ParticipantConflict:
    """Make the error of a commit whose records had their effect already."""
    offsets = ", ".join(f"{first} to {end - 1}" if end - first > 1 else str(first) for first, end in parts)
    return ParticipantConflict(
        f"another process has applied the offsets {offsets} of epoch {mark.epoch} in partition {place.partition} of "
        f"topic {place.topic_id} meanwhile; nothing was committed"
    )
