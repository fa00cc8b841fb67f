"""Process of the blocking client: workers of which each reads, processes and writes in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import anyio

from linn.client.blocking.generated.consumer import Consumer
from linn.client.blocking.generated.message import Batch, Message
from linn.client.blocking.generated.transaction import Transaction
from linn.client.blocking.loop_thread import LoopThread
from linn.client.transactions.process import (
    PAUSE_S,
    Output,
    Outputs,
    Target,
    by_target,
    check_kind,
    is_repeated,
    listed,
    log_repeated,
    taken_over_is_fenced,
)
from linn.core.errors.tree import ClientClosed, LinnError

Function = Callable[[Message], Outputs]


class Worker:
    """One worker: a consumer, and transactions of one name after the other."""

    def __init__(
        self,
        thread: LoopThread,
        consumer: Consumer,
        transaction: Callable[[], Transaction],
        function: Function,
        sink: Target,
        *,
        is_group: bool,
    ) -> None:
        self._thread = thread
        self._consumer = consumer
        self._transaction = transaction
        self._function = function
        self._sink = sink
        self._is_group = is_group

    def run(self) -> None:
        """Work until the consumer is closed. Raises as the async one's `run`."""
        with self._consumer as consumer:
            check_kind(consumer._made, is_group=self._is_group)
            while True:
                tx = self._transaction()
                batches = self._next(consumer, tx)
                if batches is None:
                    return
                tx._made._note_before([batch._origin for batch in batches], is_group=self._is_group)
                try:
                    self._handle(tx, batches)
                except LinnError as error:
                    if not is_repeated(error):
                        raise
                    self._thread.call(tx._made._give_back)
                    log_repeated(consumer.topics, error)
                    self._thread.call(anyio.sleep, PAUSE_S)

    def _next(self, consumer: Consumer, tx: Transaction) -> Sequence[Batch] | None:
        """Take over the name, and wait for the next delivery; None if the consumer is closed."""
        while not consumer._closed:
            try:
                self._thread.call(tx._made._take_over)
                break
            except LinnError as error:
                if not is_repeated(error):
                    raise
                self._thread.call(anyio.sleep, PAUSE_S)
        with taken_over_is_fenced():
            return consumer._next_delivery()

    def _handle(self, tx: Transaction, batches: Sequence[Batch]) -> None:
        with tx:
            made: list[Output] = []
            for batch in batches:
                for message in batch:
                    made += listed(self._function(message))
            for (topic, exchange), columns in by_target(made, self._sink).items():
                tx.producer(topic, exchange=exchange).publish_many(**columns)

    def close(self) -> None:
        """End the work after the delivery in hand."""
        self._consumer.close()


def run_all(workers: Sequence[Worker]) -> None:
    """Run workers, the first in this thread, and close all of them when one ends. Raises what the first one raised."""
    errors: list[BaseException] = []

    def run(worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:
            errors.append(error)
        finally:
            for other in workers:
                try:
                    other.close()
                except LinnError as error:
                    if not isinstance(error, ClientClosed):
                        errors.append(error)

    threads = [threading.Thread(target=run, args=(worker,), name="linn-worker") for worker in workers[1:]]
    for thread in threads:
        thread.start()
    run(workers[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
