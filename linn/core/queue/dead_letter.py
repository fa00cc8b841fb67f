"""Dead records, which get no more attempts and wait to be copied to the dead-letter topic.

Law: a dead record stays unsettled until its copy is committed there, or it is settled without one because the topic
has no dead-letter topic, or because no copy can be made. Copies are made by steps of a transfer (`transfer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from linn.core.queue.offset_map import OffsetMap

REASON = "linn.dead.reason"
TOPIC = "linn.dead.topic"
PARTITION = "linn.dead.partition"
OFFSET = "linn.dead.offset"
ATTEMPTS = "linn.dead.attempts"
TIME_MS = "linn.dead.time_ms"
SUBSCRIPTION = "linn.dead.subscription"
ERROR = "linn.dead.error"
HISTORY = "linn.dead.history"
LABELS = (REASON, TOPIC, PARTITION, OFFSET, ATTEMPTS, TIME_MS, SUBSCRIPTION, ERROR, HISTORY)
"""Labels that a copy in the dead-letter topic has besides the record's own: SUBSCRIPTION if it comes from a named
subscription, ERROR if a consumer said why it returned or rejected the record.
"""


class DeadReason(IntEnum):
    """The reason why a record is dead. The numbers are stored; `label` is the text in the dead letter."""

    MAX_DELIVERIES = 1
    REJECTED = 2
    EXPIRED = 3
    OVERFLOW = 4

    @property
    def label(self) -> str:
        """The reason's text in the dead letter's label."""
        return self.name.lower()


class Ending(IntEnum):
    """The way in which a record ended that no consumer settled. The numbers are stored; `DeadReason` has some."""

    MAX_DELIVERIES = 1
    REJECTED = 2
    EXPIRED = 3
    OVERFLOW = 4
    DROPPED = 5
    """To make room, by an operator, or by retention."""


class Dead(NamedTuple):
    """Number of attempts, and the reason why there are no more."""

    attempts: int
    reason: DeadReason


class Intent(NamedTuple):
    """The numbers with which records are published elsewhere, each time with the same."""

    sequence: int
    """The sequence of the step's first record."""
    producer: int
    """The step's producer, whose id is this number below zero."""


@dataclass(frozen=True, slots=True)
class DeadRange:
    """Dead records [first, end) that share their attempts, reason and intent."""

    first: int
    end: int
    attempts: int
    reason: DeadReason
    intent: Intent | None
    """The step that publishes them: copies may exist. None: there are none."""


class DeadLetters:
    """The dead records of one subscription, with the intents that cover them."""

    __slots__ = ("_dead", "_intents")

    def __init__(self) -> None:
        self._dead: OffsetMap[Dead] = OffsetMap()
        self._intents: OffsetMap[Intent] = OffsetMap()

    @property
    def count(self) -> int:
        """The number of dead records."""
        return self._dead.count

    def add(self, first: int, end: int, attempts: int, reason: DeadReason) -> None:
        """Add records that have just died."""
        self._dead.set(first, end, Dead(attempts, reason))

    def covers(self, first: int, end: int) -> bool:
        """Whether every record of [first, end) is dead."""
        return sum(stop - start for start, stop, _ in self._dead.pieces(first, end)) == end - first

    def intend(self, first: int, end: int, intent: Intent) -> None:
        """Store the intent for dead records. An earlier one stays: its copies may exist already."""
        earlier = self._intents.take(first, end)
        self._intents.set(first, end, intent)
        for start, stop, value in earlier:
            self._intents.set(start, stop, value)

    def take(self, first: int, end: int) -> list[tuple[int, int, Dead]]:
        """Remove the dead records of [first, end) and their intents; returns the removed ones, in order."""
        self._intents.take(first, end)
        return self._dead.take(first, end)

    def at(self, offset: int) -> Dead | None:
        """The death of the record at an offset; None: it is not dead."""
        found = self._dead.pieces(offset, offset + 1)
        return found[0][2] if found else None

    def intended(self) -> list[DeadRange]:
        """The dead records of the step that was begun, lowest offset first."""
        lowest = self._intents.lowest(1)
        ranges = [(first, end) for first, end, intent in self._intents if intent == lowest[0][2]] if lowest else []
        return [
            DeadRange(first, end, *dead, lowest[0][2])
            for start, stop in ranges
            for first, end, dead in self._dead.pieces(start, stop)
        ]

    def ranges(self) -> list[DeadRange]:
        """All dead records, lowest offset first."""
        return [found for first, end, dead in self._dead for found in self._by_intent(first, end, dead)]

    def lowest(self, records: int) -> list[DeadRange]:
        """The lowest of `ranges()`, until they hold so many records. Examines no others: there may be a million."""
        return [found for first, end, dead in self._dead.lowest(records) for found in self._by_intent(first, end, dead)]

    def _by_intent(self, first: int, end: int, dead: Dead) -> Iterator[DeadRange]:
        for start, stop, intent in self._intents.pieces(first, end):
            if first < start:
                yield DeadRange(first, start, dead.attempts, dead.reason, None)
            yield DeadRange(start, stop, dead.attempts, dead.reason, intent)
            first = stop
        if first < end:
            yield DeadRange(first, end, dead.attempts, dead.reason, None)

    def __len__(self) -> int:
        """The number of ranges, of records and of intents."""
        return len(self._dead) + len(self._intents)
