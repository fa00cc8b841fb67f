"""Connector: keeps a client connected to its broker, and sends its requests.

Laws: one task opens the connections. When one is lost it tells the listeners, and reconnects with growing waits for as
long as the client is open. An attempt tries all addresses of the URL, beginning behind the one that was lost. When it
gives up (after `retries_max` attempts, or because the broker speaks another version), everything that waits for a
connection fails, and it tries again only on the next request.
"""

from __future__ import annotations

import logging
from _thread import get_ident
from asyncio import _get_running_loop
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from linn.client.connection.answer import Answer, again
from linn.client.connection.any_env import ClientEnv
from linn.client.connection.connection import Connection
from linn.client.connection.leaders import KEEPALIVE_S, Leaders
from linn.client.connection.producer_ids import ProducerIds
from linn.client.connection.timers import Timers
from linn.client.connection.url import BrokerUrl
from linn.client.login import Channel
from linn.client.options import ClientOptions, Tls
from linn.core.env.env import Clock, Stream
from linn.core.errors.tree import (
    ClientClosed,
    ClientUnreachable,
    ConnectFailed,
    ConnectionLost,
    LinnError,
    ProducerForeign,
    RequestTimeout,
)
from linn.wire.messages import Message

TELL_AGAIN_S = 30.0
"""Interval between warnings during an outage, long enough that a log stays readable overnight."""

logger = logging.getLogger("linn.client")


class Listener(Protocol):
    """Listener for connections: a producer or a consumer. Its methods are private because these classes are public."""

    def _connected(self, connection: Connection) -> None:
        """A connection was opened."""

    def _disconnected(self) -> None:
        """The connection was lost."""

    def _give_up(self, error: LinnError) -> None:
        """The client has given up connecting, or was closed."""


