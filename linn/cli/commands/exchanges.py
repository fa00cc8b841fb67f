"""`linn exchanges`: look at exchanges, make and delete them."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import exchange_names, setting_keys
from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.setting_options import ExchangeSettingsCommand

app = noun("Look at exchanges, make and delete them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The exchange.", autocompletion=exchange_names)]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="The exchange.")]
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
    """All exchanges with their types and how many bindings they have."""
    from linn.cli.exchange_admin import list_all

    list_all(url, as_json=as_json)


@app.command("describe")
def describe(name: Name, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """One exchange: its settings, and what it sends to whom."""
    from linn.cli.exchange_admin import describe_one

    describe_one(url, name, as_json=as_json)


@app.command("create", cls=ExchangeSettingsCommand)
def create(name: NewName, settings: Settings = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Make an exchange. Where it exists with the same settings, nothing happens."""
    from linn.cli.exchange_admin import create_one
    from linn.cli.typed_value import named_values

    create_one(url, name, named_values(settings or (), "KEY=VALUE"), as_json=as_json)


@app.command("delete")
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete an exchange that has no bindings any more."""
    if not yes:
        confirm(url, "exchange.delete", f"Delete the exchange {name}?", "not deleted", name=name)
    from linn.cli.exchange_admin import delete_one

    delete_one(url, name, as_json=as_json)
