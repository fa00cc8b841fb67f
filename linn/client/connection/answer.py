"""Who waits for a broker's answer."""

from __future__ import annotations

from typing import Protocol

import anyio

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.wire.messages import Message


class Caller(Protocol):
    """Told, synchronously and exactly once, how a request ended."""

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """The broker answered. Called where the bytes are read, before anything that the broker sent later."""

    def failed(self, error: LinnError) -> None:
        """The broker refused, or the connection ended first (ConnectionLost)."""


def again(error: LinnError) -> LinnError:
    """The same error to be raised once more: each who raises it has a traceback of its own."""
    copy = type(error)(error.text)
    copy.__cause__ = error
    return copy


class Answer:
    """A caller that one task waits on."""

    __slots__ = ("_event", "_outcome", "batches", "message")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._outcome: Message | LinnError | None = None
        self.batches: list[RecordBatch] = []
        self.message: Message | None = None

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """Wake the task."""
        self._outcome, self.batches = message, batches
        self._event.set()

    def failed(self, error: LinnError) -> None:
        """Wake the task with an error."""
        self._outcome = error
        self._event.set()

    async def wait(self) -> Message:
        """The broker's answer. Raises what it refused with, or ConnectionLost."""
        await self._event.wait()
        outcome = self._outcome
        if isinstance(outcome, LinnError):
            raise outcome
        assert outcome is not None
        self.message = outcome
        return outcome
