"""`linn topics`: look at topics, make, change and delete them."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import setting_keys, topic_names
from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.setting_options import TopicSettingsCommand

app = noun("Look at topics, make, change and delete them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.", autocompletion=topic_names)]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings as in TOML: kind=stream retention=14d, or --kind stream --retention 14d",
        autocompletion=setting_keys,
    ),
]
Write = Annotated[
    str | None,
    typer.Option("--write", metavar="FILE", help="Change the broker's configuration file, too; comments are kept."),
]


@app.command("list")
def list_topics(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """All topics with what they hold."""
    from linn.cli.topic_admin import list_all

    list_all(url, as_json=as_json)


@app.command("describe")
def describe(name: Name, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """One topic: its settings, partitions and queue."""
    from linn.cli.topic_admin import describe_one

    describe_one(url, name, as_json=as_json)


@app.command("create", cls=TopicSettingsCommand)
def create(name: NewName, settings: Settings = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Make a topic. Where it exists with the same settings, nothing happens."""
    from linn.cli.topic_admin import create_one
    from linn.cli.typed_value import named_values

    create_one(url, name, named_values(settings or (), "KEY=VALUE"), as_json=as_json)


@app.command("alter", cls=TopicSettingsCommand)
def alter(
    name: Name, settings: Settings = None, write: Write = None, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """Change settings of a topic while it is used; what can't change in place says so.

    The change lasts, unless the configuration file names the key: then the file counts at the next start, a warning
    says on which line, and --write changes the file as well.
    """
    if not settings:
        raise typer.BadParameter("name at least one KEY=VALUE to change")
    from linn.cli.topic_admin import alter_one
    from linn.cli.typed_value import named_values

    alter_one(url, name, named_values(settings, "KEY=VALUE"), write, as_json=as_json)


@app.command("delete")
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete a topic and everything in it."""
    if not yes:
        confirm(url, "topic.delete", f"Delete the topic {name} and everything in it?", "not deleted", name=name)
    from linn.cli.topic_admin import delete_one

    delete_one(url, name, warn=yes, as_json=as_json)
