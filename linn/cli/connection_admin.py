"""Connections over the wire: what the commands of `linn connections` do, and how they show it."""

from __future__ import annotations

import json

from linn.cli.render.console import tell
from linn.cli.render.table import Column, number, print_table, wide
from linn.cli.session import with_client


def list_all(url: str, *, as_json: bool) -> None:
    """Print all open connections. Raises LinnError."""
    found = with_client(url, lambda client: client.admin.connections())
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [
        [
            str(one["number"]),
            one["peer"],
            one["listener"],
            one["protocol"],
            f"{one['open_s']:,.0f}",
            f"{one['received_bytes']:,}",
            f"{one['sent_bytes']:,}",
            f"{one['inflight_requests']:,}",
            f"{one['unsent_bytes']:,}",
            f"{one['held_bytes']:,}",
        ]
        for one in found
    ]
    heads: list[str | Column] = [number("number"), "peer", wide("listener"), wide("protocol"), number("open s")]
    heads += [number("received"), number("sent")]
    heads += [wide(number(head)) for head in ("in flight", "unsent", "held")]
    print_table(heads, rows)


def close_one(url: str, number: int, reason: str, *, as_json: bool) -> None:
    """Close a connection, and say so. Raises LinnError."""
    with_client(url, lambda client: client.admin.close_connection(number, reason))
    tell({"closed": number}, f"closed connection {number}", as_json=as_json)
