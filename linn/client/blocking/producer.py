"""Producer of the blocking client: the async one, used by any number of threads.

Laws: messages of one thread are stored in the order of its calls, as far as the async producer promises.
`publish_nowait` puts a message into a list that the loop takes as a whole: it costs a lock and, for the first of the
list, a signal. The list counts against `buffer_bytes_max`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from os import getpid
from typing import Any
from uuid import UUID

from linn.client.arguments import HeadersInput
from linn.client.blocking.facade import ClosingFacade
from linn.client.blocking.loop_thread import LoopThread
from linn.client.produce import producer as asynchronous
from linn.client.produce.open_batch import RECORD_BYTES, Prepared
from linn.client.produce.properties import checked
from linn.core.batch.record import Labels
from linn.core.errors.tree import ClientClosed, LimitExceeded


class BaseProducer(ClosingFacade[asynchronous.Producer]):
    """Part of `Producer` that is written by hand: publishing without waiting."""

    def __init__(self, forget: Callable[[Any], None], thread: LoopThread, made: asynchronous.Producer) -> None:
        super().__init__(forget, thread, made)
        self._waiting: list[bytes | Prepared] = []
        """Messages that the loop has not taken yet."""
        self._waiting_bytes = 0
        """Bytes of waiting messages that were put before the last grant."""
        self._granted = 0
        self._room = 0
        """Bytes left of the last grant; when they are used up, the next publish asks for another grant."""
        self._buffer_bytes_max = made._buffer_bytes_max

    def _stop(self) -> None:
        self._room = 0

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
            and not (routing_key or labels or headers or priority or delay_ms or ttl_ms or at is not None)
            and id is None
            and timestamp_ms is None
            and not mandatory
        ):
            message, size = value, len(value)
            if size > self._made.message_bytes_max:
                raise self._made._too_large(size)
        else:
            properties = checked(key, routing_key, labels, headers, id, timestamp_ms, priority, delay_ms, ttl_ms, at)
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

    # --- handing over to the loop ---

    def _hand_over(self) -> None:
        """Pass all waiting messages to the async producer. Called by the loop."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._waiting_bytes = self._granted = self._room = 0
            self._made._take(waiting)

    def _look_for_room(self) -> None:
        """Grant the bytes that fit into the buffer now. Raises ConnectionLost, LimitExceeded."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        self._waiting_bytes += self._granted - self._room
        bound = self._buffer_bytes_max
        self._granted = self._room = bound - self._made.buffered_bytes - self._waiting_bytes
        if self._room <= 0:
            self._granted = self._room = 0
            raise LimitExceeded(f"{bound} bytes are unconfirmed already (buffer_bytes_max); flush() makes room")
