"""Answers to requests: the interface of callers, and a caller whose answer a task awaits."""

from __future__ import annotations

from copy import copy
from typing import Protocol

import anyio

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.wire.messages import Message


class Caller(Protocol):
    """Receiver of a request's outcome, called synchronously and exactly once."""

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """Take the broker's answer. Called before anything that the broker sent later is handled."""

    def failed(self, error: LinnError) -> None:
        """Take the broker's refusal, or ConnectionLost if the connection ended first."""


def again(error: LinnError) -> LinnError:
    """Copy an error to raise it once more, with a traceback of its own."""
    raised = copy(error)
    raised.__cause__ = error
    return raised


class Answer:
    """A caller that one task awaits."""

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

    async def refusal(self) -> LinnError | None:
        """Wait for the broker's answer; returns the error that `wait` would raise, or None."""
        await self._event.wait()
        return self._outcome if isinstance(self._outcome, LinnError) else None

    async def wait(self) -> Message:
        """Wait for the broker's answer. Raises its refusal, or ConnectionLost."""
        await self._event.wait()
        outcome = self._outcome
        if isinstance(outcome, LinnError):
            raise outcome
        assert outcome is not None
        self.message = outcome
        return outcome
