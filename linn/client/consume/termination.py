"""Termination: SIGTERM for the runs of this process.

Law: the signal is handled only if the program does not handle it, until the last run ends. A second signal ends the
process, as it does without a run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import trio
from trio.lowlevel import in_trio_run

_listeners: dict[object, tuple[int, Callable[[], None]]] = {}
"""Process and callback of each run: a forked child inherits the table, but not the runs."""


def in_this_loop(callback: Callable[[], None]) -> Callable[[], None]:
    """Return a function that makes this event loop call `callback`; signal handlers and any thread may call it."""
    if in_trio_run():
        token = trio.lowlevel.current_trio_token()
        return lambda: token.run_sync_soon(callback, idempotent=True)
    loop = asyncio.get_running_loop()

    def call_soon() -> None:
        loop.call_soon_threadsafe(callback)

    return call_soon


@contextmanager
def told_of_sigterm(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` on SIGTERM in the block, if the program does not handle that signal.

    The callback is called in the main thread, between any two of its steps. The first block must be in the main thread
    to install the handler, as Python requires.
    """
    if not _take_over():
        yield
        return
    key = object()
    _listeners[key] = os.getpid(), callback
    try:
        yield
    finally:
        del _listeners[key]
        if not _listeners and _is_main_thread() and signal.getsignal(signal.SIGTERM) is _on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _take_over() -> bool:
    """Install the handler, if it is not installed; return False if the program handles the signal."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is signal.SIG_DFL and _is_main_thread():
        signal.signal(signal.SIGTERM, _on_sigterm)
        return True
    return handler is _on_sigterm


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    told = [callback for process, callback in list(_listeners.values()) if process == os.getpid()]
    for callback in told:
        callback()
    if not told:
        signal.raise_signal(signal.SIGTERM)
