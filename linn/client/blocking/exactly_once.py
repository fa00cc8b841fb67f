"""ExactlyOnceConsumer of the blocking client: the async one, whose coroutines run in the caller's thread.

Law: the participant is called by the thread that opened the consumer, because a database connection may belong to a
thread; the loop does everything that waits for the broker. So the coroutines of the async consumer never suspend here,
and a single step runs them to the end.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio

from linn.client.blocking.facade import ClosingFacade
from linn.client.blocking.generated.message import Batch, Message
from linn.client.blocking.loop_thread import LoopThread
from linn.client.blocking.running import STOP_CHECK_S, StopEvent, StopFlag, check_blocking
from linn.client.blocking.settling import Settled, Settlements
from linn.client.consume import exactly_once as asynchronous
from linn.client.consume import message as asynchronous_message
from linn.client.consume.running import Exceptions, Rules, drain, is_over, log_refused, until_settled
from linn.client.consume.termination import told_of_sigterm
from linn.client.consume.work import Work
from linn.client.consume.work_source import WorkSource
from linn.client.participants.participant import Place
from linn.core.errors.tree import (
    ConnectionLost,
    LinnError,
    MessageInvalid,
    SubscriptionWrongKind,
)
from linn.wire.messages import Verdict

H = TypeVar("H")
T = TypeVar("T")

_METHODS = ("open", "floor", "begin", "applied", "prepare", "commit", "rollback", "close")
_ASYNC = "the participant's methods are coroutines: such a one is for the async client"


class NothingYet(Exception):
    """No work arrived in time."""


def check_participant(participant: object) -> None:
    """Check that a participant blocks. Raises MessageInvalid."""
    if any(inspect.iscoroutinefunction(getattr(participant, name, None)) for name in _METHODS):
        raise MessageInvalid(_ASYNC)


class BaseExactlyOnceConsumer(ClosingFacade[asynchronous.ExactlyOnceConsumer[H]], Generic[H]):
    """Part of `ExactlyOnceConsumer` that is written by hand.

    Only the thread that opened it uses it, and calls the participant's methods. Any thread may close it; the
    participant is closed when the opening thread calls `close` too, or leaves the `with` block.
    """

    def __init__(
        self, forget: Callable[[Any], None], thread: LoopThread, made: asynchronous.ExactlyOnceConsumer[H]
    ) -> None:
        super().__init__(forget, thread, made)
        self._source = made._source = _CallingSource(thread, made._source)
        self._settlements = Settlements(thread)
        self._owner = threading.current_thread()
        self._batch: Batch | None = None

    # --- life ---

    def _open(self) -> None:
        """Open the participant, and subscribe. Raises as the async consumer's `__aenter__`."""
        _finished(self._made.__aenter__())

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._thread.is_here() and threading.current_thread() is self._owner:
                self._batch = None
                _finished(self._made._release())
        finally:
            super().__exit__(exc_type, exc, traceback)

    def _leave(self, *about: Any) -> None:
        _finished(self._source.leave(*about))

    # --- iterating ---

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Message, H]:
        """Return the next message; first commit the previous delivery, if the message begins another one.

        Closing the consumer ends the iteration.

        Raises:
            ParticipantConflict: another process, with the same name, applied the same records to the same store.
            LinnError, and the participant's errors: as `Consumer.__next__`; iterating on tries again.
        If the wait is interrupted (KeyboardInterrupt), no message is lost: uncommitted messages come again.
        """
        try:
            message, handle = _finished(self._made.__anext__())
        except (StopAsyncIteration, ConnectionLost):
            if self._closed:
                raise StopIteration from None
            raise
        origin = message.batch
        if self._batch is None or self._batch._origin is not origin:
            self._batch = Batch(origin, self)
        return Message(self._batch, message.index), handle

    def _run(self, handler: Callable[[Message, H], object], *, stop: StopEvent | None, reject_on: Exceptions) -> None:
        """A KeyboardInterrupt commits nothing."""
        check_blocking(handler)
        rules, over = Rules(reject_on, None), StopFlag(stop)
        with told_of_sigterm(over.set):
            try:
                self._source.wait_s = STOP_CHECK_S
                self._handle_until(over, handler, rules)
            finally:
                self._source.wait_s = None
        if not self._closed:
            self._thread.call(self._source.drain)
            self._commit()
            self._thread.call(until_settled, self._source.consumer)

    def _handle_until(self, over: StopFlag, handler: Callable[[Message, H], object], rules: Rules) -> None:
        failures, backoff_s = 0, self._source.consumer._connector.backoff_s
        while not over.is_set():
            goes_on = True
            try:
                goes_on = self._is_handled(*next(self), handler, rules)
            except StopIteration:
                return
            except NothingYet:
                continue
            except LinnError as error:
                if is_over(self._source.consumer._broken, error):
                    raise
                log_refused(error)
            except Exception as error:
                asynchronous.log_participant(self._made.topics, error)
                goes_on = False
            failures = 0 if goes_on else failures + 1
            if failures:
                over.pause(self._thread, backoff_s(failures - 1))

    def _is_handled(self, message: Message, handle: H, handler: Callable[[Message, H], object], rules: Rules) -> bool:
        """Call the handler; return False if the same message is to be handled again."""
        try:
            handler(message, handle)
        except Exception as error:
            of_loop = asynchronous_message.Message(message.batch._origin, message.index)
            return _finished(self._made._failed(of_loop, error, rules))
        return True

    def _commit(self) -> None:
        _finished(self._made.commit())

    def _settle(
        self, batch: asynchronous_message.Batch, first: int, end: int, verdict: Verdict, ms: int, reason: str
    ) -> Settled:
        """Settle records by index. Raises SubscriptionWrongKind: an ack or a nack; MessageInvalid, ConnectionLost."""
        if verdict in (Verdict.ACK, Verdict.NACK):
            text = "the consumer has a participant, and settles a message when its effect is stored: leave out the "
            raise SubscriptionWrongKind(text + verdict.name.lower())
        return self._settlements.add(batch, first, end, verdict, ms, reason)


