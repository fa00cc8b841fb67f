"""Consumer of the blocking client: the async one, read and settled by any number of threads.

Laws: batches that the loop has handed over are kept here until a thread takes them, so that a wait that ends early
loses nothing; each message goes to one thread; messages whose lease or partition is gone are not handed out. Reading on
within a batch takes no lock: `next` of an iterator is one step of the interpreter.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from os import getpid
from types import TracebackType
from typing import Self, TypeVar, overload

import anyio

from linn.client.arguments import checked_timeout
from linn.client.blocking.loop_thread import LoopThread
from linn.client.blocking.message import Batch, Message
from linn.client.blocking.running import Handler, Run, StopEvent
from linn.client.blocking.settling import Settled, Settlements
from linn.client.consume import consumer as asynchronous
from linn.client.consume import message as asynchronous_message
from linn.client.consume.arrivals import Matches, Unread, rest_of
from linn.client.consume.running import ATTEMPTS_MAX, Exceptions, Rules, check_concurrency
from linn.client.consume.start_position import Start
from linn.core.errors.tree import ClientClosed
from linn.wire.messages import Verdict

T = TypeVar("T")


class Consumer:
    """A blocking consumer of a topic, or of several as a member of a group, opened by `Client.consumer`.

    Any number of threads may iterate, and settle.

    Example:
        with client.consumer("orders") as consumer:
            for message in consumer:
                print(message.value)
                message.ack()
                break
    """

    def __init__(self, forget: Callable[[Consumer], None], thread: LoopThread, made: asynchronous.Consumer) -> None:
        self._forget = forget
        """The client's method, which keeps the client alive for as long as this object."""
        self._thread = thread
        self._process_id = thread.process_id
        self._made = made
        self._settlements = Settlements(thread)
        self._lock = threading.RLock()
        self._ready: deque[Batch] = deque()
        self._current: Batch | None = None
        self._messages: Iterator[Message] = iter(())
        self._unread: Iterator[int] = iter(())
        """Indexes that `_messages` has not reached yet."""
        self._news = made._news
        made._hand_to(self._take_unread)
        self._closed = False

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of its topics."""
        return self._made.topics

    @property
    def partitions(self) -> dict[str, list[int]]:
        """Partitions that this member of a group owns now, by topic; a topic is missing before its first assignment."""
        return self._made.partitions

    # --- life ---

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
        self._forget(self)
        try:
            self._thread.call(self._made.__aexit__, exc_type, exc, traceback)
        finally:
            self._ready.clear()
            self._current, self._messages = None, iter(())

    def close(self) -> None:
        """Send outstanding settlements and unsubscribe. Unsettled records go back to a queue.

        Iterations end, in other threads as well. Idempotent.

        Raises:
            LinnError: a settlement that nobody waited for was refused.

        Example:
            consumer = client.consumer("orders")
            next(consumer).ack()
            consumer.close()
        """
        self.__exit__(None, None, None)

    # --- iterating ---

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        """Wait for the next message, in the order of the broker's deliveries. Closing the consumer ends the iteration.

        Raises:
            DeliveryNotCurrent, GroupFenced, ...: a settlement that nobody waited for was refused; iterate on.
                One that a lost connection made void is not raised.
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

    def batches(self) -> Batches:
        """Iterate over batches; each step raises and waits as `__next__` does.

        Example:
            for batch in consumer.batches():
                print(len(batch), batch.values)
                batch.ack()
                break
        """
        return Batches(self)

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

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        stop: StopEvent | None = None,
        reject_on: Exceptions = (),
        attempts_max: int | None = ATTEMPTS_MAX,
    ) -> None:
        """Call `handler` with each message, and ack it when the call has ended; until `stop` is set, or SIGTERM.

        For the options, and for what becomes of a message whose call raises an exception, see
        `linn.client.Consumer.run`. This thread and `concurrency` - 1 others call the handler; `stop` is an event of
        `threading` or `multiprocessing`. A KeyboardInterrupt leaves the message in this thread unsettled; the other
        threads finish theirs.

        Raises as `linn.client.Consumer.run`.

        Example:
            def work(message):
                print(message.value)
                if message.value == b"9":
                    stop.set()

            stop = threading.Event()
            consumer.run(work, concurrency=4, stop=stop)
        """
        rules = Rules(reject_on, attempts_max)
        check_concurrency(self._made._kind, concurrency)
        Run(self, self._thread, handler, rules).run(concurrency, stop)

    def _next_within(self, timeout_s: float) -> Message | None:
        """Wait for the next message; None if there is none in time, or the consumer is closed."""
        return self._step(self._pick_message, timeout_s)

    def _next_delivery(self) -> list[Batch] | None:
        """Wait for the next batch, and take it with the others of its delivery; None if the consumer is closed."""
        first = self._step_batch()
        if first is None:
            return None
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
        """Handle news and wait for a batch; return False if there is none by the deadline, or will be none any more."""
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
                    self._ready.extend(Batch(batch, self._settle) for batch in taken)
                return True
        except StopAsyncIteration:
            pass
        return False

    def _drop_unwanted(self) -> None:
        self._ready = deque(batch for batch in self._ready if batch._origin._is_wanted())
        if self._current is not None and not self._current._origin._is_wanted():
            self._current, self._messages = None, iter(())

    def _take_unread(self, matches: Matches) -> list[Unread]:
        """Take back records that were handed over to threads and not read. Called by the loop."""
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

    # --- pulling ---

    def pull(
        self, records_max: int, wait_s: float = 0.0, *, partition: int | None = None, start: int = 0
    ) -> list[Batch]:
        """Pull up to `records_max` records, waiting up to `wait_s` seconds for the first; may return none.

        Only with mode="pull". With `partition`, only records that are ready in that partition of a queue, from offset
        `start` on, without waiting.

        Raises:
            SubscriptionWrongKind: the consumer's mode is push, or `partition` is given and the topic is no queue with
                leases.
            ConnectionLost: the connection ended; leased records that were on their way are redelivered.
            BatchCorrupt: a batch was damaged; leased records that were on their way are redelivered.
            LinnError: a settlement that nobody waited for was refused, or the subscription is over.
        If the wait is interrupted, records that were on their way stay leased until the lease ends.

        Example:
            with client.consumer("orders", mode="pull") as consumer:
                for batch in consumer.pull(records_max=100, wait_s=0.1):
                    batch.ack()
        """
        pulled = self._thread.call(self._made.pull, records_max, wait_s, partition=partition, start=start)
        return [Batch(batch, self._settle) for batch in pulled]

    # --- seeking ---

    @property
    def paused(self) -> dict[str, list[int]]:
        """Partitions that `pause` has paused, by topic."""
        return self._made.paused

    def pause(self, *partitions: int, topic: str | None = None) -> None:
        """Deliver nothing of some partitions of a stream until `resume`; a group's member keeps them.

        See `linn.client.Consumer.pause`, also for what it raises.

        Example:
            with client.consumer("prices", group="dashboard") as consumer:
                message = next(consumer)
                consumer.pause(message.partition)
                print(consumer.paused)
        """
        self._thread.call(self._made.pause, *partitions, topic=topic)

    def resume(self, *partitions: int, topic: str | None = None) -> None:
        """Go on with partitions that `pause` has paused. Raises as `pause` does.

        Example:
            for partition in consumer.paused.get("prices", []):
                consumer.resume(partition)
        """
        self._thread.call(self._made.resume, *partitions, topic=topic)

    def seek(self, partition: int, to: Start, *, topic: str | None = None) -> int:
        """Go on elsewhere in a partition of a stream, and return the offset; see `linn.client.Consumer.seek`.

        Raises as `pause` does, and OffsetOutOfRange.

        Example:
            with client.consumer("prices", group="dashboard") as consumer:
                message = next(consumer)
                offset = consumer.seek(message.partition, "earliest")
        """
        return self._thread.call(self._made.seek, partition, to, topic=topic)

    def commit(self, partition: int, offset: int, *, text: str = "", topic: str | None = None) -> None:
        """Commit an offset of a group, the next one to read; see `linn.client.Consumer.commit`.

        Raises SubscriptionWrongKind, GroupFenced, OffsetOutOfRange, LimitExceeded, MessageInvalid, ConnectionLost.

        Example:
            with client.consumer("prices", group="dashboard") as consumer:
                message = next(consumer)
                consumer.commit(message.partition, message.offset + 1)
        """
        self._thread.call(self._made.commit, partition, offset, text=text, topic=topic)

    # --- settling ---

    def _settle(
        self, batch: asynchronous_message.Batch, first: int, end: int, verdict: Verdict, ms: int, reason: str
    ) -> Settled:
        """Settle records by index; see `Batch.ack`. Raises MessageInvalid, ConnectionLost."""
        return self._settlements.add(batch, first, end, verdict, ms, reason)


class Batches:
    """Iterator over a consumer's batches."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """Wait for the next batch; see `Consumer.__next__`."""
        batch = self._consumer._step_batch()
        if batch is None:
            raise StopIteration
        return batch
