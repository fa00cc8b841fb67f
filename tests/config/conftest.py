from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest

from linn.core.config import Config, load_config
from linn.core.config_tables import PluginSettings
from linn.core.plugins import PluginManager
from linn.core.toml_source import TomlSource

Load = Callable[[str], Config]


@pytest.fixture(scope="session")
def kinds() -> PluginManager:
    return PluginManager(PluginSettings(), [EntryPoint("sample", "sample_plugin", "linn")])


@pytest.fixture(scope="session")
def load(kinds: PluginManager) -> Load:
    """Load a configuration from its text."""
    return lambda text: load_config(TomlSource(text, "linn.toml"), kinds)
