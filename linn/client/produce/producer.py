"""Producer: publishes messages to one topic or exchange, in batches.

Laws: messages of one partition are stored in the order of the calls that published them, as far as `sender` promises; a
message that can't be sent fails its own call and no other. With `linger_ms=0` a message is sent at once if its
partition has nothing in flight, and otherwise together with the messages that arrive meanwhile: batches grow with the
load.
"""

from __future__ import annotations

import contextlib
from _thread import get_ident
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Literal, Self
from uuid import UUID

import anyio.lowlevel

from linn.client.arguments import HeadersInput, as_bytes, due_ms_of
from linn.client.connection.connection import Connection
from linn.client.connection.connector import Connector
from linn.client.connection.metadata import TopicRefresh, describe
from linn.client.connection.producer_ids import NO_TRANSACTION, Use
from linn.client.produce.accumulator import Accumulator
from linn.client.produce.bulk import Bulk, BulkColumns
from linn.client.produce.confirmation import Confirmation, is_among, offset_at, places_among
from linn.client.produce.lane import Identity
from linn.client.produce.open_batch import RECORD_BYTES, OpenBatch, Prepared
from linn.client.produce.properties import PLAIN, Properties, checked, checked_numbers, size_of
from linn.client.produce.receipt import BulkReceipt, Receipt
from linn.core.batch.batch import Codec
from linn.core.batch.record import Labels
from linn.core.errors.texts import counted
from linn.core.errors.tree import ClientClosed, LimitExceeded, LinnError, MessageInvalid, MessageTooLarge, Unroutable
from linn.wire.messages import Acks, Ping, Placement, TopicInfo

AcksName = Literal["none", "leader", "all"]
OLD_NEWS_S = 0.5
"""Time after which a broker is asked again who leads a topic, if its answer is older than a confirmation."""
_ACKS = {"none": Acks.NONE, "leader": Acks.LEADER, "all": Acks.ALL}


