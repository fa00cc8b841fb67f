"""ExactlyOnceConsumer: yields messages together with the handle by which their effects are stored exactly once.

One local transaction of the participant holds the effects of one delivery, with its marks. It is committed when the
application asks for the first message after the delivery; on a queue, once the broker has decided the delivery for this
consumer. If the application's block raises, everything uncommitted is undone, and delivered again.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio

from linn.client.consume.message import Message
from linn.client.consume.processing import reason_of
from linn.client.consume.running import (
    Exceptions,
    Rules,
    Run,
    StopEvent,
    is_over,
    log_raised,
    log_refused,
    until_settled,
)
from linn.client.consume.work import Work
from linn.client.consume.work_source import WorkSource
from linn.client.participants.participant import NO_FLOOR, AsyncParticipant, Participant
from linn.core.errors.tree import LinnError, ParticipantConflict
from linn.wire.messages import Verdict

H = TypeVar("H")
T = TypeVar("T")

logger = logging.getLogger("linn.client")


class ExactlyOnceConsumer(Generic[H]):
    """A consumer with a participant, made by `Client.consumer(..., exactly_once=...)`; enter it with `async with`.

    Example:
        participant = SqliteParticipant("ledger.db")
        async with client.consumer("payments", name="ledger-1", exactly_once=participant) as consumer:
            async for message, db in consumer:
                db.execute("INSERT INTO payments VALUES (?)", (message.text,))
                if message.text == "the last of today":
                    await consumer.commit()
                    break
    """

    def __init__(self, source: WorkSource, participant: Participant[H] | AsyncParticipant[H]) -> None:
        self._source = source
        self._participant: Any = participant
        self._work: Work | None = None
        self._handle: H
        self._messages: Iterator[Message] = iter(())

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of its topics."""
        return self._source.consumer.topics

    # --- life ---

    async def __aenter__(self) -> Self:
        """Open the participant and subscribe; on a stream, at the participant's position.

        Raises TopicUnknown, ConnectionLost, errors of the participant, and SubscriptionWrongKind, also if the store has
        effects from a time when the topic had another kind, which would happen again.
        """
        await _result(self._participant.open())
        try:
            own, others = await self._source.places()
            for place in others:
                if await _result(self._participant.floor(place)) != NO_FLOOR:
                    raise self._source.kind_changed(place)
            for place in own:
                self._source.begin_at(place, await _result(self._participant.floor(place)))
            await self._source.enter()
        except BaseException:
            await self._release()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._release()
        finally:
            await self._source.leave(exc_type, exc, traceback)

    async def aclose(self) -> None:
        """Undo uncommitted effects, unsubscribe, and close the participant. Raises as `Consumer.aclose` does.

        Example:
            await consumer.aclose()
        """
        await self.__aexit__(None, None, None)

    async def _release(self) -> None:
        """Undo the open transaction and close the participant, also when cancelled."""
        self._work, self._messages = None, iter(())
        self._source.release_untried()
        await _shielded(self._participant.close())

    # --- iterating ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Message, H]:
        """Return the next message; first commit the previous delivery, if the message begins another one.

        Raises:
            ParticipantConflict: another process, with the same name, applied the same records to the same store.
            LinnError, and the participant's errors: as `Consumer.__anext__`; iterating on tries again.
        Cancellation: no message is lost; the transaction stays open.
        """
        for message in self._messages:
            return message, self._handle
        return await self._turn()

    async def _turn(self) -> tuple[Message, H]:
        while True:
            await self._commit()
            work = await self._source.next()
            try:
                self._handle = await _result(self._participant.begin(work.place))
                applied = [found for mark in work.spans for found in await _result(self._participant.applied(mark))]
            except BaseException:
                self._source.put_back(work)  # Clear it first: the rollback may fail as well.
                await self._roll_back()
                raise
            self._work, self._messages = work, work.messages(applied)
            for message in self._messages:
                work.is_tried = True
                return message, self._handle

    async def run(
        self, handler: Callable[[Message, H], object], *, stop: StopEvent | None = None, reject_on: Exceptions = ()
    ) -> None:
        """Call `handler` with each message and the handle, until `stop` is set, or SIGTERM; then commit.

        An exception of the handler is logged with the message's place, its effects through the handle are undone, and
        the run goes on. On a queue the message is returned, and the topic's settings determine the delay and the
        maximum number of attempts; other messages of its delivery are handled again. On a stream the call is repeated,
        after pauses, until it succeeds: exactly-once delivery skips no message. An error of the participant is logged,
        and the transaction is repeated.

        For `stop` and `reject_on` see `Consumer.run`. Raises ParticipantConflict, MessageInvalid, and errors that end
        the subscription or the connection. Cancellation: uncommitted effects are undone, and their messages come again.

        Example:
            def work(message, db):
                db.execute("INSERT INTO payments VALUES (?)", (message.text,))
                if message.text == "the last of today":
                    stop.set()

            stop = anyio.Event()
            await consumer.run(work, stop=stop)
        """
        await _OnceRun(self, handler, Rules(reject_on, None)).run(1, stop)
        await self.commit()
        await until_settled(self._source.consumer)

    async def _failed(self, message: Message, error: Exception, rules: Rules) -> bool:
        """Undo the transaction in which a handler has failed; return False if the message is handled again.

        On a queue only the message is returned or rejected; the records before and after it are begun anew.
        """
        work, is_rejected, goes_on = self._work, rules.rejects(error), True
        if work is None:
            what = "what it committed stays"
        elif not self._source.may_return(work):
            what, goes_on = "trying it again", False
            self._source.put_back(work)
        else:
            what = "rejecting the message" if is_rejected else "returning the message"
            verdict = Verdict.REJECT if is_rejected else Verdict.NACK
            self._give_back(work, message.offset, verdict, reason_of(error))
        log_raised(message, error, message.attempt, what)
        await self._roll_back()
        return goes_on

    def _give_back(self, work: Work, offset: int, verdict: Verdict, reason: str) -> None:
        """Settle one record of undone work, and put back the others, in two parts."""
        failed = work.split(offset)
        before, failed = (None, work) if failed is None else (work, failed)
        behind = failed.split(offset + 1)
        self._source.give_back(failed, verdict, reason)
        for rest in (behind, before):
            if rest is not None:
                self._source.put_back(rest)

    async def commit(self) -> None:
        """Commit the effects of all messages so far, including the present one, before the end of their delivery.

        Call it before you leave the loop with `break`, which undoes uncommitted effects. Raises as `__anext__`.

        Example:
            async for message, db in consumer:
                db.execute("INSERT INTO payments VALUES (?)", (message.text,))
                if message.text == "the last of today":
                    await consumer.commit()
                    break
        """
        work = self._work
        following = next(self._messages, None)
        if work is not None and following is not None:
            rest = work.split(following.offset)
            self._messages = iter(())
            if rest is not None:
                self._source.put_back(rest)
        await self._commit()

    async def _commit(self) -> None:
        work = self._work
        if work is None:
            return
        try:
            await _result(self._participant.prepare())
            is_decided = await self._source.decide(work)
            if is_decided:
                await _result(self._participant.commit(work.marks, work.floor))
        except ParticipantConflict:
            self._source.put_back(work)  # The next attempt finds out which records had their effect.
            await self._roll_back()
            if not self._source.is_of_group(work):
                raise
            return
        except BaseException:
            self._source.put_back(work)
            await self._roll_back()
            raise
        if is_decided:
            self._work = None
            self._source.applied(work)
        else:
            text = "%(topic)s: records from %(first)d on went to another consumer, or come again: effects are undone"
            logger.info(text, {"topic": ", ".join(self.topics), "first": work.first})
            await self._roll_back()

    async def _roll_back(self) -> None:
        self._work, self._messages = None, iter(())
        await _shielded(self._participant.rollback())


