"""Client: the connection to a broker, and the producers and consumers that share it.

Read on: `connection.connector` (staying connected), `connection.connection` (one connection), `produce.producer` with
`produce.accumulator` and `produce.sender`, `consume.consumer` with `consume.subscription`, `admin`.

Law: all tasks run in one task group that `connect` owns, and end with its block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Literal, TypeVar, overload
from uuid import UUID

import anyio

from linn.client.admin import Admin
from linn.client.arguments import (
    I32_MAX,
    I64_MAX,
    U32_MAX,
    U64_MAX,
    checked_number,
    checked_span,
    checked_text,
    checked_topics,
    checked_wait,
    shown,
)
from linn.client.connection import metadata
from linn.client.connection.any_env import AnyEnv, ClientEnv
from linn.client.connection.connector import Connector
from linn.client.connection.url import BrokerUrl, parse_url
from linn.client.consume.consumer import Consumer, Mode
from linn.client.consume.exactly_once import ExactlyOnceConsumer
from linn.client.consume.membership import Membership
from linn.client.consume.message import Batch, FetchedBatches
from linn.client.consume.start_position import Start, check_start
from linn.client.consume.work_source import WorkSource
from linn.client.login import Password, Token
from linn.client.options import ClientOptions, Tls
from linn.client.participants.participant import AsyncParticipant, Participant
from linn.client.produce.producer import AcksName, Producer
from linn.client.requesting import Requesting
from linn.client.transactions.owner import TransactionOwner
from linn.client.transactions.process import Function, Worker
from linn.client.transactions.shared import SharedTransactions
from linn.client.transactions.transaction import Transaction
from linn.core.batch.batch import Codec
from linn.core.errors.group import raise_once
from linn.core.errors.tree import MessageInvalid, ProtocolError
from linn.wire.messages import Description, Fetch, Fetched

H = TypeVar("H")
Isolation = Literal["read_committed", "read_uncommitted"]

BATCH_BYTES_MAX = 256 << 10
"""Default size of a producer's batches: beyond it the cost per record no longer falls."""
BUFFER_BYTES_MAX = 32 << 20
RENEWAL_MAX_S = 3_600.0
"""Default limit on lease renewal: long enough for a long job. After it, a job that hangs goes to another consumer."""
TRANSACTION_TIMEOUT_S = 60.0
SESSION_TIMEOUT_S = 10.0
SESSION_TIMEOUT_S_MAX = 86_400.0
IN_FLIGHT_MAX = 8
"""Default limit on a producer's batches in flight: the number that a broker remembers of an idempotent producer."""


