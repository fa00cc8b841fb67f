"""The verbs about two-phase deliveries: decided records that are not done, and how an operator ends a decision.

Law: when an operator ends a decision, the log records it with everything known about the caller.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence

from linn import verbs
from linn.core.admin.subscriptions import queue_of
from linn.core.batch.steps import Steps
from linn.core.env.log_fields import log_fields
from linn.core.errors.texts import counted
from linn.core.errors.tree import ConfigError, DeliveryNotCurrent, StorageError, TransactionError
from linn.core.loop.long_work import LongWork
from linn.core.ports.principal import Principal
from linn.core.queue.decided import PlacedDecision, decisions_of, end_decision
from linn.core.queue.event_run import is_transactions
from linn.core.queue.queue import Queue
from linn.core.topics.catalog import Catalog
from linn.core.topics.topic import Topic
from linn.core.transactions.coordinator import TransactionCoordinator
from linn.core.transactions.holder import holder_of
from linn.descriptions import DecidedDeliveries, DecidedDelivery
from linn.merging import DELIVERIES_MAX
from linn.rights import BROWSE, TOPIC

logger = logging.getLogger("linn.administration")

DECIDED_SHOWN_MAX = DELIVERIES_MAX
"""Limit of the decided ranges in one answer of about 200 KiB; further ranges are counted."""


class DeliveryAdministration:
    """Decided deliveries, shown and ended while the broker runs."""

    def __init__(self, catalog: Catalog, transactions: TransactionCoordinator, long_work: LongWork) -> None:
        self._catalog = catalog
        self._transactions = transactions
        self._long_work = long_work

    async def list_all(self, asked: verbs.DeliveryFilter, caller: Principal) -> DecidedDeliveries:
        """The decided deliveries of one topic, or of all that the caller may browse, in the order of subscriptions,
        partitions and offsets."""
        if asked.topic is not None:
            caller.access.check(BROWSE, TOPIC, asked.topic)
        topics, topic = self._catalog.topics, None if asked.topic is None else self._catalog.led_topic(asked.topic)
        may = caller.access.may
        among = [topics[name] for name in sorted(topics) if may(BROWSE, TOPIC, name)] if topic is None else [topic]
        queues = [queue for topic in among for _, queue in sorted(topic.subscriptions.items())]
        if topic is None and (asked.subscription, asked.partition) != (None, None):
            raise ConfigError('"subscription" and "partition" need the argument "topic"')
        if topic is not None and asked.subscription is not None:
            queues = [queue_of(topic, asked.subscription)]
        if topic is not None and asked.partition is not None:
            topic.partition(asked.partition)
        consumer = None if asked.consumer is None else self._holder(asked.consumer)
        chosen = consumer, asked.partition, asked.delivery_id
        found, more = await self._long_work.run(_first_of(queues, *chosen), immediate=True)
        return {"deliveries": [self._as_json(placed) for placed in found], "more": more}

    async def resolve(self, asked: verbs.DeliveryResolution, caller: Principal) -> verbs.Resolved:
        """End a decision for its consumer, which may never return. Durable when this returns."""
        topic, outcome = self._catalog.led_topic(asked.topic), asked.outcome
        queue = queue_of(topic, asked.subscription)
        self._check_no_transaction(queue, asked)
        found = list(_chosen(queue, asked))
        records = sum(placed.decided.end - placed.decided.first for placed in found)
        warnings: list[verbs.Warned] = [{"text": text} for text in _warnings(topic, found[0], outcome)]
        if asked.validate_only:
            return {"records": records, "warnings": warnings}
        partition_queue = queue.partition_queue(found[0].partition)
        for placed in found:
            end_decision(placed, outcome)
        _record(found, outcome, records, caller)
        try:
            await partition_queue.log.commit_all()
        except StorageError as error:
            about = {"topic": topic.name, "partition": str(partition_queue.partition.id)} | log_fields(error)
            logger.error("%(partition)s: what an operator has ended is not durable yet: %(error)s", about)
            raise
        return {"records": records, "warnings": warnings}

    def _check_no_transaction(self, queue: Queue, asked: verbs.DeliveryResolution) -> None:
        """Check that a resolution does not concern records held by a transaction. Raises TransactionError."""
        consumer = self._holder(asked.consumer)
        holders = {
            placed.decided.decision.holder.name
            for found in decisions_of(queue, None, asked.partition, asked.delivery_id)
            for placed in found
        }
        if consumer in holders and not is_transactions(consumer):
            return
        for holder in filter(is_transactions, holders):
            advice = ": `linn deliveries list` names it, and `linn transactions abort` aborts it"
            is_open = self._transactions.name_of(holder)
            raise TransactionError(f"the records are held by a transaction{advice if is_open else ' that is ending'}")

    def _holder_name(self, holder: str) -> str:
        """The name of a holder, as shown to people."""
        if not is_transactions(holder):
            return holder
        name = self._transactions.name_of(holder)
        return f'transaction "{name}"' if name else "a transaction of an earlier time"

    def _holder(self, shown: str) -> str:
        """The holder that an operator names: a consumer's name, or a transaction as it is shown."""
        found = re.fullmatch('transaction "(.*)"', shown)
        named = self._transactions.names.get(found[1]) if found is not None else None
        return shown if named is None else holder_of(named.producer_id, named.number)

    def _as_json(self, placed: PlacedDecision) -> DecidedDelivery:
        queue, partition, (first, end, (holder, delivery_id, attempt)) = placed
        return {
            "topic": queue.topic,
            "subscription": queue.name,
            "partition": partition,
            "delivery_id": delivery_id,
            "first": first,
            "end": end,
            "consumer": self._holder_name(holder.name),
            "attempt": attempt,
            "since_ms": holder.since_ms,
            "connected": placed.is_connected,
        }


