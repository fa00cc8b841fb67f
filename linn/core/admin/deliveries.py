"""The verbs about two-phase deliveries: what was decided and is not done, and how an operator ends it.

Law: a decision that was ended by an operator is on record, with everything that is known of who asked.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any, get_args

from linn.core.admin.administered import Administered
from linn.core.admin.verb import only_validates
from linn.core.batch.steps import Steps
from linn.core.env.log_fields import log_fields
from linn.core.errors.texts import counted
from linn.core.errors.tree import ConfigError, DeliveryNotCurrent, StorageError, SubscriptionWrongKind, TransactionError
from linn.core.queue.decided import Outcome, PlacedDecision, decisions_of, end_decision, is_transactions
from linn.core.queue.queue import Queue
from linn.core.topics.topic import Topic
from linn.core.transactions.holder import holder_of

logger = logging.getLogger("linn.administration")

Arguments = Mapping[str, Any]

DECIDED_SHOWN_MAX = 1_000
"""Limit of the decided ranges in one answer, which is about 200 KiB; the others are counted."""


class DeliveryAdministration:
    """Decided deliveries, shown and ended while the broker runs."""

    def __init__(self, broker: Administered) -> None:
        self._broker = broker

    async def list_decided(self, arguments: Arguments) -> Any:
        """The decided deliveries of one topic or of all, in the order of subscriptions, partitions and offsets."""
        topics = self._broker.topics
        chosen_topics = [self._topic(arguments)] if "topic" in arguments else [topics[name] for name in sorted(topics)]
        queues = [queue for topic in chosen_topics for _, queue in sorted(topic.subscriptions.items())]
        if "subscription" in arguments:
            queues = [_queue(self._topic(arguments), arguments)]
        consumer = self._holder(_text(arguments, "consumer")) if "consumer" in arguments else None
        chosen = consumer, _optional_number(arguments, "partition"), _optional_number(arguments, "delivery_id")
        if chosen[1] is not None:
            self._topic(arguments).partition(chosen[1])
        found, more = await self._broker.long_work.run(_first_of(queues, *chosen), immediate=True)
        return {"deliveries": [self._as_json(placed) for placed in found], "more": more}

    async def resolve(self, arguments: Arguments, caller: str) -> Any:
        """End a decision for its consumer, which may never come back. Durable when it is answered."""
        topic = self._topic(arguments)
        queue, outcome = _queue(topic, arguments), _outcome(arguments)
        self._check_no_transaction(queue, arguments)
        found = list(_chosen(queue, arguments))
        records = sum(placed.decided.end - placed.decided.first for placed in found)
        result = {"records": records, "warnings": [{"text": text} for text in _warnings(topic, found[0], outcome)]}
        if only_validates(arguments):
            return result
        partition_queue = queue.partition_queue(found[0].partition)
        for placed in found:
            end_decision(placed, outcome)
        _record(found, outcome, records, caller)
        try:
            partition_queue.log.flush()
            if partition_queue.log.state is not None:
                await partition_queue.log.state.partition.commit_all()
        except StorageError as error:
            about = {"topic": topic.name, "partition": str(partition_queue.partition.id)} | log_fields(error)
            logger.error("%(partition)s: what an operator has ended is not durable yet: %(error)s", about)
            raise
        return result

    def _topic(self, arguments: Arguments) -> Topic:
        return self._broker.topic(_text(arguments, "topic"))

    def _check_no_transaction(self, queue: Queue, arguments: Arguments) -> None:
        """Check that a resolution is not about what a transaction holds. Raises TransactionError."""
        consumer, delivery = self._holder(_text(arguments, "consumer")), _number(arguments, "delivery_id")
        holders = {
            placed.decided.decision.holder.name
            for found in decisions_of(queue, None, _number(arguments, "partition"), delivery)
            for placed in found
        }
        if consumer in holders and not is_transactions(consumer):
            return
        for holder in filter(is_transactions, holders):
            name = self._broker.transactions.name_of(holder)
            advice = f": abort it with `linn transactions abort {quote(name)}`" if name else ", which is being ended"
            raise TransactionError(f"the records are held by {self._shown(holder)}{advice}")

    def _shown(self, holder: str) -> str:
        """The name of a holder, for people."""
        if not is_transactions(holder):
            return holder
        name = self._broker.transactions.name_of(holder)
        return f'transaction "{name}"' if name else "a transaction of an earlier time"

    def _holder(self, shown: str) -> str:
        """The holder that an operator calls so: a consumer's name, or a transaction as it is shown."""
        found = re.fullmatch('transaction "(.*)"', shown)
        each = self._broker.transactions.names.get(found[1]) if found is not None else None
        return shown if each is None else holder_of(each.producer_id, each.number)

    def _as_json(self, placed: PlacedDecision) -> dict[str, Any]:
        queue, partition, (first, end, (holder, delivery_id, attempt)) = placed
        return {
            "topic": queue.topic,
            "subscription": queue.name,
            "partition": partition,
            "delivery_id": delivery_id,
            "first": first,
            "end": end,
            "consumer": self._shown(holder.name),
            "attempt": attempt,
            "since_ms": holder.since_ms,
            "connected": placed.is_connected,
        }


