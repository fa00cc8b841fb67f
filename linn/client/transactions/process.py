"""Process: read, process and write exactly once: a function's output is published together with its message's
settlement.

A worker handles one delivery in one transaction. If it is aborted, by a rebalance, a lost connection or a restart of
either side, none of its output is visible, and its messages come again.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from linn.client.arguments import HeadersInput
from linn.client.consume.consumer import Consumer
from linn.client.consume.message import Batch, Message
from linn.client.consume.subscription import Subscription
from linn.client.transactions.transaction import Transaction
from linn.core.batch.record import Labels
from linn.core.errors.tree import (
    ClientClosed,
    ConnectionLost,
    DeliveryError,
    DeliveryFenced,
    GroupFenced,
    LinnError,
    RequestTimeout,
    SubscriptionWrongKind,
    TransactionError,
    TransactionFenced,
)
from linn.wire.messages import ConsumerKind

logger = logging.getLogger("linn.client")

PAUSE_S = 0.1
"""Pause after an aborted transaction, for a broker that has just started or a group that is rebalancing."""


class Output(NamedTuple):
    """Output message of a function.

    Example:
        Output(b"42 EUR", key=b"customer 7", topic="bills")
    """

    value: bytes | None
    key: bytes | None = None
    routing_key: str = ""
    labels: Labels | None = None
    headers: HeadersInput | None = None
    topic: str | None = None
    """The topic to publish to, in place of the sink."""


Outputs = bytes | Output | Iterable[bytes | Output] | None
"""The result of a function for one message: one message, several, or none."""
Function = Callable[[Message], Outputs] | Callable[[Message], Awaitable[Outputs]]
Target = tuple[str | None, str | None]
"""A topic, or an exchange."""


class Worker:
    """Worker: a consumer, and successive transactions of one name."""

    def __init__(
        self,
        consumer: Consumer,
        transaction: Callable[[], Transaction],
        function: Function,
        sink: Target,
        *,
        is_group: bool,
    ) -> None:
        self.consumer = consumer
        self._transaction = transaction
        self._function = function
        self._sink = sink
        self._is_group = is_group

    async def run(self) -> None:
        """Work until the consumer is closed, or this is cancelled.

        Raises TransactionFenced: another worker has this name; SubscriptionWrongKind; and errors of the function.
        """
        async with self.consumer as consumer:
            check_kind(consumer._subscriptions, is_group=self._is_group)
            while not consumer._closed:
                tx = self._transaction()
                await self._take_over(tx)
                with taken_over_is_fenced():
                    batches = await consumer._next_delivery()
                tx._note_before(batches, is_group=self._is_group)
                try:
                    await self._handle(tx, batches)
                except LinnError as error:
                    if not is_repeated(error):
                        raise
                    await tx._give_back()
                    log_repeated(consumer.topics, error)
                    await consumer._sleep(PAUSE_S)

    async def _take_over(self, tx: Transaction) -> None:
        """Take over the name before waiting: an open transaction may hold the messages that the worker waits for."""
        while True:
            try:
                return await tx._take_over()
            except LinnError as error:
                if not is_repeated(error):
                    raise
                await self.consumer._sleep(PAUSE_S)

    async def _handle(self, tx: Transaction, batches: Sequence[Batch]) -> None:
        async with tx:
            outputs: list[Output] = []
            for batch in batches:
                for message in batch:
                    made = self._function(message)
                    outputs += listed(await made if inspect.isawaitable(made) else made)
            for (topic, exchange), columns in by_target(outputs, self._sink).items():
                producer = await tx.producer(topic, exchange=exchange)
                await producer.publish_many(**columns)


def check_kind(subscriptions: Iterable[Subscription], *, is_group: bool) -> None:
    """Check that a transaction can settle what a consumer receives. Raises SubscriptionWrongKind."""
    kind = ConsumerKind.GROUP if is_group else ConsumerKind.SHARED
    if any(subscription.kind != kind for subscription in subscriptions):
        raise SubscriptionWrongKind("a process reads a queue, or a stream as a member of a group: `group` names it")


@contextlib.contextmanager
def taken_over_is_fenced() -> Iterator[None]:
    """Raise TransactionFenced if another consumer has taken over the name, which is the worker's."""
    try:
        yield
    except (DeliveryFenced, GroupFenced) as error:
        raise TransactionFenced(error.text) from error


def by_target(outputs: Iterable[Output], sink: Target) -> dict[Target, dict[str, Any]]:
    """Return the arguments of `publish_many` by topic or exchange."""
    found: dict[Target, list[Output]] = {}
    for output in outputs:
        found.setdefault(sink if output.topic is None else (output.topic, None), []).append(output)
    return {
        target: {
            "values": [output.value for output in some],
            "keys": [output.key for output in some],
            "routing_keys": [output.routing_key for output in some],
            "labels": [output.labels for output in some],
            "headers": [output.headers for output in some],
        }
        for target, some in found.items()
    }


def is_repeated(error: LinnError) -> bool:
    """Tell whether a worker goes on after an error: its transaction was aborted, and its messages come again."""
    if isinstance(error, TransactionFenced):
        return False
    again = TransactionError, DeliveryError, ConnectionLost, RequestTimeout
    return not isinstance(error, ClientClosed) and (error.retriable or isinstance(error, again))


def log_repeated(topics: Sequence[str], error: LinnError) -> None:
    """Log that messages come again."""
    text = "%(topic)s: a transaction was aborted, and its messages come again: %(error)s"
    logger.info(text, {"topic": ", ".join(topics), "error": error.text, "code": error.code})


def listed(outputs: Outputs) -> list[Output]:
    """Return the outputs of a function as a list."""
    if outputs is None:
        return []
    if isinstance(outputs, bytes | Output):
        outputs = [outputs]
    return [output if isinstance(output, Output) else Output(output) for output in outputs]
