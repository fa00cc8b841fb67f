"""ExactlyOnceConsumer: yields messages together with the handle by which their effects are stored exactly once.

One local transaction of the participant holds the effects of one delivery, with its marks. It is committed when the
application comes back for what is behind the delivery; on a queue, after the broker has decided that these records are
this consumer's. If the application's block raises, everything that was not committed is undone, and comes again.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio

from linn.client.consume.message import Message
from linn.client.consume.work import Work
from linn.client.consume.work_source import WorkSource
from linn.client.participants.participant import NO_FLOOR, AsyncParticipant, Participant
from linn.core.errors.tree import ParticipantConflict

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
        """Open the participant and subscribe, on a stream where the participant has left off.

        Raises TopicUnknown, ConnectionLost, what the participant raises, and SubscriptionWrongKind, also if the store
        has effects from when the topic's kind was another, which would happen again.
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
        """Undo what is not committed, unsubscribe, and close the participant. Raises as `Consumer.aclose` does.

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
        """Commit what came before, if this is the first message of another delivery, and return the next message.

        Raises:
            ParticipantConflict: another process applied the same records to the same store: it has this name as well.
            LinnError, and what the participant raises: as `Consumer.__anext__`; iterating on tries again.
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
                await self._roll_back()
                self._source.put_back(work)
                raise
            self._work, self._messages = work, work.messages(applied)
            for message in self._messages:
                work.is_tried = True
                return message, self._handle

    async def commit(self) -> None:
        """Commit the effects of all messages so far, the one in hand as well, before their delivery is at its end.

        Call it before you leave the loop with `break`, which undoes what is not committed. Raises as `__anext__`.

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
            await self._roll_back()
            self._source.put_back(work)  # What had its effect is found out when it begins anew.
            if not self._source.is_of_group(work):
                raise
            return
        except BaseException:
            await self._roll_back()
            self._source.put_back(work)
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


async def _result(value: Awaitable[T] | T) -> T:
    """Return what a participant's method returns, or what its coroutine does."""
    return await value if inspect.isawaitable(value) else value


async def _shielded(value: Awaitable[None] | None) -> None:
    """Wait for a coroutine of a participant, if that is what its method returns, also when cancelled."""
    if inspect.isawaitable(value):
        with anyio.CancelScope(shield=True):
            await value