class Client(Requesting):
    """A client of one broker, made by `linn.connect`.

    Example:
        async with linn.connect("linn://127.0.0.1:5466") as client:
            print([topic.name for topic in (await client.describe()).topics])
    """

    def __init__(self, connector: Connector) -> None:
        super().__init__(connector, self._branch)
        self.env = connector.env
        self.admin = Admin(connector)
        self._owners: dict[str, TransactionOwner] = {}
        """Names of transactions that this client has used."""

    @property
    def options(self) -> ClientOptions:
        """Options of the client."""
        return self._connector.options

    @property
    def broker(self) -> str:
        """The broker's name; "" while there is no connection."""
        return self._connector.broker

    @property
    def user(self) -> str:
        """The user's name to the broker, "anonymous" without a login; "" while there is no connection."""
        return self._connector.user

    # --- producers and consumers ---

    def producer(
        self,
        topic: str | None = None,
        *,
        exchange: str | None = None,
        acks: AcksName = "all",
        linger_ms: float = 0,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        codec: Literal["zstd"] | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        idempotent: bool = True,
    ) -> Producer:
        """Make a producer for one topic or one exchange; enter it with `async with`.

        Args:
            acks: "all": confirmed when every in-sync replica has stored it as durably as the topic requires; "leader":
                when the broker that leads the topic has; "none": passed to the connection and not confirmed.
            linger_ms: time that a message may wait for others to share its batch; 0: see `Producer`.
            batch_bytes_max: approximate size at which a batch is sent.
            codec: compression of batches, if the broker supports it.
            in_flight_max: limit on unconfirmed batches, at most 8 for an idempotent producer.
            buffer_bytes_max: size of unconfirmed batches beyond which `publish` waits and `publish_nowait` refuses.
            idempotent: whether the broker recognises a batch that is sent again after a lost connection or a refusal:
                each message is then stored once and in order. No effect with `acks="none"`.

        Raises MessageInvalid if an argument is wrong.

        Example:
            async with client.producer("orders", linger_ms=5, codec="zstd") as producer:
                await producer.publish(b"two coffees")
        """
        if (topic is None) == (exchange is None):
            raise MessageInvalid("a producer needs the name of a topic or of an exchange, not both")
        target = checked_text(exchange if topic is None else topic, "a producer's topic or exchange")
        if acks not in ("none", "leader", "all"):
            raise MessageInvalid(f'acks must be "none", "leader" or "all", not {shown(acks)}')
        if codec not in (None, "zstd"):
            raise MessageInvalid(f'codec must be None or "zstd", not {shown(codec)}')
        checked_span(linger_ms, "linger_ms")
        limits = {"in_flight_max": in_flight_max, "batch_bytes_max": batch_bytes_max}
        for name, limit in (limits | {"buffer_bytes_max": buffer_bytes_max}).items():
            checked_number(limit, name, I64_MAX, lowest=1)
        if idempotent and in_flight_max > IN_FLIGHT_MAX:
            raise MessageInvalid(f"in_flight_max must be at most {IN_FLIGHT_MAX} unless idempotent=False")
        return Producer(
            self._connector,
            target,
            exchange is not None,
            acks,
            linger_ms,
            batch_bytes_max,
            Codec.ZSTD if codec == "zstd" else Codec.NONE,
            in_flight_max,
            buffer_bytes_max,
            idempotent,
        )

    @overload
    def consumer(
        self,
        topic: str | Sequence[str],
        group: str | None = None,
        *,
        prefetch: int | None = None,
        mode: Mode = "push",
        start: Start = "earliest",
        where: str | None = None,
        renewal_max_s: float = RENEWAL_MAX_S,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        static: bool = False,
        shared: str | None = None,
        priority: int = 0,
        isolation: Isolation = "read_committed",
        exactly_once: None = None,
    ) -> Consumer: ...
    @overload
    def consumer(
        self,
        topic: str | Sequence[str],
        group: str | None = None,
        *,
        prefetch: int | None = None,
        start: Start = "earliest",
        where: str | None = None,
        renewal_max_s: float = RENEWAL_MAX_S,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        static: bool = False,
        shared: str | None = None,
        priority: int = 0,
        isolation: Isolation = "read_committed",
        exactly_once: Participant[H] | AsyncParticipant[H],
    ) -> ExactlyOnceConsumer[H]: ...
    def consumer(
        self,
        topic: str | Sequence[str],
        group: str | None = None,
        *,
        prefetch: int | None = None,
        mode: Mode = "push",
        start: Start = "earliest",
        where: str | None = None,
        renewal_max_s: float = RENEWAL_MAX_S,
        name: str | None = None,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        static: bool = False,
        shared: str | None = None,
        priority: int = 0,
        isolation: Isolation = "read_committed",
        exactly_once: Participant[H] | AsyncParticipant[H] | None = None,
    ) -> Consumer | ExactlyOnceConsumer[H]:
        """Make a consumer of one topic; enter it with `async with`.

        Args:
            group: on a stream, the group whose members share the partitions and whose offsets are kept. None: on a
                queue, a competing consumer; on a stream, an independent reader whose offsets are not kept.
            prefetch: limit on records in flight or held by the application; leased records count until they are
                settled. None: 4,096 for a stream; for a queue a few at first, then adapted to the application's speed.
            mode: "push": the broker sends up to `prefetch` records; "pull": it sends on request.
            start: position in a stream without committed offsets, and of a new shared subscription: "earliest",
                "latest", an offset, or a datetime (the first batch with a timestamp not before it).
            where: on a stream, a predicate over labels and routing key, such as `'label.kind = "late"'`: the broker
                skips all other records, and for a group they count as consumed. None: all records.
            renewal_max_s: time for which the lease of a delivery is renewed while the application references its
                records; 0: never.
            name: name of this consumer in its group, queue or shared subscription; a present consumer with the same
                name is fenced, and its records go to others. None: a random name in a group, otherwise no name.
            session_timeout_s: time for which a group keeps the partitions of this member after its last sign of life,
                for instance if its connection or process is gone; 0: only while the connection lasts.
            static: whether the group also keeps the partitions for that time after this consumer is closed: the next
                consumer with the name, for instance after a restart, continues with them. Needs `name`.
            shared: on a stream, the shared subscription for whose records consumers compete, as on a queue:
                records are leased, and settled separately. It is created if it is missing.
            priority: for a queue or shared subscription: consumers of a higher priority get records first, as long as
                they ask for more; with `consumers = "one"` the one of the highest priority is active.
            isolation: "read_uncommitted": on a stream, also records of open and aborted transactions.
            exactly_once: the participant that stores the effects of messages exactly once: the consumer yields
                (message, handle), and settles by itself. A queue or a shared subscription needs a name and a topic with
                `delivery = "exactly-once"`; for a stream the participant keeps the position.

        Raises MessageInvalid if an argument is wrong.

        Example:
            async with client.consumer("prices", group="dashboard", start="earliest") as consumer:
                print((await anext(consumer)).value)
        """
        who = self._membership(group, name, session_timeout_s, static, shared)
        who = who._replace(is_two_phase=exactly_once is not None, is_uncommitted=_is_uncommitted(isolation))
        who = who._replace(priority=checked_number(priority, "priority", I32_MAX, -I32_MAX - 1))
        made = self._plain_consumer(topic, group, prefetch, mode, start, where, renewal_max_s, who)
        if exactly_once is None:
            return made
        return ExactlyOnceConsumer(self._source(made, group or name, shared, mode), exactly_once)

    def transaction(self, name: str, *, timeout_s: float = TRANSACTION_TIMEOUT_S) -> Transaction:
        """Make a transaction; enter it with `async with`. Transactions of one name follow one another.

        Args:
            name: a later user of the name, in any program, fences the earlier one and aborts its open transaction:
                give each worker a name of its own, and the same name after a restart.
            timeout_s: time after which the broker aborts an open transaction, which holds back readers.

        Raises MessageInvalid if an argument is wrong.

        Example:
            async with client.transaction("billing-1") as tx:
                await tx.publish("bills", b"42 EUR")
                await tx.publish("audit", b"bill written")
        """
        checked_text(name, "a transaction's name")
        if not name:
            raise MessageInvalid("a transaction needs a name, which no other worker has")
        checked_span(timeout_s, "timeout_s")
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = TransactionOwner(self._connector, name, timeout_s, self._branch)
        owner.timeout_s = timeout_s
        return Transaction(owner)

    def shared_transactions(
        self, name: str, *, run: int, timeout_s: float = TRANSACTION_TIMEOUT_S
    ) -> SharedTransactions:
        """Make transactions that several processes write and one process commits, for distributed jobs.

        Args:
            name: name of the job, the same after each restart.
            run: a random number from 1 to 2**64 - 1, the same in all processes of a run. Another number takes the
                name over, and fences the earlier run.
            timeout_s: time after which the broker aborts a transaction that is still open; it holds back readers.

        Raises MessageInvalid if an argument is wrong.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = await shared.join()
            async with shared.producer(ticket, "bills") as producer:
                await producer.publish(b"42 EUR")
            await shared.commit(ticket, [producer.id], sequence=1)
        """
        checked_text(name, "a transaction's name")
        if not name:
            raise MessageInvalid("a transaction needs a name, which no other job has")
        checked_number(run, "run", (1 << 64) - 1, lowest=1)
        checked_span(timeout_s, "timeout_s")
        return SharedTransactions(self._connector, name, run, timeout_s, self._branch)

    async def process(
        self,
        source: str,
        function: Function,
        sink: str | None = None,
        *,
        name: str,
        group: str | None = None,
        exchange: str | None = None,
        workers: int = 1,
        prefetch: int | None = None,
        timeout_s: float = TRANSACTION_TIMEOUT_S,
    ) -> None:
        """Read a topic, and publish a function's output for each message, exactly once; runs until it is cancelled.

        For each delivery, one transaction settles the messages and publishes the output.

        Args:
            function: takes a message; returns bytes, an `Output`, several of them, or None. It may be a coroutine
                function. Its other effects may happen again.
            sink: the topic to publish to; alternatively `exchange`.
            name: unique name of this process. After a restart, it takes over from the earlier run.
            group: on a stream, the group whose members share the partitions; on a queue None.
            workers: number of concurrent consumers, each with transactions of its own.

        Raises TransactionFenced: another process has taken over the name; errors of the function; MessageInvalid,
        TopicUnknown, SubscriptionWrongKind.

        Example:
            with anyio.move_on_after(0.5):
                await client.process("orders", lambda order: b"bill for " + order.value, "bills", name="billing")
        """
        check_process(sink, exchange, workers)
        try:
            async with anyio.create_task_group() as tasks:
                for number in range(workers):
                    own = f"{name}/{number}"
                    consumer = self.consumer(source, group, name=own, prefetch=prefetch)
                    begin = partial(self.transaction, own, timeout_s=timeout_s)
                    worker = Worker(consumer, begin, function, (sink, exchange), is_group=group is not None)
                    tasks.start_soon(worker.run)
        except BaseExceptionGroup as several:
            raise_once(several)

    def _branch(self, target: str, to_exchange: bool) -> Producer:
        return self.producer(exchange=target) if to_exchange else self.producer(target)

    def _source(self, consumer: Consumer, name: str | None, shared: str | None, mode: Mode) -> WorkSource:
        """Make the source of a consumer with a participant. Raises MessageInvalid."""
        if not name:
            raise MessageInvalid("a consumer with a participant needs a name, which no other consumer has")
        if mode != "push":
            raise MessageInvalid('a consumer with a participant has mode="push"')
        return WorkSource(self._connector, consumer, shared or name)

    def _plain_consumer(
        self,
        topic: str | Sequence[str],
        group: str | None,
        prefetch: int | None,
        mode: Mode,
        start: Start,
        where: str | None,
        renewal_max_s: float,
        membership: Membership,
    ) -> Consumer:
        topics = checked_topics(topic, group)
        checked_text(group or "", "a consumer's group")
        checked_text(where or "", "a consumer's where")
        if prefetch is not None:
            checked_number(prefetch, "prefetch", U32_MAX, lowest=1)
        checked_span(renewal_max_s, "renewal_max_s")
        if mode not in ("push", "pull"):
            raise MessageInvalid(f'mode must be "push" or "pull", not {shown(mode)}')
        check_start(start)
        return Consumer(
            self._connector, topics, group or "", prefetch, mode, start, where or "", renewal_max_s, membership
        )

    def _membership(
        self, group: str | None, name: str | None, session_timeout_s: float, is_static: bool, shared: str | None
    ) -> Membership:
        checked_text(name or "", "a consumer's name")
        checked_text(shared or "", "a consumer's shared subscription")
        session_s = checked_span(session_timeout_s, "session_timeout_s")
        if session_s > SESSION_TIMEOUT_S_MAX:
            raise MessageInvalid(f"session_timeout_s is at most {SESSION_TIMEOUT_S_MAX:g} seconds")
        if is_static and not (group and name and session_s):
            raise MessageInvalid("a static consumer has a group, a name and a session_timeout_s")
        if group and shared:
            raise MessageInvalid("a consumer belongs to a group or to a shared subscription, not to both")
        if not group:
            return Membership(name or "", shared=shared or "")
        name = name or f"consumer-{self._connector.env.rng.bytes(6).hex()}"
        return Membership(name, session_s, is_static)

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_min: int = 1,
        bytes_max: int = 1 << 20,
        wait_s: float = 0.0,
        where: str | None = None,
        unsettled: bool = False,
        leader_epoch: int = 0,
        topic_id: UUID | None = None,
        isolation: Isolation = "read_committed",
    ) -> FetchedBatches:
        """Read a partition from `offset`: about `bytes_max` bytes, waiting up to `wait_s` for `bytes_min`.

        Args:
            where: a predicate over labels and routing key; other records are left out. An empty result does not mean
                the end: go on at `next_offset`.
            unsettled: for a queue, leave out settled records.
            leader_epoch: epoch of the last fetch, to detect that the broker has lost the records that it read; 0: none.
            topic_id: id of the topic, to detect that a new topic has taken its name.
            isolation: "read_uncommitted": also records of open and aborted transactions.

        Raises MessageInvalid, TopicUnknown, PartitionUnknown, OffsetOutOfRange, PredicateInvalid, SubscriptionWrongKind
        (`unsettled` records of a stream), LogTruncated, TopicReplaced, ConnectionLost, RequestTimeout.
        Cancellation: nothing is changed.

        Example:
            fetched = await client.fetch("prices", partition=0, offset=0)
            print([batch.values for batch in fetched.batches], fetched.high_watermark)
        """
        wait_s = checked_wait(wait_s)
        wait_ms = int(wait_s * 1000)
        request = Fetch(topic, partition, offset, bytes_min, bytes_max, wait_ms, where or "", unsettled, leader_epoch)
        request.uncommitted = _is_uncommitted(isolation)
        if topic_id is not None:
            request.topic_id_high, request.topic_id_low = topic_id.int >> 64, topic_id.int & U64_MAX
        await metadata.find_leaders(self._connector, [topic])
        answer = await self._connector.request(request, repeat=True, extra_s=wait_s, topic=topic)
        fetched = answer.message
        if not isinstance(fetched, Fetched):
            raise ProtocolError(f"the broker answered fetch with {type(fetched).__name__}")
        batches = []
        for records in answer.batches:
            records.check_crc()
            if records.end_offset > offset:
                batches.append(Batch(topic, partition, records, records.index_at(offset)))
        bounds = fetched.start_offset, fetched.high_watermark
        return FetchedBatches(batches, *bounds, fetched.next_offset, fetched.leader_epoch)

    async def find_offset(
        self, topic: str, partition: int, place: Literal["earliest", "latest"] | int | datetime
    ) -> int:
        """Return the offset of the start, of the end, or of the first batch with a timestamp not before a time.

        A time is a `datetime`, or a number of milliseconds since 1970, and may lie before that.

        Raises MessageInvalid, TopicUnknown, PartitionUnknown, ConnectionLost, RequestTimeout.
        Cancellation: nothing is changed.

        Example:
            yesterday = datetime.now() - timedelta(days=1)
            offset = await client.find_offset("prices", 0, yesterday)
        """
        return await metadata.find_offset(self._connector, topic, partition, place)

    async def describe(self, *topics: str) -> Description:
        """Return kind, partitions and bounds of topics; of all if no name is given. An unknown topic has the kind "".

        Raises MessageInvalid, ConnectionLost, RequestTimeout. Cancellation: nothing is changed.

        Example:
            (prices,) = (await client.describe("prices")).topics
            print(prices.kind, len(prices.partitions))
        """
        return await metadata.describe(self._connector, topics)


