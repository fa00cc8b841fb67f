"""Who waits for the answers with which subscriptions begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linn.client.connection.answer import Answer
from linn.client.consume.subscription import Limits, Subscription
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import ProtocolError
from linn.wire import messages
from linn.wire.messages import Subscribed

if TYPE_CHECKING:
    from linn.client.connection.connection import Connection
    from linn.client.consume.consumer import Consumer


class SubscribeRequest(Answer):
    """The caller of one Subscribe: makes the subscription before anything that is pushed to it is read."""

    __slots__ = ("_connection", "_consumer", "_limits", "_positions")

    def __init__(self, consumer: Consumer, connection: Connection, limits: Limits, positions: dict[int, int]) -> None:
        super().__init__()
        self._consumer = consumer
        self._connection = connection
        self._limits = limits
        self._positions = positions

    def answered(self, message: messages.Message, batches: list[RecordBatch]) -> None:
        """The broker agreed, or said something else."""
        if isinstance(message, Subscribed):
            made = Subscription(self._consumer, self._connection, message, self._limits, self._positions)
            self._consumer._on_subscribed(made)
            super().answered(message, batches)
        else:
            self.failed(ProtocolError(f"the broker answered subscribe with {type(message).__name__}"))


class UnsubscribeRequest(Answer):
    """The caller of one Unsubscribe."""

    __slots__ = ("_subscription",)

    def __init__(self, subscription: Subscription) -> None:
        super().__init__()
        self._subscription = subscription

    def answered(self, message: messages.Message, batches: list[RecordBatch]) -> None:
        """The subscription is over."""
        self._subscription.end()
        super().answered(message, batches)
