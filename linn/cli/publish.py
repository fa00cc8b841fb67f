"""`linn publish`: send messages."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC [VALUE]...", help="Where to, unless --exchange says it; then the messages."),
]
Exchange = Annotated[str | None, typer.Option("--exchange", metavar="NAME", help="Publish to this exchange.")]
Key = Annotated[str | None, typer.Option("--key", metavar="TEXT", help="What partitions and key order go by.")]
RoutingKey = Annotated[str, typer.Option("--routing-key", metavar="KEY", help="What exchanges go by.")]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="A label; 4, 2.5 and true have types. May be repeated."),
]
Header = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="May be repeated.")]


def publish(
    arguments: Arguments = None,
    exchange: Exchange = None,
    key: Key = None,
    routing_key: RoutingKey = "",
    label: Label = None,
    header: Header = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Publish each VALUE as a message, or each line of stdin where there is none; wait for their confirmation."""
    values = list(arguments or ())
    if exchange is None and not values:
        raise typer.BadParameter("name a TOPIC, or an exchange with --exchange")
    target = exchange if exchange is not None else values.pop(0)
    from linn.cli import typed_value
    from linn.cli.publishing import Publishing

    Publishing(
        url,
        target,
        to_exchange=exchange is not None,
        key=key,
        routing_key=routing_key,
        labels=typed_value.labels(label or ()),
        headers=typed_value.headers(header or ()),
        as_json=as_json,
    ).run(values)
