"""`linn connections`: the open connections of a broker."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.consent import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes

app = noun("Look at the open connections of a broker, and close them.")

Number = Annotated[int, typer.Argument(metavar="NUMBER", help="The connection, as `linn connections` lists it.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="What its client is told.")]


@app.command("list")
def list_connections(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """All open connections, the oldest first: who it is, what it reads and holds. The one that asks is among them."""
    from linn.cli.connection_admin import list_all

    list_all(url, as_json=as_json)


@app.command("close")
def close(number: Number, reason: Reason = "", yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Close a connection: what it holds goes back at once. A client of linn says why in its log, and connects again."""
    if not yes:
        confirm(url, "connection.close", f"Close the connection {number}?", "not closed", number=number)
    from linn.cli.connection_admin import close_one

    close_one(url, number, reason, as_json=as_json)
