"""Work in threads: what comes back, how many at once, and what a cancellation does."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from linn.core.env.real.disk import in_thread
from linn.core.env.real.threads import THREADS_MAX, RealThreads


async def test_a_thread_gives_what_the_work_returns_or_raises() -> None:
    here = threading.get_ident()
    assert await in_thread(threading.get_ident) != here
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_no_more_work_at_once_than_the_limit() -> None:
    limiter = trio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 3
    gate, done = threading.Event(), []

    def work() -> None:
        gate.wait(10)
        done.append(True)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(in_thread, work)
        await trio.testing.wait_all_tasks_blocked()
        assert limiter.statistics().tasks_waiting == 17
        assert limiter.borrowed_tokens == 3
        gate.set()
    assert (len(done), limiter.borrowed_tokens) == (20, 0)


async def test_a_cancellation_waits_for_what_has_begun_and_begins_nothing() -> None:
    begun, gate, ended = trio.Event(), threading.Event(), []
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        token.run_sync_soon(begun.set)
        gate.wait(10)
        ended.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, work)
        await begun.wait()
        nursery.cancel_scope.cancel()
        assert not ended
        gate.set()
    assert ended == [True]
    with trio.move_on_after(0):
        await in_thread(work)
    assert ended == [True]


async def test_two_computations_run_at_a_time_and_all_are_done() -> None:
    threads, running, most = RealThreads(), [0], [0]
    lock = threading.Lock()

    def compute() -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait(10)  # Passes when two are here.
        with lock:
            running[0] -= 1
        return 7

    together = threading.Barrier(2)
    results: list[int] = []

    async def run() -> None:
        results.append(await threads.run(compute))

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(run)
    assert results == [7] * 6
    assert most == [THREADS_MAX]
