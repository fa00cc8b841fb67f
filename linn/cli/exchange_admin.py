"""Exchanges and bindings over the wire: what the commands do, and how they show it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from linn.cli.render.console import tell
from linn.cli.render.table import number, print_table
from linn.cli.session import with_client
from linn.cli.topic_admin import print_settings

Exchange = Mapping[str, Any]
"""An exchange as the broker describes it: name, type, settings and bindings."""


def list_all(url: str, *, as_json: bool) -> None:
    """Print all exchanges. Raises LinnError."""
    exchanges = with_client(url, lambda client: client.admin.exchanges())
    if as_json:
        print(json.dumps(exchanges, indent=2))
        return
    if not exchanges:
        print("no exchanges yet: linn exchanges create NAME type=topic")
        return
    rows = [
        [exchange["name"], exchange["type"], exchange.get("alternate") or "nobody", f"{len(exchange['bindings']):,}"]
        for exchange in exchanges
    ]
    print_table(["exchange", "type", "the rest goes to", number("bindings")], rows)


def describe_one(url: str, name: str, *, as_json: bool) -> None:
    """Print one exchange. Raises LinnError."""
    exchange = with_client(url, lambda client: client.admin.perform("exchange.show", name=name))
    if as_json:
        print(json.dumps(exchange, indent=2))
        return
    said = {"type": exchange["type"], "alternate": exchange.get("alternate"), **exchange.get("settings", {})}
    print_settings({key: value for key, value in said.items() if value is not None}, name)
    _show_bindings(_bindings([exchange]))


def create_one(url: str, name: str, settings: Mapping[str, Any], *, as_json: bool) -> None:
    """Make an exchange, and say so. Raises LinnError."""
    arguments = {"name": name, "settings": dict(settings)}
    done = with_client(url, lambda client: client.admin.perform("exchange.create", **arguments))
    words = f"created {name}" if done["created"] else f"{name} exists with these settings"
    tell({"created": done["created"]}, words, as_json=as_json)


def delete_one(url: str, name: str, *, as_json: bool) -> None:
    """Delete an exchange, and say so. Raises LinnError."""
    with_client(url, lambda client: client.admin.delete_exchange(name))
    tell({"deleted": name}, f"deleted {name}", as_json=as_json)


# --- bindings --------------------------------------------------------------------------------------------------------


def list_bindings(url: str, exchange: str | None, target: str | None = None, *, as_json: bool) -> None:
    """Print the bindings of one exchange, or of all, to one target, or to all. Raises LinnError."""
    if exchange is None:
        bindings = _bindings(with_client(url, lambda client: client.admin.exchanges()))
    else:
        bindings = _bindings([with_client(url, lambda client: client.admin.perform("exchange.show", name=exchange))])
    bindings = [binding for binding in bindings if target in (None, binding["target"])]
    if as_json:
        print(json.dumps(bindings, indent=2))
    else:
        _show_bindings(bindings)


def _bindings(exchanges: Iterable[Exchange]) -> list[dict[str, Any]]:
    """All bindings, each with the exchange that it leads from and what it leads to."""
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


def _show_bindings(bindings: list[dict[str, Any]]) -> None:
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
    return value if isinstance(value, str) else json.dumps(value)


def bind(
    url: str,
    exchange: str,
    target: str,
    key: str,
    arguments: Mapping[str, Any],
    *,
    to_exchange: bool,
    gone: bool,
    as_json: bool,
) -> None:
    """Make a binding, or take it back, and say so. Raises LinnError."""
    asked = {"exchange": exchange, "key": key, "arguments": dict(arguments)}
    asked["target_exchange" if to_exchange else "topic"] = target
    whom = f"{'exchange ' * to_exchange}{target}"
    if gone:
        found = with_client(url, lambda client: client.admin.perform("exchange.unbind", **asked))["deleted"]
        words = (
            f"unbound {whom} from {exchange}" if found else f"nothing to do: {exchange} has no such binding to {whom}"
        )
    else:
        found = with_client(url, lambda client: client.admin.perform("exchange.bind", **asked))["created"]
        words = f"bound {whom} to {exchange}" if found else f"nothing to do: {whom} is bound like this to {exchange}"
    tell({"exchange": exchange, "target": target, "deleted" if gone else "created": found}, words, as_json=as_json)
