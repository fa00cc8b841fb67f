"""`linn publish`: send messages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linn.cli.completion import exchange_names, published_to
from linn.cli.options import DEFAULT_URL, Json, Url

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC [VALUE]...",
        help="Where to, unless --exchange says it; then the messages.",
        autocompletion=published_to,
    ),
]
Exchange = Annotated[
    str | None,
    typer.Option("--exchange", metavar="NAME", help="Publish to this exchange.", autocompletion=exchange_names),
]
Key = Annotated[str | None, typer.Option("--key", metavar="TEXT", help="What partitions and key order go by.")]
RoutingKey = Annotated[str, typer.Option("--routing-key", metavar="KEY", help="What exchanges go by.")]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="A label; 4, 2.5 and true have types. May be repeated."),
]
Header = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="May be repeated.")]
Mandatory = Annotated[
    bool, typer.Option("--mandatory", help="Fail where no binding of the exchange sends a message to a topic.")
]
File = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        readable=True,
        help="A file whose content is one message. May be repeated.",
    ),
]
Input = Annotated[
    str,
    typer.Option(
        "--input",
        metavar="FORMAT",
        help="What a line of stdin is. lines: a value. json: a message as `linn consume --format json` prints it.",
    ),
]
CountMax = Annotated[
    int | None,
    typer.Option("--count", min=1, metavar="COUNT", help="Stop after so many; VALUEs and files begin again."),
]
Rate = Annotated[str | None, typer.Option("--rate", metavar="RATE", help="At most so many: 100/s, 6000/m, 5/h.")]


def publish(
    arguments: Arguments = None,
    exchange: Exchange = None,
    key: Key = None,
    routing_key: RoutingKey = "",
    label: Label = None,
    header: Header = None,
    mandatory: Mandatory = False,
    file: File = None,
    form: Input = "lines",
    count: CountMax = None,
    rate: Rate = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Publish each VALUE and file as a message, or each line of stdin where there are none; wait for confirmation."""
    values = list(arguments or ())
    if exchange is None and not values:
        raise typer.BadParameter("name a TOPIC, or an exchange with --exchange")
    if form not in ("lines", "json"):
        raise typer.BadParameter("must be lines or json", param_hint="--input")
    target = exchange if exchange is not None else values.pop(0)
    if form == "json" and (values or file):
        raise typer.BadParameter(
            "says what stdin is, which is not read where there are values or files", param_hint="--input"
        )
    import os

    from linn.bench.pace import rate_of
    from linn.cli import typed_value
    from linn.cli.outgoing import Outgoing
    from linn.cli.publishing import Publishing
    from linn.cli.source import Source

    plain = Outgoing(
        None,
        None if key is None else os.fsencode(key),
        routing_key,
        typed_value.labels(label or ()),
        typed_value.headers(header or ()),
    )
    source = Source(plain, values, file or (), as_json=form == "json", count=count)
    pace = None if rate is None else rate_of(rate)
    to_exchange = exchange is not None
    Publishing(url, target, to_exchange=to_exchange, mandatory=mandatory, rate=pace, as_json=as_json).run(source)
