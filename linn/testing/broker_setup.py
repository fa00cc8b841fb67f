"""Setup of a test's broker: TOML, tables of topics and exchanges, and the resulting configuration.

Laws: a test's broker always listens on loopback, at a free port, and writes into a folder of its own; the configuration
can't change that. Topics that name no storage are in memory. The rest of the configuration is the same as `linn serve`
would make of the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from linn.core.config.config import Config, load_config, plugin_settings, read_toml
from linn.core.config.toml_source import TomlSource
from linn.core.errors.tree import ConfigError
from linn.core.plugins.manager import PluginManager, installed
from linn.testing.certificates import tls_table

Tables = Mapping[str, Mapping[str, Any]]
"""Tables [topics.NAME] or [exchanges.NAME] of TOML, by name."""

LOOPBACK = "127.0.0.1:0"
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

    def text(self) -> str:
        """Return the setup as one TOML text. Raises ConfigUnreadable, ConfigError."""
        text = read_toml(str(self.config)).text if isinstance(self.config, Path) else self.config or ""
        tables = {"exchanges": self.exchanges, "topics": self.topics}
        return text + "".join(
            f"\n[{kind}.{json.dumps(name)}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
            for kind, named in tables.items()
            for name, table in named.items()
        )

    def load(self, data_dir: str, address: str = LOOPBACK) -> tuple[Config, PluginManager]:
        """Check the configuration, and load the plugins. Raises ConfigError, PluginError."""
        source = TomlSource(self.text(), self._name())
        plugins = PluginManager(plugin_settings(source), _installed())
        if "listeners" in source.data:
            load_config(source, plugins)  # The listeners are replaced, but have to be valid all the same.
        broker = source.data.get("broker", {})
        source.data["broker"] = {"default_storage": "dram"} | broker | {"data_dir": data_dir}
        silence = {"keepalive": SILENCE_MAX, "hello_timeout": SILENCE_MAX}
        listener = {"address": address} | silence
        if self.tls:
            folder = Path(data_dir).parent
            source.data["tls"] = {"test": tls_table(folder, "127.0.0.1", "localhost")}
            listener["tls"] = "test"
        source.data["listeners"] = {"native": listener}
        return load_config(source, plugins), plugins

    def _name(self) -> str:
        return str(self.config) if isinstance(self.config, Path) else "the test's configuration"


@cache
def _installed() -> Sequence[EntryPoint]:
    # Reading the installed packages would take a third of the start of such a broker.
    return tuple(installed())


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str | bool | int | float):
        return json.dumps(value, ensure_ascii=False)
    raise ConfigError(f"a setting must be text, a number, true or false, a list or a table, not {value!r}")
