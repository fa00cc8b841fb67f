"""Consuming on the command line: messages to stdout, then the ack.

Law: a message is acked after its line was written and flushed, so that a broken pipe loses none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import anyio
import typer

from linn.cli.message_format import LineOf
from linn.cli.moment import Place
from linn.cli.selection import Selects, selection
from linn.cli.session import with_client
from linn.client.client import Client
from linn.client.message import Batch, Message

IDLE_S = 1.0
"""How long `--no-follow` waits for one more batch."""
_PREFETCH = 1000


class Consuming:
    """`linn consume`."""

    def __init__(
        self,
        topic: str,
        group: str,
        *,
        count: int | None,
        follow: bool,
        ack: bool,
        start: Place | None,
        line_of: LineOf,
        where: str | None,
    ) -> None:
        """`start`: None where nobody named a place. Raises PredicateInvalid."""
        self._topic = topic
        self._group = group
        self._left = count
        self._idle_s = None if follow else IDLE_S
        self._ack = ack
        self._start = start
        self._line_of = line_of
        self._selects: Selects | None = None if where is None else selection(where)

    def run(self, url: str) -> None:
        """Print until there is a reason to stop. Raises LinnError, BrokenPipeError, KeyboardInterrupt, BadParameter."""
        with_client(url, self._work, comes_back=True)

    async def _work(self, client: Client) -> None:
        if self._selects is not None or self._start is not None:
            await self._refuse_queue(client)
        # No more is taken from a queue than will be printed: others may be waiting for it.
        prefetch = _PREFETCH if self._left is None else min(self._left, _PREFETCH)
        start = "earliest" if self._start is None else self._start
        async with client.consumer(self._topic, group=self._group, start=start, prefetch=prefetch) as consumer:
            batches = aiter(consumer.batches())
            while self._left is None or self._left > 0:
                batch: Batch | None = None
                with anyio.move_on_after(self._idle_s):
                    batch = await anext(batches, None)
                if batch is None:
                    break
                await self._take(batch)

    async def _refuse_queue(self, client: Client) -> None:
        topic = await client.admin.topic(self._topic)
        if "queue" not in topic or self._group:
            return
        if self._start is not None:
            raise typer.BadParameter(
                f"the queue {self._topic} gives what is not settled, from no other place; "
                f"`linn browse {self._topic} --since ...` looks from anywhere, without taking",
                param_hint="--since",
            )
        raise typer.BadParameter(
            f"what it leaves out of the queue {self._topic} would be held from others; "
            f"`linn browse {self._topic} --where ...` looks without taking",
            param_hint="--where",
        )

    async def _take(self, batch: Batch) -> None:
        messages = list(batch)
        taken, printed = self._chosen(messages)
        self._write(printed)
        if self._left is not None:
            self._left -= len(printed)
        if not self._ack:
            return
        if taken == len(batch):
            await batch.ack()
            return
        for settled in [message.ack() for message in messages[:taken]]:
            await settled

    def _chosen(self, messages: Sequence[Message]) -> tuple[int, list[Message]]:
        """How many of the messages are dealt with by this, and which of them are printed."""
        chosen: list[Message] = []
        for taken, message in enumerate(messages):
            if len(chosen) == self._left:
                return taken, chosen
            if self._selects is None or self._selects(message):
                chosen.append(message)
        return len(messages), chosen

    def _write(self, messages: Sequence[Message]) -> None:
        out = sys.stdout.buffer
        out.write(b"".join(map(self._line_of, messages)))
        out.flush()
