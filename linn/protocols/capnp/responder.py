"""Answers to the requests of one connection. The handlers share it, and use nothing else of their session.

Law: a request in a task of its own is answered once, with an error if it failed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from linn.api import (
    Gateway,
    InternalError,
    LinnError,
    Mark,
    RecordBatch,
    Sendable,
    Session,
    StoredBatch,
    log_fields,
)
from linn.protocols.capnp.outbox import Output
from linn.wire import messages as m
from linn.wire.connection import Event, frames_of, frames_to
from linn.wire.failure import failed_by

logger = logging.getLogger("linn.capnp")


class Responder:
    """Answers requests at once, from a task, or when records are committed, and counts requests in progress."""

    __slots__ = (
        "_changed",
        "_peer",
        "gateway",
        "holding",
        "inflight",
        "nursery",
        "outbox",
        "session",
        "settings",
    )

    def __init__(self, gateway: Gateway, outbox: Output, peer: str) -> None:
        self.gateway = gateway
        self.session: Session
        """The client's session, set after hello."""
        self.settings = gateway.settings
        self.outbox = outbox
        self.nursery: trio.Nursery
        """The nursery of the session, set after the handshake."""
        self.inflight = 0
        """Requests in progress: started, and not answered yet."""
        self.holding = False
        """Whether the session is carrying out requests, and flushes the outbox after the last one."""
        self._peer = peer
        self._changed: trio.Event | None = None

    # --- answers ---

    def answer(self, correlation: int, frames: Sequence[Sendable]) -> None:
        """Queue the answer to a request. While the session carries out requests, it is sent with the other answers."""
        if self.holding:
            self.outbox.hold(frames)
        else:
            self.outbox.put(frames)

    def reply(self, correlation: int, message: m.Message) -> None:
        """Answer a request, if it expects an answer."""
        if correlation:
            self.answer(correlation, frames_of(message, correlation))

    def reply_with(self, correlation: int, message: m.Message, batches: Sequence[StoredBatch | RecordBatch]) -> None:
        """Answer a request with batches."""
        self.answer(correlation, frames_to(message, correlation, batches))

    def fail(self, correlation: int, error: LinnError) -> None:
        """Answer a request with an error; the error is logged if the request expects no answer."""
        if correlation:
            self.answer(correlation, frames_of(failed_by(error), correlation))
        else:
            logger.info("%(connection)s: %(error)s", {"connection": self._peer} | log_fields(error))

    def fail_unforeseen(self, correlation: int, error: Exception) -> None:
        """Report a bug in linn or a plugin: the log names the culprit, and the client gets an error."""
        blamed = self.gateway.blamed(error)
        about = {"connection": self._peer, "blamed": blamed, "code": InternalError.code}
        logger.error("%(connection)s: a request failed in %(blamed)s", about, exc_info=error)
        self.fail(correlation, InternalError("the broker failed to carry out a request; see its log"))

    # --- requests that wait ---

    def spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task that ends with the connection."""
        self.nursery.start_soon(task)

    def in_task(self, event: Event, work: Callable[[], Awaitable[None]]) -> None:
        """Carry out a waiting request in a task of its own."""
        self.inflight += 1
        self.nursery.start_soon(self._run_request, event.correlation, work)

    async def _run_request(self, correlation: int, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except LinnError as error:
            self.fail(correlation, error)
        except Exception as error:
            self.fail_unforeseen(correlation, error)
        finally:
            self._end()

    def when_passed(self, awaits: Sequence[tuple[Mark, int]], correlation: int, answer: m.Message) -> None:
        """Answer once each mark has passed its offset, or one has failed and none is left; at once if all have."""
        missing = [(mark, end) for mark, end in awaits if mark.offset < end]
        if not missing:
            self.reply(correlation, answer)
            return
        left, failure = len(missing), None
        self.inflight += 1

        def passed(error: LinnError | None) -> None:
            nonlocal left, failure
            left, failure = left - 1, error or failure
            if left == 0:
                self._end()
                if failure is None:
                    self.reply(correlation, answer)
                else:
                    self.fail(correlation, failure)

        for mark, end in missing:
            mark.when_passed(end, passed)

    def _end(self) -> None:
        self.inflight -= 1
        self.budget_changed()

    # --- the session's budget ---

    def budget_changed(self) -> None:
        """Wake the reader, because a quantity that kept the session from reading has decreased."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def wait_budget_changed(self) -> None:
        """Wait for the next `budget_changed`. One task at a time.

        Cancellation: nothing happens.
        """
        self._changed = trio.Event()
        await self._changed.wait()
