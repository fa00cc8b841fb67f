"""A consumer's filter: a predicate over routing key and labels, asked once per distinct pair of a stored batch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress

from linn.core.batch.batch import RecordBatch
from linn.core.batch.steps import STEP_RECORDS, Steps
from linn.core.errors.tree import PredicateInvalid
from linn.core.routing.exchange import Subject
from linn.core.routing.predicate.predicate import Predicate

PAIRS_A_STEP = 16
"""Pairs that a predicate is asked about in one step: half a millisecond if it is as large as allowed."""
RECORDS_A_STEP = 8 * STEP_RECORDS
"""Records whose pair is looked up in one step, which costs far less than moving them."""
CACHED_ROUTES_MAX = 64
CACHED_ROUTES_BYTES_MAX = 1_024
"""Limit of routes whose answers are cached: producers send the same few again and again."""


class RecordFilter:
    """The filter of one reader; a `Selector`."""

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = predicate
        self._known: dict[bytes, list[bool]] = {}
        """Answers by the encoded routes."""

    @classmethod
    def parse(cls, text: str) -> RecordFilter:
        """Parse a predicate.

        Raises PredicateInvalid, which shows the position, or names a field that a filter can't examine.
        """
        predicate = Predicate.parse(text)
        fields = sorted(predicate.fields())
        if fields:
            field = fields[0].replace("header:", "header.", 1)
            raise PredicateInvalid(f"a consumer's filter looks at routing_key and labels only, not at {field}")
        return cls(predicate)

    def choose(self, batch: RecordBatch, start: int, enough: int) -> Steps[Sequence[int]]:
        """Find the records whose pair makes the predicate true."""
        answers = yield from self._answers(batch)
        if all(answers):
            return range(start, batch.count)
        which = batch.route_index
        if which is None or not any(answers):
            return ()
        chosen = array("I")
        for first in range(start, batch.count, RECORDS_A_STEP):
            some = which[first : first + RECORDS_A_STEP]
            chosen.extend(compress(range(first, first + len(some)), map(answers.__getitem__, some)))
            if len(chosen) >= enough:
                break
            yield
        return chosen

    def _answers(self, batch: RecordBatch) -> Steps[list[bool]]:
        """The answer for each pair. Raises BatchMalformed."""
        routes = batch.routes
        key = bytes(routes) if routes is not None and len(routes) <= CACHED_ROUTES_BYTES_MAX else b""
        known = self._known.get(key) if key or routes is None else None
        if known is not None and len(known) == max(1, batch.pair_count):
            return known
        answers: list[bool] = []
        for pair in batch.pairs():
            answers.append(self._predicate.matches(Subject(pair.routing_key, dict(pair.labels))))
            if len(answers) % PAIRS_A_STEP == 0:
                yield
        if key or routes is None:
            if len(self._known) >= CACHED_ROUTES_MAX:
                self._known.clear()
            self._known[key] = answers
        return answers
