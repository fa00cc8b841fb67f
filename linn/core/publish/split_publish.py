"""A publish of which other brokers store shares: the topics that each of them leads.

Each share is stored or refused alone. So a publish that fails may be stored in part: sent again with the same numbers,
it is completed, and nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from linn.core.batch.batch import RecordBatch
from linn.core.errors.peers import PeerUnknown
from linn.core.errors.tree import LinnError, ProducerDuplicate
from linn.core.publish.plan import Elsewhere, Indexes, Planned
from linn.core.publish.request import PublishRequest, PublishResult, RefusedRecords
from linn.core.routing.routed_batch import ranges_of

TOPICS_MAX = 200
"""Limit of the topics in one share: their names fit into a frame of 64 KiB."""
Outcome = Sequence[PublishResult] | LinnError
"""The result of each batch, or the error of the publish."""


class Share(NamedTuple):
    """The share of one broker: batches that go to the same topics."""

    node: int
    request: PublishRequest
    places: Sequence[tuple[int, Indexes]]
    """For each of its batches: the number of the batch in the whole publish, and the indexes of its records there."""


class SplitPublish:
    """The shares of a publish, and their outcomes. It does no I/O."""

    def __init__(self, request: PublishRequest, own: Sequence[PublishResult], planned: Sequence[Planned]) -> None:
        """`own`: the results of the topics that this broker leads, in which the publish is stored."""
        self.request = request
        self.shares = _shares(request, planned)
        self.nodes = nodes_of(planned)
        self._own = own
        self._planned = [(bool(plan.destinations), plan.elsewhere) for plan in planned]
        self._outcomes: list[tuple[Share, Outcome]] = []

    def told(self, share: Share, outcome: Outcome) -> Outcome | None:
        """Take the outcome of a share; returns the outcome of the whole with that of the last share."""
        self._outcomes.append((share, outcome))
        if len(self._outcomes) < len(self.shares):
            return None
        errors = [error for _, error in self._outcomes if isinstance(error, LinnError)]
        if self.request.to_exchange:  # A share that was sent again after later ones of its producer is stored.
            errors = [error for error in errors if not isinstance(error, ProducerDuplicate)]
        return self._error(errors) if errors else self._results()

    def _error(self, errors: Sequence[LinnError]) -> LinnError:
        worst = next((error for error in errors if not error.retriable), errors[0])
        if all(batch.producer_id for batch in self.request.batches):
            return worst
        is_stored = len(errors) < len(self.shares) or any(has_own for has_own, _ in self._planned)
        if is_stored and not isinstance(worst, PeerUnknown):
            return PeerUnknown(f"it is stored in part: {worst.text}")
        return worst

    def _results(self) -> Sequence[PublishResult]:
        told: list[list[tuple[PublishResult, Indexes]]] = [[] for _ in self._own]
        for share, outcome in self._outcomes:
            if not isinstance(outcome, LinnError):
                for (number, indexes), result in zip(share.places, outcome, strict=True):
                    told[number].append((result, indexes))
        parts = zip(self.request.batches, self._own, told, self._planned, strict=True)
        return [
            _merged(own, results, is_alone=not has_own and _is_one_place(batch, own, elsewhere))
            for batch, own, results, (has_own, elsewhere) in parts
        ]


def _is_one_place(batch: RecordBatch, own: PublishResult, elsewhere: Sequence[Elsewhere]) -> bool:
    """Whether all records of a batch that are not refused go to one topic of another broker."""
    if len(elsewhere) != 1 or len(elsewhere[0].topics) > 1:
        return False
    refused = sum([refusal.number for refusal in own.refused])
    return bool(elsewhere[0].batch.count == batch.count - refused)


def nodes_of(planned: Sequence[Planned]) -> frozenset[int]:
    """The brokers that store a plan; 0 stands for this one."""
    nodes = {each.leader for plan in planned for each in plan.elsewhere}
    if any(plan.destinations for plan in planned):
        nodes.add(0)
    return frozenset(nodes)


def _shares(request: PublishRequest, planned: Sequence[Planned]) -> list[Share]:
    """The shares of all brokers: batches for the same topics are in one."""
    alike: dict[tuple[int, Sequence[str]], tuple[list[RecordBatch], list[tuple[int, Indexes]]]] = {}
    for number, plan in enumerate(planned):
        for leader, topics, batch, indexes in plan.elsewhere:
            for first in range(0, max(len(topics), 1), TOPICS_MAX):
                batches, places = alike.setdefault((leader, topics[first : first + TOPICS_MAX]), ([], []))
                batches.append(batch)
                places.append((number, indexes))
    return [
        Share(leader, request._replace(batches=batches, topics=topics, wants_returned=False), places)
        for (leader, topics), (batches, places) in alike.items()
    ]


def _merged(own: PublishResult, told: Sequence[tuple[PublishResult, Indexes]], *, is_alone: bool) -> PublishResult:
    """The result of a batch at all brokers. `is_alone`: one topic elsewhere has all of it."""
    if not told:
        return own
    refused, gone = list(own.refused), set[int]()
    for result, indexes in told:
        for error, ranges in result.refused:
            every = indexes()
            pairs = zip(ranges[::2], ranges[1::2], strict=True)
            records = {every[index] for first, end in pairs for index in range(first, end)} - gone
            if records:
                gone |= records
                refused.append(RefusedRecords(error, ranges_of(sorted(records))))
    if is_alone:
        return told[0][0]._replace(returned=own.returned, refused=refused)
    copies = own.copies + sum([result.copies for result, _ in told])
    return PublishResult(-1, -1, copies, own.returned, refused=refused)
