"""Batches and messages of a blocking consumer, which any thread may read and settle."""

from __future__ import annotations

from typing import Protocol

from linn.client.arguments import HeadersInput
from linn.client.blocking.loop_thread import LoopThread
from linn.client.blocking.settling import Settled
from linn.client.consume import message as asynchronous
from linn.client.consume.message import NO_REPLY
from linn.client.consume.received import ReceivedBatch
from linn.core.errors.tree import SubscriptionWrongKind
from linn.wire.messages import Verdict


class Owner(Protocol):
    """The consumer that received a batch."""

    _thread: LoopThread

    def _settle(
        self, batch: asynchronous.Batch, first: int, end: int, verdict: Verdict, ms: int, reason: str
    ) -> Settled:
        """Settle the records of a batch from one index up to another."""


class BaseBatch(ReceivedBatch):
    """Part of `Batch` that is written by hand."""

    __slots__ = ("_origin", "_owner")

    def __init__(self, origin: asynchronous.Batch, owner: Owner | None = None) -> None:
        super().__init__(origin.topic, origin.partition, origin.records, origin._first, origin._delivery)
        self._origin = origin
        """The loop's batch."""
        self._owner = owner
        """The consumer, which lives as long as the batch; None for a fetched batch."""

    def _settle(self, first: int, end: int, verdict: Verdict, ms: int, reason: str = "") -> Settled:
        """Settle records by index. Raises SubscriptionWrongKind if they were fetched and not delivered."""
        if self._owner is None:
            raise SubscriptionWrongKind("fetched records can't be settled: no consumer received them")
        return self._owner._settle(self._origin, first, end, verdict, ms, reason)

    def _reply(self, index: int, value: bytes | None, headers: HeadersInput | None) -> bool:
        """See `Message.reply`."""
        if self._owner is None:
            raise SubscriptionWrongKind(NO_REPLY)
        return self._owner._thread.call(self._origin._reply, index, value, headers)
