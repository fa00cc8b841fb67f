"""Processing: settles messages when a block is left, for `async with message.process()`."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Generic, Literal, Protocol, TypeVar

from linn.client.arguments import U32_MAX, checked_number
from linn.client.consume.settling import Settled, is_void
from linn.core.errors.tree import LinnError, MessageInvalid

REASON_CHARACTERS_MAX = 1_000
"""Characters of an exception's text in which the first line is searched."""
OnError = Literal["nack", "reject"]


class Settleable(Protocol):
    """A message or a batch that can be settled."""

    def ack(self) -> Settled: ...
    def nack(self, delay_ms: int = 0, reason: str = "") -> Settled: ...
    def reject(self, reason: str = "") -> Settled: ...


T = TypeVar("T", bound=Settleable)


def reason_of(error: BaseException) -> str:
    """Return the type of an exception and the first line of its text."""
    try:
        text = str(error)
    except Exception:  # The class is the program's, and may raise anything.
        text = ""
    (line, *_) = text[:REASON_CHARACTERS_MAX].strip().splitlines() or [""]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def check_on_error(on_error: object) -> None:
    """Check an `on_error` argument. Raises MessageInvalid."""
    if on_error not in ("nack", "reject"):
        raise MessageInvalid(f'on_error must be "nack" or "reject", not {on_error!r}')


class Processing(Generic[T]):
    """Context manager that `Message.process` and `Batch.process` return."""

    def __init__(self, work: T, on_error: OnError, delay_ms: int) -> None:
        check_on_error(on_error)
        checked_number(delay_ms, "delay_ms", U32_MAX)
        self._work = work
        self._on_error = on_error
        self._delay_ms = delay_ms

    async def __aenter__(self) -> T:
        return self._work

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Settle as `Message.process` says."""
        if exc is None:
            settled = self._work.ack()
            try:
                await settled
            except LinnError:
                if not is_void(settled):
                    raise
        elif isinstance(exc, Exception):
            with suppress(LinnError):  # The block's own error is raised.
                reason, rejects = reason_of(exc), self._on_error == "reject"
                settled = self._work.reject(reason) if rejects else self._work.nack(self._delay_ms, reason)
                await settled
