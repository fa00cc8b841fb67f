"""`linn scheduled`: messages that come into their topic later, and their content."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import topic_names
from linn.cli.exit_code import ExitCode
from linn.cli.moment import moment_text
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json
from linn.cli.render.table import print_fields, print_table
from linn.cli.session import with_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from linn.client.client import Client
    from linn.client.consume.message import Message
    from linn.message_status import ScheduledChanged

app = noun("List, describe, cancel and move messages that come into their topic later.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)]
AnyTopic = Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic.", autocompletion=topic_names)]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of messages, such as 0/5, as `list` shows them.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of a message, such as 0/5, as `list` shows it.")]
Values = Annotated[
    bool, typer.Option("--values", help="Show keys and values too, which needs the right to read the topic.")
]
_CONTENT_BYTES = 1 << 16
"""Size of one answer: messages that were published together come together."""
Count = Annotated[int, typer.Option("--count", min=1, max=1000, metavar="COUNT", help="How many messages to show.")]
Delay = Annotated[
    str | None, typer.Option("--delay", metavar="DURATION", help="Let them come so long from now, such as in 30s.")
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Let them come at this time, such as 2026-01-31T12:00: local time, unless it has a zone.",
    ),
]


@app.command("list")
def list_first(
    topic: AnyTopic = None, count: Count = 100, values: Values = False, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """List the messages of each topic that come next, in their order."""
    found = with_client(url, lambda client: _first(client, topic, count, values=values))
    if as_json:
        print_json(found)
        return
    rows = [
        [each["topic"], it["id"], moment_text(it["due_ms"]), *[_cell(it.get(name)) for name in ("key", "value")]]
        for each in found
        for it in each["first"]
    ]
    heads = ["topic", "id", "comes at", "key", "value"]
    print_table(heads if values else heads[:3], rows if values else [row[:3] for row in rows])
    for each in found:
        if more := each["count"] - len(each["first"]):
            typer.echo(f"and {more:,} more in {each['topic']}")


async def _first(client: Client, topic: str | None, count: int, *, values: bool) -> list[dict[str, Any]]:
    found = [it async for it in _scheduled(client, topic, count)]
    for each in found if values else ():
        messages = await _messages(client, each["topic"], [it["id"] for it in each["first"]])
        each["first"] = [it | _content(messages[it["id"]]) for it in each["first"] if it["id"] in messages]
    return found


async def _scheduled(client: Client, topic: str | None, count: int) -> AsyncIterator[dict[str, Any]]:
    if topic is not None:
        yield {"topic": topic, **await client.scheduled(topic, count=count)}
        return
    from linn.core.errors.tree import TopicUnknown

    for name in sorted([each["name"] for each in await client.admin.topics()]):
        with suppress(TopicUnknown):  # It was deleted meanwhile.
            each = {"topic": name, **await client.scheduled(name, count=count)}
            if each["count"]:
                yield each


async def _messages(client: Client, topic: str, ids: Sequence[str]) -> dict[str, Message]:
    """Return scheduled messages by their ids, without messages that have come meanwhile."""
    from linn.core.errors.tree import OffsetOutOfRange

    found: dict[str, Message] = {}
    for partition, offset in sorted([tuple(map(int, id.split("/"))) for id in ids]):
        if f"{partition}/{offset}" not in found:
            with suppress(OffsetOutOfRange):
                log = f"__d.{topic}"
                fetched = await client.fetch(log, partition, offset, bytes_max=_CONTENT_BYTES, unsettled=True)
                found |= {f"{partition}/{message.offset}": message for batch in fetched.batches for message in batch}
    return {id: found[id] for id in ids if id in found}


def _content(message: Message) -> dict[str, Any]:
    from linn.cli.render.message_format import properties_of, readable

    return {**properties_of(message), "value": readable(message.value)}


def _cell(content: object) -> str:
    from linn.cli.render.message_format import beginning_of

    if content is None:
        return ""
    return beginning_of(content.encode() if isinstance(content, str) else json.dumps(content).encode())


@app.command()
def describe(topic: Topic, id: Id, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show one message that comes later: its time, and all that it contains."""

    async def look(client: Client) -> tuple[list[Any], dict[str, Message]]:
        first = (await client.scheduled(topic, ids=[id]))["first"]
        return list(first), await _messages(client, topic, [it["id"] for it in first])

    first, messages = with_client(url, look)
    if not messages:
        raise typer.BadParameter(f"no message {id} waits for its time in {topic}", param_hint="ID")
    (it,), (message,) = first, messages.values()
    found = {**it, "message_id": str(message.id), **_content(message)}
    if as_json:
        print_json(found)
    else:
        print_fields({"id": id, "comes at": moment_text(found.pop("due_ms"))} | found)


@app.command()
def cancel(topic: Topic, ids: Ids, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Let messages never come. Exit with 1 if one is coming already, or is not there."""
    _report(with_client(url, lambda client: client.cancel_scheduled(topic, ids)), as_json=as_json)


@app.command()
def move(
    topic: Topic,
    ids: Ids,
    delay: Delay = None,
    at: At = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Let messages come at another time. Exit with 1 if one is coming already, or is not there."""
    from linn.cli import typed_value

    if (delay is None) == (at is None):
        raise typer.BadParameter("name a DURATION with --delay, or a TIME with --at")
    delay_ms = 0 if delay is None else typed_value.duration_ms(delay, "--delay")
    due_ms = None if at is None else typed_value.due_ms(at, "--at")
    changed = with_client(url, lambda client: client.move_scheduled(topic, ids, at=due_ms, delay_ms=delay_ms))
    _report(changed, as_json=as_json)


def _report(changed: Sequence[ScheduledChanged], *, as_json: bool) -> None:
    if as_json:
        print_json(changed)
    else:
        print_table(["id", "outcome"], [[it["id"], it["outcome"]] for it in changed])
    if any(it["outcome"] in ("leaving", "gone") for it in changed):
        raise typer.Exit(int(ExitCode.FAILED))
