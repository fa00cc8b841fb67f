"""Consumer of the blocking client: the async one, read and settled by any number of threads.

Laws: batches that the loop has handed out are kept here until a thread takes them, so that a wait that ends early
loses nothing; each message goes to one thread; messages whose lease or partition is gone are not handed out. Reading on
within a batch takes no lock: `next` of an iterator is one step of the interpreter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from os import getpid
from typing import Any, Self, TypeVar, overload

import anyio

from linn.client.arguments import checked_timeout
from linn.client.blocking.facade import ClosingFacade
from linn.client.blocking.generated.message import Batch, Message
from linn.client.blocking.loop_thread import LoopThread
from linn.client.blocking.running import Handler, Run, StopEvent
from linn.client.blocking.settling import Settled, Settlements
from linn.client.consume import consumer as asynchronous
from linn.client.consume import message as asynchronous_message
from linn.client.consume.arrivals import Matches, Unread, rest_of
from linn.client.consume.running import Exceptions, Rules, check_concurrency
from linn.client.consume.subscription import Subscription
from linn.core.errors.tree import ClientClosed
from linn.wire.messages import Verdict

T = TypeVar("T")


class ConsumerEnded(Exception):
    """The consumer was closed."""


class BaseConsumer(ClosingFacade[asynchronous.Consumer]):
    """Part of `Consumer` that is written by hand: iterating, in any number of threads."""

    def __init__(self, forget: Callable[[Any], None], thread: LoopThread, made: asynchronous.Consumer) -> None:
        super().__init__(forget, thread, made)
        self.topics = made.topics
        self._settlements = Settlements(thread, self._drop_nacked)
        self._ready: deque[Batch] = deque()
        self._current: Batch | None = None
        self._messages: Iterator[Message] = iter(())
        self._unread: Iterator[int] = iter(())
        """Indexes that `_messages` has not reached yet."""
        self._news = made._news
        made._hand_to(self._take_unread)

    def _drop(self) -> None:
        self._ready.clear()
        self._current, self._messages = None, iter(())

    # --- iterating ---

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        """Wait for the next message, in the order of the broker's deliveries. Closing the consumer ends the iteration.

        Raises:
            DeliveryNotCurrent, GroupFenced, ...: a settlement that was not waited for was refused; iterate on.
                A settlement that a lost connection made void is not raised.
            ConnectionLost: `retries_max` attempts to reconnect failed; iterating on tries again.
            BatchCorrupt: a batch was damaged; iterate on.
            TopicUnknown, ...: the subscription is over for good.
        If the wait is interrupted (KeyboardInterrupt), no message is lost.
        """
        if self._news == self._made._news and getpid() == self._process_id:
            for message in self._messages:
                return message
        found = self._step(self._pick_message, None)
        if found is None:
            raise StopIteration
        return found

    @overload
    def get(self) -> Message: ...
    @overload
    def get(self, timeout_s: float | None) -> Message | None: ...
    def get(self, timeout_s: float | None = None) -> Message | None:
        """Wait for the next message; return None if none arrives within `timeout_s` seconds.

        Raises as `__next__` does, and ConnectionLost if the consumer is closed.

        Example:
            while (message := consumer.get(timeout_s=0.1)) is not None:
                message.ack()
        """
        return self._open(self._step(self._pick_message, timeout_s))

    def _batches(self) -> Iterator[Batch]:
        return iter(self._step_batch, None)  # Unlike a generator, it goes on after an error.

    @overload
    def next_batch(self) -> Batch: ...
    @overload
    def next_batch(self, timeout_s: float | None) -> Batch | None: ...
    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """Wait for the next whole batch; return None if none arrives within `timeout_s` seconds. Raises as `get` does.

        Example:
            batch = consumer.next_batch(timeout_s=5)
            if batch is not None:
                batch.ack().wait()
        """
        return self._open(self._step(self._pick_batch, timeout_s))

    def _open(self, found: T | None) -> T | None:
        if found is None and self._closed:
            raise ClientClosed("the consumer is closed")
        return found

    def _run(
        self,
        handler: Handler,
        *,
        concurrency: int,
        stop: StopEvent | None,
        reject_on: Exceptions,
        attempts_max: int | None,
    ) -> None:
        """This thread and `concurrency` - 1 others call the handler. A KeyboardInterrupt leaves the message in this
        thread unsettled; the other threads finish theirs.
        """
        rules = Rules(reject_on, attempts_max)
        check_concurrency(self._made._kind, concurrency)
        Run(self, self._thread, handler, rules).run(concurrency, stop)

    def _next_within(self, timeout_s: float) -> Message | None:
        """Wait for the next message; None if there is none in time, or the consumer is closed."""
        return self._step(self._pick_message, timeout_s)

    @property
    def _subscriptions(self) -> list[Subscription]:
        return self._made._subscriptions

    def _sleep(self, seconds: float) -> None:
        """Wait. Raises ConsumerEnded."""
        if self._closed:
            raise ConsumerEnded
        self._thread.call(self._made._sleep, seconds)

    def _next_delivery(self) -> list[Batch]:
        """Wait for the next batch, and take it with the others of its delivery. Raises ConsumerEnded."""
        first = self._step_batch()
        if first is None:
            raise ConsumerEnded
        batches = [first]
        with self._lock:
            while self._ready and self._ready[0]._delivery is first._delivery:
                batches.append(self._ready.popleft())
                batches[-1].records.check_crc()
        return batches

    def _step_batch(self) -> Batch | None:
        """Wait for the next batch; return None if the consumer is closed."""
        return self._step(self._pick_batch, None)

    def _step(self, pick: Callable[[], T | None], timeout_s: float | None) -> T | None:
        """Wait until `pick` finds something and return it; None after the time limit, or if the consumer is closed."""
        self._thread.check()
        timeout_s = checked_timeout(timeout_s)
        deadline = math.inf if timeout_s is None else self._thread.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._closed:
                    return None
                if self._news == self._made._news:
                    found = pick()
                    if found is not None:
                        return found
            if not self._thread.call(self._refill, deadline):
                return None

    def _pick_message(self) -> Message | None:
        while True:
            for message in self._messages:
                return message
            self._current = self._pick_batch()
            if self._current is None:
                return None
            self._unread = iter(self._current._indexes)
            self._messages = map(Message, repeat(self._current), self._unread)

    def _pick_batch(self) -> Batch | None:
        if not self._ready:
            return None
        batch = self._ready.popleft()
        batch.records.check_crc()
        return batch

    async def _refill(self, deadline: float) -> bool:
        """Handle events and wait for a batch; return False at the deadline, or if the consumer has ended."""
        with self._lock:
            if self._news != self._made._news:
                self._news = self._made._news
                self._drop_unwanted()
                self._made._let_go()
                self._made._raise_errors()
                return True
            if self._ready:
                return True  # Another thread was quicker.
        try:
            with anyio.CancelScope(deadline=deadline):
                taken = await self._made._take(self._made._taken_max)
                with self._lock:
                    self._ready.extend(Batch(batch, self) for batch in taken)
                return True
        except StopAsyncIteration:
            pass
        return False

    def _drop_unwanted(self) -> None:
        self._ready = deque(batch for batch in self._ready if batch._origin._is_wanted())
        if self._current is not None and not self._current._origin._is_wanted():
            self._current, self._messages = None, iter(())

    def _drop_nacked(self) -> None:
        """Drop what a nack has set a group's member back before. Called by the loop."""
        with self._lock:
            self._drop_unwanted()

    def _take_unread(self, matches: Matches) -> list[Unread]:
        """Take back unread records that were handed out to threads. Called by the loop."""
        unread: list[Unread] = []
        with self._lock:
            if self._current is not None and matches(self._current._origin):
                unread += rest_of(self._current._origin, self._unread)
            kept: deque[Batch] = deque()
            for batch in self._ready:
                if matches(batch._origin):
                    unread += rest_of(batch._origin, iter(batch._indexes))
                else:
                    kept.append(batch)
            self._ready = kept
        return unread

    def _pull(self, *args: Any, **options: Any) -> list[Batch]:
        return [Batch(batch, self) for batch in self._thread.call(self._made.pull, *args, **options)]

    def _settle(
        self, batch: asynchronous_message.Batch, first: int, end: int, verdict: Verdict, ms: int, reason: str
    ) -> Settled:
        """Settle records by index; see `Batch.ack`. Raises MessageInvalid, ConnectionLost."""
        return self._settlements.add(batch, first, end, verdict, ms, reason)
