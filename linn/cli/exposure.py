"""Openings of a configuration: for clients from elsewhere, for other users of the machine, and for requests.

`linn check` warns of them, and `linn doctor` reports them. Each is allowed, because the file has to ask for it; but it
may be left over from a trial.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from typing import NamedTuple

from linn.core.config.config import Config
from linn.core.config.configured import Listener
from linn.core.config.toml_source import Path
from linn.core.env.address import is_beyond_loopback
from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import AddressInvalid, SecretUnusable
from linn.core.ports.principal import ANONYMOUS

_METRICS = "metrics"
_PEERS = "peers"
"""The protocol between brokers, which serves no one without the cluster's secret."""
_SPARK = "spark"


class Exposure(NamedTuple):
    """An opening."""

    path: Path
    """The setting that makes it."""
    text: str


def exposures(config: Config) -> Iterator[Exposure]:
    """Yield the openings of a configuration without errors. Reads the mode of its file."""
    for name, listener in config.listeners.items():
        if _reaches_others(listener):
            yield from _of_listener(config, name, listener)
    yield from _of_file(config)
    if getattr(config.services.get(_SPARK), "live", False):
        text = "requests may start pipelines, which have the rights of the broker's user, within paths and modules"
        yield Exposure((_SPARK, "live"), text)


def unusable_secrets(config: Config) -> Iterator[tuple[Path, str, bool]]:
    """Yield the place of each secret that can't be used, the reason, and whether it is a file.

    Only the service may have the variables and credentials.
    """
    env = RealEnv()
    for place, secret in config.secrets():
        try:
            secret.reveal(env)
        except SecretUnusable as error:
            yield place, error.text, secret.file is not None


def _reaches_others(listener: Listener) -> bool:
    try:
        return is_beyond_loopback(listener.address)
    except AddressInvalid:
        return False


def _of_listener(config: Config, name: str, listener: Listener) -> Iterator[Exposure]:
    table = config.tls.get(listener.tls or "")
    asks = listener.login.is_required or (table is not None and table.client_certificate == "required")
    asks = asks or listener.protocol == _PEERS
    anonymous = config.users.get(ANONYMOUS)
    roles = anonymous.roles if anonymous is not None else ()
    path: Path = ("listeners", name, "address")
    more = "; and no TLS" if table is None else '; client_certificate = "required" keeps strangers out'
    if not asks and listener.protocol == _METRICS:
        if config.is_open or roles:
            names = "anyone who reaches this address may read the metrics, with names of topics and clients"
            yield Exposure(path, f"{names}: there is no login{more}")
    elif not asks and config.is_open:
        text = "anyone who reaches this address can read, change and delete everything: there is no login"
        yield Exposure(path, text + more)
    elif not asks and roles:
        text = f'anyone who reaches this address has the roles of "{ANONYMOUS}": {", ".join(roles)}: there is no login'
        yield Exposure(path, text + more)
    if table is None and (asks or not (config.is_open or roles)):
        text = "everybody between this address and its clients can read and change what is sent: there is no TLS"
        yield Exposure(path, text)


def _of_file(config: Config) -> Iterator[Exposure]:
    """Yield a file with verifiers of passwords that others may read, who could guess at the passwords."""
    with_verifier = next((name for name, user in config.users.items() if user.scram), None)
    try:
        mode = stat.S_IMODE(os.stat(config.file).st_mode)
    except OSError:  # Read from a pipe, or gone meanwhile.
        return
    if with_verifier is not None and mode & 0o077:
        text = f"others may read this file (mode {mode:04o}), and try passwords by what it has: chmod 600"
        yield Exposure(("users", with_verifier, "scram"), f"{text} {shlex.quote(config.file)}")
