"""Transaction of the blocking client: the async one, used by any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from linn.client.blocking.facade import Facade
from linn.client.blocking.generated.message import Batch, Message
from linn.client.blocking.generated.producer import Producer
from linn.client.consume import message as asynchronous_message
from linn.client.transactions import transaction as asynchronous
from linn.core.errors.tree import MessageInvalid


class BaseTransaction(Facade[asynchronous.Transaction]):
    """Part of `Transaction` that is written by hand.

    Any number of threads may work in it; one thread enters and leaves it.
    """

    def __enter__(self) -> Self:
        """Begin. Raises TransactionFenced, TransactionError, ConnectionLost, RequestTimeout, LimitExceeded."""
        self._thread.call(self._made.__aenter__)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit, or abort if the block raised; raises as that of `linn.client.Transaction`.

        If the wait for a commit is interrupted (KeyboardInterrupt), it may or may not be committed.
        """
        self._thread.call(self._made.__aexit__, exc_type, exc, traceback)

    def _take_over(self) -> None:
        self._thread.call(self._made._take_over)

    def _note_before(self, batches: Sequence[Batch], *, is_group: bool) -> None:
        self._made._note_before([batch._origin for batch in batches], is_group=is_group)

    def _give_back(self) -> None:
        self._thread.call(self._made._give_back)

    def _producer(self, topic: str | None, *, exchange: str | None) -> Producer:
        made = self._thread.call(self._made.producer, topic, exchange=exchange)
        return Producer(lambda producer: None, self._thread, made)

    def _ack(self, received: Message | Batch) -> None:
        self._made.ack(origin_of(received))

    def _commit(self, received: Message | Batch) -> None:
        self._made.commit(origin_of(received))


def origin_of(received: Message | Batch) -> asynchronous_message.Message | asynchronous_message.Batch:
    """Return the loop's message or batch. Raises MessageInvalid for any other object."""
    if isinstance(received, Batch):
        return received._origin
    if isinstance(received, Message):
        return asynchronous_message.Message(received.batch._origin, received.index)
    raise MessageInvalid(asynchronous.SETTLES_RECEIVED)
