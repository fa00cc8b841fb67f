"""`linn exchanges`: list, describe, create and delete exchanges."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.commands.bindings import bindings_of, print_bindings
from linn.cli.completion import exchange_names, setting_keys
from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import number, print_settings, print_table
from linn.cli.session import with_client
from linn.cli.setting_options import ExchangeSettingsCommand

app = noun("List, describe, create and delete exchanges.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the exchange.", autocompletion=exchange_names)]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the exchange.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings as in TOML: type=topic alternate=unrouted, or --type topic ...",
        autocompletion=setting_keys,
    ),
]


@app.command("list")
def list_exchanges(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all exchanges with their types, alternates and numbers of bindings."""
    exchanges = with_client(url, lambda client: client.admin.exchanges())
    if as_json:
        print_json(exchanges)
        return
    if not exchanges:
        print("no exchanges yet: linn exchanges create NAME type=topic")
        return
    rows = [
        [exchange["name"], exchange["type"], exchange.get("alternate") or "nobody", f"{len(exchange['bindings']):,}"]
        for exchange in exchanges
    ]
    print_table(["exchange", "type", "the rest goes to", number("bindings")], rows)


@app.command("describe")
def describe(name: Name, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the settings and bindings of one exchange."""
    exchange = with_client(url, lambda client: client.admin.perform("exchange.show", name=name))
    if as_json:
        print_json(exchange)
        return
    shown = {"type": exchange["type"], "alternate": exchange.get("alternate"), **exchange.get("settings", {})}
    print_settings({key: value for key, value in shown.items() if value is not None}, name)
    print_bindings(bindings_of([exchange]))


@app.command("create", cls=ExchangeSettingsCommand)
def create(name: NewName, settings: Settings = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Create an exchange. If it exists with the same settings, nothing happens."""
    from linn.cli.typed_value import named_values

    arguments = {"name": name, "settings": named_values(settings or (), "KEY=VALUE")}
    done = with_client(url, lambda client: client.admin.perform("exchange.create", **arguments))
    text = f"created {name}" if done["created"] else f"{name} exists with these settings"
    print_result({"created": done["created"]}, text, as_json=as_json)


@app.command("delete")
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete an exchange that has no bindings."""
    if not yes:
        confirm(url, "exchange.delete", f"Delete the exchange {name}?", "not deleted", name=name)
    with_client(url, lambda client: client.admin.delete_exchange(name))
    print_result({"deleted": name}, f"deleted {name}", as_json=as_json)
