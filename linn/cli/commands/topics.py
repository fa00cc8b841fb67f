"""`linn topics`: list, describe, create, alter and delete topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import setting_keys, topic_names
from linn.cli.confirm import confirm
from linn.cli.exit_code import complain
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import number, numbers, print_settings, print_table, wide
from linn.cli.session import with_client
from linn.cli.setting_options import TopicSettingsCommand
from linn.core.errors.texts import counted
from linn.core.errors.tree import ConfigError

if TYPE_CHECKING:
    from linn.client.client import Client
    from linn.descriptions import FollowerDescription

app = noun("List, describe, create, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.", autocompletion=topic_names)]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings as in TOML: kind=stream retention=14d, or --kind stream --retention 14d; "
        "spark_sink.value=json for a key of a table",
        autocompletion=setting_keys,
    ),
]
Write = Annotated[
    str | None,
    typer.Option("--write", metavar="FILE", help="Change the broker's configuration file, too; comments are kept."),
]


@app.command("list")
def list_topics(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all topics with their records, bytes and consumers."""
    topics = with_client(url, lambda client: client.admin.topics())
    if as_json:
        print_json(topics)
        return
    if not topics:
        print("no topics yet: linn topics create NAME kind=queue")
        return
    counts = (wide(number("partitions")), number("records"), wide(number("bytes")), *numbers("unsettled", "consumers"))
    print_table(["topic", "kind", *counts], map(_summary, topics))


def _summary(topic: Mapping[str, Any]) -> list[str]:
    partitions, queue = topic["partitions"], topic.get("queue", {})
    return [
        topic["name"],
        topic["settings"]["kind"],
        str(len(partitions)),
        f"{sum(partition['records'] for partition in partitions):,}",
        f"{sum(partition['bytes'] for partition in partitions):,}",
        f"{queue['unsettled']:,}" if queue else "",
        f"{queue['consumers']:,}" if queue else "",
    ]


@app.command("describe")
def describe(name: Name, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the settings, partitions and queue of one topic."""
    topic = with_client(url, lambda client: client.admin.topic(name))
    if as_json:
        print_json(topic)
        return
    print_settings(topic["settings"], topic["name"])
    print(f"id: {topic['id']}")
    if (replicas := topic.get("replicas")) is not None:
        nodes, in_sync = (", ".join(map(str, replicas[key])) for key in ("nodes", "in_sync"))
        leader = f"node {replicas['leader']} leads" if replicas["leader"] else "no node leads: those in sync are down"
        print(f"{leader}, in epoch {replicas['epoch']}; replicas: {nodes}; in sync: {in_sync}")
        for follower in replicas["followers"]:
            print(_follower_text(follower))
    partitions = [
        [str(index), *(f"{partition[column]:,}" for column in ("start", "end", "records", "bytes"))]
        for index, partition in enumerate(topic["partitions"])
    ]
    print_table(numbers("partition", "start", "end", "records", "bytes"), partitions)
    for state, count in topic.get("queue", {}).items():
        print(f"{state}: {count:,}")


def _follower_text(follower: FollowerDescription) -> str:
    """Describe how far a follower is behind."""
    node, count = f"node {follower['node']}", follower["lag_records"]
    if follower["is_linked"] and not follower["lag_s"]:
        return f"{node} has everything"
    lacks = "" if count is None else f", and lacks {counted(count, 'record')}"
    verb = "follows" if follower["is_linked"] else "does not follow"
    return f"{node} {verb}: it had everything {follower['lag_s']:,.1f} s ago{lacks}"


@app.command("create", cls=TopicSettingsCommand)
def create(name: NewName, settings: Settings = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Create a topic. If it exists with the same settings, nothing happens."""
    from linn.cli.typed_value import named_values

    arguments = {"name": name, "settings": named_values(settings or (), "KEY=VALUE")}
    done = with_client(url, lambda client: client.admin.perform("topic.create", **arguments))
    text = f"created {name}" if done["created"] else f"{name} exists with these settings"
    print_result({"created": done["created"]}, text, as_json=as_json)


@app.command("alter", cls=TopicSettingsCommand)
def alter(
    name: Name, settings: Settings = None, write: Write = None, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """Change settings of a topic while it is in use. Settings that can't be changed in place are refused.

    The change lasts, unless the configuration file names the key: then the file counts at the next start, a warning
    names the line, and --write changes the file as well.
    """
    if not settings:
        raise typer.BadParameter("name at least one KEY=VALUE to change")
    from linn.cli.typed_value import named_values

    wanted = named_values(settings, "KEY=VALUE")
    if write is None:
        done = with_client(url, lambda client: _alter(client, name, wanted))
        for warning in done["warnings"]:
            advice = f"`linn topics alter --write {warning['file']}` changes the file"
            complain(f"warning: {warning['text']}; {advice}")
    else:
        done = _alter_and_write(url, name, wanted, write)
    changed = done["changed"]
    text = f"changed {', '.join(changed)}" if changed else f"{name} has these settings already"
    if write is not None:
        text += f"; wrote {write}"
    print_result({"changed": changed, "warnings": done["warnings"], "written": write}, text, as_json=as_json)


async def _alter(client: Client, name: str, settings: Mapping[str, Any]) -> Any:
    return await client.admin.perform("topic.alter", name=name, settings=dict(settings))


def _alter_and_write(url: str, name: str, settings: Mapping[str, Any], file: str) -> Any:
    """Change both the topic and the file or, if one of them refuses, neither; the answer carries no warnings."""
    from linn.cli.config_edit import ConfigEdit  # Loads tomlkit and all plugins.

    edit = ConfigEdit(file, name, settings)

    async def change(client: Client) -> Any:
        broker = (await client.admin.broker())["name"]
        if broker != edit.config.broker.name:
            raise ConfigError(f'{file}: is of the broker "{edit.config.broker.name}", and {url} is "{broker}"')
        with edit.written():
            return await _alter(client, name, settings)

    return with_client(url, change) | {"warnings": []}


@app.command("delete")
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete a topic with all its messages."""
    if not yes:
        confirm(url, "topic.delete", f"Delete the topic {name} and everything in it?", "not deleted", name=name)
    done = with_client(url, lambda client: client.admin.perform("topic.delete", name=name))
    for warning in done["warnings"] if yes else ():  # `confirm` has printed them already.
        complain(f"warning: {warning['text']}")
    print_result({"deleted": name}, f"deleted {name}", as_json=as_json)
