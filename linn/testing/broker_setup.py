"""Setup of a test's broker: TOML, tables of topics and exchanges, and the resulting configuration.

Laws: a test's broker always listens on loopback, at a free port, and writes into a folder of its own; the configuration
can't change that. Topics that name no storage are in memory. The rest of the configuration is the same as `linn serve`
would make of the text. Where the setup has users, every client logs in, with a password that the setup knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from linn.client import Password
from linn.core.config.config import Config, load_config, plugin_settings, read_toml
from linn.core.config.toml_source import TomlSource
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import ConfigError
from linn.core.plugins.manager import PluginManager, installed
from linn.core.security.policy import ADMINISTRATOR
from linn.core.security.sasl.scram import ITERATIONS_MIN, SALT_BYTES, make_verifier
from linn.testing.certificates import tls_table

Tables = Mapping[str, Mapping[str, Any]]
"""Tables [topics.NAME] or [exchanges.NAME] of TOML, by name."""

LOOPBACK = "127.0.0.1:0"
HELPER = "linn-testing"
"""The user of `publish` and the like, where clients log in."""
_DOTTED = re.compile(r"[\w.-]+", re.ASCII)
SILENCE_MAX = "3650d"
"""Keepalive and hello timeout: a client's time may stand still while a test advances the broker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetup:
    """Keyword arguments of `@pytest.mark.linn` and of `BrokerThread`."""

    config: str | Path | None = None
    """TOML text, or the path of a file."""
    topics: Tables = field(default_factory=dict)
    exchanges: Tables = field(default_factory=dict)
    tls: bool = False
    """Whether the broker speaks only TLS, with a certificate made for it."""
    roles: Tables = field(default_factory=dict)
    """Rules by role, as below [roles.NAME]."""
    users: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Roles by user. With any user, the broker requires logins."""

    def text(self) -> str:
        """Return the setup as one TOML text. Raises ConfigUnreadable, ConfigError."""
        text = read_toml(str(self.config)).text if isinstance(self.config, Path) else self.config or ""
        tables = {"exchanges": self.exchanges, "topics": self.topics, "roles": self.roles}
        return text + "".join(
            f"\n[{kind}.{json.dumps(name)}]\n{_lines(table)}"
            for kind, named in tables.items()
            for name, table in named.items()
        )

    def load(self, data_dir: str, address: str = LOOPBACK) -> tuple[Config, PluginManager]:
        """Check the configuration, and load the plugins. Raises ConfigError, PluginError."""
        source = self._source(Path(data_dir).parent, address)
        plugins = PluginManager(plugin_settings(source), _installed())
        broker = source.data.get("broker", {})
        source.data["broker"] = {"default_storage": "dram"} | broker | {"data_dir": data_dir}
        source.data["listeners"]["native"] |= {"keepalive": SILENCE_MAX, "hello_timeout": SILENCE_MAX}
        return load_config(source, plugins), plugins

    def secured_text(self, folder: Path, address: str) -> str:
        """Return the setup with its listener and its users as one TOML text. Raises ConfigUnreadable, ConfigError."""
        data = self._source(folder, address).data
        return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in data.items())

    def _source(self, folder: Path, address: str) -> TomlSource:
        """Return the setup with its listener and its users. Raises ConfigError, PluginError."""
        source = TomlSource(self.text(), self._name())
        if "listeners" in source.data:  # They are replaced, but have to be valid all the same.
            load_config(source, PluginManager(plugin_settings(source), _installed()))
        listener: dict[str, Any] = {"address": address}
        if self.tls:
            source.data["tls"] = {"test": tls_table(folder, "127.0.0.1", "localhost")}
            listener["tls"] = "test"
        if self.users:
            listener["login"] = "required"
            listed = {name: {"roles": list(roles)} for name, roles in {**self.users, HELPER: [ADMINISTRATOR]}.items()}
            users = {**source.data.get("users", {}), **listed}
            source.data["users"] = {name: {"scram": _verifier(name), **table} for name, table in users.items()}
        source.data["listeners"] = {"native": listener}
        return source

    def login(self, user: str) -> Password:
        """Return the login of one of `users`, or of a user in `config` without a `scram` of its own.

        Raises ConfigError: the setup knows no password of this user.
        """
        known = [*self.users, HELPER] if self.users else []
        if self.users:
            tables = TomlSource(self.text(), self._name()).data.get("users", {})
            known += [name for name, table in tables.items() if "scram" not in table]
        if user not in known:
            listed = [name for name in known if name != HELPER]
            raise ConfigError(f'the test has no user "{user}" with a password{did_you_mean(user, listed)}')
        return Password(user, _password(user))

    @property
    def helper(self) -> Password | None:
        """The login of the test's own helpers, an administrator; None: clients need none."""
        return self.login(HELPER) if self.users else None

    def _name(self) -> str:
        return str(self.config) if isinstance(self.config, Path) else "the test's configuration"


def _password(user: str) -> str:
    return f"password of {user}"


@cache
def _verifier(user: str) -> str:
    return make_verifier(_password(user), bytes(SALT_BYTES), ITERATIONS_MIN).text()


@cache
def _installed() -> Sequence[EntryPoint]:
    # Reading the installed packages would take a third of the start of such a broker.
    return tuple(installed())


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_toml(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    """Return a key of a table, with quotes where it is more than a name or names with dots."""
    return key if _DOTTED.fullmatch(key) else json.dumps(key)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str | bool | int | float):
        return json.dumps(value, ensure_ascii=False)
    raise ConfigError(f"a setting must be text, a number, true or false, a list or a table, not {value!r}")
