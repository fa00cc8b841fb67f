"""RealPrograms: processes of this machine, behind the port of `linn.core.env.env`.

Laws: a program is the leader of a session and process group of its own. The group is killed before its leader is
reaped: until then no other group can reuse its number. Leaving the block of `run` takes as long as a SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePath
from types import MappingProxyType
from typing import cast

import trio

from linn.core.env.env import INHERITED
from linn.core.env.line_reader import LineReader
from linn.core.env.real.os import reason
from linn.core.errors.tree import ProgramEnded, ProgramNotStarted

OUTPUT_LINE_BYTES_MAX = 16 << 10
"""Limit of a line of output: longer lines are not meant for people, and are cut."""
STATUS_LINE_BYTES_MAX = 1 << 20
"""Limit of a status line: two offsets for each of ten thousand partitions take 0.4 MiB."""


class RealProgram:
    """A process, its pipes, and its process group."""

    def __init__(self, process: trio.Process, status: trio.lowlevel.FdStream | None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input = process.stdin
        self._output = process.stdout
        self._status = status
        self._output_lines = LineReader(process.stdout.receive_some, OUTPUT_LINE_BYTES_MAX)
        self._status_lines = LineReader(status.receive_some, STATUS_LINE_BYTES_MAX) if status is not None else None
        self._pidfd = os.pidfd_open(process.pid)
        self._reaping = trio.Lock()
        self._code: int | None = None
        """Its exit code once it is reaped."""

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its group and session."""
        return self._process.pid

    async def send_line(self, line: str) -> None:
        try:
            await self._input.send_all(line.encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ProgramEnded(f"process {self.pid} reads no more") from error

    def close_input(self) -> None:
        # A pipe closes at once: its only await is a checkpoint, which a cancelled task may not reach.
        cast(trio.lowlevel.FdStream, self._input).close()

    async def receive_status(self) -> str | None:
        return await self._status_lines.line() if self._status_lines is not None else None

    async def receive_output(self) -> str | None:
        return await self._output_lines.line()

    async def wait(self) -> int:
        async with self._reaping:
            if self._code is None:
                await trio.lowlevel.wait_readable(self._pidfd)
                self.kill()  # The rest of the group, which keeps its number until it is reaped.
                self._code = self._process.returncode
                assert self._code is not None, "its end was seen"
            return self._code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def end(self) -> None:
        """Kill and reap the group, and close everything."""
        self.kill()
        await self.wait()
        for stream in (self._input, self._output, self._status):
            if stream is not None:
                cast(trio.lowlevel.FdStream, stream).close()
        os.close(self._pidfd)


class RealPrograms:
    """The programs of this machine."""

    def find(self, name: str, home_variable: str | None = None) -> str | None:
        home = os.environ.get(home_variable, "") if home_variable is not None else ""
        inside = shutil.which(name, path=str(PurePath(home) / "bin")) if home else None
        return inside or shutil.which(name)

    @asynccontextmanager
    async def run(
        self,
        command: Sequence[str],
        *,
        inherits: Collection[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        status_variable: str | None = None,
    ) -> AsyncIterator[RealProgram]:
        program = await _start(command, {**_inherited(inherits), **environment}, status_variable)
        try:
            yield program
        finally:
            with trio.CancelScope(shield=True):
                await program.end()


def _inherited(names: Collection[str]) -> dict[str, str]:
    """The variables of this process that a program gets, as the port says."""
    listed = (*INHERITED, *names)
    beginnings = tuple(name.removesuffix("*") for name in listed if name.endswith("*"))
    return {name: value for name, value in os.environ.items() if name in listed or name.startswith(beginnings)}


async def _start(command: Sequence[str], environment: Mapping[str, str], status_variable: str | None) -> RealProgram:
    """Start a program. Raises ProgramNotStarted. Cancellation: it was not started, or is killed."""
    variables = dict(environment)
    reads = writes = None
    try:
        if status_variable is not None:
            reads, writes = os.pipe2(os.O_CLOEXEC)
            variables[status_variable] = str(writes)
        # Starting runs in a separate thread and must not be abandoned: otherwise the process would be lost.
        with trio.CancelScope(shield=True):
            process = await trio.lowlevel.open_process(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=() if writes is None else (writes,),
                start_new_session=True,
                env=variables,
            )
    except OSError as error:
        if reads is not None:
            os.close(reads)
        raise ProgramNotStarted(f"can't start {command[0]}: {reason(error)}") from error
    finally:
        if writes is not None:
            os.close(writes)
    return RealProgram(process, trio.lowlevel.FdStream(reads) if reads is not None else None)
