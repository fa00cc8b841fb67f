"""Checks of listeners: whether their protocols can be made, their addresses are free, and certificates can be used.

Also used by `linn check` and `linn plugins`, which report protocols that can't be made.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from linn.cli.doctor.finding import Finding
from linn.cli.server.server import url_of
from linn.cli.session import with_client
from linn.client.client import Client
from linn.core.config.config import Config
from linn.core.connections.certificates import read_table
from linn.core.env.address import parse_address
from linn.core.env.real.disk import RealDisk
from linn.core.env.real.env import RealClock
from linn.core.errors.tls import TlsInvalid, TlsRequired
from linn.core.errors.tree import LinnError
from linn.core.gateway.protocol import ProtocolKind
from linn.core.plugins.manager import PluginManager

RENEW_DAYS = 14
"""Days before its end from which a certificate should have been renewed: automatic renewal begins at 30."""


def unmade_listeners(config: Config, plugins: PluginManager) -> Iterator[tuple[str, LinnError]]:
    """Yield listeners whose protocol can't be made, with the error: often an extra that is not installed."""
    for name, listener in config.listeners.items():
        kind = plugins.protocols.get(listener.protocol)
        error = None if kind is None else unmade(plugins, kind, listener.settings)
        if error is not None:
            yield name, error


def unmade(plugins: PluginManager, kind: ProtocolKind, settings: object = None) -> LinnError | None:
    """Return the error with which making a protocol fails, if any. By default `settings` are the kind's defaults."""
    try:
        plugins.make(kind, settings or (kind.settings and kind.settings()))
    except LinnError as error:
        return error
    return None


def listener_findings(config: Config, plugins: PluginManager) -> Iterator[Finding]:
    """Check each listener. Binds its address for a moment, without accepting connections."""
    missing = dict(unmade_listeners(config, plugins))
    brokers: _Brokers = {}
    # Listeners that speak linn come first: a broker that answers there names its other addresses.
    for speaks_linn in (True, False):
        for name, listener in config.listeners.items():
            if (plugins.protocols[listener.protocol].url_scheme == "linn") != speaks_linn:
                continue
            if name in missing:
                yield Finding(f"listener {name}", "error", missing[name].text, "install it, or leave the listener out")
            else:
                yield _try(f"listener {name}", listener.address, brokers, speaks_linn)


def certificate_findings(config: Config) -> Iterator[Finding]:
    """Check the files of each TLS table."""
    now_ms = RealClock().now_ms()
    for name, table in config.tls.items():
        try:
            days = (read_table(name, table, RealDisk(), now_ms).not_after_ms - now_ms) / 86_400_000
        except TlsInvalid as error:
            yield Finding(f"certificate {name}", "error", error.text, "docs/how-to/use-tls.md says how to make a pair")
            continue
        found = f"{table.certificate} ends in {days:.0f} days"
        if days < RENEW_DAYS:
            yield Finding(f"certificate {name}", "warning", found, "renew it; a running broker takes the new one")
        else:
            yield Finding(f"certificate {name}", "ok", found)


_Where: TypeAlias = "str | tuple[object, ...]"
_Brokers: TypeAlias = dict[_Where, str]
"""Names of the brokers that have answered, by address; a broker may have several."""


def _try(name: str, address: str, brokers: _Brokers, speaks_linn: bool) -> Finding:
    place = parse_address(address)
    try:
        if isinstance(place, str):
            return _unix(name, address, Path(place), brokers, speaks_linn)
        (family, kind, protocol, _, where), *_ = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _taken(name, address, brokers, speaks_linn)
        text = error.strerror or str(error)
        return Finding(name, "error", f"{address}: {text}", "take an address of this machine, and a port above 1023")
    return Finding(name, "ok", f"{address} is free")


def _unix(name: str, address: str, path: Path, brokers: _Brokers, speaks_linn: bool) -> Finding:
    if path.is_socket():
        return _taken(name, address, brokers, speaks_linn)
    if path.exists() or not os.access(path.absolute().parent, os.W_OK):
        return Finding(name, "error", f"{path} can't be made", "remove what is there, or name another folder")
    return Finding(name, "ok", f"{address} is free")


def _taken(name: str, address: str, brokers: _Brokers, speaks_linn: bool) -> Finding:
    """Report an address in use. The broker that has it is identified by its answer, here or at another address."""

    async def ask(client: Client) -> None:
        shown = await client.admin.broker()
        brokers.update({_where(each): shown["name"] for each in (address, *shown["listeners"].values())})

    if speaks_linn and _where(address) not in brokers:
        try:
            with_client(url_of(address), ask)
        except TlsRequired:
            return Finding(name, "ok", f"a broker with TLS listens at {address}")
        except LinnError:
            text = f"{address} is taken by another program"
            return Finding(name, "error", text, "stop that, or take another address")
    broker = brokers.get(_where(address))
    if broker is None:
        return Finding(name, "warning", f"{address} is taken", "that is as it should be where a broker runs already")
    return Finding(name, "ok", f"the broker {broker} listens at {address}")


def _where(address: str) -> _Where:
    """Return the path of a Unix socket, or host and port with the host's name resolved."""
    place = parse_address(address)
    if isinstance(place, str):
        return place
    (_, _, _, _, where), *_ = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
    return where
