"""`linn bindings`: what exchanges send to topics and to other exchanges."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import exchange_names, target_names
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url

app = noun("Look at what exchanges send to whom; make bindings and take them back.")

Exchange = Annotated[
    str, typer.Argument(metavar="EXCHANGE", help="The exchange that sends.", autocompletion=exchange_names)
]
AnyExchange = Annotated[
    str | None, typer.Argument(metavar="[EXCHANGE]", help="Of this exchange only.", autocompletion=exchange_names)
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="The topic, or with --to-exchange the exchange.", autocompletion=target_names
    ),
]
AnyTarget = Annotated[
    str | None,
    typer.Argument(metavar="[TARGET]", help="The topic or exchange that it sends to.", autocompletion=target_names),
]
Key = Annotated[
    str, typer.Option("--key", metavar="KEY", help="Routing key or pattern, as the exchange's type reads it.")
]
ToExchange = Annotated[bool, typer.Option("--to-exchange", help="TARGET is an exchange.")]
Argument = Annotated[
    list[str] | None,
    typer.Option("--argument", metavar="NAME=VALUE", help="For the exchange's type: when='size > 9'. May be repeated."),
]


@app.command("list")
def list_bindings(exchange: AnyExchange = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """All bindings."""
    from linn.cli.exchange_admin import list_bindings

    list_bindings(url, exchange, as_json=as_json)


@app.command("describe")
def describe(exchange: Exchange, target: AnyTarget = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """The bindings of one exchange, or only those to one target."""
    from linn.cli.exchange_admin import list_bindings

    list_bindings(url, exchange, target, as_json=as_json)


@app.command("create")
def create(
    exchange: Exchange,
    target: Target,
    key: Key = "",
    argument: Argument = None,
    to_exchange: ToExchange = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Have an exchange send what matches to a topic or to another exchange. What is there already stays as it is."""
    from linn.cli.exchange_admin import bind
    from linn.cli.typed_value import named_values

    arguments = named_values(argument or (), "--argument")
    bind(url, exchange, target, key, arguments, to_exchange=to_exchange, gone=False, as_json=as_json)


@app.command("delete")
def delete(
    exchange: Exchange,
    target: Target,
    key: Key = "",
    argument: Argument = None,
    to_exchange: ToExchange = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Take a binding back: the one with this key and these arguments. No error where there is none."""
    from linn.cli.exchange_admin import bind
    from linn.cli.typed_value import named_values

    arguments = named_values(argument or (), "--argument")
    bind(url, exchange, target, key, arguments, to_exchange=to_exchange, gone=True, as_json=as_json)