class _CallingSource(WorkSource):
    """Work source of a consumer outside the loop's thread: its waits block the thread.

    For the methods see `WorkSource`.
    """

    def __init__(self, thread: LoopThread, source: WorkSource) -> None:
        self.consumer = source.consumer
        self._source = source
        self._thread = thread
        self.wait_s: float | None = None
        """Time after which `next` raises NothingYet; None: no limit."""
        self._taken: Work | None = None
        """Work that the loop has handed out, but whose thread was interrupted before it got it."""

    async def places(self) -> tuple[list[Place], list[Place]]:
        return self._thread.call(self._source.places)

    async def enter(self) -> None:
        self._thread.call(self._source.enter)

    async def leave(self, *about: Any) -> None:
        self._thread.call(self._source.leave, *about)

    async def next(self) -> Work:
        if self._taken is not None:
            self._source.put_back(self._taken)  # It may have become another consumer's meanwhile.
        work = self._thread.call(self._take)
        self._taken = None
        return work

    async def _take(self) -> Work:
        with anyio.move_on_after(self.wait_s):
            self._taken = work = await self._source.next()
            return work
        raise NothingYet

    async def drain(self) -> None:
        """Stop the deliveries. Called by the loop."""
        drain(self._source.consumer)

    def may_return(self, work: Work) -> bool:
        return self._source.may_return(work)

    def give_back(self, work: Work, verdict: Verdict, reason: str) -> None:
        """Raises ConnectionLost: the client is closed."""
        self._thread.soon(lambda: self._source.give_back(work, verdict, reason))

    def put_back(self, work: Work) -> None:
        self._source.put_back(work)

    def release_untried(self) -> None:
        if self._taken is not None:
            self._source.put_back(self._taken)
            self._taken = None
        with suppress(ConnectionLost):  # The client is closed: so is its connection, and nothing is held.
            self._thread.soon(self._source.release_untried)

    async def decide(self, work: Work) -> bool:
        return self._thread.call(self._source.decide, work)

    def applied(self, work: Work) -> None:
        """Raises ConnectionLost: the client is closed, and the broker will ask again."""
        self._thread.soon(lambda: self._source.applied(work))


def _finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result. Raises MessageInvalid: it does suspend."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise MessageInvalid(_ASYNC)