class _OnceRun(Run):
    """One run of an exactly-once consumer."""

    def __init__(self, consumer: ExactlyOnceConsumer[H], handler: Callable[[Message, H], object], rules: Rules) -> None:
        super().__init__(consumer._source.consumer, handler, rules)
        self._once: ExactlyOnceConsumer[Any] = consumer

    async def _work(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            try:
                taken = await self._next_of_delivery()
                if taken is None:
                    return
                goes_on = await self._is_handled(*taken)
            except LinnError as error:
                if is_over(self._consumer._broken, error):
                    raise
                log_refused(error)
                goes_on = False
            except Exception as error:
                log_participant(self._once.topics, error)
                goes_on = False
            failures = 0 if goes_on else failures + 1
            if failures:
                await self._pause(failures)

    async def _next_of_delivery(self) -> tuple[Message, Any] | None:
        """Return the next message, as `__anext__` does; a stop interrupts this wait, but not the commit before it."""
        once = self._once
        for message in once._messages:
            return message, once._handle
        await once._commit()
        return await self._next(once._turn)

    async def _is_handled(self, message: Message, handle: object) -> bool:
        """Call the handler; return False if the same message is to be handled again."""
        try:
            await self._call(message, handle)
        except Exception as error:
            return await self._once._failed(message, error, self._rules)
        return True


def log_participant(topics: Sequence[str], error: Exception) -> None:
    """Log that a participant has failed."""
    text = "%(topic)s: the participant failed, and the transaction is tried again: %(error)s"
    logger.error(text, {"topic": ", ".join(topics), "error": reason_of(error)}, exc_info=error)


async def _result(value: Awaitable[T] | T) -> T:
    """Return the result of a participant's method, which may be a coroutine function."""
    return await value if inspect.isawaitable(value) else value


async def _shielded(value: Awaitable[None] | None) -> None:
    """Wait for a participant's coroutine, if the method returned one, even when cancelled."""
    if inspect.isawaitable(value):
        with anyio.CancelScope(shield=True):
            await value
