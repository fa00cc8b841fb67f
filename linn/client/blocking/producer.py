"""Producer of the blocking client: the async one, used by any number of threads.

Laws: messages of one thread are stored in the order of its calls, as far as the async producer promises.
`publish_nowait` puts a message into a list that the loop takes as a whole: it costs a lock and, for the first of the
list, a signal. The list counts against `buffer_bytes_max`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from os import getpid
from types import TracebackType
from typing import Self
from uuid import UUID

from linn.client.blocking.loop_thread import LoopThread
from linn.client.produce import producer as asynchronous
from linn.client.produce.open_batch import RECORD_BYTES, Prepared
from linn.client.produce.properties import HeadersInput, checked
from linn.client.produce.receipt import BulkReceipt, Receipt
from linn.core.batch.record import Labels
from linn.core.errors.tree import ClientClosed, LimitExceeded


class Producer:
    """A blocking producer, opened by `Client.producer`. Any number of threads may use it.

    Example:
        with client.producer(exchange="news") as producer:
            producer.publish(b"10", routing_key="price.ACME")
    """

    def __init__(
        self, forget: Callable[[Producer], None], thread: LoopThread, made: asynchronous.Producer, buffer_bytes_max: int
    ) -> None:
        self._forget = forget
        """The client's method, which keeps the client alive for as long as this object."""
        self._thread = thread
        self._process_id = thread.process_id
        self._made = made
        self._lock = threading.RLock()
        self._waiting: list[bytes | Prepared] = []
        """Messages that the loop has not taken yet."""
        self._waiting_bytes = 0
        """Bytes of waiting messages that were put before the last grant."""
        self._granted = 0
        self._room = 0
        """Bytes left of those granted; when it is used up, the next publish asks how many are on their way."""
        self._buffer_bytes_max = buffer_bytes_max
        self._closed = False

    # --- life ---

    @property
    def id(self) -> int:
        """The number by which the broker knows this producer; 0 if it is not idempotent."""
        return self._made.id

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
            self._room = 0
        self._forget(self)
        self._thread.call(self._made.__aexit__, exc_type, exc, traceback)

    def close(self) -> None:
        """Flush and close. Raises what `flush` raises; the producer is closed all the same. Idempotent.

        Example:
            producer = client.producer("orders")
            producer.publish_nowait(b"two coffees")
            producer.close()
        """
        self.__exit__(None, None, None)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Send everything that waits, and wait until each earlier message is confirmed or failed.

        With acks="none": wait until the broker has read them.

        Raises:
            RequestTimeout: `timeout_s` seconds have passed; the messages are on their way all the same.
            LinnError: the first failure among the messages of `publish_nowait` since the last flush; a note says how
                many batches failed. Failures of `publish` are raised by that call.

        Example:
            producer.publish_nowait(b"two coffees")
            producer.flush(timeout_s=5)  # raises the first failure
        """
        self._thread.call_within(timeout_s, "flush", self._made.flush)

    # --- publishing ---

    def publish(
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
        mandatory: bool = False,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Publish one message and wait for the confirmation that `acks` asks for.

        Waits first while more than `buffer_bytes_max` is on its way. `mandatory` works as with the async client.

        Raises:
            MessageInvalid, MessageTooLarge: nothing was sent.
            Unroutable: it was mandatory, and no topic takes it.
            RequestTimeout, ConnectionLost: it may or may not be stored.
            LinnError: the broker refused it, and no others of its batch; if the refusal is retriable, after retries.
        After `timeout_s`, or if the wait is interrupted (KeyboardInterrupt), a message that still waits to be batched
        is withdrawn; otherwise it may or may not be stored.

        Example:
            receipt = producer.publish(b"two coffees", key=b"table 4", timeout_s=5)
            print(receipt.partition, receipt.offset)
        """
        return self._thread.call_within(
            timeout_s,
            "publish",
            self._made.publish,
            value,
            key=key,
            routing_key=routing_key,
            labels=labels,
            headers=headers,
            id=id,
            timestamp_ms=timestamp_ms,
            priority=priority,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms,
            mandatory=mandatory,
        )

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
        mandatory: bool = False,
    ) -> None:
        """Publish one message without waiting. A later failure is raised by the next `flush` or by closing.

        So is the failure of a `mandatory` message that no topic takes; see `publish`.

        Raises:
            LimitExceeded: `buffer_bytes_max` bytes are on their way already; `flush()` makes room.
            MessageInvalid, MessageTooLarge: nothing was sent.
            ConnectionLost: the producer is closed.

        Example:
            for number in range(1_000):
                producer.publish_nowait(b"order %d" % number)
            producer.flush()
        """
        message: bytes | Prepared
        if (
            key is None
            and type(value) is bytes
            and not (routing_key or labels or headers or priority or delay_ms or ttl_ms)
            and id is None
            and timestamp_ms is None
            and not mandatory
        ):
            message, size = value, len(value)
            if size > self._made.message_bytes_max:
                raise self._made._too_large(size)
        else:
            properties = checked(key, routing_key, labels, headers, id, timestamp_ms, priority, delay_ms, ttl_ms)
            message = self._made._prepared(value, properties, mandatory)
            size = message.size
        if getpid() != self._process_id:  # Check before the lock: another thread may have held it at the fork.
            self._thread.check()
        with self._lock:
            if self._room <= 0:
                self._look_for_room()
            if not self._waiting:
                self._thread.soon(self._hand_over)
            self._waiting.append(message)
            self._room -= size + RECORD_BYTES

    def publish_many(
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
        mandatory: bool = False,
        partition: int | None = None,
        timeout_s: float | None = None,
    ) -> BulkReceipt:
        """Publish many messages and wait for the confirmation that `acks` asks for; the fastest way.

        `keys`, `headers` and `ids` have one entry per value, and so have `routing_keys`, `labels` and `timestamp_ms` if
        they are sequences; other arguments hold for all. No thread may change them before the call returns. With
        `partition` all of them go there, whatever their keys.

        Raises:
            Unroutable: they were mandatory, and no topic takes those at `error.indexes`. The others are confirmed.
            LinnError with `indexes`: the broker refused these. The others are confirmed.
            MessageInvalid, MessageTooLarge: the batches before the wrong message may be stored; a note says how many
                messages were.
            LinnError: as `publish`; a note says how many messages were confirmed.
        After `timeout_s`, or if the wait is interrupted: messages that were cut into batches may or may not be stored;
        the rest is not sent.

        Example:
            receipt = producer.publish_many([b"one", b"two"], keys=[b"table 4", None])
            print(receipt.count, receipt.partitions)
        """
        return self._thread.call_within(
            timeout_s,
            "publish_many",
            self._made.publish_many,
            values,
            keys=keys,
            routing_keys=routing_keys,
            labels=labels,
            headers=headers,
            ids=ids,
            timestamp_ms=timestamp_ms,
            priority=priority,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms,
            mandatory=mandatory,
            partition=partition,
        )

    # --- handing over to the loop ---

    def _hand_over(self) -> None:
        """Pass all waiting messages to the async producer. Called by the loop."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._waiting_bytes = self._granted = self._room = 0
            self._made._take(waiting)

    def _look_for_room(self) -> None:
        """Grant as many bytes as fit into the buffer now. Raises ConnectionLost, LimitExceeded."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        self._waiting_bytes += self._granted - self._room
        bound = self._buffer_bytes_max
        self._granted = self._room = bound - self._made.buffered_bytes - self._waiting_bytes
        if self._room <= 0:
            self._granted = self._room = 0
            raise LimitExceeded(f"{bound} bytes are unconfirmed already (buffer_bytes_max); flush() makes room")
