"""The end of a transaction that is under way, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import trio

from linn.core.errors.tree import LinnError
from linn.core.log.mark import Mark
from linn.core.transactions.producer import TransactionalProducer


class Ending:
    """A transaction whose end is under way."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.error: LinnError | None = None

    async def wait(self) -> None:
        """Wait for the end. Raises GroupFenced: it was aborted; StorageError: it is open as before."""
        await self.event.wait()
        if self.error is not None:
            raise self.error


def missing_marks(each: TransactionalProducer, branches: Collection[int]) -> Iterator[tuple[Mark, int]]:
    """The marks that have to pass before a commit is decided.

    What counts is durable first, and so are the markers of the commit before, whose decision this one replaces. What is
    deleted does not count. Raises StorageError: records that it holds can't be logged.
    """
    work = each.work
    yield from [(mark, end) for mark, end in each.markers if mark.offset < end]
    for branch in branches:
        for (topic, index), end in work.wrote.get(branch, {}).items():
            mark = topic.partitions[index].committed
            if mark.offset < end:
                yield mark, end
    for dispatch, awaited in work.held.items():
        if dispatch.is_closed:
            continue
        if awaited is None:
            awaited = dispatch.flushed()
        if awaited is not None and awaited[0].offset < awaited[1]:
            yield awaited
