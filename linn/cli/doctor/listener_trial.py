"""Checks of listeners: whether their protocols can be made, and whether their addresses are free.

Also used by `linn check` and `linn plugins`, which report protocols that can't be made.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from linn.cli.doctor.finding import Finding
from linn.cli.server.server import url_of
from linn.cli.session import with_client
from linn.client.client import Client
from linn.core.config.config import Config
from linn.core.env.address import parse_address
from linn.core.errors.tree import LinnError
from linn.core.gateway.protocol import ProtocolKind
from linn.core.plugins.manager import PluginManager


def unmade_listeners(config: Config, plugins: PluginManager) -> Iterator[tuple[str, LinnError]]:
    """Yield listeners whose protocol can't be made, with the error: often an extra that is not installed."""
    for name, listener in config.listeners.items():
        kind = plugins.protocols.get(listener.protocol)
        error = None if kind is None else unmade(plugins, kind, listener.settings)
        if error is not None:
            yield name, error


def unmade(plugins: PluginManager, kind: ProtocolKind, settings: object = None) -> LinnError | None:
    """Return the error with which making a protocol fails, if it does. `settings`: by default its defaults."""
    try:
        plugins.make(kind, settings or (kind.settings and kind.settings()))
    except LinnError as error:
        return error
    return None


def listener_findings(config: Config, plugins: PluginManager) -> Iterator[Finding]:
    """Check each listener. Binds its address for a moment, without accepting connections."""
    missing = dict(unmade_listeners(config, plugins))
    for name, listener in config.listeners.items():
        if name in missing:
            yield Finding(f"listener {name}", "error", missing[name].text, "install it, or leave the listener out")
            continue
        speaks_linn = plugins.protocols[listener.protocol].url_scheme == "linn"
        yield _try(f"listener {name}", listener.address, speaks_linn)


def _try(name: str, address: str, speaks_linn: bool) -> Finding:
    place = parse_address(address)
    try:
        if isinstance(place, str):
            return _unix(name, address, Path(place), speaks_linn)
        (family, kind, protocol, _, where), *_ = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _taken(name, address, speaks_linn)
        text = error.strerror or str(error)
        return Finding(name, "error", f"{address}: {text}", "take an address of this machine, and a port above 1023")
    return Finding(name, "ok", f"{address} is free")


def _unix(name: str, address: str, path: Path, speaks_linn: bool) -> Finding:
    if path.is_socket():
        return _taken(name, address, speaks_linn)
    if path.exists() or not os.access(path.absolute().parent, os.W_OK):
        return Finding(name, "error", f"{path} can't be made", "remove what is there, or name another folder")
    return Finding(name, "ok", f"{address} is free")


def _taken(name: str, address: str, speaks_linn: bool) -> Finding:
    """Report an address in use; a broker that speaks linn there is identified."""
    if not speaks_linn:
        return Finding(name, "warning", f"{address} is taken", "that is as it should be where a broker runs already")

    async def ask(client: Client) -> str:
        return client.broker

    try:
        broker = with_client(url_of(address), ask)
    except LinnError:
        return Finding(name, "error", f"{address} is taken by another program", "stop that, or take another address")
    return Finding(name, "ok", f"the broker {broker} listens at {address}")
