"""Child process of a worker, with its reports and its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
from anyio.abc import TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream

from linn.cli.demo.progress import Progress
from linn.cli.demo.worker import Report, decode
from linn.core.errors.tree import LinnError

_LINE_BYTES_MAX = 16 << 20


class WorkerFailed(LinnError):
    """A worker ended without having been killed."""

    code = "demo.worker_failed"


class WorkerProcess:
    """Child process, whose reports are entered in the ledger."""

    def __init__(self, name: str, folder: Path, progress: Progress) -> None:
        self.name = name
        self.holding = anyio.Event()
        """Set once the worker holds deliveries that it will not ack."""
        self.ended = anyio.Event()
        """Set once all reports are entered."""
        self._errors = folder / f"{name}.log"
        self._progress = progress
        self._process: anyio.abc.Process | None = None
        self._told_to_end = False

    async def run(
        self, url: str, topic: str, hold_after: int | None, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Start the process, and enter its reports until it ends; started once it is subscribed.

        Raises:
            WorkerFailed: it ended by itself.
        Cancellation: the process is killed.
        """
        options = [] if hold_after is None else [str(hold_after)]
        command = [sys.executable, "-m", "linn.cli.demo.worker", url, topic, *options]
        with self._errors.open("wb") as errors:
            process = await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        self._process = process
        try:
            assert process.stdout is not None
            lines = BufferedByteReceiveStream(process.stdout)
            while True:
                report = decode(await lines.receive_until(b"\n", _LINE_BYTES_MAX))
                self._enter(report)
                if report.kind == "ready":
                    task_status.started()
        except (anyio.EndOfStream, anyio.IncompleteRead):
            self._check_end(await process.wait())
        finally:
            self.ended.set()
            with anyio.CancelScope(shield=True):
                await self.kill()
                await process.aclose()

    def _check_end(self, code: int) -> None:
        if not self._told_to_end:
            said = self._errors.read_text(errors="replace").strip().splitlines()
            raise WorkerFailed(f"{self.name} ended with {code}: {said[-1] if said else 'it said nothing'}")

    def _enter(self, report: Report) -> None:
        ledger = self._progress.ledger
        if report.kind == "received":
            ledger.received(self.name, report.numbers, report.attempt, report.at_s)
        elif report.kind == "acked":
            ledger.acked(self.name, report.numbers, report.at_s)
            self._progress.working.done = ledger.acked_count
        elif report.kind == "holding":
            self._progress.workers[self.name] = "holding"
            self.holding.set()
        else:
            self._progress.workers[self.name] = "working"

    async def kill(self) -> None:
        """Kill the process, and wait for its end. Idempotent."""
        self._told_to_end = True
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
