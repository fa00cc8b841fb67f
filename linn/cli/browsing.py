"""Browsing on the command line: messages to stdout, and nothing is taken."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from linn.cli.message_format import LineOf
from linn.cli.moment import Place
from linn.cli.selection import Selects, selection
from linn.cli.session import with_client
from linn.cli.waiting import Waiting
from linn.client.client import Client
from linn.client.consume.message import Message


class Browsing:
    """`linn browse`."""

    def __init__(
        self,
        topic: str,
        partitions: Sequence[int],
        *,
        count: int | None,
        start: Place | None,
        line_of: LineOf,
        where: str | None,
    ) -> None:
        """`start`: None for what is not settled of a queue, and for all of a stream. Raises PredicateInvalid."""
        self._topic = topic
        self._partitions = partitions
        self._left = count
        self._start = start
        self._line_of = line_of
        self._selects: Selects | None = None if where is None else selection(where)

    def run(self, url: str) -> None:
        """Print. Raises LinnError, BrokenPipeError, KeyboardInterrupt."""
        with_client(url, self._work)

    async def _work(self, client: Client) -> None:
        async with aclosing(Waiting(client, self._topic, self._partitions, self._start).messages()) as waiting:
            async for messages in waiting:
                self._write(messages)
                if self._left == 0:
                    return

    def _write(self, messages: Iterable[Message]) -> None:
        chosen = [message for message in messages if self._selects is None or self._selects(message)][: self._left]
        if self._left is not None:
            self._left -= len(chosen)
        sys.stdout.buffer.write(b"".join(map(self._line_of, chosen)))
        sys.stdout.buffer.flush()
