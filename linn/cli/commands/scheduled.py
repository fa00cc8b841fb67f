"""`linn scheduled`: messages that come into their topic later."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import topic_names
from linn.cli.exit_code import ExitCode
from linn.cli.moment import moment_text
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json
from linn.cli.render.table import print_table
from linn.cli.session import with_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from linn.client.client import Client
    from linn.message_status import ScheduledChanged

app = noun("List, cancel and move messages that come into their topic later.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)]
AnyTopic = Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic.", autocompletion=topic_names)]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of messages, such as 0/5, as `list` shows them.")]
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
def list_first(topic: AnyTopic = None, count: Count = 100, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the messages of each topic that come next, in their order."""
    found = with_client(url, lambda client: _first(client, topic, count))
    if as_json:
        print_json(found)
        return
    rows = [(each["topic"], it["id"], moment_text(it["due_ms"])) for each in found for it in each["first"]]
    print_table(["topic", "id", "comes at"], rows)
    for each in found:
        if more := each["count"] - len(each["first"]):
            typer.echo(f"and {more:,} more in {each['topic']}")


async def _first(client: Client, topic: str | None, count: int) -> list[dict[str, Any]]:
    if topic is not None:
        return [{"topic": topic, **await client.scheduled(topic, count=count)}]
    from linn.core.errors.tree import TopicUnknown

    found = []
    for name in sorted([each["name"] for each in await client.admin.topics()]):
        with suppress(TopicUnknown):  # It was deleted meanwhile.
            found.append({"topic": name, **await client.scheduled(name, count=count)})
    return [each for each in found if each["count"]]


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
