"""Client: the connection to a broker that comes back, and everything that is made from it.

Read on: `connection` (one connection), `producer` with `sender` (out), `consumer` with `subscription` (in), `admin`.

Laws: all tasks live in one task group that `connect` owns, and none outlives its block. One task, `_stay_connected`,
makes connections; when one is lost it tells the producers and consumers, and connects again with growing waits, for as
long as the client is open. Where it gives up (after `retries_max` attempts, or where the broker speaks another
version), whatever waits is failed, and it tries again only when somebody wants a connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from linn.client.admin import Admin
from linn.client.arguments import I64_MAX, U32_MAX, checked_number, checked_span, checked_text, checked_wait, shown
from linn.client.connection.answer import Answer, again
from linn.client.connection.any_env import AnyEnv, ClientEnv
from linn.client.connection.connection import Connection
from linn.client.connection.loop_guard import LoopGuard
from linn.client.connection.outage import Outage
from linn.client.connection.timers import Timers
from linn.client.connection.url import address_of
from linn.client.consume.consumer import Consumer, Mode
from linn.client.consume.fetched import FetchedBatches
from linn.client.consume.message import Batch
from linn.client.consume.start_position import Start, check_start
from linn.client.options import ClientOptions
from linn.client.produce.producer import AcksName, Producer
from linn.core.batch.batch import Codec
from linn.core.errors.tree import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    LinnError,
    MessageInvalid,
    ProtocolError,
    RequestTimeout,
)
from linn.wire import messages
from linn.wire.messages import Describe, Description, Fetch, FindOffset, Message

BATCH_BYTES_MAX = 256 << 10
"""A producer's batches, about: beyond this size the cost per record no longer falls."""
BUFFER_BYTES_MAX = 32 << 20
RENEWAL_MAX_S = 3_600.0
"""Long enough for a long job; what hangs for longer is to be tried elsewhere."""
IN_FLIGHT_MAX = 8


