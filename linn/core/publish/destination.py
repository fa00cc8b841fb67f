"""Where a published batch goes, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from linn.core.batch.batch import RecordBatch
from linn.core.batch.steps import Steps
from linn.core.errors.tree import BrokerStopping
from linn.core.log.partition import Partition
from linn.core.routing.budget import PublishBudget
from linn.core.routing.routed_batch import RoutedBatch
from linn.core.topics.message_limit import check_in_steps
from linn.core.topics.topic import Topic

if TYPE_CHECKING:
    from linn.core.broker.broker import Broker


class Destination(NamedTuple):
    """One partition that a batch, or a part of it, goes to."""

    topic: Topic
    partition: int
    batch: RecordBatch


class Placed(NamedTuple):
    """What became of one published batch."""

    partition: int
    """Of the whole batch; -1: it went to several, to none, or not all of it went anywhere."""
    base_offset: int
    """-1 where `partition` is."""
    copies: int
    """Records stored, in all topics together."""
    awaits: list[tuple[Partition, int]]
    """The batch is confirmed once each partition has committed up to its offset; empty where that is so already."""


class Plan:
    """Where a publish goes that is too large to be taken apart at once. Nothing is stored by it.

    Law: between two steps anything may happen to the broker's topics; what was found holds if `is_current` says so
    where it is used, without a step between.
    """

    def __init__(self, broker: Broker, target: str, to_exchange: bool) -> None:
        self._broker = broker
        self._target = target
        self._to_exchange = to_exchange
        self._seen: dict[Topic, tuple[object, ...]] = {}
        self._version = broker.exchanges.version

    def destinations_in_steps(
        self, batch: RecordBatch, budget: PublishBudget
    ) -> Steps[tuple[list[Destination], RoutedBatch | None]]:
        """As `Broker.destinations` where nobody names a partition; and the answers, where it was an exchange's."""
        broker, parts, routed = self._broker, [(self._target, batch)], None
        if broker.stopping:
            raise BrokerStopping("the broker is stopping")
        if self._to_exchange:
            routed = yield from broker.router(self._target).route_in_steps(batch, budget)
            parts = yield from routed.parts_in_steps(budget)
        found: list[Destination] = []
        for name, part in parts:
            topic = broker.topic(name)
            self._seen[topic] = _what_counts(topic)
            if not topic.interceptors:  # Or each message may become another.
                yield from check_in_steps(part, topic.settings.message_bytes_max, budget)
            admitted = topic.admit(part, budget)
            if admitted is not None:
                pieces = yield from topic.choice.split_in_steps(admitted, len(topic.partitions), budget)
                those = [Destination(topic, *piece) for piece in pieces]
                budget.store(those)
                found += those
            yield
        batch.forget_views()
        return found, routed

    def is_current(self) -> bool:
        """Whether all its topics are still there, and what they were when they admitted their parts."""
        topics = self._broker.topics
        return all(
            topics.get(topic.name) is topic and _what_counts(topic) == seen for topic, seen in self._seen.items()
        )

    def may_have_lost_a_topic(self) -> bool:
        """Whether a topic that is unknown may have been deleted after an exchange had named it."""
        return self._to_exchange and self._broker.exchanges.version != self._version


def _what_counts(topic: Topic) -> tuple[object, ...]:
    """What decides whether a topic takes a batch, and into which partition."""
    return topic.settings, topic.interceptors, topic.queue is None, len(topic.partitions)
