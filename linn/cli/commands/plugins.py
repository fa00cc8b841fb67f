"""`linn plugins`: list, describe and create plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.commands.plugin_new import HELP, new
from linn.cli.noun import noun
from linn.cli.options import Json
from linn.cli.render.console import print_json, print_text
from linn.cli.render.table import Cell, print_table, wide

if TYPE_CHECKING:
    from linn.cli.installed_plugins import Plugin

app = noun("List and describe plugins, or create one.")
app.command("new", help=HELP)(new)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the plugin, or of something that it brings: dram.")]
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration file whose [plugins] loads and blocks plugins."),
]
_COLOURS = {"failed": "red", "incomplete": "yellow", "blocked": "yellow"}


@app.command("list")
def list_plugins(config: Config = None, as_json: Json = False) -> None:
    """List all plugins with the kinds that they bring. Ends with 3 if one can't be loaded, as a broker would not start.

    An incomplete plugin is loaded, but one of its dependencies is not installed: its use fails.
    """
    from linn.cli.installed_plugins import found, load_error

    plugins = found(config)
    error = load_error(config)
    if as_json:
        print_json({"plugins": [plugin.data() for plugin in plugins], "error": error})
    else:
        _print_plugins(plugins)
        if error is not None and error not in (plugin.error for plugin in plugins):
            print_text(error)
    if error is not None:
        raise typer.Exit(3)


def _print_plugins(plugins: Sequence[Plugin]) -> None:
    from rich.text import Text

    rows: list[list[Cell]] = []
    for plugin in plugins:
        brings = ", ".join(f"{kind} {name}" for kind, name in plugin.brings)
        state = Text(plugin.state, _COLOURS.get(plugin.state, "green"))
        rows.append([plugin.name, plugin.distribution, brings, state])
    print_table(["plugin", wide("from"), "brings", "state"], rows)
    for plugin in plugins:
        if plugin.error is not None:
            print_text(plugin.error)


@app.command("describe")
def describe(name: Name, config: Config = None, as_json: Json = False) -> None:
    """Show the origin of one plugin, and everything that it brings with all settings."""
    from linn.cli.installed_plugins import found, kind_settings, plugin_named

    plugin = plugin_named(name, found(config))
    brings = [(kind, brought, kind_settings(made)) for (kind, brought), made in plugin.brings.items()]
    if as_json:
        shown = [{"what": kind, "name": brought, "settings": settings} for kind, brought, settings in brings]
        print_json(plugin.data() | {"brings": shown})
        return
    print_text(f"{plugin.name}: {plugin.module}, {plugin.distribution}, {plugin.state}")
    if plugin.error is not None:
        print_text(plugin.error)
    for kind, brought, settings in brings:
        if settings:
            _print_settings(f"{kind} {brought}", settings)
        else:
            print_text(f"{kind} {brought}: no settings")


def _print_settings(title: str, settings: Sequence[Mapping[str, Any]]) -> None:
    import json

    rows = [
        [setting["key"], "" if setting["default"] is None else json.dumps(setting["default"]), setting["help"]]
        for setting in settings
    ]
    print_table(["setting", "default", "what it says"], rows, title)
