"""`linn bindings`: list, create and delete the bindings of exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from linn.cli.completion import exchange_names, target_names
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import print_table
from linn.cli.session import with_client

app = noun("List, describe, create and delete bindings of exchanges.")

Exchange = Annotated[str, typer.Argument(metavar="EXCHANGE", help="Source exchange.", autocompletion=exchange_names)]
AnyExchange = Annotated[
    str | None, typer.Argument(metavar="[EXCHANGE]", help="Only this exchange.", autocompletion=exchange_names)
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="Target topic, or with --to-exchange the target exchange.", autocompletion=target_names
    ),
]
AnyTarget = Annotated[
    str | None,
    typer.Argument(metavar="[TARGET]", help="Only bindings to this topic or exchange.", autocompletion=target_names),
]
Key = Annotated[
    str, typer.Option("--key", metavar="KEY", help="Routing key or pattern, depending on the exchange's type.")
]
ToExchange = Annotated[bool, typer.Option("--to-exchange", help="TARGET is an exchange.")]
Argument = Annotated[
    list[str] | None,
    typer.Option(
        "--argument", metavar="NAME=VALUE", help="Argument for the exchange's type: when='size > 9'. May be repeated."
    ),
]


@app.command("list")
def list_bindings(exchange: AnyExchange = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all bindings, or the bindings of one exchange."""
    _list(url, exchange, None, as_json=as_json)


@app.command("describe")
def describe(exchange: Exchange, target: AnyTarget = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the bindings of one exchange, or only its bindings to one target."""
    _list(url, exchange, target, as_json=as_json)


def _list(url: str, exchange: str | None, target: str | None, *, as_json: bool) -> None:
    if exchange is None:
        bindings = bindings_of(with_client(url, lambda client: client.admin.exchanges()))
    else:
        bindings = bindings_of([with_client(url, lambda client: client.admin.perform("exchange.show", name=exchange))])
    bindings = [binding for binding in bindings if target in (None, binding["target"])]
    if as_json:
        print_json(bindings)
    else:
        print_bindings(bindings)


def bindings_of(exchanges: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Flatten descriptions of exchanges to a list of bindings, each with its exchange and target."""
    return [
        {
            "exchange": exchange["name"],
            "to": "topic" if "topic" in binding else "exchange",
            "target": binding.get("topic", binding.get("exchange")),
            "key": binding["key"],
            "arguments": binding["arguments"],
        }
        for exchange in exchanges
        for binding in exchange["bindings"]
    ]


def print_bindings(bindings: Sequence[Mapping[str, Any]]) -> None:
    """Print bindings as a table."""
    if not bindings:
        print("no bindings yet: linn bindings create EXCHANGE TOPIC --key KEY")
        return
    rows = []
    for binding in bindings:
        arguments = ", ".join(f"{name}={_text(value)}" for name, value in binding["arguments"].items())
        target = f"exchange {binding['target']}" if binding["to"] == "exchange" else binding["target"]
        rows.append([binding["exchange"], binding["key"], arguments, target])
    print_table(["exchange", "key", "arguments", "sends to"], rows)


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)


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
    """Bind a topic or another exchange to an exchange. If the binding exists, nothing happens."""
    change = _change(exchange, target, key, argument, to_exchange=to_exchange)
    created = with_client(url, lambda client: client.admin.perform("exchange.bind", **change))["created"]
    name = f"{'exchange ' * to_exchange}{target}"
    text = f"bound {name} to {exchange}" if created else f"nothing to do: {name} is bound like this to {exchange}"
    print_result({"exchange": exchange, "target": target, "created": created}, text, as_json=as_json)


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
    """Delete the binding with this key and these arguments. If there is none, nothing happens."""
    change = _change(exchange, target, key, argument, to_exchange=to_exchange)
    deleted = with_client(url, lambda client: client.admin.perform("exchange.unbind", **change))["deleted"]
    name = f"{'exchange ' * to_exchange}{target}"
    text = f"unbound {name} from {exchange}" if deleted else f"nothing to do: {exchange} has no such binding to {name}"
    print_result({"exchange": exchange, "target": target, "deleted": deleted}, text, as_json=as_json)


def _change(exchange: str, target: str, key: str, argument: list[str] | None, *, to_exchange: bool) -> dict[str, Any]:
    """Arguments of the verbs `exchange.bind` and `exchange.unbind`. Raises BadParameter."""
    from linn.cli.typed_value import named_values

    arguments = named_values(argument or (), "--argument")
    return {"exchange": exchange, "key": key, "arguments": arguments} | {
        "target_exchange" if to_exchange else "topic": target
    }
