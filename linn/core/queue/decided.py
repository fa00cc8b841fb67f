"""Decisions of two-phase deliveries, as operators see and end them, and as the broker watches over them.

Laws: no timer ends a decision, only its holder or an operator. A decision that an operator has ended is over in memory
at once, for a connected holder as well; the caller flushes and waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from linn.core.batch.steps import Steps
from linn.core.queue.event_run import is_transactions
from linn.core.queue.queue import Queue
from linn.core.queue.record_states import DecidedRange
from linn.core.queue.subscription import SharedSubscription
from linn.verbs import Outcome

logger = logging.getLogger("linn.queue")

OVERDUE_MS = 600_000
"""Age from which on a decision is reported: far more than a commit takes."""


class PlacedDecision(NamedTuple):
    """Decided records of one partition of a queue or named subscription."""

    queue: Queue
    partition: int
    decided: DecidedRange

    @property
    def is_connected(self) -> bool:
        """Whether the holder is here."""
        return self.queue.is_connected(self.decided.decision.holder.name)


def decisions_of(
    queue: Queue, consumer: str | None = None, partition: int | None = None, delivery_id: int | None = None
) -> Iterator[list[PlacedDecision]]:
    """The decisions that are not done, by partition: all, or only of one consumer, partition or delivery.

    Raises PartitionUnknown.
    """
    places = range(len(queue.partition_queues)) if partition is None else [partition]
    for place in places:
        subscription = queue.partition_queue(place).subscription
        found = subscription.decided() if subscription.decided_count else ()
        yield [
            PlacedDecision(queue, place, decided)
            for decided in found
            if (consumer is None or decided.decision.holder.name == consumer)
            and (delivery_id is None or decided.decision.delivery_id == delivery_id)
        ]


def end_decision(placed: PlacedDecision, outcome: Outcome) -> None:
    """End a decision for an operator, or a part of it; the caller calls `flush` of the partition.

    Raises DeliveryNotCurrent: it has ended.
    """
    queue, place, decided = placed
    first, end, (holder, delivery_id, _) = decided
    partition_queue = queue.partition_queue(place)
    subscription = partition_queue.subscription
    if outcome == "done":
        effects = subscription.done(holder.name, delivery_id, first, end)
    elif outcome == "return":
        now = partition_queue.clock.monotonic()
        effects = subscription.give_up_decided(holder.name, delivery_id, first, end, now)
    else:
        effects = subscription.reject_decided(holder.name, delivery_id, first, end)
    queue.resolutions += 1
    queue.decision_ended(place, decided)
    partition_queue.follow(effects)


def deliveries_count(subscription: SharedSubscription) -> int:
    """The number of deliveries of which records are decided and not done."""
    return len({it.decision.delivery_id for it in subscription.decided()}) if subscription.decided_count else 0


def oldest_decision_ms(queue: Queue) -> int | None:
    """The wall time of the oldest decision that is not done; None if there is none."""
    return min((_since_ms(it) for found in decisions_of(queue) for it in found), default=None)


class DecisionWatch:
    """Warns of decisions that are old: once of each holder, connected or not, until they are done."""

    def __init__(self) -> None:
        self._warned_ms: dict[tuple[str, str, str], int] = {}
        """The time of the warning, by (topic, subscription, holder)."""

    def look(self, queues: Iterable[Queue], now_ms: int) -> Steps[None]:
        """Examine all decisions, and warn."""
        lasting: dict[tuple[str, str, str], int] = {}
        for queue in queues:
            by_holder: dict[str, list[PlacedDecision]] = {}
            for found in decisions_of(queue):
                for placed in found:
                    name = placed.decided.decision.holder.name
                    if not is_transactions(name):  # Transactions have timeouts.
                        by_holder.setdefault(name, []).append(placed)
                yield
            for name, decisions in by_holder.items():
                key = queue.topic, queue.name, name
                oldest = min(decisions, key=_since_ms)
                warned_ms = self._warned_ms.get(key)
                if warned_ms is not None and _since_ms(oldest) <= warned_ms:
                    lasting[key] = warned_ms
                elif now_ms - _since_ms(oldest) >= OVERDUE_MS:
                    lasting[key] = now_ms
                    _warn(oldest, sum(it.decided.end - it.decided.first for it in decisions), now_ms)
        self._warned_ms = lasting


def _since_ms(placed: PlacedDecision) -> int:
    return placed.decided.decision.holder.since_ms


def _warn(oldest: PlacedDecision, records: int, now_ms: int) -> None:
    queue, holder = oldest.queue, oldest.decided.decision.holder
    subscription = f" --subscription {queue.name}" if queue.name else ""
    text = (
        "topic %(topic)s: %(records)d records were decided to %(consumer)s, the first of them %(age_s)d s ago, and are "
        "not done; it is %(connected)s; to look at them: %(command)s"
    )
    about = {
        "topic": queue.topic,
        "subscription": queue.name,
        "consumer": holder.name,
        "records": records,
        "connected": "connected" if oldest.is_connected else "not connected",
        "age_s": (now_ms - holder.since_ms) // 1000,
        "command": f"linn deliveries list {queue.topic}{subscription} --consumer {holder.name}",
    }
    logger.warning(text, about)
