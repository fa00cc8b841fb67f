"""WriteJob: the transaction of one write, as its tasks and its committer share it. It can be pickled.

Laws: each attempt of a task writes with producers of its own, which are not used again in the same transaction. The
commit names the producers that count, so that it aborts the output of failed and repeated attempts. A job that was
committed before is not committed again, as its sequence and its identity show. The identity is the identity of the
job's input if that is known, and otherwise the number and checksum of its rows: a sequence alone could belong to other
rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from linn.client.blocking.generated.client import Client
from linn.client.blocking.generated.producer import Producer
from linn.client.blocking.generated.shared_transactions import SharedTransactions
from linn.client.transactions.shared import TransactionTicket
from linn.core.errors.tree import LimitExceeded, LinnError, SequenceTaken
from linn.spark_plugin.connections import forget_client, pooled_client, release_client
from linn.spark_plugin.errors import CheckpointOutdated, SparkWriteInterrupted
from linn.spark_plugin.place import BrokerPlace
from linn.spark_plugin.sink.messages import checksum, columns_of, parts


@dataclass(frozen=True, slots=True)
class Written:
    """Producers with which one task has written in a transaction."""

    job: WriteJob
    ticket: TransactionTicket | None
    """None: the task had no rows."""
    producers: tuple[int, ...] = ()
    rows: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class WriteJob:
    """A write: a micro-batch of a streaming query, or a batch write."""

    broker: BrokerPlace
    name: str
    """Name of the transactions."""
    run: int
    """Number of this run of the query or job, which fences an earlier one."""
    timeout_s: float
    topic: str | None = None
    exchange: str | None = None

    def write(self, batches: Iterable[Any]) -> Written:
        """Publish the rows of a task. Raises LinnError: the task may be tried again, by other producers."""
        batches = (batch for batch in batches if batch.num_rows)
        first = next(iter(batches), None)
        if first is None:
            return Written(self, None)
        try:
            with contextlib.ExitStack() as former_clients, contextlib.ExitStack() as producers:
                task = _Task(self, former_clients, producers)
                task.publish(first)
                for batch in batches:
                    task.publish(batch)
        except BaseException:
            forget_client(self.broker)  # The next attempt begins with a new client, whatever the error was.
            raise
        return Written(self, task.ticket, tuple(task.ids), task.rows, task.checksum)

    def transactions(self, client: Client) -> SharedTransactions:
        """Return the transactions of this run."""
        return client.shared_transactions(self.name, run=self.run, timeout_s=self.timeout_s)


class _Task:
    """The producers of one attempt of a task."""

    def __init__(self, job: WriteJob, former_clients: contextlib.ExitStack, producers: contextlib.ExitStack) -> None:
        """`former_clients` is left after `producers`."""
        self.ids: list[int] = []
        self.rows = 0
        self.checksum = 0
        self._job = job
        self._former_clients = former_clients
        self._opened = producers
        self._client = pooled_client(job.broker)
        self._counts: dict[str | None, int] = {}
        self._producers: dict[str | None, Producer] = {}
        self.ticket = job.transactions(self._client).join()

    def publish(self, batch: Any) -> None:
        has_target = self._job.topic is not None or self._job.exchange is not None
        for topic, partition, rows in parts(batch, has_target=has_target):
            producer = self._producer(topic)
            count = self._counts[topic]
            is_split = partition is None and count > 1 and "key" in rows.schema.names
            for place, some in by_key(rows, count) if is_split else ((partition, rows),):
                values, columns = columns_of(some)
                producer.publish_many(values, partition=place, **columns)
        self.rows += batch.num_rows
        self.checksum += checksum(batch)

    def _partitions(self, topic: str | None) -> int:
        """Return the number of partitions among which keys choose; 0 where the broker chooses."""
        if topic is None:
            return 0
        (info,) = self._client.describe(topic).topics
        return len(info.partitions) if info.partitioner in ("murmur2", "") else 0

    def _producer(self, topic: str | None) -> Producer:
        producer = self._producers.get(topic)
        if producer is None:
            try:
                producer = self._open_producer(topic)
            except LimitExceeded:  # All ids of this client are used up.
                self._change_client()
                producer = self._open_producer(topic)
            self._producers[topic] = producer
            self._counts[topic] = 0 if self._job.exchange is not None else self._partitions(topic or self._job.topic)
            self.ids.append(producer.id)
        return producer

    def _open_producer(self, topic: str | None) -> Producer:
        job = self._job
        target = {"exchange": job.exchange} if job.exchange is not None else {"topic": topic or job.topic}
        return self._opened.enter_context(job.transactions(self._client).producer(self.ticket, **target))

    def _change_client(self) -> None:
        former = release_client(self._job.broker)
        if former is not None:
            self._former_clients.callback(former.close)
        self._client = pooled_client(self._job.broker)


def run_number(run: str) -> int:
    """Return the number of a run from its name, such as a UUID: never 0, and the same in every process."""
    return int.from_bytes(blake2b(run.encode(), digest_size=8).digest(), "big") or 1


def commit(written: Sequence[Written], sequence: int, identity: str | None = None) -> None:
    """Commit the output of a write's tasks, exactly once. `sequence`: see `SharedTransactions.commit`.

    `identity`: identity of the input; None: the rows identify the write.

    Raises CheckpointOutdated: something else was committed under this sequence, or a later one. Raises
    SparkWriteInterrupted, TransactionError, ConnectionLost, RequestTimeout: the write may be repeated.
    """
    counted = [message for message in written if message.ticket is not None]
    if not counted:
        return
    job, ticket = counted[0].job, counted[-1].ticket
    assert ticket is not None
    if any(message.ticket != ticket for message in counted):
        raise SparkWriteInterrupted(
            "the broker lost power, or the transaction timed out, while tasks were writing: write the batch again"
        )
    producers = [producer for message in counted for producer in message.producers]
    identity = identity or rows_identity(counted)
    client = pooled_client(job.broker)
    try:
        job.transactions(client).commit(ticket, producers, sequence=sequence, identity=identity)
    except SequenceTaken as error:
        raise CheckpointOutdated(
            f"write {sequence - 1} of {job.name} was committed with other rows, or a later one was: the checkpoint is "
            "an older copy, or the query makes other rows each time it runs a micro-batch; nothing was written: "
            f"restore the newest checkpoint ({error.text})"
        ) from error


def rows_identity(written: Sequence[Written]) -> str:
    """Return the number and the checksum of all rows, which do not depend on their order and their tasks."""
    checksum = sum(message.checksum for message in written) % (1 << 64)
    return f"{sum(message.rows for message in written)} rows {checksum:016x}"


def abort(written: Iterable[Written | None]) -> None:
    """Abort the output of tasks, unless it was committed: Spark also asks for it when a commit got no answer.

    Errors are ignored: the next run, or the timeout, aborts a transaction that is left open.
    """
    tickets = {message.ticket: message.job for message in written if message is not None and message.ticket is not None}
    for ticket, job in tickets.items():
        with contextlib.suppress(LinnError):
            job.transactions(pooled_client(job.broker)).abort(ticket)


def abandon(job: WriteJob) -> None:
    """Abort the output of all of a job's tasks, unless it was committed, and fence tasks that still run.

    For a job that failed: Spark names only the tasks that have finished, and others may have written as well. A later
    run that has taken over the name is left alone. Errors are ignored, as in `abort`.
    """
    with contextlib.suppress(LinnError):
        client = pooled_client(job.broker)
        job.transactions(client).join()
        replace(job, run=run_number(f"the end of {job.run}")).transactions(client).join()


_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)


def by_key(batch: Any, partitions: int) -> Iterator[tuple[int | None, Any]]:
    """Yield the rows of an Arrow batch by the partition of their key, in order; rows without a key under None.

    Law: a key gets the same partition as from every other client. Hashing keys one by one would cost more than the rest
    of the write.
    """
    keys = batch.column("key").cast(pa.binary())
    chosen = (key_hashes(keys) % np.uint32(partitions)).astype(np.int64)
    if keys.null_count:
        chosen[np.asarray(keys.is_null())] = -1
    for partition in np.unique(chosen).tolist():
        yield (None if partition < 0 else partition), batch.take(pa.array(np.nonzero(chosen == partition)[0]))


def key_hashes(keys: Any) -> Any:
    """Return the hashes of an Arrow array of binary keys, without the sign bit; the hash of a null is arbitrary."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    sizes = np.diff(offsets)
    found = np.zeros(len(keys), np.uint32)
    for size in np.unique(sizes).tolist():
        rows = np.nonzero(sizes == size)[0]
        found[rows] = _alike(data[offsets[rows].astype(np.int64)[:, None] + np.arange(size)], size)
    return found & np.uint32(0x7FFFFFFF)


def _alike(keys: Any, size: int) -> Any:
    """Return murmur2 of keys of one size, as rows of bytes."""
    whole = size & ~3
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4")
    hashed = np.full(len(keys), _SEED ^ size, np.uint32)
    for place in range(whole // 4):
        word = words[:, place] * _M
        hashed = hashed * _M ^ (word ^ word >> np.uint32(24)) * _M
    if size != whole:
        tail = np.zeros(len(keys), np.uint32)
        for place in range(whole, size):
            tail |= keys[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
        hashed = (hashed ^ tail) * _M
    hashed = (hashed ^ hashed >> np.uint32(13)) * _M
    return hashed ^ hashed >> np.uint32(15)
