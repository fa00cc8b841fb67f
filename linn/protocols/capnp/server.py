"""The broker's side of the native protocol: one session per connection.

One task reads and carries requests out in order; one sends; each subscription and each waiting request has its own. A
request that must wait (for a sync, for records, for room) does not hold up those behind it, except publishes behind a
publish to the same full topic, which keep their order.

Laws: backpressure is reading less: with too much unsent output, too many unanswered requests or too many bytes in
publishes that wait for room, the session stops reading. A malformed stream is answered with one error and closed; a
request that fails is answered with its error and the connection goes on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import trio

from linn.core.broker import Broker, Destination
from linn.core.delivery import Patience, Settlement
from linn.core.env import Stream
from linn.core.errors import (
    ConnectionLost,
    InternalError,
    LimitExceeded,
    LinnError,
    ProtocolError,
    RequestTimeout,
    RequestUnknown,
    SubscriptionUnknown,
    TopicUnknown,
)
from linn.core.flat_message import Buffer
from linn.core.partition import Partition
from linn.protocols.capnp import messages as m
from linn.protocols.capnp.connection import Connection, Event, agree, frames_of
from linn.protocols.capnp.outbox import Outbox
from linn.protocols.capnp.subscriber import Subscriber

logger = logging.getLogger("linn.capnp")

FETCH_BYTES_MAX = 16 << 20
"""Largest answer to one fetch, whatever the client asks for."""
FETCH_BYTES_MIN_MAX = 1 << 20
"""What a fetch waits for at most: it is read to be counted, by each fetch that waits."""
WAIT_MS_MAX = 60_000
"""Longest wait of a fetch or pull: connections are kept alive by other means."""
DELIVERY_BYTES_MIN = 16 << 10
DELIVERY_BYTES_MAX = 1 << 20
"""Batches of one delivery: a few socket buffers' worth, so that others get their turn."""
KEEPALIVES_MISSED_MAX = 3
RECEIVES_IN_A_ROW_MAX = 8
"""With full buffers this is 2 MiB, about a millisecond, in which other connections wait."""
DRAIN_POLL_S = 0.01
LAST_WORDS_S = 5.0
"""How long a connection that is closed for an error may take to be told why."""
HEARD_BYTES_MIN = 16 << 10
"""A client that sends no whole message lets itself be heard by this much of one; less is as good as silence."""
_ACKS_MAX = int(m.Acks.ALL)


class CapnpServer:
    """A `ProtocolServer` for one listener."""

    def __init__(self, keepalive_s: float, hello_timeout_s: float) -> None:
        self.keepalive_s = keepalive_s
        self.hello_timeout_s = hello_timeout_s

    async def serve(self, stream: Stream, broker: Broker) -> None:
        """Speak with one client until either side ends it. Raises LinnError where the client did something wrong."""
        await _Session(self, stream, broker).run()


class _WaitingPublish(NamedTuple):
    """A publish that has to wait for room in a topic."""

    event: Event
    bytes: int


