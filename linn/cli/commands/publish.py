"""`linn publish`: publish messages from the command line, files or stdin.

Law: memory is bounded by the source's largest yield and the client's messages in flight.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import exchange_names, published_to
from linn.cli.exit_code import complain, on_interrupt
from linn.cli.options import DEFAULT_URL, Json, Rate, Url
from linn.cli.render.console import print_result
from linn.cli.render.progress import Advance, progress
from linn.cli.session import with_client
from linn.core.errors.texts import counted
from linn.core.errors.tree import LinnError, MessageTooLarge, Unroutable

if TYPE_CHECKING:
    from linn.cli.message_source import MessageSource
    from linn.cli.outgoing_message import OutgoingMessage
    from linn.client.client import Client
    from linn.client.produce.producer import AcksName, Producer
    from linn.client.produce.receipt import BulkReceipt

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC [VALUE]...",
        help="Target topic, unless --exchange is given; then the values of messages.",
        autocompletion=published_to,
    ),
]
Exchange = Annotated[
    str | None,
    typer.Option("--exchange", metavar="NAME", help="Publish to this exchange.", autocompletion=exchange_names),
]
Key = Annotated[
    str | None, typer.Option("--key", metavar="TEXT", help="Key of the messages, which partitioning and key order use.")
]
RoutingKey = Annotated[
    str, typer.Option("--routing-key", metavar="KEY", help="Routing key of the messages, which exchanges use.")
]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="A label; 4, 2.5 and true have types. May be repeated."),
]
Header = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header. May be repeated.")]
Mandatory = Annotated[
    bool, typer.Option("--mandatory", help="Fail if no binding of the exchange routes a message to a topic.")
]
AcksOption = Annotated[
    str,
    typer.Option(
        "--acks",
        metavar="WHO",
        help="Whose confirmation to wait for: all, the in-sync replicas; leader, the broker that leads the topic.",
    ),
]
Ttl = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="DURATION",
        help="Time to live, such as 30s: a message that no consumer takes in this time expires. For queues.",
    ),
]
Delay = Annotated[
    str | None,
    typer.Option("--delay", metavar="DURATION", help="Let the messages come into their topic later, such as in 30s."),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Let the messages come at a time, such as 2026-01-31T12:00: local time, unless it has a zone.",
    ),
]
Priority = Annotated[
    int,
    typer.Option(
        "--priority",
        min=0,
        max=255,
        metavar="LEVEL",
        help='Priority of the messages, from 0 to 255; a queue with order = "priority" delivers higher ones first.',
    ),
]
File = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        readable=True,
        help="A file whose content is one message. May be repeated.",
    ),
]
Input = Annotated[
    str,
    typer.Option(
        "--input",
        metavar="FORMAT",
        help="Format of stdin: lines, with a value on each line; or json, as printed by `linn consume --format json`.",
    ),
]
CountMax = Annotated[
    int | None,
    typer.Option("--count", min=1, metavar="COUNT", help="Stop after so many messages; VALUEs and files are repeated."),
]


def publish(
    arguments: Arguments = None,
    exchange: Exchange = None,
    key: Key = None,
    routing_key: RoutingKey = "",
    label: Label = None,
    header: Header = None,
    mandatory: Mandatory = False,
    acks: AcksOption = "all",
    ttl: Ttl = None,
    delay: Delay = None,
    at: At = None,
    priority: Priority = 0,
    file: File = None,
    form: Input = "lines",
    count: CountMax = None,
    rate: Rate = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Publish each VALUE and file as a message, or each line of stdin if there are none; wait for confirmation."""
    values = list(arguments or ())
    if exchange is None and not values:
        raise typer.BadParameter("name a TOPIC, or an exchange with --exchange")
    if form not in ("lines", "json"):
        raise typer.BadParameter("must be lines or json", param_hint="--input")
    if acks not in ("leader", "all"):
        raise typer.BadParameter("must be all or leader", param_hint="--acks")
    target = exchange if exchange is not None else values.pop(0)
    if form == "json" and (values or file):
        raise typer.BadParameter(
            "describes stdin, which is not read if there are values or files", param_hint="--input"
        )
    import os

    from linn.cli import typed_value
    from linn.cli.message_source import MessageSource
    from linn.cli.outgoing_message import OutgoingMessage

    defaults = OutgoingMessage(
        None,
        None if key is None else os.fsencode(key),
        routing_key,
        typed_value.labels(label or ()),
        typed_value.headers(header or ()),
    )
    source = MessageSource(defaults, values, file or (), as_json=form == "json", count=count)
    rate_per_s = None if rate is None else typed_value.rate_per_s(rate)
    to_exchange = exchange is not None
    publication = Publication(target, to_exchange=to_exchange, mandatory=mandatory, rate_per_s=rate_per_s)
    publication.acks = "leader" if acks == "leader" else "all"
    publication.priority = priority
    publication.ttl_ms = 0 if ttl is None else typed_value.duration_ms(ttl, "--ttl")
    publication.delay_ms = 0 if delay is None else typed_value.duration_ms(delay, "--delay")
    publication.due_ms = None if at is None else typed_value.due_ms(at, "--at")
    if delay is not None and at is not None:
        raise typer.BadParameter("messages have a delay or a time, not both", param_hint="--at")
    publication.run(url, source, as_json=as_json)


