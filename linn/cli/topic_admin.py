"""Topics over the wire: what the commands of `linn topics` do, and how they show it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from linn.cli.console import cell, columns_right, console, tell
from linn.cli.session import with_client

Topic = Mapping[str, Any]
"""A topic as the broker describes it: name, settings, partitions and, where it has one, queue."""


def list_all(url: str, *, as_json: bool) -> None:
    """Print all topics. Raises LinnError."""
    topics = with_client(url, lambda client: client.admin.topics())
    if as_json:
        print(json.dumps(topics, indent=2))
        return
    if not topics:
        print("no topics yet: linn topics create NAME kind=queue")
        return
    table = Table("topic", "kind", "partitions", "records", "bytes", "unsettled", "consumers")
    columns_right(table, 2)
    for topic in topics:
        table.add_row(*_summary(topic))
    console().print(table)


def _summary(topic: Topic) -> list[str]:
    partitions, queue = topic["partitions"], topic.get("queue", {})
    return [
        cell(topic["name"]),
        topic["settings"]["kind"],
        str(len(partitions)),
        f"{sum(partition['end'] - partition['start'] for partition in partitions):,}",
        f"{sum(partition['bytes'] for partition in partitions):,}",
        f"{queue['unsettled']:,}" if queue else "",
        f"{queue['consumers']:,}" if queue else "",
    ]


def describe_one(url: str, name: str, *, as_json: bool) -> None:
    """Print one topic. Raises LinnError."""
    topic = with_client(url, lambda client: client.admin.topic(name))
    if as_json:
        print(json.dumps(topic, indent=2))
        return
    console().print(_settings_table(topic))
    console().print(_partitions_table(topic))
    for what, number in topic.get("queue", {}).items():
        print(f"{what}: {number:,}")


def _settings_table(topic: Topic) -> Table:
    table = Table("setting", "value", title=cell(topic["name"]), title_justify="left")
    for key, value in topic["settings"].items():
        table.add_row(cell(key), cell(value if isinstance(value, str) else json.dumps(value)))
    return table


def _partitions_table(topic: Topic) -> Table:
    table = Table("partition", "start", "end", "bytes")
    columns_right(table, 0)
    for index, partition in enumerate(topic["partitions"]):
        table.add_row(str(index), *(f"{partition[what]:,}" for what in ("start", "end", "bytes")))
    return table


def create_one(url: str, name: str, settings: Mapping[str, Any], *, as_json: bool) -> None:
    """Make a topic, and say so. Raises LinnError."""
    arguments = {"name": name, "settings": dict(settings)}
    done = with_client(url, lambda client: client.admin.perform("topic.create", **arguments))
    words = f"created {name}" if done["created"] else f"{name} exists with these settings"
    tell({"created": done["created"]}, words, as_json=as_json)


def alter_one(url: str, name: str, settings: Mapping[str, Any], *, as_json: bool) -> None:
    """Change a topic, and say what changed. Raises LinnError."""
    arguments = {"name": name, "settings": dict(settings)}
    changed = with_client(url, lambda client: client.admin.perform("topic.alter", **arguments))["changed"]
    words = f"changed {', '.join(changed)}" if changed else f"{name} has these settings already"
    tell({"changed": changed}, words, as_json=as_json)


def delete_one(url: str, name: str, *, as_json: bool) -> None:
    """Delete a topic, and say so. Raises LinnError."""
    with_client(url, lambda client: client.admin.delete_topic(name))
    tell({"deleted": name}, f"deleted {name}", as_json=as_json)


def purge_one(url: str, name: str, *, as_json: bool) -> None:
    """Settle all that waits in a queue, and say how much that was. Raises LinnError."""
    purged = with_client(url, lambda client: client.admin.purge_topic(name))
    tell({"purged": purged}, f"purged {purged:,} message{'s' * (purged != 1)} of {name}", as_json=as_json)
