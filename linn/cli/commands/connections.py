"""`linn connections`: list and close the open connections of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import Column, number, print_table, wide
from linn.cli.session import with_client

if TYPE_CHECKING:
    from linn.descriptions import ConnectionSubscription

app = noun("List and close the open connections of a broker.")

Number = Annotated[
    int, typer.Argument(metavar="NUMBER", help="Number of the connection, as listed by `linn connections`.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason that the client is told.")]


@app.command("list")
def list_connections(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all open connections, oldest first, with their clients, users, subscriptions and traffic."""
    found = with_client(url, lambda client: client.admin.connections())
    if as_json:
        print_json(found)
        return
    rows = [
        [
            str(connection["number"]),
            connection["client"],
            connection["user"],
            connection["login"],
            connection["peer"],
            connection["listener"],
            connection["protocol"],
            f"{connection['open_s']:,.0f}",
            ", ".join(map(_subscription, connection["subscriptions"])),
            f"{connection['received_bytes']:,}",
            f"{connection['sent_bytes']:,}",
            f"{connection['inflight_requests']:,}",
            f"{connection['unsent_bytes']:,}",
            f"{connection['held_bytes']:,}",
        ]
        for connection in found
    ]
    heads: list[str | Column] = [number("number"), "client", "user", wide("login"), "peer"]
    heads += [wide("listener"), wide("protocol"), number("open s"), "subscribes to"]
    heads += [wide(number(head)) for head in ("received", "sent", "in flight", "unsent", "held")]
    print_table(heads, rows)


def _subscription(connection: ConnectionSubscription) -> str:
    whose = connection["group"] or connection["shared"]
    whose = f" as {whose}" if whose else ""
    name = f" by {connection['name']}" if connection["name"] else ""
    held = f" ({connection['held']:,} held)" if connection["held"] else ""
    return f"{connection['topic']}{whose}{name}{held}"


@app.command("close")
def close(number: Number, reason: Reason = "", yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Close a connection. Its leases are released at once; a client of linn logs the reason and reconnects."""
    if not yes:
        confirm(url, "connection.close", f"Close the connection {number}?", "not closed", number=number)
    with_client(url, lambda client: client.admin.close_connection(number, reason))
    print_result({"closed": number}, f"closed connection {number}", as_json=as_json)
