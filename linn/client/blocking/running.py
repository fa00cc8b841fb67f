"""Run of the blocking client: threads take messages in turn, and call the handler."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Protocol

import anyio

from linn.client.blocking.generated.message import Message
from linn.client.blocking.loop_thread import LoopThread
from linn.client.consume import running as asynchronous
from linn.client.consume.running import Rules, check_handler, is_done_with, is_over, log_refused
from linn.client.consume.termination import told_of_sigterm
from linn.client.transactions.process import Outputs
from linn.core.errors.tree import LinnError, MessageInvalid

STOP_CHECK_S = 0.2
"""Interval at which an idle thread checks for a stop: no event of `threading` wakes a wait for messages."""

Handler = Callable[[Message], object]
"""Takes a message. The result is ignored."""
Function = Callable[[Message], Outputs]
"""Takes a message, and returns what a process publishes."""


class StopEvent(Protocol):
    """An event of `threading` or `multiprocessing`."""

    def is_set(self) -> bool:
        """Tell whether it is set."""


class Source(Protocol):
    """The methods of a consumer that a run uses."""

    _closed: bool

    @property
    def _made(self) -> asynchronous.Source: ...
    def _next_within(self, timeout_s: float) -> Message | None:
        """Wait for the next message; None if there is none in time, or the consumer is closed."""


def check_blocking(handler: object) -> None:
    """Check a handler. Raises MessageInvalid."""
    check_handler(handler)
    if inspect.iscoroutinefunction(handler):
        raise MessageInvalid("the handler is a coroutine function: such a one is for the async client")


class StopFlag:
    """End of a run: set by its threads, by SIGTERM, or through the program's event."""

    def __init__(self, event: StopEvent | None) -> None:
        self._event = event
        self._is_set = False  # Not an Event: signal handlers must not take its lock.

    def set(self) -> None:
        """End the run."""
        self._is_set = True

    def is_set(self) -> bool:
        """Tell whether the run ends."""
        return self._is_set or (self._event is not None and self._event.is_set())

    def pause(self, thread: LoopThread, seconds: float) -> bool:
        """Wait, and return whether the run goes on."""
        until = thread.monotonic() + seconds
        while not self.is_set() and (left := until - thread.monotonic()) > 0:
            thread.call(anyio.sleep, min(left, STOP_CHECK_S))
        return not self.is_set()


class Run:
    """One run of a consumer."""

    def __init__(self, consumer: Source, thread: LoopThread, handler: Handler, rules: Rules) -> None:
        """Raises MessageInvalid."""
        check_blocking(handler)
        self._consumer = consumer
        self._thread = thread
        self._handler = handler
        self._rules = rules
        self._errors: list[BaseException] = []

    def run(self, concurrency: int, stop: StopEvent | None) -> None:
        """Run until stopped, the first worker in this thread, and wait until everything is settled."""
        self._over = StopFlag(stop)
        threads = [threading.Thread(target=self._work, name="linn-run", daemon=True) for _ in range(concurrency - 1)]
        with told_of_sigterm(self._over.set):
            for thread in threads:
                thread.start()
            self._work()
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]
        if not self._consumer._closed:
            self._thread.call(asynchronous.until_settled, self._consumer._made)

    def _work(self) -> None:
        try:
            while not self._over.is_set() and not self._consumer._closed:
                message = self._next()
                if message is not None:
                    self._handle(message)
            if not self._consumer._closed:
                self._thread.call(self._drain)
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._over.set()

    async def _drain(self) -> None:
        asynchronous.drain(self._consumer._made)

    def _next(self) -> Message | None:
        try:
            return self._consumer._next_within(STOP_CHECK_S)
        except LinnError as error:
            if is_over(self._consumer._made._broken, error):
                raise
            log_refused(error)
            return None

    def _handle(self, message: Message) -> None:
        calls, origin = 0, message.batch._origin
        while True:
            try:
                self._handler(message)
            except Exception as error:
                calls += 1
                if is_done_with(message, origin._subscription, error, self._rules, calls):
                    return
                backoff_s = self._consumer._made._connector.backoff_s(calls - 1)
                if not self._over.pause(self._thread, backoff_s) or not origin._is_wanted():
                    return
            else:
                message.ack()
                return
