"""Consumer groups over the wire: what the commands of `linn groups` do, and how they show it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from linn.cli.moment import Place
from linn.cli.render.console import tell
from linn.cli.render.table import Column, number, numbers, print_table, wide
from linn.cli.session import with_client
from linn.client.admin_types import GroupOffset


def list_all(url: str, topic: str | None, *, as_json: bool) -> None:
    """Print groups. Raises LinnError."""
    groups = with_client(url, lambda client: client.admin.groups(topic))
    if as_json:
        print(json.dumps(groups, indent=2))
        return
    if not groups:
        print("no groups yet: one comes into being when its first member subscribes to a stream")
        return
    rows = [
        [group["topic"], group["group"], *(f"{group[name]:,}" for name in ("members", "generation", "lag"))]
        for group in groups
    ]
    print_table(["topic", "group", number("members"), wide(number("generation")), number("lag")], rows)


def describe_one(url: str, topic: str, group: str, *, as_json: bool) -> None:
    """Print one group's places. Raises LinnError."""
    _show(with_client(url, lambda client: client.admin.group_offsets(topic, group)), f"{group} of {topic}", as_json)


def _show(places: list[GroupOffset], title: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps(places, indent=2))
        return
    rows = [
        [
            str(place["partition"]),
            f"{place['start']:,}",
            "nothing" if place["offset"] is None else f"{place['offset']:,}",
            f"{place['end']:,}",
            f"{place['lag']:,}",
            place["member"] or "nobody",
        ]
        for place in places
    ]
    heads = (number("partition"), wide(number("start")), *numbers("committed", "end", "lag"), Column("member"))
    print_table(heads, rows, title)


def reset_one(url: str, topic: str, group: str, to: Place, partitions: Sequence[int], *, as_json: bool) -> None:
    """Move a group, and print where it is then. Raises LinnError."""
    places = with_client(url, lambda client: client.admin.reset_group(topic, group, to, partitions))
    _show(places, f"{group} of {topic} goes on", as_json)


def delete_one(url: str, topic: str, group: str, *, as_json: bool) -> None:
    """Delete a group, and say so. Raises LinnError."""
    with_client(url, lambda client: client.admin.delete_group(topic, group))
    tell({"deleted": group}, f"deleted {group} of {topic}", as_json=as_json)
