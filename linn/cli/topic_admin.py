"""Topics over the wire: what the commands of `linn topics` do, and how they show it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from linn.cli.exit_code import complain
from linn.cli.render.console import tell
from linn.cli.render.table import number, numbers, print_table, wide
from linn.cli.session import with_client
from linn.client.client import Client
from linn.core.errors.texts import counted
from linn.core.errors.tree import ConfigError

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
    counts = (wide(number("partitions")), number("records"), wide(number("bytes")), *numbers("unsettled", "consumers"))
    print_table(["topic", "kind", *counts], map(_summary, topics))


def _summary(topic: Topic) -> list[str]:
    partitions, queue = topic["partitions"], topic.get("queue", {})
    return [
        topic["name"],
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
    print_settings(topic["settings"], topic["name"])
    partitions = [
        [str(index), *(f"{partition[what]:,}" for what in ("start", "end", "bytes"))]
        for index, partition in enumerate(topic["partitions"])
    ]
    print_table(numbers("partition", "start", "end", "bytes"), partitions)
    for what, count in topic.get("queue", {}).items():
        print(f"{what}: {count:,}")


def print_settings(settings: Mapping[str, Any], title: str) -> None:
    """Print settings, text as it is and the rest as JSON."""
    print_table(
        ["setting", "value"],
        [[key, value if isinstance(value, str) else json.dumps(value)] for key, value in settings.items()],
        title,
    )


def create_one(url: str, name: str, settings: Mapping[str, Any], *, as_json: bool) -> None:
    """Make a topic, and say so. Raises LinnError."""
    arguments = {"name": name, "settings": dict(settings)}
    done = with_client(url, lambda client: client.admin.perform("topic.create", **arguments))
    words = f"created {name}" if done["created"] else f"{name} exists with these settings"
    tell({"created": done["created"]}, words, as_json=as_json)


def alter_one(url: str, name: str, settings: Mapping[str, Any], write: str | None, *, as_json: bool) -> None:
    """Change a topic, and the configuration file `write`; say what changed. Raises LinnError."""
    if write is None:
        done = with_client(url, lambda client: _alter(client, name, settings))
        for warning in done["warnings"]:
            advice = f"`linn topics alter --write {warning['file']}` changes the file"
            complain(f"warning: {warning['text']}; {advice}")
    else:
        done = _alter_and_write(url, name, settings, write)
    changed = done["changed"]
    words = f"changed {', '.join(changed)}" if changed else f"{name} has these settings already"
    if write is not None:
        words += f"; wrote {write}"
    tell({"changed": changed, "warnings": done["warnings"], "written": write}, words, as_json=as_json)


async def _alter(client: Client, name: str, settings: Mapping[str, Any]) -> Any:
    return await client.admin.perform("topic.alter", name=name, settings=dict(settings))


def _alter_and_write(url: str, name: str, settings: Mapping[str, Any], file: str) -> Any:
    """Change both or, where one of them refuses, neither. The warnings say nothing new then, and are left out."""
    from linn.cli.config_edit import ConfigEdit  # Reading files and loading plugins takes long; tomlkit does, too.

    edit = ConfigEdit(file, name, settings)

    async def change(client: Client) -> Any:
        broker = (await client.admin.broker())["name"]
        if broker != edit.config.broker.name:
            raise ConfigError(f'{file}: is of the broker "{edit.config.broker.name}", and {url} is "{broker}"')
        with edit.written():
            return await _alter(client, name, settings)

    return with_client(url, change) | {"warnings": []}


def delete_one(url: str, name: str, *, warn: bool, as_json: bool) -> None:
    """Delete a topic, and say so; `warn`: and that the next start makes it again, if so. Raises LinnError."""
    done = with_client(url, lambda client: client.admin.perform("topic.delete", name=name))
    for warning in done["warnings"] if warn else ():
        complain(f"warning: {warning['text']}")
    tell({"deleted": name}, f"deleted {name}", as_json=as_json)


def purge_one(url: str, name: str, *, as_json: bool) -> None:
    """Settle all that waits in a queue, and say how much that was. Raises LinnError."""
    purged = with_client(url, lambda client: client.admin.purge_topic(name))
    tell({"purged": purged}, f"purged {counted(purged, 'message')} of {name}", as_json=as_json)
