"""The workers of a supervisor, as programs that run beside it.

Laws: a worker that ends is started again, as `Restarts` decides; if it is not, all others are stopped, and then `run`
raises. After `stop` no worker is started, and one that does not end in time is killed.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping, Sequence

import msgspec
import trio

from linn.cli.exit_code import ExitCode
from linn.cli.workers.restarts import Restarts
from linn.core.env.env import Env, Program
from linn.core.env.log_fields import log_fields
from linn.core.errors.group import raise_once
from linn.core.errors.tree import LinnError, ProgramEnded, ProgramNotStarted

STATUS_VARIABLE = "LINN_STATUS_FD"
"""The environment variable that tells a worker the number of its status channel."""
RELOAD = "reload"
"""The line of its standard input at which a worker reads certificates and keys again."""
LAST_WORDS_S = 1.0
"""Time for the rest of a worker's output: a child of its own may hold the pipe open."""

logger = logging.getLogger("linn.workers")


class Ready(msgspec.Struct, frozen=True):
    """The line of status with which a worker tells that it serves."""

    addresses: dict[str, str]
    """Bound address by listener."""


class WorkerLost(LinnError):
    """A worker has ended and is not started again, so that the others were stopped as well."""

    code = "worker.lost"

    def __init__(self, text: str, status: int = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.status = status
        """The exit code that tells the reason."""


class Crew:
    """All workers."""

    def __init__(
        self,
        env: Env,
        count: int,
        command: Callable[[int], Sequence[str]],
        write: Callable[[int, str], None],
        stop_limit_s: float,
    ) -> None:
        """
        Args:
            command: makes the command line of a worker, by its number.
            write: takes a line of a worker's output, with its number.
            stop_limit_s: how long workers may take to stop.
        """
        self.ready = trio.Event()
        """Set once every worker has served."""
        self.addresses: dict[int, Mapping[str, str]] = {}
        """Bound addresses by listener, of each worker that has served, by its number."""
        self.status = 0
        """The greatest exit code of a worker that was stopped."""
        self._env = env
        self._count = count
        self._command = command
        self._write = write
        self._stop_limit_s = stop_limit_s
        self._programs: dict[int, Program] = {}
        self._stopping = trio.Event()
        self._scope = trio.CancelScope()
        self._lost: WorkerLost | None = None

    async def run(self) -> None:
        """Keep all workers until they are stopped. Raises WorkerLost."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for number in range(1, self._count + 1):
                        nursery.start_soon(self._keep, number)
        except BaseExceptionGroup as group:
            raise_once(group)
        if self._lost is not None:
            raise self._lost
        if self._scope.cancelled_caught:
            raise WorkerLost(f"not stopped after {self._stop_limit_s:g} s, killed now; what was confirmed is kept")

    def stop(self) -> None:
        """Stop all workers in order. Idempotent."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._scope.deadline = trio.current_time() + self._stop_limit_s
            for program in self._programs.values():
                program.terminate()

    async def reload(self) -> None:
        """Let all workers read their certificates and keys again."""
        for number, program in list(self._programs.items()):
            try:
                await program.send_line(RELOAD)
            except ProgramEnded as error:
                logger.debug(
                    "worker %(worker)d was not told to reload: %(error)s", {"worker": number, **log_fields(error)}
                )

    async def _keep(self, number: int) -> None:
        restarts = Restarts()
        while not self._stopping.is_set():
            code = await self._run_once(number, restarts)
            if self._stopping.is_set():
                self.status = max(self.status, code if code >= 0 else ExitCode.FAILED)
                return
            pause_s = restarts.ended(self._env.clock.monotonic(), code)
            about = {"worker": number, "ended": _ended(code)}
            if pause_s is None:
                self._lose(about, code)
                return
            logger.error("worker %(worker)d %(ended)s; it is started again", about)
            with trio.move_on_after(pause_s):
                await self._stopping.wait()

    def _lose(self, about: Mapping[str, object], code: int) -> None:
        if self._lost is None:
            what = "is not started again" if self.ready.is_set() else "did not start"
            text = f"worker {about['worker']} {about['ended']}, and {what}: all workers end"
            self._lost = WorkerLost(text, code if code > 0 else ExitCode.FAILED)
        self.stop()

    async def _run_once(self, number: int, restarts: Restarts) -> int:
        """Run a worker to its end; returns its exit code, or minus the number of a signal."""
        running = self._env.programs.run(self._command(number), inherits=("*",), status_variable=STATUS_VARIABLE)
        try:
            async with running as program:
                self._programs[number] = program
                if self._stopping.is_set():
                    program.terminate()
                return await self._attend(number, program, restarts)
        except ProgramNotStarted as error:
            logger.error("worker %(worker)d: %(error)s", {"worker": number, **log_fields(error)})
            return ExitCode.FAILED
        finally:
            self._programs.pop(number, None)

    async def _attend(self, number: int, program: Program, restarts: Restarts) -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, number, program, restarts)
            nursery.start_soon(self._relay, number, program)
            code = await program.wait()
            nursery.cancel_scope.deadline = trio.current_time() + LAST_WORDS_S
        return code

    async def _hear(self, number: int, program: Program, restarts: Restarts) -> None:
        while (line := await program.receive_status()) is not None:
            restarts.ready(self._env.clock.monotonic())
            self.addresses[number] = msgspec.json.decode(line, type=Ready).addresses
            logger.info("worker %(worker)d is ready", {"worker": number})
            if len(self.addresses) == self._count:
                self.ready.set()

    async def _relay(self, number: int, program: Program) -> None:
        while (line := await program.receive_output()) is not None:
            self._write(number, line)


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with the status {code}"
