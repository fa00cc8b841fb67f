"""A broker in a simulated world, with plugins that no distribution brings, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import linn
from linn.client import Client
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.plugins.manager import PluginManager, installed
from linn.testing.sim_env import SimEnv

ADDRESS = "127.0.0.1:5466"
HEAD = f'[broker]\ndata_dir = "data"\ndrain_timeout = "2s"\n[listeners.native]\naddress = "{ADDRESS}"\n'


class Brought:
    """Looks like an entry point: an object with hooks, under a name."""

    dist = None

    def __init__(self, name: str, plugin: object) -> None:
        self.name = name
        self.value = f"tests:{name}"
        self._plugin = plugin

    def load(self) -> object:
        return self._plugin


@asynccontextmanager
async def broker_with(env: SimEnv, toml: str, **plugins: object) -> AsyncIterator[Broker]:
    """A broker on these tables, with linn's own plugins and these."""
    source = TomlSource(HEAD + toml, "test.toml")
    ours: list[Any] = [entry for entry in installed() if entry.dist is not None and entry.dist.name == "linn"]
    manager = PluginManager(
        plugin_settings(source), [*ours, *(Brought(name, plugin) for name, plugin in plugins.items())]
    )
    async with running_broker(load_config(source, manager), env, manager) as broker:
        yield broker


@asynccontextmanager
async def client_of(env: SimEnv) -> AsyncIterator[Client]:
    """A client of that broker."""
    async with linn.connect(f"linn://{ADDRESS}", env=env) as client:
        yield client
