"""Facade: an object of the async client behind methods that block. The classes in `generated` inherit from these.

This module and the ones beside it are written by hand; `generated` is made from the async client, by the command at the
head of its files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from linn.client.blocking.loop_thread import LoopThread

M = TypeVar("M")
B = TypeVar("B", bound=AbstractAsyncContextManager[Any])


class Facade(Generic[M]):
    """An async object, and the thread in whose loop its coroutines run."""

    def __init__(self, thread: LoopThread, made: M, client: object = None) -> None:
        self._thread = thread
        self._made = made
        self._client = client
        """The client, if it must live as long as this object."""


class ClosingFacade(Facade[B]):
    """A producer or a consumer, which is open from the start and closed once."""

    def __init__(self, forget: Callable[[Any], None], thread: LoopThread, made: B) -> None:
        super().__init__(thread, made)
        self._forget = forget
        """The client's method, which keeps the client alive as long as this object."""
        self._process_id = thread.process_id
        self._lock = threading.RLock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._thread.is_here():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._stop()
        self._forget(self)
        try:
            self._leave(exc_type, exc, traceback)
        finally:
            self._drop()

    def _close(self) -> None:
        """A second call does nothing."""
        self.__exit__(None, None, None)

    def _leave(self, *about: Any) -> None:
        self._thread.call(self._made.__aexit__, *about)

    def _stop(self) -> None:
        """Take nothing more. Called with the lock."""

    def _drop(self) -> None:
        """Release the rest after the async object is closed."""
