"""LoopThread: runs one event loop in a thread of its own, and takes calls from all other threads.

Laws: the loop runs each call as a task; its caller waits for the task's end, even if the wait is interrupted and the
task has to be cancelled first; a call is either run or refused, never forgotten; callbacks that a thread passed to
`soon` run before the calls that it makes afterwards. The loop is asyncio's, because a call from another thread costs a
third of its cost with trio (measured: 20 and 65 us).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, ParamSpec, TypeVar

import anyio

from linn.client.arguments import checked_timeout
from linn.core.errors.tree import ClientClosed, ClientUnreachable, ConnectionLost, RequestTimeout

P = ParamSpec("P")
T = TypeVar("T")


class _Call(Generic[T]):
    """A call from another thread, which waits for its end."""

    __slots__ = ("_loop", "_work", "ended", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.task: asyncio.Task[T] | None = None
        self.ended = threading.Lock()
        """Held until the task has ended."""
        self.ended.acquire()
        self._loop = loop
        self._work = work

    def start(self) -> None:
        """Start the task."""
        self.task = self._loop.create_task(self._work())
        self.task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[T]) -> None:
        self.ended.release()

    def cancel(self) -> None:
        """Cancel the task."""
        if self.task is not None:
            self.task.cancel()


class LoopThread:
    """An event loop in a daemon thread; `start` starts it, `end` and `join` end it."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        """Process that the thread lives in. After a fork, the child has this object but no thread."""
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._open = False
        self._callbacks: deque[Callable[[], None]] = deque()
        """Callbacks of `soon`. They run in a task, because some of the code that they call needs one."""
        self._told = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._ended_early = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    # --- life ---

    def start(self, block: AbstractAsyncContextManager[T]) -> T:
        """Start the thread and enter a context manager, which is left when the thread ends.

        Raises the exception of entering it. Then the thread has ended, also if the wait is interrupted.
        """
        entered: Future[T] = Future()
        self._thread = threading.Thread(target=self._run, args=(block, entered), name="linn-client", daemon=True)
        self._thread.start()
        try:
            return entered.result()
        except BaseException:
            self.end()
            self.join()
            raise

    def _run(self, block: AbstractAsyncContextManager[T], entered: Future[T]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live(block, entered))

    async def _live(self, block: AbstractAsyncContextManager[T], entered: Future[T]) -> None:
        self._main = asyncio.current_task()
        try:
            if self._ended_early:
                return
            async with block as made:
                self._open = True
                entered.set_result(made)
                await self._run_callbacks()
        except BaseException as error:
            self._failure = error
            if not entered.done():
                entered.set_exception(error)
        finally:
            with self._lock:  # Earlier calls become tasks before the loop ends; the runner cancels them.
                self._open = False

    async def _run_callbacks(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            while self._callbacks:
                self._callbacks.popleft()()

    def end(self) -> None:
        """Tell the loop to leave its context and end, without waiting. Idempotent; any thread or process may call."""
        if self.is_here():
            with contextlib.suppress(RuntimeError):  # The loop is closed already.
                self._loop.call_soon_threadsafe(self._cancel_main)

    def _cancel_main(self) -> None:
        self._ended_early = True
        if self._main is not None:
            self._main.cancel()

    def join(self) -> None:
        """Wait for the thread's end; return at once in that thread itself and in a forked process."""
        if self._thread is not None and self.is_here() and self._thread is not threading.current_thread():
            self._thread.join()

    def is_here(self) -> bool:
        """Tell whether this is the process that the thread lives in."""
        return os.getpid() == self.process_id

    # --- calls ---

    def call(self, work: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in the loop, wait for its end, and return its result or raise its exception.

        Raises ClientUnreachable, and ConnectionLost if the loop has ended or ends meanwhile. If the wait is
        interrupted (KeyboardInterrupt), the work is cancelled and has ended when the interrupt is raised.
        """

        async def run() -> T:
            return await work(*args, **kwargs)  # Called here, so that the caller gets errors about arguments as well.

        call = _Call(self._loop, run)
        self._submit(call)
        try:
            call.ended.acquire()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # The loop has ended, and the call with it.
                self._loop.call_soon_threadsafe(call.cancel)
            call.ended.acquire()
            raise
        return self._result(call)

    def _result(self, call: _Call[T]) -> T:
        task, call.task = call.task, None
        assert task is not None
        try:
            return task.result()
        except asyncio.CancelledError:
            raise self._gone() from self._failure
        finally:
            del task  # The call holds the error, whose traceback holds this frame: a cycle.

    def call_within(
        self,
        timeout_s: float | None,
        what: str,
        work: Callable[P, Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call with a time limit: cancel the work after `timeout_s` seconds, unless that is None.

        Raises as `call` does, RequestTimeout, and MessageInvalid if `timeout_s` is no length of time.
        """
        timeout_s = checked_timeout(timeout_s)

        async def limited() -> T:
            with anyio.move_on_after(timeout_s):
                return await work(*args, **kwargs)
            raise RequestTimeout(f"{what} took longer than {timeout_s:g} s")

        return self.call(limited)

    def monotonic(self) -> float:
        """Return the time of the loop's clock, in seconds."""
        return self._loop.time()

    def soon(self, callback: Callable[[], None]) -> None:
        """Schedule `callback`, which must not raise, in the loop, without waiting. Raises as `call` does."""
        self.check()
        try:
            self._callbacks.append(callback)
            self._loop.call_soon_threadsafe(self._told.set)
        except RuntimeError as error:
            raise self._gone() from error

    def check(self) -> None:
        """Raise ClientUnreachable in any other process."""
        if not self.is_here():
            raise ClientUnreachable("the process was forked after the client was made: make a new client in the child")

    def _submit(self, call: _Call[T]) -> None:
        self.check()
        if threading.current_thread() is self._thread:
            raise ClientUnreachable("the call is made in the client's own thread, which would wait for itself")
        with self._lock:
            if not self._open:
                raise self._gone() from self._failure
            self._loop.call_soon_threadsafe(call.start)

    def _gone(self) -> ConnectionLost:
        return ClientClosed("the client is closed")
