"""SimPrograms: programs of a simulated machine: functions of the test that run as tasks in virtual time.

    async def driver(program: SimProgram) -> int:
        spec = await program.read_line()
        await program.say({"event": "started", "pipeline": "orders"})
        while await program.read_line() is not None:
            pass
        return 0

    env.programs.install("python", driver)

Laws: a program ends when its function returns, when it is killed, and together with its machine or process. It is found
by the name in its command's first word. The broker sees its end after all of its output.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

import trio

from linn.core.errors.group import raise_once
from linn.core.errors.tree import ProgramEnded, ProgramNotStarted


class SimProgram:
    """A running program, from both of its ends: `linn.core.env.env.Program` for the broker, and the rest for the
    function that plays it.
    """

    def __init__(self, command: Sequence[str], inherits: Collection[str], environment: Mapping[str, str]) -> None:
        self.command = tuple(command)
        self.inherits = tuple(inherits)
        """Variables of the broker's environment that the program asks for, beside what every program gets."""
        self.environment = dict(environment)
        self.scope = trio.CancelScope()
        self.ignores_terminate = False
        """Whether SIGTERM does not end it."""
        self._to_input, self._input = trio.open_memory_channel[str](math.inf)
        self._to_status, self._status = trio.open_memory_channel[str](math.inf)
        self._to_output, self._output = trio.open_memory_channel[str](math.inf)
        self._ended = trio.Event()
        self._signal = 0
        self.code = 0

    # --- the side of the test's function ---

    async def read_line(self) -> str | None:
        """Wait for a line of its standard input; None at its end."""
        return await _next(self._input)

    async def read_json(self) -> Any:
        """Wait for a line of its standard input, and decode it; None at its end."""
        line = await self.read_line()
        return None if line is None else json.loads(line)

    async def say(self, status: Mapping[str, Any]) -> None:
        """Write a line of status."""
        await self._to_status.send(json.dumps(status))

    async def say_line(self, line: str) -> None:
        """Write any line as a line of status."""
        await self._to_status.send(line)

    async def print(self, line: str) -> None:
        """Write a line of output."""
        await self._to_output.send(line)

    def print_nowait(self, line: str) -> None:
        """Write a line of output, and go on at once."""
        self._to_output.send_nowait(line)

    async def play(self, function: Callable[[SimProgram], Awaitable[int]]) -> None:
        """Run the function until it returns, or the program is killed."""
        try:
            with self.scope:
                self.code = await function(self)
        finally:
            if self._signal and self.scope.cancelled_caught:
                self.code = -self._signal
            for end in (self._to_status, self._to_output, self._input):
                end.close()
            self._ended.set()

    # --- the side of the broker ---

    async def send_line(self, line: str) -> None:
        try:
            await self._to_input.send(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ProgramEnded(f"{self.command[0]} reads no more") from error

    def close_input(self) -> None:
        self._to_input.close()

    async def receive_status(self) -> str | None:
        return await _next(self._status)

    async def receive_output(self) -> str | None:
        return await _next(self._output)

    async def wait(self) -> int:
        await self._ended.wait()
        return self.code

    def terminate(self) -> None:
        if not self.ignores_terminate:
            self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if not self._ended.is_set():
            self._signal = number
            self.scope.cancel()


class SimPrograms:
    """The programs of one simulated machine."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[[SimProgram], Awaitable[int]]] = {}
        self.started: list[SimProgram] = []
        """Every program that was started, in order, including ended ones."""
        self.running = 0
        """The number of programs that run now."""

    def install(self, name: str, function: Callable[[SimProgram], Awaitable[int]]) -> None:
        """Let commands whose first word ends in `name` run this function, which returns the exit code."""
        self._functions[name] = function

    def remove(self, name: str) -> None:
        """Uninstall a program; no error where there is none."""
        self._functions.pop(name, None)

    def find(self, name: str, home_variable: str | None = None) -> str | None:
        return f"/usr/bin/{name}" if name in self._functions else None

    @asynccontextmanager
    async def run(
        self,
        command: Sequence[str],
        *,
        inherits: Collection[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        status_variable: str | None = None,
    ) -> AsyncIterator[SimProgram]:
        function = self._functions.get(PurePath(command[0]).name)
        await trio.lowlevel.checkpoint()
        if function is None:
            raise ProgramNotStarted(f"can't start {command[0]}: No such file or directory")
        program = SimProgram(command, inherits, environment)
        self.started.append(program)
        self.running += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(program.play, function)
                try:
                    yield program
                finally:
                    program.kill()
        except BaseExceptionGroup as group:
            raise_once(group)
        finally:
            self.running -= 1


async def _next(lines: trio.MemoryReceiveChannel[str]) -> str | None:
    try:
        return await lines.receive()
    except (trio.EndOfChannel, trio.ClosedResourceError):
        return None
