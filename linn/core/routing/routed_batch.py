"""A batch whose exchange has answered: the topics of each record, and the part of the batch for each topic.

Laws: a topic gets the batch itself if all its records go there, otherwise a new batch of the records that do, in
order; topics that get the same records share it. All copies are counted before the first part is made.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain, compress, repeat

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import take_steps
from linn.core.batch.steps import STEP_RECORDS, Steps
from linn.core.errors.tree import LinnError
from linn.core.routing.budget import PublishBudget

Destinations = tuple[str, ...]
REASONS_MAX = 16
"""Limit of the different errors of one batch's records; the records of others get the first one."""
SORTED_AT_ONCE_MAX = 16_384
"""Limit of the indexes of several answers that are sorted in one step, in about a millisecond."""
_MARKS_A_STEP = 1 << 17
"""Marks scanned in one step, in C: about a millisecond."""


class RoutedBatch:
    """Distinct answers, and the number of each record's answer."""

    def __init__(
        self,
        batch: RecordBatch,
        answers: Sequence[Destinations],
        numbers: Sequence[int] | None,
        errors: Mapping[int, LinnError] | None = None,
    ) -> None:
        """`numbers` has the index of each record's answer; None: all have the first answer. `errors` has the
        answers, by index, in whose place an exchange raised.
        """
        self._batch = batch
        self._answers = answers
        self._numbers = numbers
        self.errors = errors or {}

    def refusals(self) -> Sequence[LinnError]:
        """The errors that exchanges raised, each with the indexes of its records; errors of equal text are one."""
        alike: dict[str, tuple[LinnError, set[int]]] = {}
        for number, error in self.errors.items():
            text = error.text if error.text in alike or len(alike) < REASONS_MAX else next(iter(alike))
            alike.setdefault(text, (error, set()))[1].add(number)
        found = []
        for error, numbers in alike.values():
            indexes = self._indexes_where([number in numbers for number in range(len(self._answers))])
            if indexes:  # A pair may belong to no record.
                found.append(error.of_messages(indexes))
        return found

    def part_steps(self, budget: PublishBudget) -> Steps[list[tuple[str, RecordBatch]]]:
        """Make the batch for each topic. Raises BatchMalformed, LimitExceeded."""
        batch, answers = self._batch, self._answers
        first = answers[0]
        if answers.count(first) == len(answers):
            return list(zip(first, repeat(batch), strict=False))
        # Few answers are distinct, and each is one object: what differs per topic is looked at per distinct answer.
        kinds: dict[int, int] = {}
        kind_of = [kinds.setdefault(id(answer), len(kinds)) for answer in answers]
        distinct = dict(zip(kind_of, answers, strict=True))
        budget.look_into(batch)
        indexes = yield from self._indexes(kind_of, len(kinds))
        kinds_of: dict[str, list[int]] = {}
        for kind, answer in distinct.items():
            if indexes[kind]:
                for topic in answer:
                    kinds_of.setdefault(topic, []).append(kind)
                yield
        wanted = {topic: tuple(those) for topic, those in kinds_of.items()}
        made: dict[tuple[int, ...], RecordBatch] = {}
        for those in dict.fromkeys(wanted.values()):
            count = sum([len(indexes[kind]) for kind in those])
            if count == batch.count:
                made[those] = batch
            else:
                budget.spend(count)
        for those in dict.fromkeys(wanted.values()):
            if those not in made:
                merged = yield from _merged([indexes[kind] for kind in those], batch.count)
                made[those] = part = yield from take_steps(batch, merged)
                budget.hold(part)
                yield
        return [(topic, made[those]) for topic, those in wanted.items()]

    def _indexes(self, kind_of: Sequence[int], kinds: int) -> Steps[list[array[int]]]:
        """The ascending indexes of the records that have each kind of answer."""
        found = [array("I") for _ in range(kinds)]
        numbers = self._numbers
        if numbers is None:
            found[0].extend(range(self._batch.count))
            return found
        append = [found[kind].append for kind in kind_of]
        for first in range(0, len(numbers), STEP_RECORDS):
            for index, number in enumerate(numbers[first : first + STEP_RECORDS], first):
                append[number](index)
            yield
        return found

    def indexes_of(self, topic: str) -> Sequence[int]:
        """The indexes of the records in the part of a topic."""
        takes = {id(answer): topic in answer for answer in self._answers}
        return self._indexes_where([takes[id(answer)] for answer in self._answers])

    def _indexes_where(self, chosen: Sequence[bool]) -> Sequence[int]:
        """The indexes of the records whose answer is chosen."""
        every = range(self._batch.count)
        if all(chosen) or self._numbers is None:
            return every if chosen[0] else ()
        return list(compress(every, map(chosen.__getitem__, self._numbers)))

    def unroutable(self) -> list[int]:
        """The records without a topic: ranges of indexes, as first, end, first, end and so on, ascending."""
        lost = [not answer for answer in self._answers]
        return ranges_of(self._indexes_where(lost)) if any(lost) else []


def _merged(parts: Sequence[array[int]], count: int) -> Steps[Sequence[int]]:
    """Merge ascending, disjoint sequences of indexes below `count` into one."""
    if len(parts) == 1:
        return parts[0]
    if sum(map(len, parts)) <= SORTED_AT_ONCE_MAX:
        return sorted(chain.from_iterable(parts))
    marks = bytearray(count)
    for part in parts:
        for first in range(0, len(part), STEP_RECORDS):
            for index in part[first : first + STEP_RECORDS]:
                marks[index] = 1
            yield
    merged = array("I")
    for first in range(0, count, _MARKS_A_STEP):
        merged.extend(compress(range(first, count), marks[first : first + _MARKS_A_STEP]))
        yield
    return merged


def ranges_of(indexes: Sequence[int]) -> list[int]:
    """Ascending indexes as ranges: first, end (exclusive), first, end and so on."""
    if isinstance(indexes, range):
        return [indexes.start, indexes.stop] if indexes else []
    ranges: list[int] = []
    for index in indexes:
        if ranges and ranges[-1] == index:
            ranges[-1] = index + 1
        else:
            ranges += (index, index + 1)
    return ranges
