"""Last lines of a driver's output, kept in memory."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

LINES_MAX = 1_000
"""Maximum number of lines: enough for several Python tracebacks, each below a JVM's."""
BYTES_MAX = 256 << 10
"""Maximum size of the lines, per driver."""


class LogLine(NamedTuple):
    """A line of a driver's output."""

    number: int
    """Number since the broker's start, from 0."""
    time_ms: int
    text: str

    def data(self) -> dict[str, Any]:
        """Return the line as JSON."""
        return self._asdict()


class DriverLog:
    """Last lines of one driver, including its former processes."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque()
        self._bytes = 0
        self.next = 0
        """Number of the next line."""

    def add(self, text: str, time_ms: int) -> None:
        """Add a line; the oldest ones make room."""
        self._lines.append(LogLine(self.next, time_ms, text))
        self.next += 1
        self._bytes += _size(text)
        while len(self._lines) > LINES_MAX or (self._bytes > BYTES_MAX and len(self._lines) > 1):
            self._bytes -= _size(self._lines.popleft().text)

    def last(self, count: int, after: int | None = None) -> list[LogLine]:
        """Return the last `count` lines among the lines from number `after` on."""
        lines = [line for line in self._lines if after is None or line.number >= after]
        return lines[max(0, len(lines) - count) :]


def _size(text: str) -> int:
    return len(text.encode())
