"""One driver: its state machine, and its process.

Laws: output and status of a driver are bounded here, and nothing in them stops the broker. The process and all its
children are gone when `run` returns.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager

import msgspec
import trio

from linn.api import Env, Program, ProgramEnded, ProgramNotStarted, SecretUnusable, StorageError, without
from linn.spark_plugin.service.committed_offsets import Offsets
from linn.spark_plugin.service.driver_group import (
    Action,
    CloseInput,
    DriverGroup,
    KillDriver,
    Reason,
    StartDriver,
    StartPipelines,
    State,
    StopPipelines,
)
from linn.spark_plugin.service.driver_log import DriverLog
from linn.spark_plugin.service.progress import Progress, StatusLine
from linn.spark_plugin.spec import DriverSpec, PipelineSpec

logger = logging.getLogger("linn.spark")

LAST_WORDS_S = 1.0
"""Time limit for reading the rest of a driver's output after its end: a child that left its process group may hold the
pipe open.
"""
LINES_AT_ONCE = 100
"""Lines of output that are taken before other tasks run: less than a millisecond, even if a driver floods."""
STATUS_VARIABLE = "LINN_STATUS_FD"
"""Environment variable that tells a driver the number of its status channel."""

Specified = Callable[[tuple[PipelineSpec, ...]], AbstractAsyncContextManager[tuple[DriverSpec, tuple[str, ...]]]]
"""Makes the specification of a process, with the values of its secrets. The files that it names are removed when the
block is left. Raises SecretUnusable, StorageError."""
NoteCommitted = Callable[[PipelineSpec, Offsets], None]
Check = Callable[[], Awaitable[str | None]]


class DriverRun:
    """Supervisor of a driver, which keeps it running."""

    def __init__(
        self,
        group: DriverGroup,
        env: Env,
        command: tuple[str, ...],
        inherits: tuple[str, ...],
        specified: Specified,
        check: Check,
        note_committed: NoteCommitted,
    ) -> None:
        """`inherits`: variables of the broker's environment that the process gets.

        `check` returns the missing requirement of a process, or None.

        `note_committed(pipeline, offsets)` is called with the offsets that a pipeline has in its sink.
        """
        self.group = group
        self.log = DriverLog()
        self.progress: dict[str, Progress] = {}
        self.session: StatusLine | None = None
        """Status line about the Spark session of the running process."""
        self._env = env
        self._command = command
        self._inherits = inherits
        self._specified = specified
        self._check = check
        self._note_committed = note_committed
        self._actions: deque[Action] = deque()
        self._program: Program | None = None
        self._specs: dict[str, PipelineSpec] = {}
        """Specifications that the process was given; the group's may be newer."""
        self._secrets: tuple[str, ...] = ()
        """Values that the process was given, and that none of its texts shows."""
        self._input_ends = False
        """Whether the process's standard input is to end after its specification."""
        self._killed = trio.Event()
        self._wake = trio.Event()
        self._state_seen = State.STOPPED

    @property
    def now_s(self) -> float:
        """Time of the state machine."""
        return self._env.clock.monotonic()

    def progress_of(self, name: str) -> Progress:
        """Return the progress of a pipeline."""
        return self.progress.setdefault(name, Progress())

    def act(self, actions: Iterable[Action]) -> None:
        """Carry out actions that the state machine has returned for an event."""
        self._actions.extend(actions)
        self._wake.set()

    async def run(self) -> None:
        """Run the state machine and its process until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                self._actions.extend(self.group.tick(self.now_s))
                while self._actions:
                    self._perform(self._actions.popleft(), nursery)
                self._tell_state()
                if not self._wake.is_set():
                    with trio.move_on_at(self.group.due_s):
                        await self._wake.wait()

    async def wait_ended(self) -> None:
        """Wait until there is no process, and none is about to be started."""
        while self.group.has_process:
            await self._wake_up()

    async def _wake_up(self) -> None:
        await self._wake.wait()
        await trio.lowlevel.checkpoint()

    def _perform(self, action: Action, nursery: trio.Nursery) -> None:
        match action:
            case StartDriver(pipelines):
                self._killed, self._input_ends = trio.Event(), False
                nursery.start_soon(self._live, pipelines)
            case StartPipelines(names):
                nursery.start_soon(self._send, msgspec.json.encode({"start": names}).decode())
            case StopPipelines(names):
                nursery.start_soon(self._send, msgspec.json.encode({"stop": names}).decode())
            case CloseInput():
                self._input_ends = True
                if self._program is not None:
                    self._program.close_input()
            case KillDriver():
                self._killed.set()

    def _tell_state(self) -> None:
        """Log a change of the driver's state."""
        state = self.group.state
        reason = self.group.reason if state in (State.BACKING_OFF, State.FAILED) else None
        if state is self._state_seen:
            return
        self._state_seen = state
        if state is not State.RUNNING:
            for progress in self.progress.values():
                progress.pause()
        about = {"driver": self.group.name, "state": state.value, "reason": reason.text if reason else ""}
        if state is State.FAILED and reason is not None:
            logger.error("Spark driver %(driver)s is %(state)s: %(reason)s", about)
        elif reason is not None:
            logger.warning("Spark driver %(driver)s is %(state)s: %(reason)s", about)
        else:
            logger.info("Spark driver %(driver)s is %(state)s", about)

    # --- the process ---

    async def _live(self, pipelines: tuple[PipelineSpec, ...]) -> None:
        """Run one process, from the checks before its start to its end."""
        killed, code = self._killed, -9
        with trio.CancelScope() as scope:
            missing = await self._check_unless(killed, scope)
            if missing is not None:
                self.act(self.group.refused(Reason(missing)))
                return
            try:
                code = await self._run_process(pipelines, killed)
            except ProgramNotStarted as error:
                self.act(self.group.refused(Reason(error.text, "set python in [spark]")))
                return
            except SecretUnusable as error:
                self.act(self.group.refused(Reason(error.text, "mend the secret, and restart the pipeline")))
                return
            except StorageError as error:  # The login can't be written; the disk may have room again.
                self.act(self.group.failed(error.text, self.now_s, fatal=False))
        self.session = None
        self.act(self.group.exited(code, self.now_s))

    async def _check_unless(self, killed: trio.Event, scope: trio.CancelScope) -> str | None:
        """Check the requirements of a driver; a kill ends the check."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when, killed, scope)
            missing = await self._check()
            nursery.cancel_scope.cancel()
        return missing

    async def _run_process(self, pipelines: tuple[PipelineSpec, ...], killed: trio.Event) -> int:
        running = self._env.programs.run(self._command, inherits=self._inherits, status_variable=STATUS_VARIABLE)
        async with self._specified(pipelines) as (made, self._secrets), running as program:
            spec = msgspec.json.encode(made).decode()
            self._specs = {pipeline.name: pipeline for pipeline in pipelines}
            self._program = program
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._kill_when, killed, program)
                    nursery.start_soon(self._begin, spec)
                    reading = [trio.Event(), trio.Event()]
                    nursery.start_soon(self._read_status, program, reading[0])
                    nursery.start_soon(self._read_output, program, reading[1])
                    code = await program.wait()
                    with trio.move_on_after(LAST_WORDS_S):
                        for reader in reading:
                            await reader.wait()
                    nursery.cancel_scope.cancel()
            finally:
                self._program = None
        return code

    async def _begin(self, spec: str) -> None:
        await self._send(spec)
        if self._input_ends and self._program is not None:
            self._program.close_input()

    async def _send(self, line: str) -> None:
        """Send a line to the process. A process that no longer reads is about to end."""
        if self._program is not None:
            try:
                await self._program.send_line(line)
            except ProgramEnded as error:
                logger.debug("Spark driver %(driver)s: %(error)s", {"driver": self.group.name, "error": error.text})

    async def _kill_when(self, killed: trio.Event, program: Program) -> None:
        await killed.wait()
        program.kill()

    async def _read_output(self, program: Program, done: trio.Event) -> None:
        while (line := await program.receive_output()) is not None:
            self.log.add(without(self._secrets, line), self._env.clock.now_ms())
            if self.log.next % LINES_AT_ONCE == 0:
                await self._env.clock.sleep(0)
        done.set()

    async def _read_status(self, program: Program, done: trio.Event) -> None:
        while (line := await program.receive_status()) is not None:
            line = without(self._secrets, line)
            try:
                status = msgspec.json.decode(line, type=StatusLine)
            except msgspec.MsgspecError as error:
                self.log.add(f"a line of status that can't be read: {error}: {line[:200]}", self._env.clock.now_ms())
            else:
                self._heard(status)
        done.set()

    def _heard(self, status: StatusLine) -> None:
        """Handle a line of status."""
        now_s, now_ms, name = self.now_s, self._env.clock.now_ms(), status.pipeline or ""
        match status.event:
            case "session":
                self.session = status
            case "started" if name in self._specs:
                self._note_committed(self._specs[name], status.end)
                self.act(self.group.started(name, now_s))
            case "progress" if name in self._specs:
                self._note_committed(self._specs[name], status.end)
                if name in self.group.pipelines:
                    self.progress_of(name).report(status, now_ms)
            case "idle" if name in self.group.pipelines:
                self.progress_of(name).idle(now_ms)
            case "stopped":
                self.act(self.group.stopped(name, now_s))
            case "terminated":
                self._tell_error(f'Spark pipeline "{name}"', status, now_ms)
                self.act(self.group.terminated(name, status.error, now_s, fatal=status.fatal))
            case "failed":
                self._tell_error(f"Spark driver {self.group.name}", status, now_ms)
                self.act(self.group.failed(status.error, now_s, fatal=status.fatal))

    def _tell_error(self, who: str, status: StatusLine, now_ms: int) -> None:
        """Log an error that the driver reports, in its log and in the broker's; only a fatal error is logged as a
        failure.
        """
        what = f"{who} has failed" if status.fatal else f"{who} ended with an error, and may be started again"
        self.log.add(f"{what}: {status.error}", now_ms)
        about = {"what": what, "driver": self.group.name, "error": status.error, "class": status.error_class}
        logger.log(logging.ERROR if status.fatal else logging.WARNING, "%(what)s: %(error)s", about)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def due_in(group: DriverGroup, now_s: float) -> float | None:
    """Return the seconds until a driver that backs off is started again; None if it does not back off."""
    if group.state is not State.BACKING_OFF or group.deadline_s == math.inf:
        return None
    return max(0.0, group.deadline_s - now_s)
