from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest

from linn.core.config.config import Config, load_config
from linn.core.config.tables import PluginSettings
from linn.core.config.toml_source import TomlSource
from linn.core.plugins.manager import PluginManager

Load = Callable[[str], Config]


@pytest.fixture(scope="session")
def kinds() -> PluginManager:
    return PluginManager(PluginSettings(), [EntryPoint("sample", "sample_plugin", "linn")])


@pytest.fixture(scope="session")
def load(kinds: PluginManager) -> Load:
    """Load a configuration from its text."""
    return lambda text: load_config(TomlSource(text, "linn.toml"), kinds)
