"""`linn groups`: list, describe, reset and delete consumer groups of streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import group_names, stream_names
from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import Column, number, numbers, print_table, wide
from linn.cli.session import with_client
from linn.core.errors.texts import counted

if TYPE_CHECKING:
    from linn.descriptions import GroupOffset

app = noun("List, describe, reset and delete consumer groups of streams.")

AnyTopic = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="Only groups of this stream.", autocompletion=stream_names)
]
OneTopic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this stream. Default: all.", autocompletion=stream_names),
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
    typer.Option(
        "--partition",
        min=0,
        metavar="NUMBER",
        help="Only this partition of the stream. May be repeated.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print where the group would continue.")]


@app.command("list")
def list_groups(topic: AnyTopic = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all groups with their topics, members, epoch and lag."""
    groups = with_client(url, lambda client: client.admin.groups(topic))
    if as_json:
        print_json(groups)
        return
    if not groups:
        print("no groups yet: a group is created when its first member subscribes to a stream")
        return
    rows = [
        [group["group"], ", ".join(group["topics"]), *(f"{group[name]:,}" for name in ("members", "epoch", "lag"))]
        for group in groups
    ]
    print_table(["group", "topics", number("members"), wide(number("epoch")), number("lag")], rows)


@app.command("describe")
def describe(group: Group, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the members of a group, and its committed offset, lag and owner by topic and partition."""
    shown = with_client(url, lambda client: client.admin.group(group))
    if as_json:
        print_json(shown)
        return
    members = [
        [
            member["member"],
            "yes" if member["is_static"] else "no",
            f"{member['epoch']:,}",
            f"{member['partitions']:,}",
            ", ".join(member["topics"]),
        ]
        for member in shown["members"]
    ]
    heads = ("member", wide("static"), number("epoch"), number("partitions"), wide("topics"))
    print_table(heads, members, f"{group}: {counted(len(members), 'member')}, epoch {shown['epoch']:,}")
    _print_offsets(shown["offsets"], f"{group}, {shown['lag']:,} behind", as_json)


def _print_offsets(offsets: Sequence[GroupOffset], title: str, as_json: bool) -> None:
    if as_json:
        print_json(offsets)
        return
    has_texts = any(offset["text"] for offset in offsets)
    rows = [
        [
            offset["topic"],
            str(offset["partition"]),
            f"{offset['start']:,}",
            "nothing" if offset["offset"] is None else f"{offset['offset']:,}",
            f"{offset['end']:,}",
            f"{offset['lag']:,}",
            offset["member"] or "nobody",
            *([offset["text"]] if has_texts else []),
        ]
        for offset in offsets
    ]
    numbered = [number("partition"), wide(number("start")), *numbers("committed", "end", "lag")]
    heads: list[str | Column] = ["topic", *numbered, Column("member")]
    print_table([*heads, *(["text"] if has_texts else ())], rows, title)


@app.command("reset")
def reset(
    group: Group,
    to: To,
    topic: OneTopic = None,
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
        question = f"Move the group {group} {_where(topic)} to {to}?"
        only = _only(topic) | ({"partitions": partition} if partition else {})
        confirm(url, "group.reset", question, "not moved", group=group, to="latest", **only)
    offsets = with_client(
        url, lambda client: client.admin.reset_group(group, place, topic, partition or (), dry_run=dry_run)
    )
    _print_offsets(offsets, f"{group} {'would go' if dry_run else 'goes'} on", as_json)


@app.command("delete")
def delete(
    group: Group, topic: OneTopic = None, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """Delete a group, or its committed offsets in one stream. Stop its consumers first."""
    if not yes:
        question = f"Delete the group {group} {_where(topic)}?"
        confirm(url, "group.delete", question, "not deleted", group=group, **_only(topic))
    with_client(url, lambda client: client.admin.delete_group(group, topic))
    print_result({"deleted": group}, f"deleted {group} {_where(topic)}", as_json=as_json)


def _only(topic: str | None) -> dict[str, Any]:
    return {} if topic is None else {"topic": topic}


def _where(topic: str | None) -> str:
    return "in all its streams" if topic is None else f"in {topic}"