class Connector:
    """Connector of one client: keeps at most one connection at a time."""

    def __init__(self, places: Sequence[BrokerUrl], options: ClientOptions, env: ClientEnv, tasks: TaskGroup) -> None:
        """`places`: the addresses of the URL, in its order."""
        self._places = places
        self._at = 0
        """Index of the address that is connected, or was tried last."""
        self.options = options
        self.env = env
        self.tasks = tasks
        """Task group that `linn.connect` owns; it ends with the client."""
        self.timers = Timers(env.clock)
        self.loop_guard = LoopGuard()
        self.producer_ids = ProducerIds()
        self.leaders = Leaders(self._try_connection, lambda: self.usable, env.clock, tasks)
        self.listeners: list[Listener] = []
        self.closed = False
        self.outage: Outage | None = None
        """Set while there is no connection, except before the first."""
        self._connection: Connection | None = None
        self._wanted = anyio.Event()
        self._news = anyio.Event()
        """Event that is set and replaced when a connection is opened or given up."""
        self._gave_up: LinnError | None = None

    # --- connections ---

    @property
    def usable(self) -> Connection | None:
        """The connection, if there is one that has not failed."""
        connection = self._connection
        return connection if connection is not None and connection.error is None else None

    @property
    def address(self) -> str:
        """The address of the connection, or of the last attempt."""
        return self._places[self._at].address

    @property
    def broker(self) -> str:
        """The broker's name; "" while there is no connection."""
        return self._connection.welcome.broker if self._connection is not None else ""

    @property
    def user(self) -> str:
        """The client's user; "" while there is no connection."""
        return self._connection.welcome.user if self._connection is not None else ""

    def retry(self) -> None:
        """Connect again if the connector had given up."""
        self._wanted.set()

    async def start(self) -> None:
        """Connect, once or for `wait_s` seconds. Raises ConnectFailed, ConnectionLost, VersionUnsupported,
        ProtocolError.
        """
        wait_s = self.options.wait_s
        connection = await (self._open_first(wait_s) if wait_s else self._open_connection())
        self.tasks.start_soon(self.timers.run)
        self._connection = connection
        self.tasks.start_soon(self._run, connection)

    async def _open_first(self, wait_s: float) -> Connection:
        last: LinnError | None = None
        attempts = 0
        with anyio.move_on_after(wait_s):
            while True:
                try:
                    return await self._open_connection()
                except LinnError as error:
                    if not error.retriable:
                        raise
                    if last is None:
                        text = "no broker yet, trying for up to %(seconds)g s: %(error)s"
                        logger.warning(text, {"broker": self.address, "seconds": wait_s, "error": error.text})
                    last = error
                await self.env.clock.sleep(self.backoff_s(attempts))
                attempts += 1
        why = last.text if last is not None else f"{self.address} did not answer"
        raise ConnectFailed(f"no broker after waiting for {wait_s:g} s: {why}")

    async def _open_connection(self) -> Connection:
        """Try each address once. Raises the last error; one that no other attempt can mend comes first."""
        failures: list[LinnError] = []
        for _ in self._places:
            try:
                connection = await self._open_at(self._places[self._at])
                if len(self._places) > 1:
                    connection.keepalive_s_max = KEEPALIVE_S
                return connection
            except LinnError as error:
                failures.append(error)
                self._at = (self._at + 1) % len(self._places)
        worst = min(failures, key=lambda error: error.retriable)
        if len(failures) > 1 and worst.retriable:
            raise ConnectFailed("; ".join([error.text for error in failures]))
        raise worst

    async def _open_at(self, place: BrokerUrl) -> Connection:
        try:
            return await self._try_connection(place)
        except ProducerForeign:  # The broker began anew, without its data, and so without the secret behind the key.
            self.producer_ids.forget()
            return await self._try_connection(place)

    async def _try_connection(self, place: BrokerUrl) -> Connection:
        connection: Connection | None = None
        timeout_s = self.options.connect_timeout_s
        try:
            with anyio.move_on_after(timeout_s):
                stream, binding = await self._open_stream(place)
                connection = Connection(stream, self.env.clock, is_tls=place.tls_host is not None)
                options, ids = self.options, self.producer_ids
                producer = ids.first, ids.key
                is_private = place.tls_host is not None or place.address.startswith("unix:")
                channel = Channel(self.env.rng.bytes, binding, is_private)
                await connection.greet(options.name, producer, options.login, channel)
                ids.begin(connection.welcome.producer_id, connection.welcome.producer_key)
                return connection
            raise ConnectFailed(f"{place.address} did not answer within {timeout_s:g} s")
        except BaseException:
            if connection is not None:
                await connection.aclose()
            raise

    async def _open_stream(self, place: BrokerUrl) -> tuple[Stream, bytes]:
        """Connect. Returns the stream, and the hash of the broker's certificate; b"" without TLS."""
        stream = await self.env.net.connect(place.address)
        if place.tls_host is None:
            return stream, b""
        from linn.client.connection.secure import secured

        secure = await secured(stream, place.tls_host, self.options.tls or Tls())
        return secure, secure.server_end_point or b""

    async def _run(self, connection: Connection) -> None:
        try:
            await self._stay_connected(connection)
        finally:  # Cancelled with the client: shielded waits for a connection would never end.
            self._connection, self.closed = None, True
            self._tell_news(ClientClosed("the client is closed"))

    async def _stay_connected(self, connection: Connection) -> None:
        ended_early = 0
        while True:
            began = self.env.clock.monotonic()
            self._connection = connection
            self._tell_news(None)
            for listener in self.listeners:
                listener._connected(connection)
            error = await connection.run()
            if self.closed:
                return
            self._connection = None
            self.outage = Outage(self.address, self.env.clock, error)
            self._at = (self._at + 1) % len(self._places)
            for listener in self.listeners:
                listener._disconnected()
            # A connection that ends at once counts like a failed attempt: back off.
            lived_s = self.env.clock.monotonic() - began
            ended_early = ended_early + 1 if lived_s < self.options.backoff_max_s else 0
            if ended_early > 1:
                await self.env.clock.sleep(self.backoff_s(ended_early - 2))
            connection = await self._reconnect(self.outage)
            self.outage.is_over(self.address)
            self.outage = None

    def _tell_news(self, gave_up: LinnError | None) -> None:
        self._gave_up = gave_up
        news, self._news = self._news, anyio.Event()
        news.set()

    async def _reconnect(self, outage: Outage) -> Connection:
        while True:
            attempts = 0
            while not self.options._is_used_up(attempts + 1):
                if attempts:
                    await self.env.clock.sleep(self.backoff_s(attempts - 1))
                attempts += 1
                try:
                    return await self._open_connection()
                except LinnError as failure:
                    outage.failed_again(failure)
                    if not failure.retriable:
                        break
            self._wanted = anyio.Event()
            self._give_up(outage.error)
            await self._wanted.wait()

    def _give_up(self, error: LinnError) -> None:
        self._tell_news(error)
        for listener in list(self.listeners):
            listener._give_up(error)

    def backoff_s(self, attempt: int) -> float:
        """Return the wait before attempt `attempt` + 1, which is partly random."""
        return self.options._backoff_of(attempt, self.env.rng.uniform(0.0, 1.0))

    # --- requests ---

    async def ready(self) -> Connection:
        """Wait for a connection that takes requests, and return it.

        Raises the error that the client gave up with, RequestTimeout, ClientClosed, ClientUnreachable.
        """
        self.loop_guard.check()
        if self._connection is not None and self._connection.ready:
            return self._connection
        with self.time_limit("connect"):
            while True:
                if self.closed:
                    raise ClientClosed("the client is closed")
                connection = self.usable
                if connection is None:
                    self.retry()
                    await self._news.wait()
                    if self._gave_up is not None:
                        raise again(self._gave_up)
                elif connection.ready:
                    return connection
                else:
                    changed = anyio.Event()
                    connection.when_ready(changed.set)
                    await changed.wait()

    @contextmanager
    def time_limit(self, what: str, extra_s: float = 0.0) -> Iterator[None]:
        """Raise RequestTimeout if the block takes longer than `request_timeout_s` and `extra_s` together."""
        timeout_s = self.options.request_timeout_s + extra_s
        with anyio.move_on_after(timeout_s) as scope:
            yield
        if scope.cancelled_caught and self.outage is not None:
            raise RequestTimeout(f"{what}: no connection within {timeout_s:g} s: {self.outage.error.text}")
        if scope.cancelled_caught:
            raise RequestTimeout(f"{what}: no answer from {self.address} within {timeout_s:g} s")

    async def request(
        self,
        message: Message,
        *,
        repeat: bool = False,
        extra_s: float = 0.0,
        topic: str = "",
        over: Connection | None = None,
    ) -> Answer:
        """Send a request and wait for its answer; `repeat`: again after a lost connection, `retries_max` times at most.

        It goes to the broker at hand, to the leader of `topic` if there is a connection to it, or `over` a connection.

        Raises the broker's refusal, MessageInvalid, ConnectionLost, RequestTimeout.
        Cancellation: the request may have been carried out.
        """
        lost = 0
        with self.time_limit(type(message).__name__.lower(), extra_s):
            while True:
                connection = over or (self.leaders.at(topic) if topic else None) or await self.ready()
                answer = Answer()
                correlation = connection.ask(answer, message)
                try:
                    await answer.wait()
                    return answer
                except ConnectionLost:
                    # This request may be the reason why the broker closes the connection.
                    lost += 1
                    if not repeat or self.closed or self.options._is_used_up(lost):
                        raise
                finally:
                    connection.forget(correlation)
        raise AssertionError("a time limit that passes raises")

    # --- end ---

    def close(self) -> None:
        """Fail all waiting calls."""
        self.closed = True
        self._give_up(ClientClosed("the client is closed"))

    async def aclose(self) -> None:
        """Close all connections."""
        if self._connection is not None:
            await self._connection.aclose()
        await self.leaders.aclose()


