"""`linn plugins`: which plugins there are, what they bring, and what keeps one from loading."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.commands.plugin_new import HELP, new
from linn.cli.noun import noun
from linn.cli.options import Json

app = noun("Look at plugins: which there are, and what they bring. Or begin one.")
app.command("new", help=HELP)(new)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The plugin, or something that it brings: dram.")]
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Also what this configuration's [plugins] loads and blocks."),
]


@app.command("list")
def list_plugins(config: Config = None, as_json: Json = False) -> None:
    """All plugins with what each brings. Ends with 3 where one can't be loaded: a broker would not start.

    One that is incomplete is loaded, but something that it needs is not installed: what uses it fails.
    """
    from linn.cli.installed_plugins import list_all

    if not list_all(config, as_json=as_json):
        raise typer.Exit(3)


@app.command("describe")
def describe(name: Name, config: Config = None, as_json: Json = False) -> None:
    """One plugin: where it comes from, what it brings, and every setting of that."""
    from linn.cli.installed_plugins import describe_one

    describe_one(name, config, as_json=as_json)
