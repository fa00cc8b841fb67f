"""`linn route`: explain the routing of a message, and compare the routing of two configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.completion import exchange_names
from linn.cli.exit_code import ExitCode, complain, exit_code_of
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json, print_text
from linn.cli.render.table import number, print_table
from linn.core.errors.texts import counted
from linn.core.errors.tree import LinnError

if TYPE_CHECKING:
    from linn.cli.routing.route_diff import RouteDiff, Topics

app = typer.Typer(help="Explain the routing of messages, and compare configurations.", no_args_is_help=True)

Exchange = Annotated[
    str,
    typer.Option(
        "--exchange",
        metavar="NAME",
        help='Exchange that the message is published to; "" is the default one.',
        autocompletion=exchange_names,
    ),
]
Config = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Use this configuration file instead of a broker.")
]
RoutingKey = Annotated[str, typer.Option("--routing-key", metavar="KEY", help="Routing key of the message.")]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="A label; 4, 2.5 and true have types. May be repeated."),
]
Header = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header. May be repeated.")]
Key = Annotated[str | None, typer.Option("--key", metavar="TEXT", help="Key of the message.")]
Size = Annotated[int, typer.Option("--size", metavar="BYTES", min=0, help="Size of the value.")]
Misses = Annotated[
    int,
    typer.Option("--misses", metavar="N", min=0, help="Maximum number of bindings shown that do not match."),
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
    """Show the bindings that match a message and the reasons, through all exchanges and alternates on its way.

    Nothing is published. Ends with 0 even if the message is routed to no topic.
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
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another configuration file.")],
    sample: Annotated[
        str,
        typer.Option("--sample", metavar="FILE", help="Messages, as printed by `linn consume --format json`."),
    ],
    exchange: Annotated[
        list[str] | None, typer.Option("--exchange", metavar="NAME", help="Only this exchange. May be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the messages of a sample that another configuration would route to other topics.

    Each message is evaluated as if published to every exchange. Ends as diff does: with 0 if nothing changes, with 1 if
    something does, and with 2 or more on errors.
    """
    from linn.cli.routing.route_diff import diff_routes

    try:
        found = diff_routes(old, new, sample, exchange or ())
    except LinnError as error:
        if exit_code_of(error) is not ExitCode.FAILED:
            raise
        complain(str(error))
        raise typer.Exit(ExitCode.USAGE) from None
    if as_json:
        print_json(found.data())
    else:
        _print_diff(found)
    if found.changes:
        raise typer.Exit(ExitCode.FAILED)


def _print_diff(found: RouteDiff) -> None:
    exchanges = ", ".join(found.exchanges) or "no exchange: neither file has one"
    compared = f"{counted(found.messages, 'message')}, each to {exchanges}"
    if not found.changes:
        print_text(f"{compared}: nothing changes")
        return
    rows = []
    for change in found.changes:
        example = f"line {change.lines[0]}" + (f', key "{change.routing_key}"' if change.routing_key else "")
        rows.append([change.exchange, f"{change.messages:,}", _names(change.before), _names(change.after), example])
    print_text(compared)
    print_table(["exchange", number("messages"), "go to", "and then to", "for example"], rows)


def _names(topics: Topics) -> str:
    if topics is None:
        return "no such exchange"
    return ", ".join(topics) or "nobody"
