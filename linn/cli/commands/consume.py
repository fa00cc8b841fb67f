"""`linn consume`: print the messages of a queue or stream, or hand them to a command, and ack them.

Laws: a message is acked after its line was written and flushed. A reader of the pipe that fails later goes unnoticed,
and so do lines that it never reads. Messages handed to a command are acked after the command has ended with 0.
"""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.completion import group_names, shared_names, topic_names
from linn.cli.exit_code import complain
from linn.cli.options import DEFAULT_URL, CountMax, Format, Raw, Time, Url, Where
from linn.cli.session import with_client
from linn.core.errors.tree import ConnectionLost

if TYPE_CHECKING:
    from linn.cli.message_filter import MessageFilter
    from linn.cli.moment import Place
    from linn.cli.render.message_format import LineOf
    from linn.client.client import Client
    from linn.client.consume.consumer import Consumer
    from linn.client.consume.message import Batch, Message
    from linn.client.consume.settling import Settled

IDLE_S = 1.0
"""Time that `--no-follow` waits for one more batch."""
_PREFETCH = 1000
_PULL_WAIT_S = 10.0

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the queue or stream.", autocompletion=topic_names)]
Group = Annotated[
    str,
    typer.Option(
        "--group",
        metavar="NAME",
        help="Consumer group of a stream: continue at its committed offsets.",
        autocompletion=group_names,
    ),
]
Shared = Annotated[
    str,
    typer.Option(
        "--shared",
        metavar="NAME",
        help="Shared subscription of a stream: compete for its messages, and ack each message separately.",
        autocompletion=shared_names,
    ),
]
Priority = Annotated[
    int,
    typer.Option(
        "--priority",
        metavar="N",
        min=-(1 << 31),
        max=(1 << 31) - 1,
        help="Of a queue or with --shared: consumers of a higher priority get messages first.",
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow/--no-follow", help="Wait for more, or stop when a second brings no message.")
]
Ack = Annotated[bool, typer.Option("--ack/--no-ack", help="Ack printed messages, or leave them in the queue.")]
Exec = Annotated[
    str | None,
    typer.Option(
        "--exec",
        metavar="COMMAND",
        help="Run a command with the messages on its stdin, instead of printing them; ack them once it ends with 0.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="PLACE",
        help="Start of a stream, used only where --group has committed nothing and --shared is new: earliest, latest, "
        'an offset, a time ("2026-01-31T12:00"), or a duration ago ("10m"). Default: earliest.',
    ),
]


def consume(
    topic: Topic,
    group: Group = "",
    shared: Shared = "",
    priority: Priority = 0,
    count: CountMax = None,
    follow: Follow = True,
    ack: Ack = True,
    since: Since = None,
    form: Format = "text",
    time: Time = False,
    raw: Raw = False,
    where: Where = None,
    command: Exec = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Print messages as they arrive, and ack each message after it is written.

    Without --group or --shared a stream is only read: nothing is acked or committed.

    In a pipe, messages are acked once they are in the pipe, even if its reader fails: use `linn move` to move
    messages, or --exec to wait for the reader. --exec runs COMMAND in a shell again and again, each time with the
    messages that have arrived, at most 1000; if COMMAND does not end with 0, they are not acked, and this command ends
    with 1.

    --where skips the other messages of a stream. On a queue and with --shared it is refused, because skipped messages
    would be held from other consumers; --since is refused on a queue as well, because it delivers its unsettled
    messages only. `linn browse` prints the messages of a queue from any place without consuming them.
    """
    if command is not None and not command.strip():
        raise typer.BadParameter("there is no command to run", param_hint="--exec")
    from linn.cli.message_filter import split_filter
    from linn.cli.moment import place_of
    from linn.cli.render.message_format import line_format

    at_broker, selects = split_filter(where)
    consumption = Consumption(
        topic,
        group,
        shared,
        priority=priority,
        count=count,
        follow=follow,
        ack=ack,
        start=None if since is None else place_of(since, "--since"),
        line_of=line_format(form, time=time, raw=raw, printed=command is None),
        where=at_broker,
        selects=selects,
    )
    consumption.run(url, command)


class Consumption:
    """One run of `linn consume`."""

    def __init__(
        self,
        topic: str,
        group: str,
        shared: str,
        *,
        priority: int,
        count: int | None,
        follow: bool,
        ack: bool,
        start: Place | None,
        line_of: LineOf,
        where: str | None,
        selects: MessageFilter | None,
    ) -> None:
        """`start`: None where --since is not given. `where`: the broker applies it, `selects` this command."""
        self._topic = topic
        self._group = group
        self._shared = shared
        self._priority = priority
        self._left = count
        self._idle_s = None if follow else IDLE_S
        self._ack = ack
        self._start = start
        self._line_of = line_of
        self._where = where
        self._selects = selects
        self._next_offsets: dict[int, int] = {}
        """By partition, the offset behind the last message that was handled."""
        self._command: str | None = None
        self._returncode = 0
        """Return code of the last run of the command."""

    def run(self, url: str, command: str | None = None) -> None:
        """Print messages, or run `command` with them, until there is a reason to stop.

        Raises LinnError, BrokenPipeError, KeyboardInterrupt, BadParameter; Exit where the command did not end with 0.
        """
        self._command = command
        with_client(url, self._work, reconnects=True)
        if self._returncode:
            code = self._returncode
            how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
            complain(f"{command} {how}: what it was given is not acked")
            raise typer.Exit(1)

    async def _work(self, client: Client) -> None:
        if self._where is not None or self._selects is not None or self._start is not None:
            await self._refuse_queue(client)
        if self._command is not None:
            await self._pull_for(self._command, client)
        else:
            await self._print(client)

    # --- printing ---

    async def _print(self, client: Client) -> None:
        import anyio

        # No more is taken from a queue than will be printed: other consumers may be waiting for it.
        prefetch = _PREFETCH if self._left is None else min(self._left, _PREFETCH)
        start = "earliest" if self._start is None else self._start
        async with client.consumer(
            self._topic,
            group=self._group,
            shared=self._shared,
            priority=self._priority,
            start=start,
            prefetch=prefetch,
            where=self._where,
        ) as consumer:
            if self._ack and _is_pipe():
                await self._explain_acks(client)
            batches = aiter(consumer.batches())
            while self._left is None or self._left > 0:
                batch: Batch | None = None
                with anyio.move_on_after(self._idle_s):
                    batch = await anext(batches, None)
                if batch is not None:
                    await self._print_batch(batch)
                elif self._idle_s is None or not await self._has_more(client, consumer):
                    break

    async def _print_batch(self, batch: Batch) -> None:
        messages = list(batch)
        handled, chosen = self._chosen(messages)
        sys.stdout.buffer.write(b"".join(map(self._line_of, chosen)))
        sys.stdout.buffer.flush()
        if self._left is not None:
            self._left -= len(chosen)
        if not self._ack:
            return
        if handled == len(batch):
            await _acked([batch.ack()])
        else:
            await _ack(messages[:handled])

    async def _explain_acks(self, client: Client) -> None:
        if self._group or self._shared or "queue" in await client.admin.topic(self._topic):
            complain(
                "in a pipe, messages are acked once they are written, even if the reader fails; "
                "`linn move` moves them, and --exec COMMAND waits for the reader"
            )

    # --- a command ---

    async def _pull_for(self, command: str, client: Client) -> None:
        """Run the command with each pull of messages, and ack these if it ends with 0."""
        start = "earliest" if self._start is None else self._start
        consumer = client.consumer(
            self._topic,
            group=self._group,
            shared=self._shared,
            priority=self._priority,
            start=start,
            mode="pull",
            where=self._where,
            renewal_max_s=math.inf,
        )
        async with consumer:
            while self._left != 0 and not self._returncode:
                try:
                    pulled_max = min(_PREFETCH, self._left or _PREFETCH)
                    batches = await consumer.pull(pulled_max, self._idle_s or _PULL_WAIT_S)
                except ConnectionLost:
                    continue  # The client logs it, and reconnects.
                if not batches and self._idle_s is not None and not await self._has_more(client, consumer):
                    return
                await self._run_with([message for batch in batches for message in batch], command)

    async def _run_with(self, messages: Sequence[Message], command: str) -> None:
        import trio

        handled, chosen = self._chosen(messages)
        if chosen:
            lines = b"".join(map(self._line_of, chosen))
            self._returncode = (await trio.run_process(command, stdin=lines, shell=True, check=False)).returncode  # noqa: S604  The user's own command.
        if self._left is not None:
            self._left -= len(chosen)
        if self._ack and not self._returncode:
            await _ack(messages[:handled])

    # --- both ---

    async def _has_more(self, client: Client, consumer: Consumer) -> bool:
        """Tell whether another message follows: with --where the broker may skip many messages before it."""
        if self._where is None:
            return False
        from linn.cli.topic_snapshot import TopicSnapshot

        offsets = dict(self._next_offsets)
        if self._group:
            for row in (await client.admin.group(self._group))["offsets"]:
                if row["topic"] == self._topic and row["offset"] is not None:
                    offsets[row["partition"]] = max(offsets.get(row["partition"], 0), row["offset"])
        partitions = consumer.partitions.get(self._topic)
        if partitions is None:
            partitions = [*range(len((await client.admin.topic(self._topic))["partitions"]))]
        for partition in partitions:
            start = offsets.get(partition, self._start)
            snapshot = TopicSnapshot(client, self._topic, [partition], start, self._where).messages()
            async with aclosing(snapshot):
                if await anext(snapshot, None) is not None:
                    return True
        return False

    async def _refuse_queue(self, client: Client) -> None:
        topic = await client.admin.topic(self._topic)
        if self._shared and (self._where is not None or self._selects is not None):
            raise typer.BadParameter(
                f"the messages that it skips in the subscription {self._shared} would be withheld from others",
                param_hint="--where",
            )
        if "queue" not in topic or self._group or self._shared:
            return
        if self._start is not None:
            raise typer.BadParameter(
                f"the queue {self._topic} delivers its unsettled messages, and has no other starting point; "
                f"`linn browse {self._topic} --since ...` reads from anywhere without taking anything",
                param_hint="--since",
            )
        raise typer.BadParameter(
            f"the messages that it skips in the queue {self._topic} would be withheld from others; "
            f"`linn browse {self._topic} --where ...` reads without taking anything",
            param_hint="--where",
        )

    def _chosen(self, messages: Sequence[Message]) -> tuple[int, list[Message]]:
        """Return the number of messages handled within --count, including skipped ones, and the messages to print."""
        chosen: list[Message] = []
        for handled, message in enumerate(messages):
            if len(chosen) == self._left:
                return handled, chosen
            self._next_offsets[message.partition] = message.offset + 1
            if self._selects is None or self._selects(message):
                chosen.append(message)
        return len(messages), chosen


async def _ack(messages: Sequence[Message]) -> None:
    await _acked([message.ack() for message in messages])


async def _acked(settled: Sequence[Settled]) -> None:
    """Wait for acks. An ack that an outage made void is no failure: the client logs it, and the message comes again."""
    from linn.client.consume.settling import is_void
    from linn.core.errors.tree import LinnError

    for each in settled:
        try:
            await each
        except LinnError:
            if not is_void(each):
                raise


def _is_pipe() -> bool:
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except (OSError, ValueError):  # stdout is no file.
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
