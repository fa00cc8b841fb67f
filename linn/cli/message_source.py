"""Source of the messages of `linn publish`: the command line, files, or the lines of stdin as they arrive.

Law: memory is bounded by one chunk of input, or one file; a line is published without its line feed.

Separate from the command because reading in threads is loaded only when the command runs.
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
from linn.cli.outgoing_message import OutgoingMessage, message_from_json
from linn.core.errors.tree import MessageInvalid, MessageTooLarge

_CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
"""Largest line or file; far above the largest frame that a broker can be configured to take."""
_REPEATED = 1_000
"""Messages yielded at a time where the same values are repeated."""


class MessageSource:
    """Source of the messages of one command."""

    def __init__(
        self,
        defaults: OutgoingMessage,
        values: Sequence[str],
        files: Sequence[Path],
        *,
        as_json: bool,
        count: int | None,
    ) -> None:
        """`defaults`: fields of all messages. `count`: maximum number of lines; exact number of values and files."""
        self.count = count
        self.is_stdin = not values and not files
        self._defaults = defaults
        self._values = values
        self._files = files
        self._as_json = as_json

    @property
    def total(self) -> int | None:
        """Number of messages, where it is known."""
        return self.count if self.is_stdin or self.count is not None else len(self._values) + len(self._files)

    async def messages(self) -> AsyncGenerator[list[OutgoingMessage]]:
        """Yield the messages that are available, in lists. Raises MessageInvalid, MessageTooLarge."""
        left = self.count
        async with aclosing(self._from_stdin() if self.is_stdin else self._given()) as source:
            async for some in source:
                some = some[:left]
                if left is not None:
                    left -= len(some)
                yield some
                if left == 0:
                    return

    async def _given(self) -> AsyncGenerator[list[OutgoingMessage]]:
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
            yield list(itertools.islice(again, _REPEATED))

    async def _from_stdin(self) -> AsyncGenerator[list[OutgoingMessage]]:
        if sys.stdin.isatty():
            complain("one message per line; Ctrl-D ends")
        number = 1
        async with aclosing(stdin_lines()) as chunks:
            async for lines in chunks:
                yield self._from_json(lines, number) if self._as_json else list(map(self._message, lines))
                number += len(lines)

    def _from_json(self, lines: Sequence[bytes], first: int) -> list[OutgoingMessage]:
        return [message_from_json(line, at, self._defaults) for at, line in enumerate(lines, first) if line.strip()]

    def _message(self, value: bytes) -> OutgoingMessage:
        return replace(self._defaults, value=value)


def _content(file: Path) -> bytes:
    """Read a file. Raises MessageInvalid, MessageTooLarge."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LINE_BYTES_MAX + 1)
    except OSError as error:
        raise MessageInvalid(f"{file}: can't be read: {error.strerror}") from error
    if len(content) > LINE_BYTES_MAX:
        raise MessageTooLarge(f"{file} is larger than {LINE_BYTES_MAX >> 20} MiB, too large for any message")
    return content


async def stdin_lines() -> AsyncGenerator[list[bytes]]:
    """Yield lines without their line feeds, as soon as they are available. Raises MessageTooLarge."""
    stdin = sys.stdin.fileno()
    rest: list[bytes] = []
    rest_bytes = 0
    while True:
        # The thread may wait for a terminal for ever; a cancelled command abandons it.
        chunk = await anyio.to_thread.run_sync(os.read, stdin, _CHUNK_BYTES, abandon_on_cancel=True)
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield (b"".join(rest) + head).split(b"\n")
            rest, rest_bytes = [], 0
        rest.append(tail)
        rest_bytes += len(tail)
        if rest_bytes > LINE_BYTES_MAX:
            raise MessageTooLarge(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB, too large for any message")
        if not chunk:
            break
    last = b"".join(rest)
    if last:
        yield [last]