class LoopGuard:
    """Keeps a client in the event loop and the thread that it was made in.

    A thread runs one trio loop at a time; of asyncio's loops it runs the one that asyncio names as running.
    """

    __slots__ = ("_asyncio_loop", "thread_id")

    def __init__(self) -> None:
        self.thread_id = get_ident()
        """Calls for each message compare only this; others call `check`."""
        self._asyncio_loop = _get_running_loop()

    def check(self) -> None:
        """Raise ClientUnreachable in any other loop or thread. Costs less than 0.1 us."""
        if get_ident() != self.thread_id or _get_running_loop() is not self._asyncio_loop:
            raise ClientUnreachable(
                "this is not the event loop, or not the thread, that the client was made in: "
                "make one here, or use linn.sync, whose clients any thread may use"
            )


class Outage:
    """A time without a connection, reported in the program's log: its start, its duration at intervals, its end.

    The texts of errors name the address already.
    """

    def __init__(self, address: str, clock: Clock, error: LinnError) -> None:
        self.error = error
        """Last known reason why there is no connection."""
        self._address = address
        self._monotonic = clock.monotonic
        self._began_s = self._told_s = clock.monotonic()
        logger.warning(
            "connection lost, connecting again: %(error)s",
            {"broker": address, "error": error.text, "code": error.code},
        )

    def failed_again(self, error: LinnError) -> None:
        """Record that an attempt to connect failed."""
        self.error = error
        now = self._monotonic()
        if now - self._told_s >= TELL_AGAIN_S:
            self._told_s = now
            logger.warning(
                "still no connection after %(seconds).0f s: %(error)s",
                {"broker": self._address, "seconds": now - self._began_s, "error": error.text, "code": error.code},
            )

    def is_over(self, address: str) -> None:
        """Record that there is a connection again, to `address`."""
        seconds = self._monotonic() - self._began_s
        logger.warning("connected to %(broker)s again after %(seconds).1f s", {"broker": address, "seconds": seconds})
