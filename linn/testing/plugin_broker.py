"""A broker with a plugin under test, in a simulated world.

async def test_it_routes(...):
    async with plugin_broker(env, TOML, "paper_tape.plugin") as broker:
        async with linn.connect(URL, env=env) as client:
            ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.tables import PluginSettings
from linn.core.config.toml_source import TomlSource
from linn.core.env.env import Env
from linn.core.plugins.manager import PluginManager, installed

URL = "linn://127.0.0.1:5466"
"""The broker's URL, unless the configuration has another."""


@asynccontextmanager
async def plugin_broker(env: Env, toml: str, *modules: str) -> AsyncIterator[Broker]:
    """Run a broker with linn's own plugins and the plugins in `modules`; other installed plugins are not loaded.

    Raises LinnError: the configuration or a plugin is wrong.
    """
    source = TomlSource(toml, "test.toml")
    blocked = plugin_settings(source).block
    ours = [entry for entry in installed() if entry.dist is not None and entry.dist.name == "linn"]
    manager = PluginManager(PluginSettings(load=modules, block=blocked), ours)
    async with running_broker(load_config(source, manager), env, manager) as broker:
        yield broker
