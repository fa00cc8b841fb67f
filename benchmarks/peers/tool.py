"""A load tool: a process of its own that says at the end how fast it was."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

TIMEOUT_S = 60.0


class ToolFailed(Exception):
    """A load tool ended with an error, or not at all, or said nothing that can be read."""


@dataclass(frozen=True)
class Reading:
    """Figures that a tool printed of its run."""

    records_per_s: float
    records: int | None = None
    """Records that it counted; None where it does not say."""
    p50_us: float | None = None
    p99_us: float | None = None


@dataclass(frozen=True)
class ToolRun:
    """A reading, and the CPU time of the tool's process from its start to its end."""

    reading: Reading
    seconds: float
    cpu_s: float


def run_tool(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[str, float, float]:
    """Run a tool: its output, its seconds and its CPU seconds. Raises ToolFailed."""
    name = Path(command[0]).name
    with TemporaryFile() as output:
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(os.environ) | dict(environment or {}),
        )
        before = _children_cpu_s()
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ToolFailed(f"{name} did not end within {TIMEOUT_S:g} s") from None
        finally:
            process.kill()
            process.wait()
        seconds, cpu_s = time.monotonic() - started, _children_cpu_s() - before
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code:
        raise ToolFailed(f"{name} ended with {code}: {text[-500:].strip()}")
    return text, seconds, cpu_s


def _children_cpu_s() -> float:
    """CPU seconds of processes that have ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
