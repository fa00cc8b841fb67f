"""Producer: publishes messages to one topic or exchange, in batches.

Laws: messages of one partition are stored in the order of the calls that published them, as far as `shipping` promises;
a message that can't be carried fails its own call and no other. With `linger_ms=0` a message goes out at once where
nothing of its partition is on the way, else with all that came while it was: batches grow with the load.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self
from uuid import UUID

import anyio.lowlevel

from linn.client.bulk import Bulk, BulkColumns
from linn.client.lane import Lane
from linn.client.open_batch import RECORD_BYTES, OpenBatch
from linn.client.properties import PLAIN, HeadersInput, Properties, as_bytes, checked, checked_numbers, size_of
from linn.client.receipt import BulkReceipt, Receipt
from linn.client.shipping import Shipping
from linn.core.batch import Codec
from linn.core.batch_builder import build_batch
from linn.core.errors import ConnectionLost, LimitExceeded, LinnError, MessageTooLarge
from linn.core.partitioner import partition_of
from linn.core.record import Labels
from linn.protocols.capnp.messages import Acks, Ping

if TYPE_CHECKING:
    from linn.client.client import Client

AcksName = Literal["none", "leader", "all"]
_ACKS = {"none": Acks.NONE, "leader": Acks.LEADER, "all": Acks.ALL}


class Producer:
    """Made by `Client.producer`, used in `async with`, by any number of tasks of one event loop."""

    def __init__(
        self,
        client: Client,
        target: str,
        to_exchange: bool,
        acks: AcksName,
        linger_ms: float,
        batch_bytes_max: int,
        codec: Codec,
        in_flight_max: int,
        buffer_bytes_max: int,
    ) -> None:
        self._client = client
        self._target = target
        self._to_exchange = to_exchange
        self._acks = _ACKS[acks]
        self._linger_s = linger_ms / 1000
        self._batch_bytes_max = batch_bytes_max
        self._codec = codec
        self._buffer_bytes_max = buffer_bytes_max
        self._bound = -1
        """`buffer_bytes_max` while the producer is open: one comparison finds out both."""
        self._message_bytes_max = 0
        self._batch_bytes_limit = 0
        self._shipping = Shipping(client, target, to_exchange, self._acks, in_flight_max, self._lane_idle)
        self._lanes: list[Lane] = []
        self._sticky = Lane(-1)
        self._errors: list[LinnError] = []

    # --- life ---

    async def __aenter__(self) -> Self:
        """Look the topic up. Raises ConnectionLost, RequestTimeout; the first publish says if it is unknown."""
        partitions = [-1]
        welcome = (await self._client.ready_link()).welcome
        self._message_bytes_max = welcome.message_bytes_max
        self._batch_bytes_limit = welcome.batch_bytes_max
        if not self._to_exchange:
            (info,) = (await self._client.describe(self._target)).topics
            # A broker may make the topic when it is first published to; until then it chooses the partition.
            partitions = list(range(len(info.partitions))) or [-1]
            self._message_bytes_max = info.message_bytes_max or self._message_bytes_max
        if "zstd" not in welcome.features:
            self._codec = Codec.NONE
        self._batch_bytes_max = min(self._batch_bytes_max, self._batch_bytes_limit // 2)
        self._lanes = [Lane(partition) for partition in partitions]
        self._sticky = self._lanes[self._client.env.rng.integer(len(self._lanes))]
        self._bound = self._buffer_bytes_max
        self._client.producers.append(self)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            await self.aclose()
        elif isinstance(exc, Exception):
            with contextlib.suppress(LinnError):  # The block's own error is the one to hear of.
                await self.aclose()
        else:
            self._end()

    async def aclose(self) -> None:
        """Flush and close. Raises what `flush` raises; the producer is closed all the same.

        Cancellation: what is not confirmed may or may not be stored.
        """
        self._bound = -1
        try:
            await self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        self._bound = -1
        if self in self._client.producers:
            self._client.producers.remove(self)
            self.give_up(ConnectionLost("the producer was closed"))

    async def flush(self) -> None:
        """Send what waits, and wait until all that was published before the call is confirmed or failed.

        With acks="none": until the broker has read it.

        Raises:
            LinnError: the first failure among the messages of `publish_nowait` since the last flush; a note says how
                many batches failed. Those of `publish` are raised there.
        Cancellation: what waited is on its way all the same.
        """
        for lane in self._lanes:
            self._seal(lane)
        for confirmation in self._shipping.unsettled(self._lanes):
            with contextlib.suppress(LinnError):
                await confirmation.wait()
        if self._acks == Acks.NONE and self._client.link is not None:
            await self._client.request(Ping())
        await anyio.lowlevel.checkpoint()
        if self._errors:
            errors, self._errors = self._errors, []
            errors[0].add_note(f"{len(errors)} batches with messages of publish_nowait were not confirmed")
            raise errors[0]

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
    ) -> Receipt:
        """Publish one message and wait for what `acks` asks for.

        Waits first where more than `buffer_bytes_max` is on its way.

        Raises:
            MessageInvalid, MessageTooLarge: nothing was sent.
            RequestTimeout, ConnectionLost: it may or may not be stored.
            LinnError: the broker refused it, also when asked again where the refusal is retriable.
        Cancellation: a message that still waits to be batched is withdrawn; else it may or may not be stored. The
            connection and all other messages are not disturbed.
        """
        properties = PLAIN
        if (
            key is not None
            or (routing_key or labels or headers or priority or delay_ms or ttl_ms)
            or id is not None
            or timestamp_ms is not None
        ):
            properties = checked(key, routing_key, labels, headers, id, timestamp_ms, priority, delay_ms, ttl_ms)
        if self._shipping.buffered_bytes >= self._bound:
            self._check_open()
            await self._shipping.room(self._buffer_bytes_max)
        lane, batch, index = self._add(value, properties, waits=True)
        if not self._linger_s and lane.open is batch and lane.idle:
            self._seal(lane)
        confirmation = batch.confirmation
        if confirmation.settled:
            await anyio.lowlevel.checkpoint()
        try:
            placement = await confirmation.wait()
        except BaseException:
            if lane.open is batch:
                batch.withdraw(index)
            raise
        message_id = properties.id or UUID(int=batch.id(index))
        topic = None if self._to_exchange else self._target
        if placement is None:
            return Receipt(topic, None, None, message_id, None)
        if placement.partition < 0:
            return Receipt(topic, None, None, message_id, placement.copies)
        offset = placement.base_offset + batch.place(index)
        return Receipt(topic, placement.partition, offset, message_id, placement.copies)

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
    ) -> None:
        """Publish one message without waiting. If it fails later, the next `flush` or the closing says so.

        Raises:
            LimitExceeded: `buffer_bytes_max` bytes are on their way already; `await flush()` makes room.
            MessageInvalid, MessageTooLarge: nothing was sent.
        """
        if self._shipping.buffered_bytes >= self._bound:
            self._refuse_nowait()
        if (
            key is None
            and type(value) is bytes
            and not (routing_key or labels or headers or priority or delay_ms or ttl_ms)
            and id is None
            and timestamp_ms is None
        ):
            lane = self._sticky
            size = len(value)
            if size > self._message_bytes_max:
                raise self._too_large(size)
            batch = lane.open
            if batch is None:
                batch = self._begin(lane, waits=False)
            batch.values.append(value)
            batch.size += size + RECORD_BYTES
            batch.confirmation.without_waiter = True
            if batch.size >= self._batch_bytes_max:
                self._seal(lane)
        else:
            properties = checked(key, routing_key, labels, headers, id, timestamp_ms, priority, delay_ms, ttl_ms)
            self._add(value, properties, waits=False)[1].confirmation.without_waiter = True

    async def publish_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        routing_keys: str | Sequence[str] | None = None,
        labels: Labels | Sequence[Labels | None] | None = None,
        headers: Sequence[HeadersInput | None] | None = None,
        timestamp_ms: int | None = None,
        priority: int = 0,
        delay_ms: int = 0,
        ttl_ms: int = 0,
    ) -> BulkReceipt:
        """Publish many messages and wait for what `acks` asks for; the fastest way.

        `keys`, `headers` and, where they are sequences, `routing_keys` and `labels` have one entry per value; the rest
        holds for all. Values are bytes-like and must not change before the call returns.

        Raises:
            MessageInvalid, MessageTooLarge: the batches before the wrong message may be stored; a note says how many
                messages were.
            LinnError: as `publish`; a note says how many messages were confirmed.
        Cancellation: what was cut into batches may or may not be stored; the rest is not sent.
        """
        checked_numbers(priority, delay_ms, ttl_ms, timestamp_ms)
        self._check_open()
        columns = BulkColumns.checked(values, keys, routing_keys, labels, headers)
        columns.timestamp_ms = self._client.env.clock.now_ms() if timestamp_ms is None else timestamp_ms
        columns.priority, columns.delay_ms, columns.ttl_ms = priority, delay_ms, ttl_ms
        bulk = Bulk(self._lanes[0].partition < 0, self._codec, self._batch_bytes_max, self._batch_bytes_limit)
        bulk.message_bytes_max = self._message_bytes_max
        try:
            for partition, part in columns.by_partition(len(self._lanes)).items():
                await self._ship(bulk, partition, part)
        except LinnError as error:
            bulk.fail(error)
        return await bulk.receipt(None if self._to_exchange else self._target)

    async def _ship(self, bulk: Bulk, partition: int, columns: BulkColumns) -> None:
        """Cut and send the messages of one partition; of any, by turns, where `partition` is -1."""
        rng = self._client.env.rng
        first, count = 0, len(columns.values)
        while first < count and bulk.error is None:
            await self._shipping.room(self._buffer_bytes_max)
            self._check_open()
            lane = self._lanes[partition] if partition >= 0 else self._sticky
            if lane.open is not None:
                self._seal(lane)
            batch = bulk.cut(columns, first, int.from_bytes(rng.bytes(16), "big"))
            first += batch.count
            self._shipping.enqueue(lane, batch, bulk.expect(batch.count))
            if partition < 0:
                self._next_sticky()

    # --- batching ---

    def _add(self, value: bytes | None, properties: Properties, waits: bool) -> tuple[Lane, OpenBatch, int]:
        if value is not None and type(value) is not bytes:
            value = as_bytes(value, "a value")
        key = properties.key
        if key is None or len(self._lanes) == 1:
            lane = self._sticky
        else:
            lane = self._lanes[partition_of(key, len(self._lanes))]
        size = len(value) if value is not None else 0
        if properties is not PLAIN:
            size += size_of(properties)
        if size > self._message_bytes_max:
            raise self._too_large(size)
        batch = lane.open
        if batch is None:
            batch = self._begin(lane, waits)
        index = batch.add(value, properties, size)
        if batch.size >= self._batch_bytes_max:
            self._seal(lane)
        return lane, batch, index

    def _begin(self, lane: Lane, waits: bool) -> OpenBatch:
        """Begin a lane's next batch. A publisher that waits sends it itself where nothing is on the way."""
        env = self._client.env
        batch = lane.open = OpenBatch(int.from_bytes(env.rng.bytes(16), "big"), env.clock.now_ms())
        if self._linger_s or (lane.idle and not waits):
            self._client.timers.after(self._linger_s, lambda: self._seal(lane) if lane.open is batch else None)
        return batch

    def _seal(self, lane: Lane) -> None:
        """Finish the open batch of a lane and have it sent."""
        batch, lane.open = lane.open, None
        if not batch:
            return
        if lane is self._sticky:
            self._next_sticky()
        confirmation = batch.confirmation
        if confirmation.without_waiter:
            confirmation.watcher = self._watch_nowait
        try:
            sealed = build_batch(batch.columns(with_key_hashes=lane.partition < 0), self._codec)
        except LinnError as error:
            confirmation.settle(None, error)
            return
        self._shipping.enqueue(lane, sealed, confirmation)

    def _next_sticky(self) -> None:
        lanes = self._lanes
        if len(lanes) > 1:
            self._sticky = lanes[(self._sticky.partition + 1) % len(lanes)]

    def _lane_idle(self, lane: Lane) -> None:
        if not self._linger_s:
            self._seal(lane)

    # --- what went wrong ---

    def _watch_nowait(self, confirmation: object) -> None:
        error = getattr(confirmation, "error", None)
        if error is not None:
            self._errors.append(error)

    def _check_open(self) -> None:
        if self._bound < 0:
            raise ConnectionLost("the producer is closed, or was not entered with `async with`")

    def _refuse_nowait(self) -> None:
        self._check_open()
        bound = self._buffer_bytes_max
        raise LimitExceeded(f"{bound} bytes are on their way already (buffer_bytes_max); await flush() makes room")

    def _too_large(self, size: int) -> MessageTooLarge:
        return MessageTooLarge(f"a message of {size} bytes, more than the {self._message_bytes_max} of {self._target}")

    def link_up(self) -> None:
        """There is a connection again."""
        self._shipping.pump()

    def give_up(self, error: LinnError) -> None:
        """Fail all that has not been sent."""
        for lane in self._lanes:
            batch, lane.open = lane.open, None
            if batch:
                if batch.confirmation.without_waiter:
                    batch.confirmation.watcher = self._watch_nowait
                batch.confirmation.settle(None, error)
        self._shipping.give_up(self._lanes, error)