class Client:
    """Made by `linn.connect`.

    Example:
        async with linn.connect("linn://127.0.0.1:5466") as client:
            print([topic.name for topic in (await client.describe()).topics])
    """

    def __init__(self, address: str, options: ClientOptions, env: ClientEnv, tasks: TaskGroup) -> None:
        self._address = address
        self.options = options
        self.env = env
        self._timers = Timers(env.clock)
        self._loop_guard = LoopGuard()
        self.admin = Admin(self)
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []
        self._closed = False
        self._tasks = tasks
        self._connection: Connection | None = None
        self._wanted = anyio.Event()
        self._news = anyio.Event()
        """Set, and replaced, when a connection is up or was given up."""
        self._gave_up: LinnError | None = None
        self._outage: Outage | None = None
        """While there is no connection, but for the first."""

    # --- connections ---

    @property
    def _usable_connection(self) -> Connection | None:
        """The connection, while there is one."""
        connection = self._connection
        return connection if connection is not None and connection.error is None else None

    @property
    def broker(self) -> str:
        """What the broker calls itself; "" while there is no connection."""
        return self._connection.welcome.broker if self._connection is not None else ""

    def _want_connection(self) -> None:
        """Have the client connect again where it had given up."""
        self._wanted.set()

    async def _start(self) -> None:
        """Connect, once. Raises ConnectFailed, ConnectionLost, VersionUnsupported, ProtocolError."""
        connection = await self._open_connection()
        self._tasks.start_soon(self._timers.run)
        self._connection = connection
        self._tasks.start_soon(self._stay_connected, connection)

    async def _open_connection(self) -> Connection:
        connection: Connection | None = None
        timeout_s = self.options.connect_timeout_s
        try:
            with anyio.move_on_after(timeout_s):
                connection = Connection(await self.env.net.connect(self._address), self.env.clock)
                await connection.greet(self.options.name)
                return connection
            raise ConnectFailed(f"{self._address} did not answer within {timeout_s:g} s")
        except BaseException:
            if connection is not None:
                await connection.aclose()
            raise

    async def _stay_connected(self, connection: Connection) -> None:
        ended_early = 0
        while True:
            began = self.env.clock.monotonic()
            self._connection = connection
            self._tell_news(None)
            for producer in self._producers:
                producer._connected()
            for consumer in self._consumers:
                self._tasks.start_soon(consumer._connected, connection)
            error = await connection.run()
            self._connection = None
            self._outage = Outage(self._address, self.env.clock, error)
            for consumer in self._consumers:
                consumer._disconnected()
            # A connection that ends as soon as it is made is no better than one that fails: back off all the same.
            lived_s = self.env.clock.monotonic() - began
            ended_early = ended_early + 1 if lived_s < self.options.backoff_max_s else 0
            if ended_early > 1:
                await self.env.clock.sleep(self._backoff_of(ended_early - 2))
            connection = await self._connect_again(self._outage)
            self._outage.is_over()
            self._outage = None

    def _tell_news(self, gave_up: LinnError | None) -> None:
        self._gave_up = gave_up
        news, self._news = self._news, anyio.Event()
        news.set()

    async def _connect_again(self, outage: Outage) -> Connection:
        while True:
            attempts = 0
            while not self.options._is_used_up(attempts + 1):
                if attempts:
                    await self.env.clock.sleep(self._backoff_of(attempts - 1))
                attempts += 1
                try:
                    return await self._open_connection()
                except LinnError as failure:
                    outage.goes_on(failure)
                    if not failure.retriable:
                        break
            self._wanted = anyio.Event()
            self._give_up(outage.error)
            await self._wanted.wait()

    def _give_up(self, error: LinnError) -> None:
        self._tell_news(error)
        for producer in list(self._producers):
            producer._give_up(error)
        for consumer in list(self._consumers):
            consumer._give_up(error)

    def _backoff_of(self, attempt: int) -> float:
        """Seconds to wait after so many attempts before this one."""
        return self.options._backoff_of(attempt, self.env.rng.uniform(0.0, 1.0))

    async def _ready_connection(self) -> Connection:
        """A connection that takes requests, waiting for one.

        Raises what the client gave up with, RequestTimeout, ClientClosed, ClientUnreachable.
        """
        self._loop_guard.check()
        if self._connection is not None and self._connection.ready:
            return self._connection
        with self._time_limit("connect"):
            while True:
                if self._closed:
                    raise ClientClosed("the client is closed")
                connection = self._usable_connection
                if connection is None:
                    self._want_connection()
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
    def _time_limit(self, what: str, extra_s: float = 0.0) -> Iterator[None]:
        """Raise RequestTimeout where the block takes longer than `request_timeout_s` and `extra_s`."""
        timeout_s = self.options.request_timeout_s + extra_s
        with anyio.move_on_after(timeout_s) as scope:
            yield
        if scope.cancelled_caught and self._outage is not None:
            raise RequestTimeout(f"{what}: no connection within {timeout_s:g} s: {self._outage.error.text}")
        if scope.cancelled_caught:
            raise RequestTimeout(f"{what}: no answer from {self._address} within {timeout_s:g} s")

    async def _request(self, message: Message, *, repeat: bool = False, extra_s: float = 0.0) -> Answer:
        """Send a request and wait for its answer; `repeat`: again after a lost connection, at most `retries_max` times.

        Raises what the broker refuses with, MessageInvalid, ConnectionLost, RequestTimeout.
        Cancellation: it may have been carried out.
        """
        lost = 0
        with self._time_limit(type(message).__name__.lower(), extra_s):
            while True:
                connection = await self._ready_connection()
                answer = Answer()
                correlation = connection.ask(answer, message)
                try:
                    await answer.wait()
                    return answer
                except ConnectionLost:
                    # It may be this request that the broker closes the connection for.
                    lost += 1
                    if not repeat or self._closed or self.options._is_used_up(lost):
                        raise
                    await self._until_lost(connection)
                finally:
                    connection.forget(correlation)
        raise AssertionError("a time limit that passes raises")

    async def _until_lost(self, connection: Connection) -> None:
        while self._connection is connection:
            await anyio.lowlevel.checkpoint()

    def _close(self) -> None:
        """Fail whatever waits."""
        self._closed = True
        self._give_up(ClientClosed("the client is closed"))

    async def _goodbye(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.aclose()

    # --- what users make ---

    def producer(
        self,
        topic: str | None = None,
        *,
        exchange: str | None = None,
        acks: AcksName = "leader",
        linger_ms: float = 0,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        codec: Literal["zstd"] | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> Producer:
        """A producer for one topic or one exchange; enter it with `async with`.

        Args:
            acks: "leader": confirmed when stored as the topic's durability asks for; "all": by every in-sync replica;
                "none": handed to the connection, never asked about again.
            linger_ms: how long a message may wait for others to share a batch with; 0: see `producer`.
            batch_bytes_max: a batch is sent when it has this size, about.
            codec: how batches are compressed, where the broker can tell.
            in_flight_max: batches sent and not confirmed. 1: order is kept also where the broker refuses one for now.
            buffer_bytes_max: of batches that are not confirmed; beyond it `publish` waits, `publish_nowait` refuses.

        Raises MessageInvalid where the arguments make no sense.

        Example:
            async with client.producer("orders", linger_ms=5, codec="zstd") as producer:
                await producer.publish(b"two coffees")
        """
        if (topic is None) == (exchange is None):
            raise MessageInvalid("a producer has either a topic or an exchange, by name")
        target = checked_text(exchange if topic is None else topic, "a producer's topic or exchange")
        if acks not in ("none", "leader", "all"):
            raise MessageInvalid(f'acks is "none", "leader" or "all", not {shown(acks)}')
        if codec not in (None, "zstd"):
            raise MessageInvalid(f'codec is None or "zstd", not {shown(codec)}')
        checked_span(linger_ms, "linger_ms")
        limits = {"in_flight_max": in_flight_max, "batch_bytes_max": batch_bytes_max}
        for name, limit in (limits | {"buffer_bytes_max": buffer_bytes_max}).items():
            checked_number(limit, name, I64_MAX, lowest=1)
        return Producer(
            self,
            target,
            exchange is not None,
            acks,
            linger_ms,
            batch_bytes_max,
            Codec.ZSTD if codec == "zstd" else Codec.NONE,
            in_flight_max,
            buffer_bytes_max,
        )

    def consumer(
        self,
        topic: str,
        group: str | None = None,
        *,
        prefetch: int | None = None,
        mode: Mode = "push",
        start: Start = "earliest",
        renewal_max_s: float = RENEWAL_MAX_S,
    ) -> Consumer:
        """A consumer of one topic; enter it with `async with`.

        Args:
            group: on a stream, the group whose members share the partitions and whose place is kept. None: on a queue,
                one of the consumers that compete; on a stream, a reader of its own whose place nobody keeps.
            prefetch: records that may be on their way or with the application: unsettled ones where they are leased.
                None: 4,096 of a stream; of a queue a few at first, then as many as the application is quick.
            mode: "push": the broker sends as far as `prefetch` goes; "pull": it sends when it is asked.
            start: where a stream is read from where nothing is committed: "earliest", "latest", an offset, or a
                datetime (the first batch with a timestamp not before it).
            renewal_max_s: how long the leases of what the application works on are renewed, from the delivery on;
                0: never. What it refers to no longer is not renewed.

        Raises MessageInvalid where the arguments make no sense.

        Example:
            async with client.consumer("prices", group="dashboard", start="earliest") as consumer:
                print((await anext(consumer)).value)
        """
        checked_text(topic, "a consumer's topic")
        checked_text(group or "", "a consumer's group")
        if prefetch is not None:
            checked_number(prefetch, "prefetch", U32_MAX, lowest=1)
        checked_span(renewal_max_s, "renewal_max_s")
        if mode not in ("push", "pull"):
            raise MessageInvalid(f'mode is "push" or "pull", not {shown(mode)}')
        check_start(start)
        return Consumer(self, topic, group or "", prefetch, mode, start, renewal_max_s)

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_min: int = 1,
        bytes_max: int = 1 << 20,
        wait_s: float = 0.0,
    ) -> FetchedBatches:
        """Read a partition from `offset`: about `bytes_max` bytes, waiting up to `wait_s` for `bytes_min`.

        Raises MessageInvalid, TopicUnknown, PartitionUnknown, OffsetOutOfRange, ConnectionLost, RequestTimeout.
        Cancellation: nothing is changed.

        Example:
            fetched = await client.fetch("prices", partition=0, offset=0)
            print([batch.values for batch in fetched.batches], fetched.high_watermark)
        """
        wait_s = checked_wait(wait_s)
        request = Fetch(topic, partition, offset, bytes_min, bytes_max, int(wait_s * 1000))
        answer = await self._request(request, repeat=True, extra_s=wait_s)
        fetched = answer.message
        if not isinstance(fetched, messages.Fetched):
            raise ProtocolError(f"the broker answered fetch with {type(fetched).__name__}")
        batches = []
        for records in answer.batches:
            records.check_crc()
            if records.end_offset > offset:
                batches.append(Batch(topic, partition, records, max(0, offset - records.base_offset)))
        return FetchedBatches(batches, fetched.start_offset, fetched.high_watermark)

    async def find_offset(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The offset of the first batch with a timestamp not before `timestamp_ms`; -1: the end, -2: the start.

        Raises MessageInvalid, TopicUnknown, PartitionUnknown, ConnectionLost, RequestTimeout.
        Cancellation: nothing is changed.

        Example:
            yesterday = datetime.now() - timedelta(days=1)
            offset = await client.find_offset("prices", 0, int(yesterday.timestamp() * 1000))
        """
        found = (await self._request(FindOffset(topic, partition, timestamp_ms), repeat=True)).message
        if not isinstance(found, messages.FoundOffset):
            raise ProtocolError(f"the broker answered find offset with {type(found).__name__}")
        return found.offset

    async def describe(self, *topics: str) -> Description:
        """Kind, partitions and bounds of topics; of all where none is named. An unknown topic's kind is "".

        Raises MessageInvalid, ConnectionLost, RequestTimeout. Cancellation: nothing is changed.

        Example:
            (prices,) = (await client.describe("prices")).topics
            print(prices.kind, len(prices.partitions))
        """
        asked = [checked_text(topic, "a topic") for topic in topics]
        found = (await self._request(Describe(asked), repeat=True)).message
        if not isinstance(found, Description) or (topics and len(found.topics) != len(topics)):
            raise ProtocolError("the broker did not describe what it was asked for")
        return found


@asynccontextmanager
async def connect(
    url: str,
    *,
    name: str = "linn-python",
    connect_timeout_s: float = 5.0,
    request_timeout_s: float = 30.0,
    retries_max: int | None = None,
    backoff_s: float = 0.05,
    backoff_max_s: float = 2.0,
    metadata_age_max_s: float = 60.0,
    env: ClientEnv | None = None,
) -> AsyncIterator[Client]:
    """A client of the broker at `url`, under trio or asyncio: `async with linn.connect("linn://127.0.0.1") as client`.

    URLs are linn://HOST[:PORT] (5466 where there is none) and linn+unix:///PATH. See `ClientOptions` for the rest;
    `env` is another world to live in, such as a simulated one.

    Raises:
        MessageInvalid: an option makes no sense. AddressInvalid: the URL is none of ours. ConnectFailed: nobody is
            there. VersionUnsupported: an older or newer broker. ProtocolError: what answered is no linn broker.
    What the block raises leaves it as it is, not in a group. Leaving the block fails what its producers and consumers
    have not finished; they flush when their own blocks are left.

    Example:
        async with linn.connect("linn://127.0.0.1:5466", name="shop") as client:
            print(client.broker)
    """
    options = ClientOptions(
        name=name,
        connect_timeout_s=connect_timeout_s,
        request_timeout_s=request_timeout_s,
        retries_max=retries_max,
        backoff_s=backoff_s,
        backoff_max_s=backoff_max_s,
        metadata_age_max_s=metadata_age_max_s,
    )
    address = address_of(url)
    raised: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        client = Client(address, options, env if env is not None else AnyEnv(), tasks)
        try:
            await client._start()
            yield client
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            raised = error
        finally:
            client._close()
            await client._goodbye()
            tasks.cancel_scope.cancel()
    if raised is not None:
        raise raised
