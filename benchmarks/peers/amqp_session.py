"""One AMQP connection with one channel, of pika's kind that does not block: the one that can pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika  # type: ignore[import-untyped]

from benchmarks.peers.cargo import Supply
from benchmarks.peers.peer import PeerFailed
from benchmarks.peers.plan import CHUNK, WINDOW

LIMIT_S = 60.0
"""A piece of work that takes longer is given up."""
PERSISTENT = pika.BasicProperties(delivery_mode=2)
Begin = Callable[[Any], None]
"""Is called with the open channel, and returns when it has begun."""


class Session:
    """Runs what begins on a channel, until `done` is called."""

    def __init__(self, port: int) -> None:
        self._parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
        self._error: BaseException | None = None
        self._is_done = False
        self._connection: Any = None

    def run(self, begin: Begin) -> None:
        """Connect, begin, wait for `done`. Raises PeerFailed, and what callbacks raise."""
        connection = self._connection = pika.SelectConnection(
            self._parameters,
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=lambda channel: self._open(begin, channel)
            ),
            on_open_error_callback=self._failed,
            on_close_callback=self._closed,
        )
        limit = connection.ioloop.call_later(LIMIT_S, lambda: self._failed(connection, f"no end after {LIMIT_S:g} s"))
        connection.ioloop.start()
        connection.ioloop.remove_timeout(limit)
        if self._error is not None:
            raise PeerFailed(f"RabbitMQ: {self._error}")

    def done(self) -> None:
        """Close; `run` returns."""
        self._is_done = True
        self._connection.close()

    def _open(self, begin: Begin, channel: Any) -> None:
        channel.add_on_close_callback(lambda channel, reason: None if self._is_done else self._failed(channel, reason))
        begin(channel)

    def _failed(self, where: Any, reason: Any) -> None:
        self._error = reason if isinstance(reason, BaseException) else PeerFailed(str(reason))
        self._connection.ioloop.stop()

    def _closed(self, connection: Any, reason: Any) -> None:
        if not self._is_done:
            self._error = reason
        connection.ioloop.stop()


class ConfirmedPublishing:
    """Publishes with a window of unconfirmed records, and calls `done` when the last one is confirmed."""

    def __init__(self, queue: str, supply: Supply, done: Callable[[], None]) -> None:
        self._queue = queue
        self._supply = supply
        self._chunks = supply.chunks(CHUNK)
        self._done = done
        self._channel: Any = None
        self._confirmed = 0
        self._is_over = False

    def begin(self, channel: Any) -> None:
        """Ask for confirmations, and send."""
        self._channel = channel
        channel.confirm_delivery(self._arrived, callback=lambda _: self._send())

    def _send(self) -> None:
        publish, queue = self._channel.basic_publish, self._queue
        while not self._is_over and self._supply.taken - self._confirmed <= WINDOW - CHUNK:
            values = next(self._chunks, None)
            if values is None:
                self._is_over = True
                break
            for value in values:
                publish("", queue, value, PERSISTENT)
        if self._is_over and self._confirmed == self._supply.taken:
            self._done()

    def _arrived(self, frame: Any) -> None:
        if isinstance(frame.method, pika.spec.Basic.Nack):
            raise PeerFailed("RabbitMQ refused a record")
        tag = int(frame.method.delivery_tag)
        self._confirmed = tag if frame.method.multiple else self._confirmed + 1
        self._send()


class Consuming:
    """Consumes so many records, acks every so many of them, and calls `done`."""

    def __init__(self, queue: str, expected: int, ack_every: int, done: Callable[[], None]) -> None:
        self.received: list[bytes] = []
        self._queue = queue
        self._expected = expected
        self._ack_every = ack_every
        self._done = done

    def begin(self, channel: Any, arguments: dict[str, str]) -> None:
        """Subscribe."""
        channel.basic_qos(
            prefetch_count=WINDOW,
            callback=lambda _: channel.basic_consume(self._queue, self._arrived, arguments=arguments),
        )

    def _arrived(self, channel: Any, method: Any, properties: Any, value: bytes) -> None:
        self.received.append(value)
        count = len(self.received)
        if not count % self._ack_every or count == self._expected:
            channel.basic_ack(method.delivery_tag, multiple=self._ack_every > 1)
        if count == self._expected:
            self._done()
