"""Consuming on the command line: messages to stdout, or to a command's stdin; then the ack.

Laws: a message is acked after its line was written and flushed. What a pipe holds then may never be read, and whoever
reads it may fail: nobody could tell. What a command is given is acked after the command has ended with 0.
"""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Sequence

import anyio
import trio
import typer

from linn.cli.exit_code import complain
from linn.cli.message_format import LineOf
from linn.cli.moment import Place
from linn.cli.selection import Selects, selection
from linn.cli.session import with_client
from linn.client.client import Client
from linn.client.consume.message import Batch, Message
from linn.core.errors.tree import ConnectionLost

IDLE_S = 1.0
"""How long `--no-follow` waits for one more batch."""
_PREFETCH = 1000
_PULL_WAIT_S = 10.0


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
        self._command: str | None = None
        self._ended = 0
        """What the command ended with."""

    def run(self, url: str, command: str | None = None) -> None:
        """Print, or run `command`, until there is a reason to stop.

        Raises LinnError, BrokenPipeError, KeyboardInterrupt, BadParameter; Exit where the command did not end with 0.
        """
        self._command = command
        with_client(url, self._work, comes_back=True)
        if self._ended:
            how = f"was ended by signal {-self._ended}" if self._ended < 0 else f"ended with {self._ended}"
            complain(f"{command} {how}: what it was given is not acked")
            raise typer.Exit(1)

    async def _work(self, client: Client) -> None:
        if self._selects is not None or self._start is not None:
            await self._refuse_queue(client)
        if self._command is not None:
            await self._hand_on(client, self._command)
            return
        # No more is taken from a queue than will be printed: others may be waiting for it.
        prefetch = _PREFETCH if self._left is None else min(self._left, _PREFETCH)
        start = "earliest" if self._start is None else self._start
        async with client.consumer(self._topic, group=self._group, start=start, prefetch=prefetch) as consumer:
            if self._ack and _is_pipe():
                await self._say_what_an_ack_is(client)
            batches = aiter(consumer.batches())
            while self._left is None or self._left > 0:
                batch: Batch | None = None
                with anyio.move_on_after(self._idle_s):
                    batch = await anext(batches, None)
                if batch is None:
                    break
                await self._take(batch)

    async def _hand_on(self, client: Client, command: str) -> None:
        """Run the command with what has come, and settle that by how it ended."""
        start = "earliest" if self._start is None else self._start
        consumer = client.consumer(self._topic, group=self._group, start=start, mode="pull", renewal_max_s=math.inf)
        async with consumer:
            while self._left != 0 and not self._ended:
                try:
                    pulled_max = min(_PREFETCH, self._left or _PREFETCH)
                    batches = await consumer.pull(pulled_max, self._idle_s or _PULL_WAIT_S)
                except ConnectionLost:
                    continue  # The client says so, and comes back.
                if not batches and self._idle_s is not None:
                    return
                await self._hand_over([message for batch in batches for message in batch], command)

    async def _hand_over(self, messages: Sequence[Message], command: str) -> None:
        taken, printed = self._chosen(messages)
        if printed:
            lines = b"".join(map(self._line_of, printed))
            self._ended = (await trio.run_process(command, stdin=lines, shell=True, check=False)).returncode
        if self._left is not None:
            self._left -= len(printed)
        if self._ack and not self._ended:
            for settled in [message.ack() for message in messages[:taken]]:
                await settled

    async def _say_what_an_ack_is(self, client: Client) -> None:
        if self._group or "queue" in await client.admin.topic(self._topic):
            complain(
                "in a pipe, messages are acked once they are written, whatever the reader makes of them; "
                "`linn move` moves them, and --exec COMMAND waits for the reader"
            )

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


def _is_pipe() -> bool:
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except (OSError, ValueError):  # It is no file.
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
