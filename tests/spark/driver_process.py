"""A driver of pipelines as a process, as the broker starts it: every wait has a timeout."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
from spark_session import SHORT_LIVED

from linn.spark_plugin.spec import DriverSpec, PipelineSpec

WAIT_S = 600.0


class Driver:
    """A driver process, its status lines, and its output in `driver.log`."""

    def __init__(self, folder: Path, url: str, *pipelines: PipelineSpec, **more: Any) -> None:
        spec = DriverSpec(
            group="test",
            bootstrap=url,
            state_dir=str(folder / "state"),
            pipelines=pipelines,
            conf={"spark.driver.memory": "1g", **SHORT_LIVED, **more.pop("conf", {})},
            **more,
        )
        self.events: list[dict[str, Any]] = []
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._buffer = b""
        self._log = folder / "driver.log"
        environment = {**os.environ, "LINN_STATUS_FD": str(writing), "PYTHONPATH": str(Path(__file__).parent)}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "linn.spark_plugin.driver"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[writing],
                env=environment,
                start_new_session=True,
            )
        os.close(writing)
        self.send(spec)

    def send(self, message: Any) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(message) + b"\n")
        self.process.stdin.flush()

    def next_event(self, event: str, pipeline: str | None = None, timeout_s: float = WAIT_S, **fields: Any) -> Any:
        """Wait for a status line that has not been waited for, and return it."""
        until_s = time.monotonic() + timeout_s
        at = 0
        while True:
            for index in range(at, len(self.events)):
                found = self.events[index]
                wanted = {"event": event, "pipeline": pipeline, **fields}
                if found.items() >= wanted.items():
                    return self.events.pop(index)
            at = len(self.events)
            if not self._read(until_s - time.monotonic()):
                raise AssertionError(f"no {event} of {pipeline}: {self.events} {self.log()[-3000:]}")

    def read_all(self) -> list[dict[str, Any]]:
        """Read status lines up to the end."""
        while self._read(WAIT_S):
            pass
        return self.events

    def _read(self, timeout_s: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._reading, selectors.EVENT_READ)
            if timeout_s <= 0 or not selector.select(timeout_s):
                return False
        chunk = os.read(self._reading, 1 << 16)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        self.events += [json.loads(line) for line in lines]
        return chunk != b""

    def log(self) -> str:
        """Its output."""
        return self._log.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """The processes that it has started, and theirs."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self) -> int:
        """Close its standard input, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        """Kill it and the processes of its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        os.close(self._reading)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


@contextlib.contextmanager
def driver(folder: Path, url: str, *pipelines: PipelineSpec, **more: Any) -> Iterator[Driver]:
    """Start a driver; it is killed at the end."""
    running = Driver(folder, url, *pipelines, **more)
    try:
        yield running
    finally:
        running.kill()