class Producer:
    """A producer, made by `Client.producer` and entered with `async with`. Any number of tasks of one loop may use it.

    Example:
        async with client.producer(exchange="news") as producer:
            await producer.publish(b"10", routing_key="price.ACME")
    """

    def __init__(
        self,
        connector: Connector,
        target: str,
        to_exchange: bool,
        acks: AcksName,
        linger_ms: float,
        batch_bytes_max: int,
        codec: Codec,
        in_flight_max: int,
        buffer_bytes_max: int,
        idempotent: bool,
    ) -> None:
        self._connector = connector
        self._check_loop = connector.loop_guard.check
        self._thread_id = connector.loop_guard.thread_id
        self._target = target
        self._to_exchange = to_exchange
        self._acks = _ACKS[acks]
        self._batch_bytes_max = batch_bytes_max
        self._codec = codec
        self._buffer_bytes_max = buffer_bytes_max
        self._idempotent = idempotent and acks != "none"
        self._bound = -1
        """`buffer_bytes_max` while the producer is open, else -1: one comparison checks both."""
        self.message_bytes_max = 0
        """Size limit of one message: value, key and headers together."""
        self._batch_bytes_limit = 0
        self._accumulator = Accumulator(
            connector, target, to_exchange, self._acks, in_flight_max, linger_ms / 1000, self._watcher_of, self._ask
        )
        self._sender = self._accumulator.sender
        self._refresh = TopicRefresh(connector, target, self._follow)
        self._topic_id = (0, 0)
        self._errors: list[LinnError] = []
        self._use: Use = NO_TRANSACTION
        """Transaction for which the producer is opened."""
        self._outlives_blocks = False
        """Whether closing only flushes, as the next transaction uses the producer as well."""

    # --- life ---

    async def __aenter__(self) -> Self:
        """Look the topic up.

        Raises ConnectionLost, RequestTimeout; LimitExceeded: the client has too many idempotent producers. An unknown
        topic fails the first publish.
        """
        welcome = (await self._connector.ready()).welcome
        self.message_bytes_max = welcome.message_bytes_max
        self._batch_bytes_limit = welcome.batch_bytes_max
        if self._idempotent:
            self._accumulator.identify(Identity(self._connector.producer_ids, self._use))
        if not self._to_exchange:
            leaders = self._connector.leaders
            leaders.watch(self._target, self._moved)
            try:
                (info,) = (await describe(self._connector, [self._target])).topics
                await leaders.reach(self._target)
            except BaseException:
                leaders.unwatch(self._target, self._moved)
                raise
            self._sender.leader = leaders.at(self._target)
            self._follow(info)
            self._refresh.start()
        if "zstd" in welcome.features:
            self._accumulator.codec = self._codec
        self._accumulator.bytes_max = min(self._batch_bytes_max, self._batch_bytes_limit // 2)
        self._bound = self._buffer_bytes_max
        self._connector.listeners.append(self)
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
        elif not self._outlives_blocks:
            self._end()

    async def aclose(self) -> None:
        """Flush and close. Raises as `flush` does; the producer is closed even then.

        Cancellation: unconfirmed messages may or may not be stored.

        Example:
            producer = await client.producer("orders").__aenter__()  # without a block
            await producer.publish(b"two coffees")
            await producer.aclose()
        """
        self._check_loop()
        if self._outlives_blocks:
            await self.flush()
            return
        self._bound = -1
        try:
            await self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        self._bound = -1
        if self in self._connector.listeners:
            self._connector.listeners.remove(self)
            self._connector.leaders.unwatch(self._target, self._moved)
            self._refresh.stopped = True
            self._give_up(ClientClosed("the producer was closed"))
            if self._accumulator.identity is not None:
                self._accumulator.identity.close()

    async def flush(self) -> None:
        """Send all waiting messages, and wait until every earlier message is confirmed or has failed.

        With acks="none", waits until the broker has read them.

        Raises:
            LinnError: the first failure among the messages of `publish_nowait` since the last flush; a note says how
                many batches failed. A failure of `publish` is raised by that call only.
        Cancellation: the messages are sent nevertheless.

        Example:
            producer.publish_nowait(b"two coffees")
            await producer.flush()  # raises the first failure
        """
        self._check_loop()
        for confirmation in self._accumulator.unsettled():
            with contextlib.suppress(LinnError):
                await confirmation.wait()
        at = self._sender.at
        if self._acks == Acks.NONE and at is not None and at.error is None:
            await self._connector.request(Ping(), over=at)
        await anyio.lowlevel.checkpoint()
        if self._errors:
            errors, self._errors = self._errors, []
            errors[0].add_note(f"not confirmed: {counted(len(errors), 'batch')} with messages of publish_nowait")
            raise errors[0]

    def _flush_nowait(self) -> bool:
        """Send all waiting messages; return whether `flush` has nothing to wait for and no failure to raise."""
        return not (self._accumulator.unsettled() or self._errors or self._acks == Acks.NONE)

    def _begin(self, use: Use) -> int:
        """Make all messages from now on belong to a transaction; return the id of this producer."""
        identity = self._accumulator.identity
        assert identity is not None, "a producer of transactions is idempotent"
        identity.use = use
        return identity.producer_id

    @property
    def id(self) -> int:
        """Producer id at the broker; 0 if the producer is not idempotent."""
        identity = self._accumulator.identity
        return identity.producer_id if identity is not None else 0

    @property
    def buffered_bytes(self) -> int:
        """Size of finished batches that are not confirmed."""
        return self._sender.buffered_bytes

    # --- publishing ---

    async def publish(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        routing_key: str = "",
        labels: Labels | None = None,
        headers: HeadersInput | None = None,
        id: UUID | None = None,
        timestamp_ms: int | None = None,
        priority: int = 0,
        delay_ms: int = 0,
        ttl_ms: int = 0,
        at: datetime | int | None = None,
        mandatory: bool = False,
    ) -> Receipt:
        """Publish one message and wait for the confirmation that `acks` selects.

        With `delay_ms`, or a time `at` (a datetime with a zone, or milliseconds since 1970), it comes into its topic
        later: the confirmation says that it will. Waits first while more than `buffer_bytes_max` is unconfirmed. With
        `mandatory`, an unroutable message is an error; it has no effect on a producer for a topic.

        Raises:
            MessageInvalid, MessageTooLarge: nothing was sent.
            Unroutable: the message was mandatory, and no topic takes it.
            RequestTimeout, ConnectionLost: the message may or may not be stored.
            LinnError: the broker refused this message only; a retriable refusal is raised after retries.
        Cancellation: a message that still waits to be batched is withdrawn; otherwise it may or may not be stored. The
            connection and all other messages are not affected.

        Example:
            receipt = await producer.publish(b"two coffees", key=b"table 4", labels={"urgent": True})
            print(receipt.partition, receipt.offset)
        """
        self._check_loop()
        properties = PLAIN
        if (
            key is not None
            or (routing_key or labels or headers or priority or delay_ms or ttl_ms or at is not None)
            or id is not None
            or timestamp_ms is not None
        ):
            properties = checked(key, routing_key, labels, headers, id, timestamp_ms, priority, delay_ms, ttl_ms, at)
        if self._sender.buffered_bytes >= self._bound:
            self._check_open()
            await self._sender.room(self._buffer_bytes_max)
            self._check_open()
        if properties is PLAIN and type(value) is bytes and len(value) <= self.message_bytes_max and not mandatory:
            sent = self._accumulator.send_alone(value)
            if sent is not None:
                return await self._sent_alone(*sent)
        return await self._sent_in_batch(self._prepared(value, properties, mandatory))

    async def _sent_in_batch(self, message: Prepared) -> Receipt:
        buffer, batch, index = self._accumulator.add(message, waits=True)
        attended = self._accumulator.seal_if_idle(buffer, batch)
        try:
            placement = await self._confirmed(batch.confirmation, attended)
        except BaseException:
            if buffer.open is batch:
                batch.withdraw(index)
            raise
        message_id = message.properties.id or UUID(int=batch.id(index))
        receipt = self._receipt(message_id, batch.place(index), placement, batch.confirmation, message.mandatory)
        return receipt._delayed() if message.properties.is_delayed else receipt

    async def _sent_alone(self, message_id: int, confirmation: Confirmation) -> Receipt:
        return self._receipt(UUID(int=message_id), 0, await self._confirmed(confirmation, attended=True), confirmation)

    async def _confirmed(self, confirmation: Confirmation, attended: bool) -> Placement | None:
        connection = self._sender.at
        if confirmation.settled:
            await anyio.lowlevel.checkpoint()
        elif attended and connection is not None:
            await connection.attend(confirmation)
        return await confirmation.wait()

    def _receipt(
        self,
        message_id: UUID,
        place: int,
        placement: Placement | None,
        confirmation: Confirmation,
        mandatory: bool = False,
    ) -> Receipt:
        """Make the receipt of the message at `place` in its batch. Raises Unroutable, or the error of its refusal."""
        topic = None if self._to_exchange else self._target
        if placement is None:
            return Receipt(topic, None, None, message_id, None, None)
        if placement.refused:
            for error, places in confirmation.refusals():
                if is_among(places, place):
                    raise error
        if placement.returned and is_among(placement.returned, place):
            raise self._unroutable("the message")
        if placement.partition < 0:
            known = mandatory or not self._to_exchange or None
            return Receipt(topic, None, None, message_id, placement.copies, known if placement.copies else False)
        where = (
            topic,
            placement.partition,
            offset_at(placement, place) if placement.refused else placement.base_offset + place,
        )
        identity = UUID(int=placement.topic_id_high << 64 | placement.topic_id_low), placement.leader_epoch
        return Receipt(*where, message_id, placement.copies, True, *identity)

    def publish_nowait(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        routing_key: str = "",
        labels: Labels | None = None,
        headers: HeadersInput | None = None,
        id: UUID | None = None,
        timestamp_ms: int | None = None,
        priority: int = 0,
        delay_ms: int = 0,
        ttl_ms: int = 0,
        at: datetime | int | None = None,
        mandatory: bool = False,
    ) -> None:
        """Publish one message without waiting. A later failure is raised by the next `flush` or by closing.

        A `mandatory` message that no topic takes is such a failure; see `publish`.

        Raises:
            LimitExceeded: `buffer_bytes_max` bytes are unconfirmed already; `await flush()` makes room.
            MessageInvalid, MessageTooLarge: nothing was sent.

        Example:
            for number in range(1_000):
                producer.publish_nowait(b"order %d" % number)
            await producer.flush()
        """
        if get_ident() != self._thread_id:
            self._check_loop()
        if self._sender.buffered_bytes >= self._bound:
            self._refuse_nowait()
        if (
            key is None
            and type(value) is bytes
            and not (routing_key or labels or headers or priority or delay_ms or ttl_ms or at is not None)
            and id is None
            and timestamp_ms is None
            and not mandatory
        ):
            size = len(value)
            if size > self.message_bytes_max:
                raise self._too_large(size)
            accumulator = self._accumulator
            buffer = accumulator.sticky
            batch = buffer.open
            if batch is None or batch.mandatory or size >= accumulator.bytes_max:
                self._check_loop()
                batch = accumulator.begin(buffer, waits=False, mandatory=False)
            batch.values.append(value)
            batch.size += size + RECORD_BYTES
            batch.confirmation.without_waiter = True
            if batch.size >= accumulator.bytes_max:
                accumulator.seal(buffer)
        else:
            self._check_loop()
            properties = checked(key, routing_key, labels, headers, id, timestamp_ms, priority, delay_ms, ttl_ms, at)
            self._accumulator.put(self._prepared(value, properties, mandatory))

    def _prepared(self, value: bytes | None, properties: Properties, mandatory: bool) -> Prepared:
        """Check a message for `_take`. Any thread may call this. Raises MessageInvalid, MessageTooLarge."""
        if value is not None and type(value) is not bytes:
            value = as_bytes(value, "a value")
        size = len(value) if value is not None else 0
        if properties is not PLAIN:
            size += size_of(properties)
        if size > self.message_bytes_max:
            raise self._too_large(size)
        return Prepared(value, properties, size, mandatory and self._asks_return())

    async def publish_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        routing_keys: str | Sequence[str] | None = None,
        labels: Labels | Sequence[Labels | None] | None = None,
        headers: Sequence[HeadersInput | None] | None = None,
        ids: Sequence[UUID] | None = None,
        timestamp_ms: int | Sequence[int] | None = None,
        priority: int = 0,
        delay_ms: int = 0,
        ttl_ms: int = 0,
        at: datetime | int | None = None,
        mandatory: bool = False,
        partition: int | None = None,
    ) -> BulkReceipt:
        """Publish many messages and wait for the confirmation that `acks` selects; the fastest way.

        `keys`, `headers` and `ids` have one entry per value, and so have `routing_keys`, `labels` and `timestamp_ms` if
        they are sequences; other arguments apply to all messages. Values are bytes-like and must not change before the
        call returns. `mandatory` works as with `publish`. With `partition` all of them go there, regardless of their
        keys.

        Raises:
            Unroutable: they were mandatory, and no topic takes the ones at `error.indexes`. The others are confirmed.
            LinnError with `indexes`: the broker refused these messages. The others are confirmed.
            MessageInvalid, MessageTooLarge: the batches before the wrong message may be stored; a note gives the
                number of confirmed messages.
            LinnError: as `publish`; a note gives the number of confirmed messages.
        Cancellation: messages that were cut into batches may or may not be stored; the rest is not sent.

        Example:
            receipt = await producer.publish_many([b"one", b"two"], keys=[b"table 4", None])
            print(receipt.count, receipt.partitions)
        """
        self._check_loop()
        checked_numbers(priority, delay_ms, ttl_ms, None)
        self._check_open()
        mandatory = mandatory and self._asks_return()
        columns = BulkColumns.checked(values, keys, routing_keys, labels, headers)
        columns.identify(ids, self._connector.env.clock.now_ms() if timestamp_ms is None else timestamp_ms)
        columns.priority, columns.delay_ms, columns.ttl_ms = priority, delay_ms, ttl_ms
        columns.due_ms = due_ms_of(at, delay_ms)
        accumulator = self._accumulator
        with_key_hashes = accumulator.buffers[0].partition < 0
        bulk = Bulk(with_key_hashes, accumulator.codec, accumulator.bytes_max, self._batch_bytes_limit)
        bulk.message_bytes_max = self.message_bytes_max
        by_keys = accumulator.keys_choose and partition is None
        parts = columns.by_partition(len(accumulator.buffers) if by_keys else 1)
        if partition is not None:
            accumulator.check_partition(partition)
            parts = {partition: columns}
        try:
            for place, part in parts.items():
                await self._ship(bulk, place, part, mandatory)
        except LinnError as error:
            bulk.fail(error)
        receipt = await bulk.receipt(None if self._to_exchange else self._target)
        return receipt._delayed() if delay_ms or columns.due_ms else receipt

    async def _ship(self, bulk: Bulk, partition: int, columns: BulkColumns, mandatory: bool) -> None:
        """Cut and send the messages of one partition; with `partition` -1, batches go to all partitions in turn."""
        rng, accumulator = self._connector.env.rng, self._accumulator
        first, count = 0, len(columns.values)
        while first < count and bulk.error is None:
            await self._sender.room(self._buffer_bytes_max)
            self._check_open()
            buffer = accumulator.buffer(partition)
            if buffer.open is not None:
                accumulator.seal(buffer)
            batch = bulk.cut(columns, first, int.from_bytes(rng.bytes(16), "big"))
            last = first + batch.count
            self._sender.enqueue(buffer, batch, bulk.expect(columns.positions(first, last)), mandatory)
            first = last
            if partition < 0:
                accumulator.turn()

    # --- failures ---

    def _watcher_of(self, batch: OpenBatch) -> Callable[[Confirmation], None]:
        """Make a watcher that keeps failures of messages of `publish_nowait` for the next flush."""

        def watch(confirmation: Confirmation) -> None:
            placement = confirmation.placement
            if confirmation.error is not None:
                self._errors.append(confirmation.error)
            elif placement is not None and (placement.returned or placement.refused):
                awaited, count = {batch.place(index) for index in batch.awaited}, len(batch.values)
                for error, places in confirmation.refusals():
                    if not awaited.issuperset(places_among(places, count)):
                        self._errors.append(error)
                if lost := set(places_among(placement.returned, count)) - awaited:
                    self._errors.append(self._unroutable(counted(len(lost), "message")))

        return watch

    def _asks_return(self) -> bool:
        """Tell whether the broker has to report unroutable messages. Raises MessageInvalid."""
        if self._acks == Acks.NONE:
            raise MessageInvalid('mandatory needs the broker\'s answer, which acks="none" does not wait for')
        return self._to_exchange

    def _unroutable(self, what: str) -> Unroutable:
        return Unroutable(f"no binding of exchange {self._target} leads {what} to a topic")

    def _check_open(self) -> None:
        if self._bound < 0:
            raise ClientClosed("the producer is closed, or was not entered with `async with`")

    def _refuse_nowait(self) -> None:
        self._check_open()
        bound = self._buffer_bytes_max
        raise LimitExceeded(f"{bound:,} bytes are unconfirmed already (buffer_bytes_max); await flush() makes room")

    def _too_large(self, size: int) -> MessageTooLarge:
        """Make the error for a message of `size` bytes."""
        return MessageTooLarge(
            f"a message of {size:,} bytes, more than the {self.message_bytes_max:,} of {self._target}"
        )

    def _take(self, messages: Iterable[bytes | Prepared]) -> None:
        """Publish checked messages as `publish_nowait` does, but without limits."""
        self._accumulator.take(messages)

    # --- topic and connection ---

    def _follow(self, info: TopicInfo) -> None:
        """Adapt to the topic's present partitions and message size limit."""
        self._accumulator.follow(info)
        self.message_bytes_max = info.message_bytes_max or self.message_bytes_max
        if info.partitions:
            topic_id, epoch = (info.id_high, info.id_low), info.partitions[0].leader_epoch
            if topic_id != self._topic_id:
                self._topic_id, self._sender.epoch = topic_id, epoch
            if epoch < self._sender.epoch:  # The broker at hand does not know yet what another one has told.
                self._connector.timers.after(OLD_NEWS_S, self._ask)
            self._sender.epoch = max(self._sender.epoch, epoch)

    def _moved(self) -> None:
        """Publish over the connection to the topic's leader, or through the broker at hand; ask who leads now."""
        self._sender.leader = self._connector.leaders.at(self._target)
        if self._sender.leader is None:
            self._ask()
        self._sender.pump()

    def _ask(self) -> None:
        """Ask who leads the topic."""
        if not self._to_exchange and not self._refresh.stopped:
            self._refresh.ask()

    def _connected(self, connection: Connection) -> None:
        """Send waiting batches over a new connection."""
        self._sender.pump()
        self._ask()

    def _disconnected(self) -> None:
        """Do nothing: the failure of its request reaches every batch in flight."""

    def _give_up(self, error: LinnError) -> None:
        """Fail everything that has not been sent; if the client is closed, later publishes fail as well."""
        if self._connector.closed:
            self._bound = -1
        self._accumulator.give_up(error)
