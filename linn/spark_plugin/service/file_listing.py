"""The committed files of a pipeline's output, as a process in the drivers' Python lists them.

Laws: one such process runs at a time, for a bounded time, and the number of files that are taken is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import trio

from linn.api import LimitExceeded, ProgramEnded
from linn.core.env.env import Program, Programs
from linn.core.errors.tree import ServiceFailed
from linn.spark_plugin.spec import PipelineSpec

FILES_MAX = 20_000
"""Limit of the files: an answer with their paths is some megabytes."""
LISTING_S_MAX = 25.0
"""Longest wait for a catalog, or a store of objects: less than the 30 seconds that a client waits for an answer."""
STATUS_VARIABLE = "LINN_STATUS_FD"


class _Line(msgspec.Struct):
    event: str
    path: str = ""
    error: str = ""


class FileListing:
    """Lists files, for one caller at a time."""

    def __init__(self, programs: Programs, command: Sequence[str]) -> None:
        self._programs = programs
        self._command = command
        self._turn = trio.Lock()

    async def of(self, pipeline: PipelineSpec) -> list[str]:
        """The files of a pipeline. Raises ServiceFailed, LimitExceeded, ProgramNotStarted."""
        with trio.move_on_after(LISTING_S_MAX):
            async with self._turn, self._programs.run(self._command, status_variable=STATUS_VARIABLE) as program:
                try:
                    await program.send_line(msgspec.json.encode(pipeline).decode())
                    program.close_input()
                except ProgramEnded:
                    pass  # It says why, or nothing.
                return await _listed(program, pipeline.name)
        raise ServiceFailed(f"the files of {pipeline.name} were not listed within {LISTING_S_MAX:g} s")


async def _listed(program: Program, name: str) -> list[str]:
    found: list[str] = []
    while (text := await program.receive_status()) is not None:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError as error:
            raise ServiceFailed(f"the files of {name} can't be listed: a line that can't be read: {error}") from error
        if line.event != "file":
            raise ServiceFailed(f"the files of {name} can't be listed: {line.error}")
        found.append(line.path)
        if len(found) > FILES_MAX:
            what = f"{name} has more than {FILES_MAX:,} files"
            raise LimitExceeded(f"{what}: merge them, or read it with a library of its format")
    last = ""
    while (output := await program.receive_output()) is not None:
        last = output.strip() or last
    code = await program.wait()
    if code:
        raise ServiceFailed(f"the files of {name} can't be listed: {last or f'the process exited with code {code}'}")
    return found
