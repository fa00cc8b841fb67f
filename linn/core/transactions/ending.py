"""The end of a transaction while it is under way: the marks that it waits for, and the markers that it writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import trio

from linn.core.errors.tree import LinnError
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.log.mark import Mark
from linn.core.topics.topic import Topic
from linn.core.transactions.holder import holder_of
from linn.core.transactions.producer import TransactionalProducer, Work

MARKED_AT_ONCE = 512
"""Partitions that are marked in one step of about 10 ms, during which the broker does nothing else."""


class Ending:
    """A transaction whose end is under way."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.error: LinnError | None = None

    async def wait(self) -> None:
        """Wait for the end. Raises StorageError: it is still open."""
        await self.event.wait()
        if self.error is not None:
            raise self.error


def missing_marks(producer: TransactionalProducer, branches: Collection[int]) -> Iterator[tuple[Mark, int]]:
    """The marks to wait for before a commit is decided.

    The transaction's writes are durable first, and so are the markers of the previous commit, whose decision this one
    replaces. Deleted topics are left out. Raises StorageError: held records can't be logged.
    """
    work = producer.work
    yield from [(mark, end) for mark, end in producer.markers if mark.offset < end]
    for branch in branches:
        for (_, partition), end in work.wrote.get(branch, {}).items():
            mark = partition.committed
            if mark.offset < end:
                yield mark, end
    for partition_queue, awaited in work.held.items():
        if partition_queue.is_closed:
            continue
        if awaited is None:
            awaited = partition_queue.log.flush()
        if awaited is not None and awaited[0].offset < awaited[1]:
            yield awaited
    for awaits in work.pending.values():
        yield from [(mark, end) for mark, end in awaits if mark.offset < end]


def marking(
    producer: TransactionalProducer, work: Work, topics: Mapping[str, Topic], groups: GroupCoordinator
) -> Iterator[None]:
    """Mark the end of the present transaction in its partitions, settle or return held records, and commit or drop
    offsets. Can be repeated.

    Yields to give other tasks a turn. Raises StorageError: some partitions are not marked.
    """
    decision = producer.committed if producer.was_committed(producer.number) else None
    counted = frozenset(decision.branches if decision is not None else ())
    markers = []
    places = [(branch, *place) for branch, written in work.wrote.items() for place in written]
    for count, (branch, topic, partition) in enumerate(places):
        if count and count % MARKED_AT_ONCE == 0:
            yield
        if topics.get(topic.name) is topic:
            partition.end_transaction(branch, 0, producer.number, is_commit=branch in counted)
            markers.append((partition.committed, partition.log.bounds()[1]))
    holder = holder_of(producer.producer_id, producer.number)
    for count, partition_queue in enumerate(list(work.held)):
        if count and count % MARKED_AT_ONCE == 0:
            yield
        marked = None if partition_queue.is_closed else partition_queue.end_held(holder, is_commit=decision is not None)
        if marked is not None:
            markers.append(marked)
    part = producer.producer_id, producer.number
    for group, topic_name in work.pending:
        markers += groups.end_pending(group, topic_name, part, is_commit=decision is not None)
    if decision is not None:
        producer.markers = markers
        producer.unsynced = {topic_name for _, topic_name in work.pending}
