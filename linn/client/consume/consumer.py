"""Consumer: reads a topic, or several, message by message or batch by batch, and settles them.

Laws: records of a partition arrive in order, except for redelivered ones. Refusals and failures, except a lost
connection, are raised by the next step of an iteration, after which the iteration may go on. After the loss of a
connection the consumer subscribes again (`subscribing`): a queue redelivers unsettled records, a group goes on at its
committed offsets, a reader after its last record.
"""

from __future__ import annotations

import contextlib
import logging
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from types import TracebackType
from typing import Literal, Self

import anyio
import anyio.lowlevel

from linn.client.arguments import ANYWHERE, U32_MAX, checked_number, checked_place, checked_wait
from linn.client.connection.answer import Answer, Caller, again
from linn.client.connection.connector import Connector
from linn.client.consume.arrivals import Arrivals, Matches, TakeUnread, Unread, rest_of
from linn.client.consume.batches import Batches
from linn.client.consume.membership import Membership
from linn.client.consume.message import Batch, Message
from linn.client.consume.prefetch import PREFETCH_MAX
from linn.client.consume.requests import PullRequest
from linn.client.consume.running import Running
from linn.client.consume.settling import Delivery
from linn.client.consume.start_position import Read, Start
from linn.client.consume.subscribing import Subscribing
from linn.client.consume.subscription import Subscription
from linn.core.errors.peers import PeerError
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import (
    ClientClosed,
    ConnectionLost,
    GroupSessionExpired,
    LinnError,
    LogTruncated,
    ProtocolError,
    SubscriptionWrongKind,
)
from linn.wire.messages import ConsumerKind, Deliver, Pull

logger = logging.getLogger("linn.client")

Mode = Literal["push", "pull"]
_PULL_WAIT_S = 10.0
"""Time that an iteration's pull waits at the broker before it is repeated."""
_BATCHES_IN_A_ROW_MAX = 8
"""Batches that an iteration hands over without a checkpoint."""


