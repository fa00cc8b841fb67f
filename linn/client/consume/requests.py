"""Callers of a consumer's requests, whose answers make subscriptions and deliver records."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from linn.client.connection.answer import Answer, again
from linn.client.connection.connection import Connection
from linn.client.consume.limits import Limits
from linn.client.consume.subscription import Subscriber, Subscription
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError, ProtocolError
from linn.wire.messages import Deliver, Message, Subscribed, Unsubscribe


class SubscribeRequest(Answer):
    """The caller of one Subscribe: makes the subscription before the first push to it is handled."""

    __slots__ = ("_connection", "_consumer", "_is_abandoned", "_limits", "_positions", "_topic")

    def __init__(
        self, consumer: Subscriber, connection: Connection, topic: str, limits: Limits, positions: dict[int, int]
    ) -> None:
        super().__init__()
        self._consumer = consumer
        self._connection = connection
        self._topic = topic
        self._limits = limits
        self._positions = positions
        self._is_abandoned = False

    def abandon(self) -> None:
        """Give up waiting: if the broker makes the subscription nevertheless, it is ended at once."""
        self._is_abandoned = True

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """Make the subscription, if the broker agreed."""
        if isinstance(message, Subscribed) and self._is_abandoned:
            self._connection.ask(Answer(), Unsubscribe(message.subscription))
        elif isinstance(message, Subscribed):
            made = Subscription(self._consumer, self._connection, self._topic, message, self._limits, self._positions)
            self._consumer._on_subscribed(made)
            super().answered(message, batches)
        else:
            self.failed(ProtocolError(f"the broker answered subscribe with {type(message).__name__}"))


async def until_subscribed(answers: Sequence[SubscribeRequest], limit: AbstractContextManager[None]) -> None:
    """Wait until the broker has answered all Subscribe requests. Raises the first refusal.

    If the wait ends early, unanswered requests are given up.
    """
    try:
        with limit:
            refused = [error for answer in answers if (error := await answer.refusal()) is not None]
    except BaseException:
        for answer in answers:
            answer.abandon()
        raise
    if refused:
        raise again(refused[0])


class PullRequest:
    """Caller of an iteration's pull. The iteration may stop waiting: its next step takes the records."""

    def __init__(self, consumer: Subscriber, subscription: Subscription) -> None:
        self._consumer = consumer
        self._subscription = subscription

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """Pass the pulled records on."""
        if isinstance(message, Deliver):
            self._consumer._on_pulled(self._subscription.delivered(message, batches), None)
        else:
            self.failed(ProtocolError(f"the broker answered pull with {type(message).__name__}"))

    def failed(self, error: LinnError) -> None:
        """Pass the failure on."""
        self._consumer._on_pulled([], error)
