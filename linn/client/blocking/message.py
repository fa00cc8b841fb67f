"""Batches and messages of a blocking consumer, which any thread may read and settle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from linn.client.arguments import U32_MAX, checked_number
from linn.client.blocking.settling import Settled
from linn.client.consume import message as asynchronous
from linn.client.consume.processing import OnError, check_on_error, reason_of
from linn.client.consume.received import ReceivedBatch
from linn.client.consume.settling import is_void
from linn.core.errors.tree import LinnError, SubscriptionWrongKind
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
        """The consumer's method, which keeps the consumer alive for as long as the batch; None for a fetched batch."""

    def _settle(self, first: int, end: int, verdict: Verdict, ms: int, reason: str = "") -> Settled:
        """Settle records by index. Raises SubscriptionWrongKind if they were fetched and not delivered."""
        if self._settle_origin is None:
            raise SubscriptionWrongKind("fetched records can't be settled: no consumer received them")
        return self._settle_origin(self._origin, first, end, verdict, ms, reason)


class Settleable(Protocol):
    """A message or a batch that can be settled."""

    def ack(self) -> Settled: ...
    def nack(self, delay_ms: int = 0, reason: str = "") -> Settled: ...
    def reject(self, reason: str = "") -> Settled: ...


T = TypeVar("T", bound=Settleable)


class Processing(Generic[T]):
    """Context manager that `Message.process` and `Batch.process` return."""

    def __init__(self, work: T, on_error: OnError, delay_ms: int) -> None:
        check_on_error(on_error)
        checked_number(delay_ms, "delay_ms", U32_MAX)
        self._work = work
        self._on_error = on_error
        self._delay_ms = delay_ms

    def __enter__(self) -> T:
        return self._work

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Settle as `Message.process` says."""
        if exc is None:
            settled = self._work.ack()
            try:
                settled.wait()
            except LinnError:
                if not is_void(settled._carried_out):
                    raise
        elif isinstance(exc, Exception):
            with contextlib.suppress(LinnError):  # The block's own error is raised.
                reason, rejects = reason_of(exc), self._on_error == "reject"
                (self._work.reject(reason) if rejects else self._work.nack(self._delay_ms, reason)).wait()