class Publication:
    """One run of `linn publish`."""

    def __init__(self, target: str, *, to_exchange: bool, mandatory: bool, rate_per_s: float | None) -> None:
        """`mandatory`: fail with the first batch in which a message is unroutable. `rate_per_s`: maximum rate."""
        from linn.client.produce.receipt import BulkReceipt

        self.acks: AcksName = "all"
        self.priority = 0
        """Priority of all messages."""
        self.ttl_ms = 0
        """Time to live of all messages; 0: they have none."""
        self.delay_ms = 0
        self.due_ms: int | None = None
        """The time at which all messages come into their topic."""
        self._target = target
        self._to_exchange = to_exchange
        self._mandatory = mandatory
        self._rate_per_s = rate_per_s
        self._total = BulkReceipt(0, None if to_exchange else target, {}, 0)
        self._in_flight = 0
        """Messages that are not confirmed yet."""

    def run(self, url: str, source: MessageSource, *, as_json: bool) -> None:
        """Publish all messages, and print the result. Raises LinnError."""
        # A bar would overwrite lines that are being typed.
        shown = not (source.is_stdin and sys.stdin.isatty())
        with (
            on_interrupt(self._report_interruption),
            progress(f"publishing to {self._target}", source.total, shown=shown) as advance,
        ):
            with_client(url, partial(self._work, source, advance))
        print_result(self._data(), self._text(), as_json=as_json)

    async def _work(self, source: MessageSource, advance: Advance, client: Client) -> None:
        from linn.bench.pace import Pace

        place: dict[str, Any] = {"exchange" if self._to_exchange else "topic": self._target}
        pace = Pace(self._rate_per_s)
        async with aclosing(source.messages()) as given, client.producer(**place, acks=self.acks) as producer:
            async for messages in given:
                done = 0
                while done < len(messages):
                    room = await pace.room(len(messages) - done)
                    await self._publish(producer, messages[done : done + room])
                    done += room
                    advance(room)

    async def _publish(self, producer: Producer, messages: Sequence[OutgoingMessage]) -> None:
        self._in_flight = len(messages)
        try:
            self._total = _sum(self._total, await self._receipt(producer, messages))
            self._in_flight = 0
        except LinnError as error:
            if error.indexes:
                raise self._numbered(error, len(messages)) from error
            if isinstance(error, MessageTooLarge):
                error.text = self._too_large(messages, producer.message_bytes_max) or error.text
            before = self._total.count
            if before:
                error.text += f"; confirmed before: {counted(before, 'message')}"
            raise

    async def _receipt(self, producer: Producer, messages: Sequence[OutgoingMessage]) -> BulkReceipt:
        first = messages[0]
        alike = all(message.routing_key == first.routing_key and message.labels == first.labels for message in messages)
        return await producer.publish_many(
            [message.value for message in messages],
            keys=None if all(message.key is None for message in messages) else [message.key for message in messages],
            routing_keys=first.routing_key if alike else [message.routing_key for message in messages],
            labels=first.labels if alike else [message.labels for message in messages],
            headers=[message.headers for message in messages] if any(m.headers for m in messages) else None,
            priority=self.priority,
            ttl_ms=self.ttl_ms,
            delay_ms=self.delay_ms,
            at=self.due_ms,
            mandatory=self._mandatory,
        )

    def _report_interruption(self) -> None:
        text = f"interrupted: {counted(self._total.count, 'message')} confirmed"
        complain(f"{text}, {self._in_flight:,} more may be stored" if self._in_flight else text)

    def _too_large(self, messages: Sequence[OutgoingMessage], bytes_max: int) -> str | None:
        """Return an error text with the number of the message that is too large; None if only the broker knows it."""
        for number, message in enumerate(messages, self._total.count + 1):
            if message.size > bytes_max:
                return (
                    f"message {number:,} has {message.size:,} bytes, more than the message_bytes_max of {bytes_max:,}"
                )
        return None

    def _numbered(self, error: LinnError, count: int) -> LinnError:
        """Return a copy of an error about the last `count` messages; its indexes count all messages of the run."""
        before, failed = self._total.count, len(error.indexes)
        places = [before + index for index in error.indexes]
        numbered = copy(error)
        if isinstance(error, Unroutable):
            numbered.text = f"no binding of exchange {self._target} leads message {places[0] + 1:,} to a topic"
            numbered.text += f", nor {failed - 1:,} after it" if failed > 1 else ""
        else:
            numbered.text += f": message {places[0] + 1:,}"
            numbered.text += f", and {failed - 1:,} after it" if failed > 1 else ""
        confirmed = counted(before + count - failed, "message")
        numbered.text += f"; confirmed: {confirmed}, {places[0]:,} of them before it"
        return numbered.of_messages(places)

    # --- the result ---

    def _data(self) -> dict[str, Any]:
        total = self._total
        offsets = {str(partition): list(offsets) for partition, offsets in total.partitions.items()}
        said = {"count": total.count, "topic": total.topic, "copies": total.copies, "partitions": offsets}
        return said | {"scheduled": total.is_scheduled}

    def _text(self) -> str:
        total = self._total
        if total.is_scheduled:
            text = f"scheduled {counted(total.count, 'message')} for {self._target}"
            ids = [
                f"{partition}/{first}" + (f" to {partition}/{last}" if first != last else "")
                for partition, (first, last) in sorted(total.partitions.items())
            ]
            return f"{text} (id {'; '.join(ids)})" if ids else text
        text = f"published {counted(total.count, 'message')} to {self._target}"
        if self._to_exchange and total.count:
            stored = f"{counted(total.copies, 'copy')} stored" if total.copies else "no binding took any"
            return f"{text}: {stored}"
        places = [
            f"partition {partition}, offset{'s' * (first != last)} {first}{f' to {last}' * (first != last)}"
            for partition, (first, last) in sorted(total.partitions.items())
        ]
        return f"{text} ({'; '.join(places)})" if places else text


def _sum(total: BulkReceipt, receipt: BulkReceipt) -> BulkReceipt:
    """Combine two receipts of the same topic or exchange."""
    from linn.client.produce.receipt import BulkReceipt, Offsets

    partitions = dict(total.partitions)
    for partition, offsets in receipt.partitions.items():
        known = partitions.get(partition)
        partitions[partition] = offsets if known is None else Offsets(known.first, offsets.last)
    copies = (total.copies or 0) + (receipt.copies or 0)
    return BulkReceipt(total.count + receipt.count, total.topic, partitions, copies, receipt.is_scheduled)
