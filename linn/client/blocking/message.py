"""Batches and messages of a blocking consumer, which any thread may read and settle."""

from __future__ import annotations

from collections.abc import Callable

from linn.client.blocking.settling import Settled
from linn.client.consume import message as asynchronous
from linn.client.consume.received import ReceivedBatch
from linn.core.errors.tree import SubscriptionWrongKind
from linn.wire.messages import Verdict

Settle = Callable[[asynchronous.Batch, int, int, Verdict, int, str], Settled]
"""Settles the records of a batch from one index up to another."""


class BaseBatch(ReceivedBatch):
    """Part of `Batch` that is written by hand."""

    __slots__ = ("_origin", "_settle_origin")

    def __init__(self, origin: asynchronous.Batch, settle: Settle | None = None) -> None:
        super().__init__(origin.topic, origin.partition, origin.records, origin._first, origin._delivery)
        self._origin = origin
        """The loop's batch."""
        self._settle_origin = settle
        """The consumer's method, which keeps the consumer alive as long as the batch; None for a fetched batch."""

    def _settle(self, first: int, end: int, verdict: Verdict, ms: int, reason: str = "") -> Settled:
        """Settle records by index. Raises SubscriptionWrongKind if they were fetched and not delivered."""
        if self._settle_origin is None:
            raise SubscriptionWrongKind("fetched records can't be settled: no consumer received them")
        return self._settle_origin(self._origin, first, end, verdict, ms, reason)
