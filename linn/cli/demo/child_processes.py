"""Processes below one that the demo has started, from /proc, and their end by id.

Law: an id that was given to another process since is not signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

_GONE_S_MAX = 10.0
_LOOK_S = 0.02


class ChildProcess(NamedTuple):
    """A process, with what tells it from a later one with the same id."""

    pid: int
    parent: int
    started: int
    """Start of the process, in ticks of the kernel's clock."""

    @property
    def command(self) -> str:
        """The command line, with spaces between its parts; empty if the process is gone."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return ""

    @property
    def lives(self) -> bool:
        """Whether it is there, and not a zombie. Its parent may have changed, its start has not."""
        now = _read(self.pid)
        return now is not None and now.started == self.started


def _read(pid: int) -> ChildProcess | None:
    """Read a process's entry; None for one that is gone or a zombie."""
    try:
        # The name, in parentheses, may hold anything; what follows it is fields[0] = state, the third of proc(5).
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return ChildProcess(pid, int(fields[1]), int(fields[19])) if fields[0] not in (b"Z", b"X") else None


def descendants(pid: int) -> list[ChildProcess]:
    """List the children of a process and theirs, parents first."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    by_parent: dict[int, list[ChildProcess]] = {}
    for process in filter(None, map(_read, numbers)):
        by_parent.setdefault(process.parent, []).append(process)
    found = list(by_parent.get(pid, ()))
    for process in found:
        found += by_parent.get(process.pid, ())
    return found


def kill(processes: list[ChildProcess]) -> None:
    """Kill (SIGKILL) those that live still, and wait for their end, for a bounded time."""
    for process in processes:
        if process.lives:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    until_s = time.monotonic() + _GONE_S_MAX
    while any(process.lives for process in processes) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