def _first_of(
    queues: Sequence[Queue], consumer: str | None, partition: int | None, delivery_id: int | None
) -> Steps[tuple[list[PlacedDecision], int]]:
    """The first decided ranges, and the number of those that are left out."""
    first: list[PlacedDecision] = []
    more = 0
    for queue in queues:
        for found in decisions_of(queue, consumer, partition, delivery_id):
            room = DECIDED_SHOWN_MAX - len(first)
            first += found[:room]
            more += len(found[room:])
            yield
    return first, more


def _chosen(queue: Queue, arguments: Arguments) -> Iterator[PlacedDecision]:
    """The decided ranges that a resolution is about, cut to its offsets. Raises DeliveryNotCurrent: there are none."""
    consumer, partition = _text(arguments, "consumer"), _number(arguments, "partition")
    delivery_id = _number(arguments, "delivery_id")
    first, end = _optional_number(arguments, "first"), _optional_number(arguments, "end")
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


def _warnings(topic: Topic, placed: PlacedDecision, outcome: Outcome) -> Iterator[str]:
    """Warnings of what an outcome may lead to."""
    name = placed.decided.decision.holder.name
    if placed.is_connected:
        yield f"{name} is connected, and may be storing the effect now"
    if outcome == "return":
        yield f"if {name} has stored the effect, it happens twice"
    elif outcome == "done":
        yield f"if {name} has not stored the effect, it never happens"
    else:
        yield f"if {name} has stored the effect, it happens again where the dead letters are replayed"
        if topic.settings.dead_letter is None:
            yield f"{topic.name} has no dead-letter topic: the records are dropped"


def _record(found: Sequence[PlacedDecision], outcome: Outcome, records: int, caller: str) -> None:
    """Put a resolution on record."""
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
        "caller": caller,
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


def _queue(topic: Topic, arguments: Arguments) -> Queue:
    """The queue or named subscription of a request. Raises SubscriptionWrongKind, SharedUnknown, ConfigError."""
    name = arguments.get("subscription", "")
    if not isinstance(name, str):
        raise ConfigError('the argument "subscription" must be text')
    if topic.queue is None and not name:
        raise SubscriptionWrongKind(f"topic {topic.name} is a stream: name one of its shared subscriptions")
    return topic.shared(name)


def _outcome(arguments: Arguments) -> Outcome:
    outcome = arguments.get("outcome")
    for known in get_args(Outcome):
        if outcome == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError('the argument "outcome" must be "done", "return" or "dead-letter"')


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ConfigError(f'the argument "{name}" is missing, or not text')
    return value


def _number(arguments: Arguments, name: str) -> int:
    value = _optional_number(arguments, name)
    if value is None:
        raise ConfigError(f'the argument "{name}" is missing')
    return value


def _optional_number(arguments: Arguments, name: str) -> int | None:
    value = arguments.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ConfigError(f'the argument "{name}" must be a whole number, not below 0')
    return value
