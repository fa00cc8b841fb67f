"""`linn route`: where messages go and why, and what another configuration would change."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import exchange_names
from linn.cli.exit_code import ExitCode, complain, exit_code_of
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.core.errors.tree import LinnError

app = typer.Typer(help="See where messages go, why, and what would change.", no_args_is_help=True)

Exchange = Annotated[
    str,
    typer.Option(
        "--exchange",
        metavar="NAME",
        help='The exchange that is published to; "" is the default one.',
        autocompletion=exchange_names,
    ),
]
Config = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Ask this configuration instead of a broker.")
]
RoutingKey = Annotated[str, typer.Option("--routing-key", metavar="KEY", help="The message's routing key.")]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="A label; 4, 2.5 and true have types. May be repeated."),
]
Header = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="May be repeated.")]
Key = Annotated[str | None, typer.Option("--key", metavar="TEXT", help="The message's key.")]
Size = Annotated[int, typer.Option("--size", metavar="BYTES", min=0, help="The size of its value.")]
Misses = Annotated[
    int, typer.Option("--misses", metavar="N", min=0, help="Bindings that do not match to show, nearest first.")
]


@app.command("explain")
def explain(
    exchange: Exchange,
    routing_key: RoutingKey = "",
    label: Label = None,
    header: Header = None,
    key: Key = None,
    size: Size = 0,
    misses: Misses = 5,
    config: Config = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Say which bindings match a message and why, through all exchanges and alternates on its way.

    Nothing is published. Ends with 0 also where the message would go nowhere.
    """
    from linn.cli import typed_value
    from linn.cli.render.route_tree import explain_route
    from linn.cli.routing.route_map import map_of_broker, map_of_config, subject_from

    subject = subject_from(
        routing_key, typed_value.labels(label or ()), key, typed_value.headers(header or ()), size_bytes=size
    )
    routes = map_of_broker(url) if config is None else map_of_config(config)
    explain_route(routes, exchange, subject, misses_max=misses, as_json=as_json)


@app.command("diff")
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A configuration file.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another one.")],
    sample: Annotated[
        str, typer.Option("--sample", metavar="FILE", help="Messages, as `linn consume --format json` prints them.")
    ],
    exchange: Annotated[
        list[str] | None, typer.Option("--exchange", metavar="NAME", help="Only this exchange. May be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which messages of a sample would go to other topics under another configuration.

    Each message is taken as published to every exchange. Ends as diff does: with 0 where nothing changes, with 1 where
    something does, and with 2 or more where it can't be said.
    """
    from linn.cli.routing.route_diff import diff_routes

    try:
        same = diff_routes(old, new, sample, exchange or (), as_json=as_json)
    except LinnError as error:
        if exit_code_of(error) is not ExitCode.FAILED:
            raise
        complain(str(error))
        raise typer.Exit(ExitCode.USAGE) from None
    if not same:
        raise typer.Exit(ExitCode.FAILED)
