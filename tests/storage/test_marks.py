"""A mark tells its callbacks in order that it has passed their offsets, or that it never will."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.testing

from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError
from linn.core.log.mark import Mark
from linn.core.log.watchers import TOLD_AT_ONCE_MAX

LOST = NotLeader("another leads", leader=2, epoch=7)


class Marks:
    """A mark, what it has told, and the tasks that it has started."""

    def __init__(self, offset: int = 0) -> None:
        self.tasks: list[Callable[[], Awaitable[None]]] = []
        self.mark = Mark(offset, self.tasks.append)
        self.told: list[tuple[int, LinnError | None]] = []

    def when_passed(self, end: int) -> None:
        self.mark.when_passed(end, partial(self.tell, end))

    def tell(self, end: int, failure: LinnError | None) -> None:
        self.told.append((end, failure))

    async def run_tasks(self) -> None:
        while self.tasks:
            await self.tasks.pop(0)()


def test_a_mark_that_fails_fails_all_that_it_has_not_passed() -> None:
    marks = Marks(10)
    for end in (11, 12, 13):
        marks.when_passed(end)
    marks.mark.offset = 12
    marks.mark.fail(LOST)
    assert marks.told == [(11, None), (12, None), (13, LOST)]


def test_a_mark_that_has_failed_answers_at_once_and_by_where_it_stood() -> None:
    marks = Marks(10)
    marks.mark.fail(LOST)
    marks.when_passed(10)
    marks.when_passed(11)
    assert marks.told == [(10, None), (11, LOST)]


async def test_thousands_that_wait_fail_a_few_in_each_turn_and_in_order() -> None:
    marks, count = Marks(), 5 * TOLD_AT_ONCE_MAX
    for end in range(1, count + 1):
        marks.when_passed(end)
    marks.mark.fail(LOST)
    assert len(marks.told) == TOLD_AT_ONCE_MAX
    marks.when_passed(1)  # Who asks while others are told comes behind them.
    assert len(marks.told) == TOLD_AT_ONCE_MAX
    await marks.run_tasks()
    assert marks.told == [*((end, LOST) for end in range(1, count + 1)), (1, LOST)]


async def test_who_waits_gets_the_failure() -> None:
    mark, found = Mark(0, lambda task: None), list[LinnError]()

    async def wait() -> None:
        with pytest.raises(NotLeader) as raised:
            await mark.wait(1)
        found.append(raised.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        mark.fail(LOST)
    assert found == [LOST, LOST]
    with pytest.raises(NotLeader):
        await mark.wait(1)
    await mark.wait(0)