def check_process(sink: str | None, exchange: str | None, workers: int) -> None:
    """Check arguments of `Client.process`. Raises MessageInvalid."""
    if (sink is None) == (exchange is None):
        raise MessageInvalid("a process publishes to a topic or to an exchange")
    checked_number(workers, "workers", U32_MAX, lowest=1)


def _is_uncommitted(isolation: object) -> bool:
    """Check an isolation. Raises MessageInvalid."""
    if isolation not in ("read_committed", "read_uncommitted"):
        raise MessageInvalid(f'isolation must be "read_committed" or "read_uncommitted", not {shown(isolation)}')
    return isolation == "read_uncommitted"


@asynccontextmanager
async def connect(
    url: str,
    *,
    name: str = "linn-python",
    connect_timeout_s: float = 5.0,
    wait_s: float = 0.0,
    request_timeout_s: float = 30.0,
    retries_max: int | None = None,
    backoff_s: float = 0.05,
    backoff_max_s: float = 2.0,
    metadata_age_max_s: float = 60.0,
    tls: Tls | None = None,
    login: Password | Token | None = None,
    env: ClientEnv | None = None,
) -> AsyncIterator[Client]:
    """Connect to the broker at `url`, under trio or asyncio: `async with linn.connect("linn://127.0.0.1") as client`.

    URLs are linn://HOST[:PORT] (default port 5466), linns://HOST[:PORT] for TLS, and linn+unix:///PATH. Several brokers
    of a cluster are separated by commas, linn://HOST,HOST: the first that answers is used, and another after a loss.
    With `wait_s`, a program may start before its broker: attempts are repeated for that time. See `ClientOptions` for
    the other options; `env` replaces clock, randomness and network, for example by simulated ones.

    Raises:
        MessageInvalid: an option is wrong. AddressInvalid: the URL is malformed. ConnectFailed: nothing listens
            there, for `wait_s` seconds. TlsFailed: a certificate is not accepted. TlsRequired: it speaks only TLS.
            AuthFailed: no login, or a wrong one. VersionUnsupported, ProtocolError: it is no linn broker of this age.
    An exception of the block is raised as it is, not in a group. Leaving the block fails what its producers and
    consumers have not finished; they flush when their own blocks are left.

    Example:
        async with linn.connect("linn://127.0.0.1:5466", name="shop") as client:
            print(client.broker)
    """
    options = ClientOptions(
        name=name,
        connect_timeout_s=connect_timeout_s,
        wait_s=wait_s,
        request_timeout_s=request_timeout_s,
        retries_max=retries_max,
        backoff_s=backoff_s,
        backoff_max_s=backoff_max_s,
        metadata_age_max_s=metadata_age_max_s,
        tls=tls,
        login=login,
    )
    places = parse_url(url, needs_tls=tls is not None)
    async with _connected(places, options, env if env is not None else AnyEnv()) as client:
        yield client


@asynccontextmanager
async def _connected(places: Sequence[BrokerUrl], options: ClientOptions, env: ClientEnv) -> AsyncIterator[Client]:
    raised: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        connector = Connector(places, options, env, tasks)
        try:
            await connector.start()
            yield Client(connector)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            raised = error
        finally:
            connector.close()
            await connector.aclose()
            tasks.cancel_scope.cancel()
    if raised is not None:
        raise raised