class Consumer(Running, Subscribing):
    """A consumer of a topic, or of several as a member of a group, made by `Client.consumer`.

    Enter it with `async with`. One task iterates; any task may settle.

    Example:
        async with client.consumer("orders") as consumer:
            async for message in consumer:
                print(message.value)
                await message.ack()
                break
    """

    def __init__(
        self,
        connector: Connector,
        topics: Sequence[str],
        group: str,
        prefetch: int | None,
        mode: Mode,
        start: Start,
        where: str,
        renewal_max_s: float,
        membership: Membership,
    ) -> None:
        super().__init__()
        self.topics = tuple(topics)
        self._named = ", ".join(topics)
        self._membership = membership
        self._connector = connector
        self._check_loop = connector.loop_guard.check
        self._thread_id = connector.loop_guard.thread_id
        self._group = group
        self._adapts = prefetch is None
        """Whether the prefetch adapts, if the topic turns out to be a queue."""
        self._prefetch = PREFETCH_MAX if prefetch is None else prefetch
        self._renewal_max_s = renewal_max_s
        self._mode = mode
        self._start = start
        self._where = where
        self._positions: dict[int, Read] = {}
        self._partitions: dict[str, list[int]] = {}
        """Partitions that a group's member owns, by topic."""
        self._revoked: dict[Subscription, None] = {}
        """Subscriptions with partitions to release."""
        self._is_busy = False
        """Whether the application has taken records, and not asked for more since."""
        self._arrived = Arrivals()
        self._messages: Iterator[Message] = iter(())
        self._unread: Iterator[int] = iter(())
        """Indexes that `_messages` has not reached yet; exhausting them ends it."""
        self._take_unread_elsewhere: TakeUnread = lambda _: []
        self._current: Batch | None = None
        self._lease: Delivery | None = None
        """Lease of the current batch; None without a lease."""
        self._monotonic = connector.env.clock.monotonic
        self._handed_in_a_row = 0
        self._news = 0
        """Counter of events that the next step must handle: an error, the end, a batch that is no longer wanted."""
        self._waiting = 0
        self._errors: list[LinnError] = []
        self._closed, self._entered = True, False
        self._changed: anyio.Event | None = None
        self._pulling = False
        """Whether a pull of an iteration is in progress."""

    # --- life ---

    async def __aenter__(self) -> Self:
        """Subscribe. Raises TopicUnknown, SubscriptionWrongKind, ConnectionLost, RequestTimeout and other refusals."""
        connection = await self._connector.ready()
        try:
            await self._subscribe(connection, self.topics)
        except LinnError as error:
            # A leader that has just gone, or leads no more, is no reason to fail: the broker at hand knows another.
            if not (self._asked_leader and error.retriable) or connection.error is not None:
                raise
            await self._subscribe(connection, self.topics, through_hand=True)
        self._closed, self._entered = False, True
        self._connector.listeners.append(self)
        for topic in self.topics:
            self._connector.leaders.watch(topic, self._moved)
        self._end_lost()  # A connection was lost before this consumer was a listener.
        if self._missing() and not self._is_subscribing:
            self._is_subscribing = True
            await self._resubscribe()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._check_loop()
        if exc is None:
            await self.aclose()
        elif isinstance(exc, Exception):
            with contextlib.suppress(LinnError):  # The block's own error is raised.
                await self.aclose()
        else:
            self._leave()

    async def aclose(self) -> None:
        """Send outstanding settlements and unsubscribe. Unsettled records go back to a queue, unread ones uncounted.

        Raises:
            LinnError: a settlement that was not awaited was refused.
        Cancellation: settlements and the unsubscribe request are on their way all the same.

        Example:
            consumer = await client.consumer("orders").__aenter__()  # without a block
            await (await anext(consumer)).ack()
            await consumer.aclose()
        """
        self._check_loop()
        if self._closed:
            await anyio.lowlevel.checkpoint()
            return
        with anyio.move_on_after(self._connector.options.request_timeout_s):
            try:
                for subscription in list(self._subscriptions):
                    await subscription.until_quiet()
            finally:
                answers = self._leave()
            for answer in answers:
                with contextlib.suppress(LinnError):
                    await answer.wait()
        await anyio.lowlevel.checkpoint()
        self._raise_errors()

    def _leave(self) -> list[Answer]:
        """Send settlements and unsubscribe without waiting; return the answers to wait for."""
        if self._closed:
            return []
        self._closed = True
        self._connector.listeners.remove(self)
        for topic in self.topics:
            self._connector.leaders.unwatch(topic, self._moved)
        answers = self._unsubscribe(self.topics)
        self._wake()
        return answers

    # --- the connections ---

    def _give_up(self, error: LinnError) -> None:
        """Make the next step raise that no broker was found; the step after that makes the client try again."""
        self._on_refused(error)

    # --- what arrives ---

    def _put_arrived(self, batches: list[Batch]) -> None:
        """Take the batches of one delivery."""
        self._arrived.extend(batches)
        if self._changed is not None:
            self._wake()

    def _on_assigned(self, subscription: Subscription, partitions: Iterable[int], has_revoked: bool) -> None:
        """Note the partitions that the group has assigned to this member; release others as soon as possible.

        A queue tells its consumers in this way which one is active.
        """
        self._wake()
        if subscription.kind == ConsumerKind.SHARED:
            return
        owned = self._partitions[subscription.topic] = list(partitions)
        for topic, partition in list(self._paused):
            if topic == subscription.topic and partition not in owned:
                del self._paused[topic, partition]
        self._pause_again(subscription, owned)
        self._drop_unwanted()
        if has_revoked:
            self._revoked[subscription] = None
            if not self._is_busy:
                self._let_go()

    def _let_go(self) -> None:
        """Release revoked partitions: the application asks for more, so it has finished the earlier records."""
        self._is_busy = False
        while self._revoked:
            self._revoked.popitem()[0].release_revoked()

    def _set_back(self, partition: int) -> None:
        """Drop arrived batches that will be redelivered, because reading was set back or a lease has ended."""
        self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        self._news += 1
        self._arrived.drop_unwanted()
        if self._current is not None and not self._current._is_wanted():
            self._messages, self._unread = iter(()), iter(())

    def _take_unread(self, matches: Matches) -> list[Unread]:
        """Take back the records of batches that match and were not handed out."""
        unread = self._take_unread_elsewhere(matches)
        if self._current is not None and matches(self._current):
            unread += rest_of(self._current, self._unread)
        return unread + self._arrived.take_back(matches)

    def _hand_to(self, take_unread: TakeUnread) -> None:
        """Set the callback that takes back unread records from the caller of `_take`."""
        self._take_unread_elsewhere = take_unread

    @property
    def _taken_max(self) -> int:
        """Number of records to `_take` at a time, so that the broker goes on sending."""
        return min([subscription.taken_max for subscription in self._subscriptions], default=1)

    def _on_refused(self, error: LinnError) -> None:
        """Make the next step raise the refusal of a settlement that is not awaited."""
        self._errors.append(error)
        self._news += 1
        self._wake()

    def _on_ended(self, subscription: Subscription, error: LinnError) -> None:
        """Make the next step raise why the broker ended a subscription; or subscribe anew, as to another leader."""
        if isinstance(error, GroupSessionExpired | NotLeader | PeerError):
            if isinstance(error, NotLeader):
                self._led_until[subscription.topic] = subscription.read_in[0]
            logger.warning("%(error)s; trying again", {"topic": self._named, "error": error.text, "code": error.code})
            self._end([subscription.topic])
            self._subscribe_again()  # Without a broker at hand, the next connection does it.
            return
        self._broken = error
        self._wake()

    def _join_again(self) -> None:
        """Leave the group, and join it again: reading goes on at the committed offsets."""
        if self._connector.usable is not None and not self._closed:  # Another connection joins in any case.
            for subscription in self._subscriptions:
                subscription.leave()
            self._end(self.topics)
            self._subscribe_again()

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` in `delay_s` seconds."""
        self._connector.timers.after(delay_s, callback)

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    @property
    def is_active(self) -> bool:
        """Whether the broker gives records to this consumer, and not only to others.

        On a queue with `consumers = "one"` that is so for one consumer; in a group, for members with partitions; and
        otherwise for all. It may be out of date by the time in which news travels: what a consumer holds is its own in
        any case.
        """
        return any(it.alive and not it.stands_by for it in self._subscriptions)

    async def wait_active(self) -> None:
        """Wait until this consumer `is_active`, also over lost connections; for another task than the iterating one.

        Raises TopicUnknown, ...: the subscription is over for good. ClientClosed: the consumer is closed. Cancellation
        has no effect on the consumer.

        Example:
            await consumer.wait_active()
            print("this one works, the others stand by")
        """
        self._check_loop()
        self._check_entered()
        while not self.is_active:
            if self._closed:
                raise ClientClosed("the consumer is closed")
            if self._broken is not None:
                raise again(self._broken)
            self._changed = self._changed or anyio.Event()
            await self._changed.wait()
        await anyio.lowlevel.checkpoint()

    @property
    def partitions(self) -> dict[str, list[int]]:
        """Partitions that this member of a group owns now, by topic; a topic is missing before its first assignment."""
        return dict(self._partitions)

    # --- iterating ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message, in the order of the broker's deliveries.

        Within a batch there is no checkpoint; there is one at least every few batches.

        Raises:
            DeliveryNotCurrent, GroupFenced, ...: a settlement that was not awaited was refused; iterate on.
                A settlement that a lost connection made void is not raised.
            ConnectionLost: `retries_max` attempts to reconnect failed; iterating on tries again.
            TopicUnknown, ...: the subscription is over for good.
            ClientClosed: the consumer was not entered. ClientUnreachable: this is not the client's event loop.
        Closing the consumer ends the iteration. Cancellation: no message is lost.
        """
        if get_ident() != self._thread_id:
            self._check_loop()
        if not self._errors:
            lease = self._lease
            if lease is None or self._monotonic() < lease.until_s:
                for message in self._messages:
                    return message
        return await self._turn()

    async def _turn(self) -> Message:
        self._raise_errors()
        batch = self._current = await self.next_batch()
        self._lease = batch._delivery if batch._subscription is not None and batch._subscription.leased else None
        self._unread = iter(batch._indexes)
        self._messages = map(Message, repeat(batch), self._unread)
        return next(self._messages)

    def batches(self) -> Batches:
        """Iterate over batches; each step raises and waits as `__anext__` does.

        Example:
            async for batch in consumer.batches():
                print(len(batch), batch.values)
                batch.ack()
                break
        """
        return Batches(self.next_batch)

    async def next_batch(self) -> Batch:
        """Wait for the next whole batch, skipping the rest of the current one. Raises as `__anext__` does.

        Example:
            batch = await consumer.next_batch()
            await batch.ack()
        """
        while True:
            await self._until_arrived()
            await self._be_fair()
            if self._arrived:
                batch = self._arrived.take()
                batch.records.check_crc()
                return batch

    async def _take(self, records_max: int) -> list[Batch]:
        """Wait for the first batch; take it, and others that have arrived up to `records_max` records in all.

        The thread that reads a batch checks its CRC. Raises as `__anext__` does; cancellation loses nothing.
        """
        await self._until_arrived()
        return self._arrived.take_up_to(records_max)

    async def _until_arrived(self) -> None:
        """Wait for a batch. Raises as `__anext__` does."""
        self._check_loop()
        self._let_go()
        while True:
            if self._may_move:
                self._move()
            self._raise_errors()
            if self._arrived.is_next_wanted():
                self._is_busy = True
                return
            if self._closed:
                self._check_entered()
                raise StopAsyncIteration
            if self._broken is not None:
                raise again(self._broken)
            for subscription in self._subscriptions:
                subscription.waits()
            self._waiting += 1
            try:
                await self._wait()
            finally:
                self._waiting -= 1
            for subscription in self._subscriptions:
                subscription.waited()

    def _check_entered(self) -> None:
        if not self._entered:
            raise ClientClosed("the consumer was not entered with `async with`")

    async def _be_fair(self) -> None:
        self._handed_in_a_row += 1
        if self._handed_in_a_row >= _BATCHES_IN_A_ROW_MAX:
            self._handed_in_a_row = 0
            await anyio.lowlevel.checkpoint()

    async def _wait(self) -> None:
        """Wait for an event; in pull mode, send a pull first."""
        self._handed_in_a_row = 0
        if self._connector.usable is None:
            self._connector.retry()
        pulls = self._mode == "pull" and bool(self._subscriptions)
        if pulls and not self._pulling:
            self._pulling = True
            subscription = self._subscriptions[0]
            self._ask(
                PullRequest(self, subscription),
                subscription.pull_max or self._prefetch,
                _PULL_WAIT_S / len(self._subscriptions),
            )
        if self._arrived or self._errors or self._closed:
            return
        self._changed = changed = self._changed or anyio.Event()
        with self._time_limit(_PULL_WAIT_S) if pulls else contextlib.nullcontext():
            await changed.wait()

    def _raise_errors(self) -> None:
        """Raise the first pending error. Clear the others, except errors about lost records of other partitions."""
        if self._errors:
            first, *others = self._errors
            self._errors = [error for error in others if isinstance(error, LogTruncated)]
            error = again(first)
            if len(others) > len(self._errors):
                error.add_note(f"and {len(others) - len(self._errors)} more")
            raise error

    # --- pulling ---

    async def pull(
        self, records_max: int, wait_s: float = 0.0, *, partition: int | None = None, start: int = 0
    ) -> list[Batch]:
        """Pull up to `records_max` records, waiting up to `wait_s` seconds for the first; may return none.

        Only with mode="pull". Batches that an abandoned iteration has pulled come first, whole. With `partition`, only
        records that are ready in that partition of a queue, from offset `start` on, without waiting.

        Raises:
            SubscriptionWrongKind: the consumer's mode is push, or `partition` is given and the topic is no queue with
                leases. MessageInvalid: an argument is wrong.
            ConnectionLost: the connection ended; leased records that were on their way are redelivered.
            BatchCorrupt: a batch was damaged; leased records that were on their way are redelivered.
            LinnError: a settlement that was not awaited was refused, or the subscription is over.
        Cancellation: records that were on their way stay leased until the lease ends.

        Example:
            async with client.consumer("orders", mode="pull") as consumer:
                for batch in await consumer.pull(records_max=100, wait_s=0.1):
                    await batch.ack()
        """
        if self._mode != "pull":
            raise SubscriptionWrongKind('pull needs a consumer with mode="pull"')
        self._check_loop()
        checked_number(records_max, "records_max", U32_MAX)
        wait_s = checked_wait(wait_s)
        place = checked_place(partition, start)
        self._check_entered()
        self._let_go()
        if self._may_move and not self._pulling:
            self._move()
        self._raise_errors()
        if self._broken is not None:
            raise again(self._broken)
        if self._pulling:
            # The broker serves pulls in order; a second one would wait behind the first.
            with anyio.move_on_after(wait_s):
                await self._until_pulled()
        while not self._subscriptions:
            if self._closed:
                raise ClientClosed("the consumer is closed")
            self._connector.retry()
            self._changed = self._changed or anyio.Event()
            await self._changed.wait()
            self._raise_errors()
        batches = await self._take(records_max) if self._arrived else []
        if not (batches or self._pulling):
            batches = await self._pull(records_max, wait_s, place)
        self._is_busy = bool(batches)
        for batch in batches:
            batch.records.check_crc()
        return batches

    async def _until_pulled(self) -> None:
        while self._pulling and not self._arrived:
            self._changed = self._changed or anyio.Event()
            await self._changed.wait()
            self._raise_errors()

    async def _pull(self, records_max: int, wait_s: float, place: tuple[bool, int, int]) -> list[Batch]:
        """Pull from the subscriptions in turn; a reader may have several after a reconnection."""
        subscription, answer = self._subscriptions[0], Answer()
        wait_s = wait_s / len(self._subscriptions)
        correlation = self._ask(answer, records_max, wait_s, place)
        try:
            with self._time_limit(wait_s):
                message = await answer.wait()
        finally:
            subscription.connection.forget(correlation)
        if not isinstance(message, Deliver):
            raise ProtocolError(f"the broker answered pull with {type(message).__name__}")
        batches = subscription.delivered(message, answer.batches)
        for batch in batches:
            batch._handed_over()
        return batches

    def _ask(self, caller: Caller, records_max: int, wait_s: float, place: tuple[bool, int, int] = ANYWHERE) -> int:
        """Pull from the first subscription and move it to the end; return the request's correlation."""
        subscription = self._subscriptions.pop(0)
        self._subscriptions.append(subscription)
        subscription.flush()
        return subscription.connection.ask(caller, Pull(subscription.id, records_max, int(wait_s * 1000), *place))

    def _time_limit(self, wait_s: float) -> contextlib.AbstractContextManager[object]:
        """Limit the time of a pull that waits at the broker for `wait_s`."""
        return self._connector.time_limit(f"pull from {self._named}", wait_s)

    def _on_pulled(self, batches: list[Batch], error: LinnError | None) -> None:
        """Take the outcome of an iteration's pull."""
        self._pulling = False
        if error is not None and not isinstance(error, ConnectionLost):  # The client reconnects.
            self._on_refused(error)
        self._arrived.extend(batches)
        self._wake()
