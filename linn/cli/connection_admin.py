"""Connections over the wire: what the commands of `linn connections` do, and how they show it."""

from __future__ import annotations

import json

from linn.cli.console import tell
from linn.cli.session import with_client
from linn.cli.table import Column, number, print_table, wide
from linn.client.admin_types import ConnectionSubscription


def list_all(url: str, *, as_json: bool) -> None:
    """Print all open connections. Raises LinnError."""
    found = with_client(url, lambda client: client.admin.connections())
    if as_json:
        print(json.dumps(found, indent=2))
        return
    rows = [
        [
            str(one["number"]),
            one["client"],
            one["peer"],
            one["listener"],
            one["protocol"],
            f"{one['open_s']:,.0f}",
            ", ".join(map(_subscription, one["subscriptions"])),
            f"{one['received_bytes']:,}",
            f"{one['sent_bytes']:,}",
            f"{one['inflight_requests']:,}",
            f"{one['unsent_bytes']:,}",
            f"{one['held_bytes']:,}",
        ]
        for one in found
    ]
    heads: list[str | Column] = [number("number"), "client", "peer", wide("listener"), wide("protocol")]
    heads += [number("open s"), "subscribes to"]
    heads += [wide(number(head)) for head in ("received", "sent", "in flight", "unsent", "held")]
    print_table(heads, rows)


def _subscription(one: ConnectionSubscription) -> str:
    group = f" as {one['group']}" if one["group"] else ""
    held = f" ({one['held']:,} held)" if one["held"] else ""
    return f"{one['topic']}{group}{held}"


def close_one(url: str, number: int, reason: str, *, as_json: bool) -> None:
    """Close a connection, and say so. Raises LinnError."""
    with_client(url, lambda client: client.admin.close_connection(number, reason))
    tell({"closed": number}, f"closed connection {number}", as_json=as_json)
