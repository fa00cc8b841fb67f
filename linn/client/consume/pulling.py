"""PullRequest: a pull of an iteration on its way. Its waiter may leave: the next step takes what it brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError, ProtocolError
from linn.wire.messages import Deliver, Message

if TYPE_CHECKING:
    from linn.client.consume.consumer import Consumer
    from linn.client.consume.subscription import Subscription


class PullRequest:
    """The caller of such a pull."""

    def __init__(self, consumer: Consumer, subscription: Subscription) -> None:
        self._consumer = consumer
        self._subscription = subscription

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """The broker answered."""
        if isinstance(message, Deliver):
            self._consumer._on_pulled(self._subscription.delivered(message, batches), None)
        else:
            self.failed(ProtocolError(f"the broker answered pull with {type(message).__name__}"))

    def failed(self, error: LinnError) -> None:
        """The broker refused, or the connection was lost."""
        self._consumer._on_pulled([], error)