def _first_of(
    queues: Sequence[Queue], consumer: str | None, partition: int | None, delivery_id: int | None
) -> Steps[tuple[list[PlacedDecision], int]]:
    """The first decided ranges, and the number of ranges left out."""
    first: list[PlacedDecision] = []
    more = 0
    for queue in queues:
        for found in decisions_of(queue, consumer, partition, delivery_id):
            room = DECIDED_SHOWN_MAX - len(first)
            first += found[:room]
            more += len(found[room:])
            yield
    return first, more


def _chosen(queue: Queue, asked: verbs.DeliveryResolution) -> Iterator[PlacedDecision]:
    """The decided ranges chosen by a resolution, cut to its offsets. Raises DeliveryNotCurrent: there are none."""
    consumer, partition, delivery_id = asked.consumer, asked.partition, asked.delivery_id
    first, end = asked.first, asked.end
    is_any = False
    for found in decisions_of(queue, consumer, partition, delivery_id):
        for placed in found:
            start = max(placed.decided.first, first or 0)
            stop = placed.decided.end if end is None else min(placed.decided.end, end)
            if start < stop:
                is_any = True
                yield placed._replace(decided=placed.decided._replace(first=start, end=stop))
    if not is_any:
        text = f"{queue.topic}: delivery {delivery_id} of partition {partition} is not decided to {consumer}"
        raise DeliveryNotCurrent(text if (first, end) == (None, None) else f"{text} at these offsets")


def _warnings(topic: Topic, placed: PlacedDecision, outcome: verbs.Outcome) -> Iterator[str]:
    """Warnings about consequences of an outcome."""
    name = placed.decided.decision.holder.name
    if placed.is_connected:
        yield f"{name} is connected, and may be storing the effect now"
    if outcome == "return":
        yield f"if {name} has stored the effect, it happens twice"
    elif outcome == "done":
        yield f"if {name} has not stored the effect, it never happens"
    else:
        yield f"if {name} has stored the effect, it happens again where the dead letters are replayed"
        if not topic.settings.has_dead_letters:
            yield f"{topic.name} has no dead-letter topic: the records are dropped"


def _record(found: Sequence[PlacedDecision], outcome: verbs.Outcome, records: int, caller: Principal) -> None:
    """Write a resolution to the log."""
    queue, partition, (_, _, (holder, delivery_id, attempt)) = found[0]
    text = (
        "topic %(topic)s, partition %(partition)d: an operator, %(caller)s, has ended delivery %(delivery_id)d of "
        "%(consumer)s as %(outcome)s: %(count)s, at offsets %(offsets)s, decided at %(since_ms)d ms in attempt "
        "%(attempt)d"
    )
    about = {
        "topic": queue.topic,
        "subscription": queue.name,
        "partition": partition,
        "caller": caller.described(),
        "delivery_id": delivery_id,
        "consumer": holder.name,
        "is_connected": found[0].is_connected,
        "outcome": outcome,
        "records": records,
        "count": counted(records, "record"),
        "offsets": ", ".join(f"{it.decided.first} to {it.decided.end - 1}" for it in found),
        "since_ms": holder.since_ms,
        "attempt": attempt,
    }
    logger.warning(text, about)
