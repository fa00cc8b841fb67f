"""The blocking client: the async client in a thread of its own, with the same names. `linn.sync` is its public name.

Read on: `loop_thread` (the thread), `producer`, `consumer` with `settling`.

Laws: any number of threads may use a client, its producers and its consumers. `connect`, `producer` and `consumer`
return open objects; leaving the `with` block, or `close`, closes them. Closing a client closes its producers and
consumers first.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, overload
from uuid import UUID

from linn.client import client as asynchronous
from linn.client.blocking.admin import Admin
from linn.client.blocking.consumer import Consumer
from linn.client.blocking.exactly_once import ExactlyOnceConsumer, check_participant
from linn.client.blocking.loop_thread import LoopThread
from linn.client.blocking.message import Batch, FetchedBatches
from linn.client.blocking.process import Function, Worker, run_all
from linn.client.blocking.producer import Producer
from linn.client.blocking.shared_transactions import SharedTransactions
from linn.client.blocking.transaction import Transaction
from linn.client.client import (
    BATCH_BYTES_MAX,
    BUFFER_BYTES_MAX,
    IN_FLIGHT_MAX,
    RENEWAL_MAX_S,
    SESSION_TIMEOUT_S,
    TRANSACTION_TIMEOUT_S,
    Isolation,
    check_process,
)
from linn.client.consume.consumer import Consumer as AsyncConsumer
from linn.client.consume.consumer import Mode
from linn.client.consume.exactly_once import ExactlyOnceConsumer as AsyncExactlyOnceConsumer
from linn.client.consume.start_position import Start
from linn.client.participants.participant import Participant
from linn.client.produce.producer import AcksName
from linn.client.produce.producer import Producer as AsyncProducer
from linn.client.transactions.transaction import Transaction as AsyncTransaction
from linn.core.errors.tree import LinnError
from linn.wire.messages import Description

H = TypeVar("H")
Child: TypeAlias = Producer | Consumer | ExactlyOnceConsumer[Any]


class Client:
    """A blocking client of one broker, opened by `linn.sync.connect`. Warns if it is dropped without `close`.

    Example:
        client = linn.sync.connect("linn://127.0.0.1:5466")  # or as a block: with linn.sync.connect(...) as client
        print([topic.name for topic in client.describe().topics])
        client.close()
    """

    def __init__(self, thread: LoopThread, made: asynchronous.Client) -> None:
        self.admin = Admin(thread, made.admin)
        self.options = made.options
        self._thread = thread
        self._made = made
        self._children: dict[int, Child] = {}
        self._closed = False

    @property
    def broker(self) -> str:
        """The broker's name; "" while there is no connection."""
        return self._made.broker

    # --- life ---

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._closed or not self._thread.is_here():
            return
        self._closed = True
        errors: list[LinnError] = []
        try:
            for child in list(self._children.values()):
                try:
                    child.__exit__(exc_type, exc, traceback)
                except LinnError as error:
                    errors.append(error)
        finally:
            self._thread.end()
            self._thread.join()
        if errors and exc is None:
            raise errors[0]

    def close(self) -> None:
        """Close producers and consumers, then the connection, and wait for the thread to end. Idempotent.

        Raises:
            LinnError: the first of the errors that closing a producer or a consumer raised.
        Does nothing in a process that was forked since the client was made.

        Example:
            client = linn.sync.connect("linn://127.0.0.1:5466")
            client.close()
        """
        self.__exit__(None, None, None)

    def __del__(self) -> None:
        if self._closed or not self._thread.is_here():
            return
        self._closed = True
        self._thread.end()
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<linn.sync.Client of {self._made._connector.address}>"

    def _forget(self, child: Child) -> None:
        """Drop a producer or consumer that was closed, so that `close` leaves it alone."""
        self._children.pop(id(child), None)

    # --- producers and consumers ---

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
        idempotent: bool = True,
    ) -> Producer:
        """Open a producer for one topic or one exchange; for the options see `linn.client.Client.producer`.

        Raises MessageInvalid if an argument is wrong, ConnectionLost, RequestTimeout.

        Example:
            with client.producer("orders", linger_ms=5, codec="zstd") as producer:
                producer.publish(b"two coffees")
        """
        made = self._thread.call(
            self._open_producer,
            topic,
            exchange=exchange,
            acks=acks,
            linger_ms=linger_ms,
            batch_bytes_max=batch_bytes_max,
            codec=codec,
            in_flight_max=in_flight_max,
            buffer_bytes_max=buffer_bytes_max,
            idempotent=idempotent,
        )
        producer = Producer(self._forget, self._thread, made, buffer_bytes_max)
        self._children[id(producer)] = producer
        return producer

    async def _open_producer(self, topic: str | None, **options: Any) -> AsyncProducer:
        return await self._made.producer(topic, **options).__aenter__()

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
        isolation: Isolation = "read_committed",
        exactly_once: Participant[H],
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
        isolation: Isolation = "read_committed",
        exactly_once: Participant[H] | None = None,
    ) -> Consumer | ExactlyOnceConsumer[H]:
        """Open a consumer of a topic, or of several as a member of a group.

        For the options see `linn.client.Client.consumer`. The methods of the participant `exactly_once` are called in
        the thread that calls this, and that uses the consumer.

        Raises MessageInvalid if an argument is wrong, TopicUnknown, SubscriptionWrongKind, ConnectionLost,
        RequestTimeout and other refusals.

        Example:
            with client.consumer("prices", group="dashboard", start="earliest") as consumer:
                print(next(consumer).value)
        """
        options = {
            "prefetch": prefetch,
            "mode": mode,
            "start": start,
            "where": where,
            "renewal_max_s": renewal_max_s,
            "name": name,
            "session_timeout_s": session_timeout_s,
            "static": static,
            "shared": shared,
            "isolation": isolation,
        }
        if exactly_once is not None:
            return self._exactly_once(topic, group, exactly_once, options)
        made = self._thread.call(self._open_consumer, topic, group, **options)
        consumer = Consumer(self._forget, self._thread, made)
        self._children[id(consumer)] = consumer
        return consumer

    async def _open_consumer(self, topic: str | Sequence[str], group: str | None, **options: Any) -> AsyncConsumer:
        made: AsyncConsumer = self._made.consumer(topic, group, **options)
        return await made.__aenter__()

    def _exactly_once(
        self, topic: str | Sequence[str], group: str | None, participant: Participant[H], options: Mapping[str, Any]
    ) -> ExactlyOnceConsumer[H]:
        check_participant(participant)
        made = self._thread.call(self._make_exactly_once, topic, group, exactly_once=participant, **options)
        consumer: ExactlyOnceConsumer[H] = ExactlyOnceConsumer(self._forget, self._thread, made)
        consumer._open()
        self._children[id(consumer)] = consumer
        return consumer

    async def _make_exactly_once(
        self, topic: str | Sequence[str], group: str | None, **options: Any
    ) -> AsyncExactlyOnceConsumer[Any]:
        made: AsyncExactlyOnceConsumer[Any] = self._made.consumer(topic, group, **options)
        return made

    def transaction(self, name: str, *, timeout_s: float = TRANSACTION_TIMEOUT_S) -> Transaction:
        """Make a transaction; enter it with `with`. Those of one name follow one another.

        For the options see `linn.client.Client.transaction`. Raises MessageInvalid if an argument is wrong.

        Example:
            with client.transaction("billing-1") as tx:
                tx.publish("bills", b"42 EUR")
                tx.publish("audit", b"bill written")
        """
        made = self._thread.call(self._make_transaction, name, timeout_s)
        return Transaction(self, self._thread, made)

    def shared_transactions(
        self, name: str, *, run: int, timeout_s: float = TRANSACTION_TIMEOUT_S
    ) -> SharedTransactions:
        """Make transactions that several processes write and one commits, as the tasks of a distributed job do.

        For the arguments see `linn.client.Client.shared_transactions`. Raises MessageInvalid if one is wrong.

        Example:
            shared = client.shared_transactions("job-7", run=0x5EED)
            ticket = shared.join()
            with shared.producer(ticket, "bills") as producer:
                producer.publish(b"42 EUR")
            shared.commit(ticket, [producer.id], sequence=1)
        """
        made = self._made.shared_transactions(name, run=run, timeout_s=timeout_s)
        return SharedTransactions(self, self._thread, made)

    async def _make_transaction(self, name: str, timeout_s: float) -> AsyncTransaction:
        return self._made.transaction(name, timeout_s=timeout_s)

    def process(
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
        """Read a topic, and publish what a function makes of each message, exactly once; runs until interrupted.

        For the options see `linn.client.Client.process`. The function is called in this thread; each further worker
        has a thread of its own. It ends with an interrupt (KeyboardInterrupt), or with what the function raises: the
        transaction in hand is aborted then, and its messages come again when it is started again.

        Raises as `linn.client.Client.process`.

        Example:
            def bill(order):
                if order.text == "19":
                    raise KeyboardInterrupt  # as Ctrl-C does
                return b"bill for " + order.value

            with contextlib.suppress(KeyboardInterrupt):
                client.process("orders", bill, "bills", name="billing")
        """
        check_process(sink, exchange, workers)
        made: list[Worker] = []
        try:
            for number in range(workers):
                own = f"{name}/{number}"
                consumer = self.consumer(source, group, name=own, prefetch=prefetch)
                begin = partial(self.transaction, own, timeout_s=timeout_s)
                is_group = group is not None
                made.append(Worker(self._thread, consumer, begin, function, (sink, exchange), is_group=is_group))
        except BaseException:
            for worker in made:
                worker.close()
            raise
        run_all(made)

    def fetch(
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
        """Read a partition from `offset`; for the options see `linn.client.Client.fetch`.

        Raises TopicUnknown, PartitionUnknown, OffsetOutOfRange, PredicateInvalid, SubscriptionWrongKind,
        LogTruncated, TopicReplaced, ConnectionLost, RequestTimeout.

        Example:
            fetched = client.fetch("prices", partition=0, offset=0)
            print([batch.values for batch in fetched.batches], fetched.high_watermark)
        """
        batches, *offsets = self._thread.call(
            self._made.fetch,
            topic,
            partition,
            offset,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            wait_s=wait_s,
            where=where,
            unsettled=unsettled,
            leader_epoch=leader_epoch,
            topic_id=topic_id,
            isolation=isolation,
        )
        return FetchedBatches([Batch(batch) for batch in batches], *offsets)

    def find_offset(self, topic: str, partition: int, place: Literal["earliest", "latest"] | int | datetime) -> int:
        """Return an offset: of the start, of the end, or of the first batch with a timestamp not before a time.

        A time is a `datetime`, or a number of milliseconds since 1970, and may lie before that.

        Raises TopicUnknown, PartitionUnknown, ConnectionLost, RequestTimeout.

        Example:
            yesterday = datetime.now() - timedelta(days=1)
            offset = client.find_offset("prices", 0, yesterday)
        """
        return self._thread.call(self._made.find_offset, topic, partition, place)

    def describe(self, *topics: str) -> Description:
        """Return kind, partitions and bounds of topics; of all if none is named. An unknown topic's kind is "".

        Raises ConnectionLost, RequestTimeout.

        Example:
            (prices,) = client.describe("prices").topics
            print(prices.kind, len(prices.partitions))
        """
        return self._thread.call(self._made.describe, *topics)


def connect(
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
) -> Client:
    """Connect to the broker at `url`. For the options see `linn.connect` and `docs/reference/client.md`.

    Raises:
        AddressInvalid: the URL is not one of linn's. ConnectFailed: nothing listens there, for `wait_s` seconds.
        VersionUnsupported: an older or newer broker. ProtocolError: the peer is no linn broker.

    Example:
        with linn.sync.connect("linn://127.0.0.1:5466", name="shop") as client:
            print(client.broker)
    """
    thread = LoopThread()
    connecting = asynchronous.connect(
        url,
        name=name,
        connect_timeout_s=connect_timeout_s,
        wait_s=wait_s,
        request_timeout_s=request_timeout_s,
        retries_max=retries_max,
        backoff_s=backoff_s,
        backoff_max_s=backoff_max_s,
        metadata_age_max_s=metadata_age_max_s,
    )
    return Client(thread, thread.start(connecting))