class _Session:
    def __init__(self, server: CapnpServer, stream: Stream, broker: Broker) -> None:
        self.server = server
        self.stream = stream
        self.broker = broker
        settings = broker.config.broker
        self.outbox = Outbox(stream, settings.connection_bytes_max)
        self.nursery: trio.Nursery
        self._connection = Connection()
        self._settings = settings
        self._inflight = 0
        self._answered: trio.Event | None = None
        self._subscribers: dict[int, Subscriber] = {}
        self._subscription_ids = 0
        self._fetching = trio.Lock()
        self._waiting_publishes: deque[_WaitingPublish] = deque()
        self._waiting_bytes = 0
        self._heard = False
        self._heard_bytes = 0
        self._waits: dict[Patience, None] = {}
        self._draining = False
        self._handling = False
        self._in_a_row = 0
        self._handlers: dict[type[m.Message], Callable[[Event], None]] = {
            m.Publish: self._publish,
            m.Settle: self._settle,
            m.Credit: self._credit,
            m.Fetch: self._fetch,
            m.Pull: self._pull,
            m.Subscribe: self._subscribe,
            m.Unsubscribe: self._unsubscribe,
            m.FindOffset: self._find_offset,
            m.Describe: self._describe,
            m.Administer: self._administer,
            m.Ping: self._ping,
            m.Pong: self._nothing,
            m.Goodbye: self._goodbye,
            m.Unknown: self._unknown,
        }

    # --- life ---

    async def run(self) -> None:
        """The whole life of the connection."""
        try:
            await self._shake_hands()
            async with trio.open_nursery() as self.nursery:
                self.nursery.start_soon(self._run_outbox)
                self.nursery.start_soon(self._watch)
                self.nursery.start_soon(self._leave_on_drain)
                await self._read()
                self._close_subscribers()
                self.outbox.finish()
                await self._until_sent()
                self.nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if group.split(LinnError)[1] is not None:
                raise
            raise _first(group) from None
        finally:
            self._close_subscribers()

    async def _until_sent(self) -> None:
        with trio.move_on_after(self.server.keepalive_s):
            while self.outbox.waiting_bytes or self._inflight:
                await self.broker.env.clock.sleep(DRAIN_POLL_S)

    async def _run_outbox(self) -> None:
        try:
            await self.outbox.run()
        except ConnectionLost:
            self.nursery.cancel_scope.cancel()

    async def _shake_hands(self) -> None:
        """Hello and welcome. Raises LinnError after telling the client why."""
        try:
            with trio.fail_after(self.server.hello_timeout_s):
                event = await self._first_event()
            version, features = agree(event.message)
        except trio.TooSlowError:
            raise RequestTimeout(f"{self.stream.peer} did not say hello in time") from None
        except LinnError as error:
            await self._refuse(error)
            raise
        settings = self._settings
        welcome = m.Welcome(
            version,
            features,
            self.broker.name,
            settings.frame_bytes_max,
            settings.batch_bytes_max,
            settings.message_bytes_max,
            int(self.server.keepalive_s * 1000),
            settings.inflight_requests_max,
            settings.subscriptions_max,
        )
        self._connection.allow_frames(settings.frame_bytes_max)
        await self.stream.send(frames_of(welcome, event.correlation))

    async def _first_event(self) -> Event:
        while True:
            count = await self.stream.receive_into(self._connection.buffer())
            if count == 0:
                raise ConnectionLost(f"{self.stream.peer} left without saying hello")
            for event in self._connection.received(count):
                return event

    async def _refuse(self, error: LinnError) -> None:
        with trio.move_on_after(1):
            try:
                await self.stream.send(frames_of(m.Failed(error.code, error.text, error.retriable)))
            except ConnectionLost:
                return

    async def _watch(self) -> None:
        """End a connection that has been silent for too long."""
        missed = 0
        while missed < KEEPALIVES_MISSED_MAX:
            await self.broker.env.clock.sleep(self.server.keepalive_s)
            # A client that is not read from, because the broker owes it something, can't be heard.
            held_up = self.outbox.has_room() and self._is_over_budget()
            heard = self._heard or self._heard_bytes >= HEARD_BYTES_MIN or held_up
            missed = 0 if heard else missed + 1
            self._heard, self._heard_bytes = False, 0
        logger.info("%s: silent for %d keepalives, closed", self.stream.peer, missed)
        self.nursery.cancel_scope.cancel()

    async def _leave_on_drain(self) -> None:
        await self.broker.listening.wait_draining()
        self.outbox.put(frames_of(m.Goodbye("the broker is stopping")))
        self._end_waits()
        # Who has nothing under way is let go; who still holds leases may settle them until the drain's time is up.
        while (
            self._inflight
            or self._waiting_publishes
            or any(subscriber.is_holding() for subscriber in self._subscribers.values())
        ):
            await self.broker.env.clock.sleep(DRAIN_POLL_S)
        self.outbox.finish()
        await self._until_sent()
        self.nursery.cancel_scope.cancel()

    def _end_waits(self) -> None:
        """Push nothing more, and answer at once what waits for records."""
        self._draining = True
        for subscriber in self._subscribers.values():
            subscriber.pause()
        for patience in self._waits:
            patience.end()

    async def _last_words(self, error: LinnError) -> None:
        """Answer what is under way, then say what was wrong."""
        self._end_waits()
        with trio.move_on_after(LAST_WORDS_S):
            while self._inflight:
                await self.broker.env.clock.sleep(DRAIN_POLL_S)
        self.outbox.put(frames_of(m.Failed(error.code, error.text, error.retriable)))
        with trio.move_on_after(LAST_WORDS_S):
            while self.outbox.waiting_bytes:
                await self.broker.env.clock.sleep(DRAIN_POLL_S)

    # --- reading ---

    async def _read(self) -> None:
        try:
            # What came behind hello in the same packet waits in the connection.
            self._handle(0)
            while True:
                count = await self._receive()
                if count == 0:
                    return
                self._handle(count)
                if self._is_over_budget():
                    await self._wait_budget()
        except ConnectionLost:
            self.nursery.cancel_scope.cancel()
        except LinnError as error:
            await self._last_words(error)
            raise

    async def _receive(self) -> int:
        """Some bytes; a few times in a row without giving others their turn, where more is there already."""
        stream, connection = self.stream, self._connection
        if self._in_a_row < RECEIVES_IN_A_ROW_MAX:
            count = stream.receive_nowait(connection.buffer())
            if count is not None:
                self._in_a_row += 1
                return count
        self._in_a_row = 0
        return await stream.receive_into(connection.buffer())

    def _handle(self, count: int) -> None:
        """Carry out the requests that are whole now; their answers are sent together."""
        self._heard_bytes += count
        self._handling = True
        try:
            self._handle_events(count)
        finally:
            self._handling = False
        self.outbox.flush()

    def _send(self, frames: list[Buffer]) -> None:
        if self._handling:
            self.outbox.hold(frames)
        else:
            self.outbox.put(frames)

    def _handle_events(self, count: int) -> None:
        handlers = self._handlers
        for event in self._connection.received(count):
            self._heard = True
            handler = handlers.get(type(event.message))
            if handler is None:
                raise ProtocolError(f"a client does not send {type(event.message).__name__}")
            try:
                handler(event)
            except LinnError as error:
                self.fail(event.correlation, error)

    def _is_over_budget(self) -> bool:
        return (
            not self.outbox.has_room()
            or self._inflight >= self._settings.inflight_requests_max
            or self._waiting_bytes >= self._settings.connection_bytes_max
        )

    async def _wait_budget(self) -> None:
        while self._is_over_budget():
            await self.outbox.wait_room()
            if self._is_over_budget() and self.outbox.has_room():
                self._answered = trio.Event()
                await self._answered.wait()

    # --- answering ---

    def reply(self, correlation: int, message: m.Message) -> None:
        """Answer a request, if it wants an answer."""
        if correlation:
            self._send(frames_of(message, correlation))

    def fail(self, correlation: int, error: LinnError) -> None:
        """Answer a request with an error; one that wants no answer is logged."""
        if correlation:
            self._send(frames_of(m.Failed(error.code, error.text, error.retriable), correlation))
        else:
            logger.info("%s: %s", self.stream.peer, error)

    def _begin(self) -> None:
        self._inflight += 1

    def _end(self) -> None:
        self._inflight -= 1
        if self._answered is not None:
            self._answered.set()
            self._answered = None

    def _in_task(self, event: Event, work: Callable[[], Awaitable[None]]) -> None:
        """Carry out a request that waits in a task of its own."""
        self._begin()
        self.nursery.start_soon(self._run_request, event.correlation, work)

    async def _run_request(self, correlation: int, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except LinnError as error:
            self.fail(correlation, error)
        except Exception:
            logger.exception("%s: a request failed", self.stream.peer)
            self.fail(correlation, InternalError("the broker failed to carry out a request; see its log"))
        finally:
            self._end()

    def _when_committed(self, awaits: Sequence[tuple[Partition, int]], correlation: int, answer: m.Message) -> None:
        """Answer once everything is committed; at once where it is already."""
        missing = [(partition, end) for partition, end in awaits if partition.high_watermark < end]
        if not missing:
            self.reply(correlation, answer)
            return
        left = len(missing)
        self._begin()

        def committed() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._end()
                self.reply(correlation, answer)

        for partition, end in missing:
            partition.when_committed(end, committed)

    # --- publishing ---

    def _publish(self, event: Event) -> None:
        if self._waiting_publishes or self._wants_topic(event) or not self._try_publish(event):
            size = sum(batch.size for batch in event.batches)
            self._waiting_publishes.append(_WaitingPublish(event, size))
            self._waiting_bytes += size
            if len(self._waiting_publishes) == 1:
                self.nursery.start_soon(self._publish_waiting)

    def _wants_topic(self, event: Event) -> bool:
        """Whether the request's topic has to be made first."""
        message, broker = event.message, self.broker
        if not broker.config.broker.auto_create_topics:
            return False
        if isinstance(message, m.Publish):
            return not message.to_exchange and message.target not in broker.topics
        return isinstance(message, m.Subscribe) and message.topic not in broker.topics

    def _try_publish(self, event: Event) -> bool:
        """Publish, or find that a topic has no room now. Raises LinnError."""
        publish = event.message
        assert isinstance(publish, m.Publish)
        broker = self.broker
        if not event.batches:
            raise ProtocolError("a publish without batches")
        if publish.acks > _ACKS_MAX:
            raise RequestUnknown(f"acks {publish.acks} is not known to this version")
        planned: list[list[Destination]] = []
        for batch in event.batches:
            batch.verify(broker.limits)
            destinations = broker.destinations(publish.target, publish.to_exchange, publish.partition, batch)
            for destination in destinations:
                if not destination.topic.has_room(destination.batch):
                    return False
            planned.append(destinations)
        placements: list[m.Placement] = []
        awaits: list[tuple[Partition, int]] = []
        for batch, destinations in zip(event.batches, planned, strict=True):
            placed = broker.append(destinations, batch)
            placements.append(m.Placement(placed.partition, placed.base_offset, placed.copies))
            awaits += placed.awaits
        correlation = event.correlation
        if publish.acks == m.Acks.NONE:
            self.reply(correlation, m.Published(placements))
        else:
            self._when_committed(awaits, correlation, m.Published(placements))
        return True

    async def _publish_waiting(self) -> None:
        """Publish in order what had to wait."""
        waiting = self._waiting_publishes
        while waiting:
            event, size = waiting[0]
            try:
                if self._wants_topic(event):
                    assert isinstance(event.message, m.Publish)
                    await self.broker.administration.create_default_topic(event.message.target)
                if not self._try_publish(event):
                    await self._wait_room(event)
                    continue
            except LinnError as error:
                self.fail(event.correlation, error)
            waiting.popleft()
            self._waiting_bytes -= size
            if self._answered is not None:
                self._answered.set()
                self._answered = None

    async def _wait_room(self, event: Event) -> None:
        publish = event.message
        assert isinstance(publish, m.Publish)
        for batch in event.batches:
            for destination in self.broker.destinations(publish.target, publish.to_exchange, publish.partition, batch):
                if not destination.topic.has_room(destination.batch):
                    await destination.topic.wait_room()
                    return

    # --- reading by offset ---

    def _fetch(self, event: Event) -> None:
        fetch = event.message
        assert isinstance(fetch, m.Fetch)

        async def work() -> None:
            partition = self.broker.topic(fetch.topic).partition(fetch.partition)
            bytes_max = min(max(fetch.bytes_max, 1), FETCH_BYTES_MAX)
            bytes_min = min(fetch.bytes_min, bytes_max, FETCH_BYTES_MIN_MAX)
            await self._wait(fetch.wait_max_ms, lambda: self._wait_bytes(partition, fetch.offset, bytes_min))
            # One at a time, so that however many wait, one answer is over the outbox's bound.
            async with self._fetching:
                await self.outbox.wait_room()
                batches = list(await partition.read(fetch.offset, bytes_max))
                answer = m.Fetched(partition.start_offset, partition.high_watermark)
                self.outbox.put(frames_of(answer, event.correlation, batches))

        self._in_task(event, work)

    async def _wait(self, wait_max_ms: int, something: Callable[[], Awaitable[None]]) -> None:
        """Wait for something, as long as the client wants to and the broker goes on."""
        patience = Patience(0 if self._draining else min(wait_max_ms, WAIT_MS_MAX) / 1000)
        self._waits[patience] = None
        try:
            await patience.wait(something)
        finally:
            del self._waits[patience]

    async def _wait_bytes(self, partition: Partition, offset: int, bytes_min: int) -> None:
        while True:
            batches = await partition.read(offset, bytes_min)
            if sum(batch.size for batch in batches) >= max(bytes_min, 1):
                return
            if batches and batches[-1].end_offset < partition.high_watermark:
                return  # The next batch would exceed the least that was asked for: there is enough.
            await partition.wait_advanced()

    def _find_offset(self, event: Event) -> None:
        find = event.message
        assert isinstance(find, m.FindOffset)

        async def work() -> None:
            partition = self.broker.topic(find.topic).partition(find.partition)
            if find.timestamp_ms == m.START_LATEST:
                offset = partition.high_watermark
            elif find.timestamp_ms == m.START_EARLIEST:
                offset = partition.start_offset
            else:
                offset = min(await partition.log.offset_at(find.timestamp_ms), partition.high_watermark)
            self.reply(event.correlation, m.FoundOffset(offset))

        self._in_task(event, work)

    # --- subscriptions ---

    def _subscribe(self, event: Event) -> None:
        subscribe = event.message
        assert isinstance(subscribe, m.Subscribe)
        if self._wants_topic(event):
            self._in_task(event, lambda: self._make_and_subscribe(event))
            return
        if len(self._subscribers) >= self._settings.subscriptions_max:
            raise LimitExceeded(f"a connection has at most {self._settings.subscriptions_max} subscriptions")
        self._subscription_ids += 1
        id = self._subscription_ids
        subscriber = Subscriber(id, self.outbox, self._delivery_bytes)
        kind, consumer = self.broker.subscribe(
            subscribe.topic, subscribe.group, subscribe.start, subscribe.partitions, subscriber.assigned
        )
        subscriber.consumer = consumer
        self._subscribers[id] = subscriber
        self.outbox.put(frames_of(m.Subscribed(id, kind, consumer.lease_ms), event.correlation))
        subscriber.begin(subscribe.credit)
        self.nursery.start_soon(self._run_subscriber, subscriber)

    async def _make_and_subscribe(self, event: Event) -> None:
        assert isinstance(event.message, m.Subscribe)
        await self.broker.administration.create_default_topic(event.message.topic)
        self._subscribe(event)

    def _delivery_bytes(self) -> int:
        """Bytes of one delivery, such that one for each subscription fits into half of the outbox."""
        share = self._settings.connection_bytes_max // (2 * len(self._subscribers) + 1)
        return max(DELIVERY_BYTES_MIN, min(share, DELIVERY_BYTES_MAX))

    async def _run_subscriber(self, subscriber: Subscriber) -> None:
        try:
            await subscriber.run()
        except LinnError as error:
            self.outbox.put(frames_of(m.Ended(subscriber.id, error.code, error.text)))
        finally:
            self._drop(subscriber.id)

    def _subscriber(self, id: int) -> Subscriber:
        subscriber = self._subscribers.get(id)
        if subscriber is None:
            raise SubscriptionUnknown(f"this connection has no subscription {id}")
        return subscriber

    def _unsubscribe(self, event: Event) -> None:
        unsubscribe = event.message
        assert isinstance(unsubscribe, m.Unsubscribe)
        subscriber = self._subscriber(unsubscribe.subscription)
        subscriber.cancel()
        self._drop(subscriber.id)
        self.reply(event.correlation, m.Done())

    def _drop(self, id: int) -> None:
        subscriber = self._subscribers.pop(id, None)
        if subscriber is not None:
            subscriber.close()

    def _close_subscribers(self) -> None:
        for id in list(self._subscribers):
            self._drop(id)

    def _credit(self, event: Event) -> None:
        credit = event.message
        assert isinstance(credit, m.Credit)
        self._subscriber(credit.subscription).grant(credit.records)
        self.reply(event.correlation, m.Done())

    def _pull(self, event: Event) -> None:
        pull = event.message
        assert isinstance(pull, m.Pull)
        subscriber = self._subscriber(pull.subscription)
        wait_s = min(pull.wait_max_ms, WAIT_MS_MAX) / 1000

        async def work() -> None:
            await self.outbox.wait_room()
            await subscriber.pull(event.correlation, pull.records_max, wait_s)

        self._in_task(event, work)

    def _settle(self, event: Event) -> None:
        settle = event.message
        assert isinstance(settle, m.Settle)
        subscriber = self._subscriber(settle.subscription)
        outcome = subscriber.consumer.settle(
            [Settlement(e.partition, e.delivery_id, e.first, e.end, e.verdict, e.ms) for e in settle.entries]
        )
        refused = [m.Refusal(index, error.code, error.text) for index, error in outcome.refused]
        if event.correlation:
            self._when_committed(outcome.awaits, event.correlation, m.Settled(refused))

    # --- administration ---

    def _describe(self, event: Event) -> None:
        describe = event.message
        assert isinstance(describe, m.Describe)
        broker = self.broker
        topics = [self._topic_info(name) for name in describe.topics or sorted(broker.topics)]
        nodes = [m.Node(0, next(iter(broker.addresses.values()), ""))]
        self.reply(event.correlation, m.Description(broker.name, nodes, topics))

    def _topic_info(self, name: str) -> m.TopicInfo:
        try:
            topic = self.broker.topic(name)
        except TopicUnknown:
            return m.TopicInfo(name, "", [], "", 0)
        partitions = [
            m.PartitionInfo(0, partition.start_offset, partition.high_watermark)
            for _, partition in sorted(topic.partitions.items())
        ]
        settings = topic.settings
        return m.TopicInfo(name, settings.kind, partitions, settings.delivery or "", settings.message_bytes_max or 0)

    def _administer(self, event: Event) -> None:
        administer = event.message
        assert isinstance(administer, m.Administer)

        async def work() -> None:
            result = await self.broker.administration.perform(administer.verb, administer.arguments)
            self.reply(event.correlation, m.Administered(result))

        self._in_task(event, work)

    def _ping(self, event: Event) -> None:
        self.outbox.put(frames_of(m.Pong(), event.correlation))

    def _nothing(self, event: Event) -> None:
        """Being heard is all."""

    def _unknown(self, event: Event) -> None:
        raise RequestUnknown("a request of a kind that this version does not know")

    def _goodbye(self, event: Event) -> None:
        """The client will close when it has its answers."""
        for subscriber in self._subscribers.values():
            subscriber.pause()


def _first(group: BaseExceptionGroup[BaseException]) -> LinnError:
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _first(error)
    assert isinstance(error, LinnError)
    return error
