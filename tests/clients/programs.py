"""Programs that run beside one another, and the lines that they print."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

WAIT_S = 300.0
"""Limit of the wait for a line: far beyond the time that it takes."""
ENDED = "ended"
"""Stands for the last line of a program that has ended."""

Line = tuple[str, str]
"""The name of a program and a line that it printed."""


class Program:
    """A program whose lines go to `lines`, and whose stderr goes to `log`."""

    def __init__(self, name: str, command: Sequence[str | Path], lines: queue.SimpleQueue[Line], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        self._reader = threading.Thread(target=self._read, args=(lines,))
        self._reader.start()

    def _read(self, lines: queue.SimpleQueue[Line]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.put((self.name, line.decode().rstrip()))
        lines.put((self.name, ENDED))

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()


class Programs:
    """The programs of one test. Use it with `with`; leaving ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Program] = []
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()

    def start(self, name: str, *command: str | Path) -> Program:
        program = Program(name, command, self._lines, self._folder / f"{name}.log")
        self._running.append(program)
        return program

    def line(self, timeout_s: float = WAIT_S) -> Line | None:
        """Take the next line; None if there is none in time."""
        try:
            return self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def next_line(self) -> Line:
        """Take the next line, which must come."""
        found = self.line()
        assert found is not None, f"no line in {WAIT_S:g} s"
        return found

    def lines_of(self, count: int) -> list[Line]:
        return [self.next_line() for _ in range(count)]

    def until(self, line: str, name: str | None = None) -> list[Line]:
        """Take all lines up to the one that begins with `line`, of the program with this name or of any."""
        seen = []
        while (found := self.line()) is not None:
            seen.append(found)
            if found[1].startswith(line) and name in (None, found[0]):
                return seen
        raise AssertionError(f"{name} did not print {line!r}, but {seen[-20:]}")

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in self._running:
            program.end()
