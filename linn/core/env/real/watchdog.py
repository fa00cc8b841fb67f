"""The watchdog's thread, which observes the loop."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from linn.core.env.code_owner import CodeOwners
from linn.core.env.watchdog import LoopSteps, Watchdog


@contextmanager
def watched_loop(owners: CodeOwners, limit_s: float) -> Iterator[Watchdog]:
    """Watch the calling thread's loop until the block is left."""
    steps = LoopSteps()
    watchdog = Watchdog(steps, owners, limit_s)
    stopped = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(watchdog, threading.get_ident(), stopped), name="linn-watchdog", daemon=True
    )
    trio.lowlevel.add_instrument(steps)
    thread.start()
    try:
        yield watchdog
    finally:
        stopped.set()
        thread.join()
        trio.lowlevel.remove_instrument(steps)


def _watch(watchdog: Watchdog, loop_thread: int, stopped: threading.Event) -> None:
    while not stopped.wait(watchdog.interval_s):
        watchdog.look(time.monotonic(), sys._current_frames().get(loop_thread))
