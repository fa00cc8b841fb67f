"""`linn connections`: who is connected to a broker."""

from __future__ import annotations

from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url

app = noun("Look at the open connections of a broker.")


@app.command("list")
def list_connections(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """All open connections, the oldest first; the one that asks is among them."""
    from linn.cli.connection_admin import list_all

    list_all(url, as_json=as_json)
