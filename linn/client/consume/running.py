"""Running: calls a handler with each message of a consumer, and settles the message by how the call ends.

Laws: an exception of the handler is logged with the place of its message, and does not end the run. After a stop the
run takes no new message, and waits for the calls in progress; a cancellation leaves their messages unsettled.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio

from linn.client.arguments import I64_MAX, U32_MAX, checked_number, shown
from linn.client.connection.connector import Connector
from linn.client.consume.arrivals import Arrivals
from linn.client.consume.message import Batch, Message
from linn.client.consume.processing import reason_of
from linn.client.consume.subscription import Subscription
from linn.client.consume.termination import in_this_loop, told_of_sigterm
from linn.core.errors.group import raise_once
from linn.core.errors.tree import (
    ClientUnreachable,
    ConnectionLost,
    LinnError,
    MessageInvalid,
    ParticipantConflict,
    SubscriptionWrongKind,
)
from linn.wire.messages import ConsumerKind

T = TypeVar("T")

logger = logging.getLogger("linn.client")

ATTEMPTS_MAX = 10
"""Default number of calls with one message of a stream: with the pauses between them they last about ten seconds."""

Handler = Callable[[Message], object]
"""Takes a message; may be a coroutine function. The result is ignored."""
Exceptions = type[Exception] | tuple[type[Exception], ...]


class StopEvent(Protocol):
    """An event of anyio, trio or asyncio."""

    def wait(self) -> Awaitable[object]:
        """Wait until it is set."""


class Source(Protocol):
    """The methods of a consumer that a run uses."""

    _connector: Connector
    _subscriptions: list[Subscription]
    _kind: ConsumerKind | None
    _broken: LinnError | None
    _arrived: Arrivals

    async def __anext__(self) -> Message: ...
    async def next_batch(self) -> Batch: ...
    def _check_entered(self) -> None: ...
    def _raise_errors(self) -> None: ...


class Running:
    """Runs a handler on the messages of a consumer."""

    _kind: ConsumerKind | None = None
    """Kind of the latest subscription."""

    async def run(
        self: Source,
        handler: Handler,
        *,
        concurrency: int = 1,
        stop: StopEvent | None = None,
        reject_on: Exceptions = (),
        attempts_max: int | None = ATTEMPTS_MAX,
    ) -> None:
        """Call `handler` with each message, and ack it when the call has ended; until `stop` is set, or SIGTERM.

        An exception of the handler is logged with the message's place, and the run goes on. On a queue the message is
        returned, and the topic's settings determine the delay and the maximum number of attempts. On a stream, which
        has no attempts, the call is repeated after pauses, and finally the message is skipped.

        Args:
            handler: a coroutine function, or a function that does not block.
            concurrency: number of messages handled at a time; 1 on a stream, which is handled in order.
            stop: an event (of anyio, trio or asyncio) after which no new message is taken. SIGTERM does the same in
                the main thread, unless the program handles it. Calls in progress end and are settled; `run` returns.
            reject_on: exceptions after which another attempt is useless: the message becomes a dead letter, or is
                skipped on a stream.
            attempts_max: on a stream, maximum number of calls with one message; None: until a call succeeds.

        Raises MessageInvalid, SubscriptionWrongKind (`concurrency` on a stream), and errors that end the subscription
        or the connection, as `__anext__`. Cancellation: messages in progress are not settled, and come again. After a
        run the consumer receives nothing more: leave its block.

        Example:
            async def work(message):
                print(message.value)
                if message.value == b"9":
                    stop.set()

            stop = anyio.Event()
            await consumer.run(work, concurrency=4, stop=stop)
        """
        rules = Rules(reject_on, attempts_max)
        self._check_entered()
        check_concurrency(self._kind, concurrency)
        await Run(self, handler, rules).run(concurrency, stop)

    async def _next_delivery(self: Source) -> list[Batch]:
        """Wait for the next batch, and take it with the others of its delivery."""
        first = await self.next_batch()
        return [first, *self._arrived.take_rest_of(first._delivery)]

    async def _sleep(self: Source, seconds: float) -> None:
        await self._connector.env.clock.sleep(seconds)


class Rules:
    """Rules for a message whose handler has raised an exception."""

    def __init__(self, reject_on: Exceptions, attempts_max: int | None) -> None:
        """Raises MessageInvalid."""
        self.reject_on = reject_on if isinstance(reject_on, tuple) else (reject_on,)
        for each in self.reject_on:
            if not (inspect.isclass(each) and issubclass(each, Exception)):
                raise MessageInvalid(f"reject_on must be exceptions, not {shown(each)}")
        if attempts_max is not None:
            checked_number(attempts_max, "attempts_max", I64_MAX, lowest=1, or_none="repeats until it succeeds")
        self._attempts_max = attempts_max

    def rejects(self, error: Exception) -> bool:
        """Tell whether another attempt would fail as well."""
        return isinstance(error, self.reject_on)

    def is_last(self, calls: int, error: Exception) -> bool:
        """Tell whether a message of a stream is skipped after `calls` calls."""
        return self.rejects(error) or (self._attempts_max is not None and calls >= self._attempts_max)


class Run:
    """One run of a consumer: workers take messages in turn."""

    def __init__(self, consumer: Source, handler: Callable[..., object], rules: Rules) -> None:
        """Raises MessageInvalid."""
        check_handler(handler)
        self._consumer = consumer
        self._handler = handler
        self._rules = rules
        self._turn = anyio.Lock(fast_acquire=True)
        """Lock of the worker that takes a message."""
        self._taking: anyio.CancelScope | None = None
        self._stopped = anyio.Event()

    async def run(self, concurrency: int, stop: StopEvent | None) -> None:
        """Run until stopped, and wait until everything is settled."""
        try:
            async with anyio.create_task_group() as tasks:
                if stop is not None:
                    tasks.start_soon(self._wait_for, stop)
                with told_of_sigterm(in_this_loop(self._stop)):
                    async with anyio.create_task_group() as workers:
                        for _ in range(concurrency):
                            workers.start_soon(self._work)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as several:
            raise_once(several)
        await until_settled(self._consumer)

    async def _wait_for(self, stop: StopEvent) -> None:
        await stop.wait()
        self._stop()

    def _stop(self) -> None:
        self._stopped.set()
        if self._taking is not None:
            self._taking.cancel()
        drain(self._consumer)

    async def _work(self) -> None:
        while (message := await self._next(self._consumer.__anext__)) is not None:
            await self._handle(message)

    async def _next(self, take: Callable[[], Awaitable[T]]) -> T | None:
        """Wait for the next message; None if the run is stopped, or the consumer closed."""
        async with self._turn:
            while not self._stopped.is_set():
                with anyio.CancelScope() as self._taking:
                    try:
                        return await take()
                    except StopAsyncIteration:
                        return None
                    except LinnError as error:
                        if is_over(self._consumer._broken, error):
                            raise
                        log_refused(error)
        return None

    async def _handle(self, message: Message) -> None:
        calls = 0
        while True:
            try:
                await self._call(message)
            except Exception as error:
                calls += 1
                if is_done_with(message, message.batch._subscription, error, self._rules, calls):
                    return
                if not await self._pause(calls) or not message.batch._is_wanted():
                    return
            else:
                message.ack()
                return

    async def _call(self, *arguments: object) -> None:
        result = self._handler(*arguments)
        if inspect.isawaitable(result):
            await result

    async def _pause(self, calls: int) -> bool:
        """Wait before the next call; False if the run is stopped meanwhile."""
        with anyio.move_on_after(self._consumer._connector.backoff_s(calls - 1)):
            await self._stopped.wait()
        return not self._stopped.is_set()


def drain(consumer: Source) -> None:
    """Stop the deliveries, and return unread records, so that other consumers get them while a run ends."""
    for subscription in consumer._subscriptions:
        subscription.drain()


async def until_settled(consumer: Source) -> None:
    """Wait until the broker has answered all settlements, and log refusals."""
    with anyio.move_on_after(consumer._connector.options.request_timeout_s):
        for subscription in list(consumer._subscriptions):
            await subscription.until_quiet()
    try:
        consumer._raise_errors()
    except LinnError as error:
        log_refused(error)


class Settleable(Protocol):
    """A message of either client."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    def ack(self) -> object: ...
    def nack(self, delay_ms: int = 0, reason: str = "") -> object: ...
    def reject(self, reason: str = "") -> object: ...


