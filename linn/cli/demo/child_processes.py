"""Descendants of a process that the demo has started: found in /proc, and killed by id.

Law: an id that the kernel has given to another process since is not signalled.
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
    """A process, told from a later one with the same id by its start time."""

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
        """Whether the process exists and is no zombie. Compares the start time: the parent may have changed."""
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
    """Send SIGKILL to the processes that still live, and wait for their end, for a bounded time."""
    for process in processes:
        if process.lives:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    until_s = time.monotonic() + _GONE_S_MAX
    while any(process.lives for process in processes) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
