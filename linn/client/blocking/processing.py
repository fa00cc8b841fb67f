"""Processing for the blocking client: settles what was worked on when a `with` block is left."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from linn.client.arguments import U32_MAX, checked_number
from linn.client.blocking.settling import Settled
from linn.client.consume.processing import OnError, check_on_error
from linn.core.errors.tree import LinnError


class Settleable(Protocol):
    """A message or a batch."""

    def ack(self) -> Settled: ...
    def nack(self, delay_ms: int = 0) -> Settled: ...
    def reject(self) -> Settled: ...


T = TypeVar("T", bound=Settleable)


class Processing(Generic[T]):
    """Made by `Message.process` and `Batch.process`."""

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
        """Ack, or say what the block's error asks for; see `Message.process`. Interrupted, it says nothing."""
        if exc is None:
            self._work.ack().wait()
        elif isinstance(exc, Exception):
            with contextlib.suppress(LinnError):  # The block's own error is the one to hear of.
                (self._work.reject() if self._on_error == "reject" else self._work.nack(self._delay_ms)).wait()
