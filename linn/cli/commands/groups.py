"""`linn groups`: consumer groups of streams, where they are, and how to move them."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import group_names, stream_names
from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes

app = noun("Look at consumer groups of streams, move and delete them.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The stream.", autocompletion=stream_names)]
AnyTopic = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="Of this stream only.", autocompletion=stream_names)
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=group_names)]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="PLACE",
        help='earliest, latest, an offset, a time ("2026-01-31T12:00"), or a duration ago ("10m").',
    ),
]
Partition = Annotated[
    list[int] | None,
    typer.Option("--partition", min=0, metavar="NUMBER", help="Only this one. May be repeated. Default: all."),
]


@app.command("list")
def list_groups(topic: AnyTopic = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """All groups: members, and records that they have not committed yet."""
    from linn.cli.group_admin import list_all

    list_all(url, topic, as_json=as_json)


@app.command("describe")
def describe(topic: Topic, group: Group, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """One group: where it is in each partition, how far behind, and which member reads it."""
    from linn.cli.group_admin import describe_one

    describe_one(url, topic, group, as_json=as_json)


@app.command("reset")
def reset(
    topic: Topic,
    group: Group,
    to: To,
    partition: Partition = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Have a group go on elsewhere. Its consumers must be stopped: with members it fails with group.busy."""
    from linn.cli.moment import place_of

    place = place_of(to, "--to")
    if not yes:
        question = f"Move the group {group} of {topic} to {to}?"
        only = {"partitions": partition} if partition else {}
        confirm(url, "group.reset", question, "not moved", topic=topic, group=group, to="latest", **only)
    from linn.cli.group_admin import reset_one

    reset_one(url, topic, group, place, partition or (), as_json=as_json)


@app.command("delete")
def delete(topic: Topic, group: Group, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Forget a group and where it was. Its consumers must be stopped."""
    if not yes:
        question = f"Delete the group {group} of {topic}?"
        confirm(url, "group.delete", question, "not deleted", topic=topic, group=group)
    from linn.cli.group_admin import delete_one

    delete_one(url, topic, group, as_json=as_json)
