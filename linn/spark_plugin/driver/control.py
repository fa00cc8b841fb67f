"""Control lines on standard input, and a watch that ends a driver whose parent process has died."""

from __future__ import annotations

import io
import os
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

ORPHAN_EXIT_S = 10.0
"""Time that a driver has to end by itself after its parent has died."""
_LOOK_S = 0.5


class Stop(NamedTuple):
    """Drain and stop these pipelines; None: all of them."""

    pipelines: tuple[str, ...] | None


class Start(NamedTuple):
    """Start these pipelines again, which have failed."""

    pipelines: tuple[str, ...]


class _Line(msgspec.Struct):
    stop: tuple[str, ...] | None = None
    start: tuple[str, ...] | None = None


def command_of(line: bytes) -> Start | Stop | None:
    """Return the command in a control line; None if the line is invalid."""
    try:
        found = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    if found.start is not None:
        return Start(found.start)
    return None if found.stop is None else Stop(found.stop)


class Control:
    """Commands from standard input, read in a thread of its own since calls into Spark block.

    Law: `exit_now` is called if the parent has died and the driver has not ended within ORPHAN_EXIT_S, even while its
    other threads wait.
    """

    def __init__(self, stream: io.IOBase, exit_now: Callable[[int], object] = os._exit) -> None:
        self._stream = stream
        self._exit_now = exit_now
        self._parent = os.getppid()
        self._commands: queue.SimpleQueue[Start | Stop] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="linn-control", daemon=True)

    @property
    def is_orphan(self) -> bool:
        """Whether the process that started this one is gone."""
        return os.getppid() != self._parent

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def next_command(self, timeout_s: float) -> Start | Stop | None:
        """Return the next command, or None if none arrives in time."""
        try:
            return self._commands.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def stop_all(self) -> None:
        """Ask all pipelines to stop, as the end of standard input does. Safe in a signal handler."""
        self._commands.put(Stop(None))

    def ended(self) -> None:
        """Stop the watch: the driver exits by itself."""
        self._ended.set()

    def _read(self) -> None:
        for line in self._stream:
            command = command_of(line)
            if command is not None:
                self._commands.put(command)
        self.stop_all()
        while not self._ended.wait(_LOOK_S):
            if self.is_orphan and not self._ended.wait(ORPHAN_EXIT_S):
                self._exit_now(1)
