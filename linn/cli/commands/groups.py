"""`linn groups`: list, describe, reset and delete consumer groups of streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.completion import group_names, stream_names
from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import Column, number, numbers, print_table, wide
from linn.cli.session import with_client

if TYPE_CHECKING:
    from linn.client.admin_types import GroupOffset

app = noun("List, describe, reset and delete consumer groups of streams.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the stream.", autocompletion=stream_names)]
AnyTopic = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="Only groups of this stream.", autocompletion=stream_names)
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", autocompletion=group_names)]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="PLACE",
        help='New position: earliest, latest, an offset, a time ("2026-01-31T12:00"), or a duration ago ("10m").',
    ),
]
Partition = Annotated[
    list[int] | None,
    typer.Option("--partition", min=0, metavar="NUMBER", help="Only this partition. May be repeated. Default: all."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print where the group would continue.")]


@app.command("list")
def list_groups(topic: AnyTopic = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all groups with their members, epoch and lag."""
    groups = with_client(url, lambda client: client.admin.groups(topic))
    if as_json:
        print_json(groups)
        return
    if not groups:
        print("no groups yet: one comes into being when its first member subscribes to a stream")
        return
    rows = [
        [group["topic"], group["group"], *(f"{group[name]:,}" for name in ("members", "epoch", "lag"))]
        for group in groups
    ]
    print_table(["topic", "group", number("members"), wide(number("epoch")), number("lag")], rows)


@app.command("describe")
def describe(topic: Topic, group: Group, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the committed offset, lag and member of each partition of one group."""
    offsets = with_client(url, lambda client: client.admin.group_offsets(topic, group))
    _print_offsets(offsets, f"{group} of {topic}", as_json)


def _print_offsets(offsets: Sequence[GroupOffset], title: str, as_json: bool) -> None:
    if as_json:
        print_json(offsets)
        return
    rows = [
        [
            str(offset["partition"]),
            f"{offset['start']:,}",
            "nothing" if offset["offset"] is None else f"{offset['offset']:,}",
            f"{offset['end']:,}",
            f"{offset['lag']:,}",
            offset["member"] or "nobody",
        ]
        for offset in offsets
    ]
    heads = (number("partition"), wide(number("start")), *numbers("committed", "end", "lag"), Column("member"))
    print_table(heads, rows, title)


@app.command("reset")
def reset(
    topic: Topic,
    group: Group,
    to: To,
    partition: Partition = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Move a group to another position. Stop its consumers first: with members it fails with group.busy."""
    from linn.cli.moment import place_of

    place = place_of(to, "--to")
    if not (yes or dry_run):
        question = f"Move the group {group} of {topic} to {to}?"
        only = {"partitions": partition} if partition else {}
        confirm(url, "group.reset", question, "not moved", topic=topic, group=group, to="latest", **only)
    offsets = with_client(
        url, lambda client: client.admin.reset_group(topic, group, place, partition or (), dry_run=dry_run)
    )
    _print_offsets(offsets, f"{group} of {topic} {'would go' if dry_run else 'goes'} on", as_json)


@app.command("delete")
def delete(topic: Topic, group: Group, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete a group with its committed offsets. Stop its consumers first."""
    if not yes:
        question = f"Delete the group {group} of {topic}?"
        confirm(url, "group.delete", question, "not deleted", topic=topic, group=group)
    with_client(url, lambda client: client.admin.delete_group(topic, group))
    print_result({"deleted": group}, f"deleted {group} of {topic}", as_json=as_json)
