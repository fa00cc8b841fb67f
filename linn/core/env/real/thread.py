"""Blocking disk calls, run in a thread of trio's.

A leaner `trio.to_thread.run_sync`: no context is copied, the thread can't call back into the loop, and nothing is
awaited before the thread begins unless the limiter is full. A publish with `fsync = "always"` costs the broker a fifth
less processor time that way (285 us instead of 360).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import trio

if TYPE_CHECKING:
    from outcome import Outcome

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result, with as many threads at once as trio's default limiter allows.

    Raises whatever `work` raises. Cancellation: before the thread begins; one that has begun is waited for.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    limiter, worker = trio.to_thread.current_default_thread_limiter(), object()
    try:
        limiter.acquire_on_behalf_of_nowait(worker)
    except trio.WouldBlock:
        await limiter.acquire_on_behalf_of(worker)
    token, task = trio.lowlevel.current_trio_token(), trio.lowlevel.current_task()

    def deliver(result: Outcome[T]) -> None:
        # The loop is there: the task waits in it, and can't be made not to.
        token.run_sync_soon(trio.lowlevel.reschedule, task, result)

    try:
        trio.lowlevel.start_thread_soon(work, deliver)
        return cast(T, await trio.lowlevel.wait_task_rescheduled(_never_abort))
    finally:
        limiter.release_on_behalf_of(worker)


def _never_abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