def is_done_with(message: Settleable, source: object, error: Exception, rules: Rules, calls: int) -> bool:
    """Log a handler's exception, and settle its message; return False if the handler is to be called again.

    `source` is the subscription that delivered the message, `calls` the number of calls with it so far.
    """
    assert isinstance(source, Subscription), "a consumer's messages are delivered"
    if source.kind != ConsumerKind.SHARED:
        if not rules.is_last(calls, error):
            log_raised(message, error, calls, "trying it again")
            return False
        log_raised(message, error, calls, "passing over the message")
        message.ack()
    elif not source.leased:
        log_raised(message, error, 1, "the message was settled when it was delivered")
    elif rules.rejects(error):
        log_raised(message, error, message.attempt, "rejecting the message")
        message.reject(reason_of(error))
    else:
        log_raised(message, error, message.attempt, "returning the message")
        message.nack(reason=reason_of(error))
    return True


def log_raised(message: Settleable, error: Exception, attempt: int, what: str) -> None:
    """Log a handler's exception, with its traceback and the consequence."""
    place = {"topic": message.topic, "partition": message.partition, "offset": message.offset, "attempt": attempt}
    text = "%(topic)s/%(partition)d@%(offset)d, attempt %(attempt)d: %(error)s; %(what)s"
    logger.error(text, {**place, "error": reason_of(error), "what": what}, exc_info=error)


def check_handler(handler: object) -> None:
    """Check a handler. Raises MessageInvalid."""
    if not callable(handler):
        raise MessageInvalid(f"a handler must be a function, not {shown(handler)}")


def check_concurrency(kind: ConsumerKind | None, concurrency: int) -> None:
    """Check a number of messages to handle at a time. Raises MessageInvalid, SubscriptionWrongKind."""
    checked_number(concurrency, "concurrency", U32_MAX, lowest=1)
    if concurrency > 1 and kind != ConsumerKind.SHARED:
        text = "a stream is handled in order: concurrency=1; more consumers of the group share its partitions"
        raise SubscriptionWrongKind(text)


def is_over(broken: LinnError | None, error: LinnError) -> bool:
    """Tell whether an error of an iteration ends the consumer."""
    return broken is not None or isinstance(error, ConnectionLost | ClientUnreachable | ParticipantConflict)


def log_refused(error: LinnError) -> None:
    """Log an error of a consumer's iteration that does not end it."""
    logger.warning("%(error)s; going on", {"error": error.text, "code": error.code})
