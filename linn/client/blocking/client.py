"""The blocking client: the async client in a thread of its own, with the same names. `linn.sync` is its public name.

Read on: `loop_thread` (the thread), `facade`, `producer`, `consumer` with `settling`.

Laws: any number of threads may use a client, its producers and its consumers. `connect`, `producer` and `consumer`
return open objects; leaving the `with` block, or `close`, closes them. Closing a client closes its producers and
consumers first.
"""

from __future__ import annotations

import warnings
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from linn.client import client as asynchronous
from linn.client.blocking.exactly_once import check_participant
from linn.client.blocking.facade import Facade
from linn.client.blocking.generated.admin import Admin
from linn.client.blocking.generated.consumer import Consumer
from linn.client.blocking.generated.exactly_once import ExactlyOnceConsumer
from linn.client.blocking.generated.message import Batch, FetchedBatches
from linn.client.blocking.generated.producer import Producer
from linn.client.blocking.generated.shared_transactions import SharedTransactions
from linn.client.blocking.generated.transaction import Transaction
from linn.client.blocking.generated.worker import Worker
from linn.client.blocking.loop_thread import LoopThread
from linn.client.blocking.process import run_all
from linn.client.blocking.running import Function
from linn.client.client import check_process
from linn.client.consume.consumer import Consumer as AsyncConsumer
from linn.client.consume.exactly_once import ExactlyOnceConsumer as AsyncExactlyOnceConsumer
from linn.client.participants.participant import Participant
from linn.client.produce.producer import Producer as AsyncProducer
from linn.client.transactions.transaction import Transaction as AsyncTransaction
from linn.core.errors.tree import LinnError

H = TypeVar("H")
Child: TypeAlias = Producer | Consumer | ExactlyOnceConsumer[Any]
K = TypeVar("K", bound=Child)


class BaseClient(Facade[asynchronous.Client]):
    """Part of `Client` that is written by hand: its life, and the making of producers, consumers and transactions.

    Warns if it is garbage-collected without `close`.
    """

    def __init__(self, thread: LoopThread, made: asynchronous.Client) -> None:
        super().__init__(thread, made)
        self.admin = Admin(thread, made.admin)
        self._children: dict[int, Child] = {}
        self._closed = False

    # --- life ---

    @classmethod
    def _connect(cls, *args: Any, **options: Any) -> Self:
        thread = LoopThread()
        return cls(thread, thread.start(asynchronous.connect(*args, **options)))

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
            LinnError: the first error of closing a producer or a consumer.
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

    def _kept(self, child: K) -> K:
        self._children[id(child)] = child
        return child

    def _forget(self, child: Child) -> None:
        """Drop a producer or consumer that was closed, so that `close` leaves it alone."""
        self._children.pop(id(child), None)

    # --- producers and consumers ---

    def _producer(self, *args: Any, **options: Any) -> Producer:
        """Raises ConnectionLost, RequestTimeout and LimitExceeded as well: the producer is open when this returns."""

        async def opened() -> AsyncProducer:
            return await self._made.producer(*args, **options).__aenter__()

        return self._kept(Producer(self._forget, self._thread, self._thread.call(opened)))

    def _consumer(
        self, *args: Any, exactly_once: Participant[H] | None, **options: Any
    ) -> Consumer | ExactlyOnceConsumer[H]:
        """Raises TopicUnknown, SubscriptionWrongKind, ConnectionLost, RequestTimeout and other refusals as well: the
        consumer is open when this returns. The methods of the participant are called in the thread that calls this, and
        that uses the consumer.
        """

        if exactly_once is None:
            return self._plain_consumer(*args, **options)
        check_participant(exactly_once)

        async def made() -> AsyncExactlyOnceConsumer[H]:
            made: AsyncExactlyOnceConsumer[H] = self._made.consumer(*args, **options | {"exactly_once": exactly_once})
            return made

        consumer: ExactlyOnceConsumer[H] = ExactlyOnceConsumer(self._forget, self._thread, self._thread.call(made))
        consumer._open()
        return self._kept(consumer)

    def _plain_consumer(self, *args: Any, **options: Any) -> Consumer:
        async def opened() -> AsyncConsumer:
            made: AsyncConsumer = self._made.consumer(*args, **options)
            return await made.__aenter__()

        return self._kept(Consumer(self._forget, self._thread, self._thread.call(opened)))

    def _transaction(self, name: str, *, timeout_s: float) -> Transaction:
        async def made() -> AsyncTransaction:
            return self._made.transaction(name, timeout_s=timeout_s)

        return Transaction(self._thread, self._thread.call(made), self)

    def _shared_transactions(self, name: str, *, run: int, timeout_s: float) -> SharedTransactions:
        made = self._made.shared_transactions(name, run=run, timeout_s=timeout_s)
        return SharedTransactions(self._thread, made, self)

    def _process(
        self,
        source: str,
        function: Function,
        sink: str | None,
        *,
        name: str,
        group: str | None,
        exchange: str | None,
        workers: int,
        prefetch: int | None,
        timeout_s: float,
    ) -> None:
        """The function is called in this thread; each further worker has a thread of its own. An interrupt
        (KeyboardInterrupt) or an exception of the function ends the run: its open transactions are aborted, and their
        messages come again in the next run.

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
                consumer = self._plain_consumer(source, group, name=own, prefetch=prefetch)
                begin = partial(self._transaction, own, timeout_s=timeout_s)
                is_group = group is not None
                made.append(Worker(consumer, begin, function, (sink, exchange), is_group=is_group))
        except BaseException:
            for worker in made:
                worker.consumer.close()
            raise
        run_all(made)

    def _fetch(self, *args: Any, **options: Any) -> FetchedBatches:
        batches, *bounds = self._thread.call(self._made.fetch, *args, **options)
        return FetchedBatches([Batch(batch) for batch in batches], *bounds)
