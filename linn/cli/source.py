"""Where `linn publish` takes its messages from: the command line, files, or the lines of stdin as they come.

Law: memory is bounded by one chunk of input, or one file; a line is published without its end.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from linn.cli.exit_code import complain
from linn.cli.outgoing import Outgoing, from_json
from linn.core.errors.tree import MessageInvalid, MessageTooLarge

_CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
"""A line or file that is larger is no message: the largest frame that a broker can be told to take is far below."""
_AGAIN = 1_000
"""Messages handed over at a time where the same values are published over and over."""


class Source:
    """The messages of one command, a few at a time."""

    def __init__(
        self,
        plain: Outgoing,
        values: Sequence[str],
        files: Sequence[Path],
        *,
        as_json: bool,
        count: int | None,
    ) -> None:
        """`plain`: what every message has; `count`: how many there are at most, or, of values and files, exactly."""
        self.count = count
        self.is_stdin = not values and not files
        self._plain = plain
        self._values = values
        self._files = files
        self._as_json = as_json

    @property
    def total(self) -> int | None:
        """How many messages will come, where that is known."""
        return self.count if self.is_stdin or self.count is not None else len(self._values) + len(self._files)

    async def messages(self) -> AsyncGenerator[list[Outgoing]]:
        """The messages, as many at a time as are there. Raises MessageInvalid, MessageTooLarge."""
        left = self.count
        async with aclosing(self._from_stdin() if self.is_stdin else self._given()) as source:
            async for some in source:
                some = some[:left]
                if left is not None:
                    left -= len(some)
                yield some
                if left == 0:
                    return

    async def _given(self) -> AsyncGenerator[list[Outgoing]]:
        if self._files:
            rounds: Iterator[int] = iter(range(1)) if self.count is None else itertools.count()
            for _ in rounds:
                for value in self._values:
                    yield [self._message(os.fsencode(value))]
                for file in self._files:
                    yield [self._message(await anyio.to_thread.run_sync(_content, file))]
            return
        values = [self._message(os.fsencode(value)) for value in self._values]
        if self.count is None:
            yield values
            return
        again = itertools.cycle(values)
        while True:
            yield list(itertools.islice(again, _AGAIN))

    async def _from_stdin(self) -> AsyncGenerator[list[Outgoing]]:
        if sys.stdin.isatty():
            complain("one message per line; Ctrl-D ends")
        number = 1
        async with aclosing(stdin_lines()) as chunks:
            async for lines in chunks:
                yield self._from_json(lines, number) if self._as_json else list(map(self._message, lines))
                number += len(lines)

    def _from_json(self, lines: Sequence[bytes], first: int) -> list[Outgoing]:
        return [from_json(line, at, self._plain) for at, line in enumerate(lines, first) if line.strip()]

    def _message(self, value: bytes) -> Outgoing:
        return replace(self._plain, value=value)


def _content(file: Path) -> bytes:
    """Raises MessageInvalid, MessageTooLarge."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LINE_BYTES_MAX + 1)
    except OSError as error:
        raise MessageInvalid(f"{file}: can't be read: {error.strerror}") from error
    if len(content) > LINE_BYTES_MAX:
        raise MessageTooLarge(f"{file} is larger than {LINE_BYTES_MAX >> 20} MiB, which no message is")
    return content


async def stdin_lines() -> AsyncGenerator[list[bytes]]:
    """The lines that are there, as soon as there are any; without their ends. Raises MessageTooLarge."""
    stdin = sys.stdin.fileno()
    rest: list[bytes] = []
    rest_bytes = 0
    while True:
        # The thread may wait for ever for a terminal; a cancelled command leaves it behind.
        chunk = await anyio.to_thread.run_sync(os.read, stdin, _CHUNK_BYTES, abandon_on_cancel=True)
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield (b"".join(rest) + head).split(b"\n")
            rest, rest_bytes = [], 0
        rest.append(tail)
        rest_bytes += len(tail)
        if rest_bytes > LINE_BYTES_MAX:
            raise MessageTooLarge(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB, which no message is")
        if not chunk:
            break
    last = b"".join(rest)
    if last:
        yield [last]
