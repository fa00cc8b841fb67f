"""The plan of one publish: its destinations are found step by step, and all of it is stored in one go at the end.

Law: between two steps anything may happen to the broker's topics; a plan is valid if `is_current` says so at the moment
of its use, without a step between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from linn.core.batch.batch import SCATTERED, TRANSACTIONAL, BatchLimits, RecordBatch
from linn.core.batch.format import Formats
from linn.core.batch.steps import Steps
from linn.core.errors.tree import BatchMalformed, ProducerDuplicate
from linn.core.log.producers import OFFSET_UNKNOWN, Numbered, numbers_of
from linn.core.publish.request import PublishRequest
from linn.core.routing.budget import PublishBudget
from linn.core.topics.catalog import Catalog
from linn.core.topics.message_limit import check_steps
from linn.core.topics.topic import Topic


class Destination(NamedTuple):
    """A partition that receives a batch, or a part of it."""

    topic: Topic
    partition: int
    batch: RecordBatch
    known: int | None = None
    """The offset at which it is stored already, because its producer sends it again; None if it is to be stored."""
    dropped: bool = False
    """Whether an interceptor dropped it, so that the partition only has to know that it came."""


Planned = tuple[list[Destination], list[int]]
"""The destinations of one batch, and the ranges of its records that no topic takes: first, end, first,
end and so on.
"""


class Plan:
    """One attempt to find the destinations of a publish. It stores nothing."""

    __slots__ = ("_catalog", "_formats", "_limits", "_request", "_seen", "_version", "budget")

    def __init__(self, catalog: Catalog, limits: BatchLimits, formats: Formats, request: PublishRequest) -> None:
        self._catalog = catalog
        self._limits = limits
        self._formats = formats
        self._request = request
        self._version = catalog.exchanges.version
        self._seen: list[tuple[Topic, tuple[object, ...]]] = []
        self.budget = PublishBudget()

    def made(self) -> Steps[list[Planned]]:
        """Find the destinations of each batch; run the steps to their end.

        Raises:
            BatchError, TopicUnknown, ExchangeUnknown, PartitionUnknown, TopicError, InterceptorFailed, ...
            LimitExceeded: it is over the budget of one publish.
        """
        request, found = self._request, list[Planned]()
        for batch in request.batches:
            batch.verify(self._limits)
            if batch.format:
                self._formats.admit(batch)
            if batch.producer_id:
                _check_numbered(batch, request)
            elif batch.transaction or batch.attributes & TRANSACTIONAL:
                raise BatchMalformed("a batch of a transaction has a producer id")
            try:
                if request.to_exchange:
                    found.append((yield from self._routed(batch)))
                else:
                    topic = self._catalog.topic(request.target)
                    found.append(((yield from self._pieces(topic, batch, request.partition)), []))
            finally:
                batch.forget_body()
        return found

    def _routed(self, batch: RecordBatch) -> Steps[Planned]:
        """The destinations that an exchange gives a batch."""
        budget = self.budget
        routed = yield from self._catalog.router(self._request.target).route_steps(batch, budget)
        parts = yield from routed.part_steps(budget)
        found: list[Destination] = []
        for name, part in parts:
            pieces = yield from self._pieces(self._catalog.topic(name), part, -1)
            budget.store([piece.batch for piece in pieces])
            found += pieces
            if len(parts) > 1:
                yield
        return found, routed.unroutable() if self._request.wants_returned else []

    def _pieces(self, topic: Topic, batch: RecordBatch, partition: int) -> Steps[list[Destination]]:
        """Split a batch for a topic by partition; -1: its partitioner chooses."""
        if partition >= 0:
            topic.partition(partition)
        self._seen.append((topic, _what_counts(topic)))
        limit = topic.settings.message_bytes_max
        may_be_over = limit is not None and (batch.body_bytes > limit or batch.format)
        if may_be_over and not topic.interceptors:  # Or each may become another.
            yield from check_steps(batch, limit, self.budget)
        admitted = topic.admit(batch, self.budget)
        if admitted is None:
            return [Destination(topic, partition, batch, dropped=True)] if batch.producer_id and partition >= 0 else []
        partitions = len(topic.partitions)
        if partition >= 0 or partitions == 1:
            return [Destination(topic, max(partition, 0), admitted)]
        pieces = yield from topic.choice.split_steps(admitted, partitions, self.budget)
        if len(pieces) > 1 and not self._request.to_exchange:
            self.budget.store([piece for _, piece in pieces])
        return [Destination(topic, *piece) for piece in pieces]

    def is_current(self) -> bool:
        """Whether all its topics still exist, and are as they were when they admitted their parts."""
        topics = self._catalog.topics
        return all(topics.get(topic.name) is topic and _what_counts(topic) == seen for topic, seen in self._seen)

    def may_have_lost_a_topic(self) -> bool:
        """Whether an unknown topic may have been deleted after an exchange had named it."""
        return self._request.to_exchange and self._catalog.exchanges.version != self._version


def _check_numbered(batch: RecordBatch, request: PublishRequest) -> None:
    """Check that an idempotent producer's batch comes as it must. Raises BatchMalformed."""
    if len(request.batches) > 1:
        raise BatchMalformed("a batch with a producer id is published alone, so that it is stored or refused alone")
    if bool(batch.attributes & TRANSACTIONAL) != bool(batch.transaction):
        raise BatchMalformed("a batch of a transaction says so (TRANSACTIONAL), and has its number")
    if request.partition < 0 and not batch.attributes & SCATTERED:
        raise BatchMalformed("a batch with a producer id whose partition the broker chooses has to say so (SCATTERED)")


def recognize(request: PublishRequest, planned: list[Planned]) -> list[Planned]:
    """The plan, with what is stored already found if an idempotent producer sends it again. Raises ProducerError."""
    if len(planned) != 1 or not request.batches[0].producer_id:
        return planned
    ((destinations, returned),) = planned
    numbers = numbers_of(request.batches[0])
    return [([_recognized(each, numbers) for each in destinations], returned)]


def _recognized(destination: Destination, numbers: Numbered) -> Destination:
    try:
        known = destination.topic.partitions[destination.partition].find(numbers)
    except ProducerDuplicate:
        if not destination.dropped:
            raise
        known = OFFSET_UNKNOWN
    return destination if known is None else destination._replace(known=known)


def _what_counts(topic: Topic) -> tuple[object, ...]:
    """The state of a topic that decides whether it takes a batch, and into which partition."""
    return topic.settings, topic.interceptors, topic.queue is None, len(topic.partitions)


def without_room(planned: Sequence[Planned]) -> Destination | None:
    """A destination without room, or None. A topic is asked once, for its largest part: its held bytes are a sum.

    Raises TopicFull.
    """
    if len(planned) == 1 and len(planned[0][0]) == 1:
        destinations = planned[0][0]
    else:
        every = [each for destinations, _ in planned for each in destinations]
        every = [each for each in every if each.known is None]
        destinations = list({each.topic: each for each in sorted(every, key=_size)}.values())
    for each in destinations:
        if each.known is None and not each.dropped and not each.topic.has_room(each.batch):
            return each
    return None


def _size(destination: Destination) -> int:
    return destination.batch.size
