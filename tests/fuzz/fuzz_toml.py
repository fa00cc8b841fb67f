"""A configuration file, as `linn check` and `linn serve` read it, with linn's own plugins.

Input: the file.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from fuzz_budget import said, within_budget

from linn.core.config.config import Config, check_config, plugin_settings, read_toml
from linn.core.config.decoder import decode_settings, encode_settings
from linn.core.config.problem import Problems
from linn.core.config.tables import PluginSettings
from linn.core.config.toml_source import TomlSource, key_lines
from linn.core.errors.tree import LinnError
from linn.core.plugins.manager import PluginManager, installed

_folder = tempfile.TemporaryDirectory(prefix="linn-fuzz-")
FILE = Path(_folder.name, "linn.toml")


@cache
def kinds() -> PluginManager:
    """linn's own kinds, whatever else is installed."""
    own = [entry for entry in installed() if entry.value.startswith("linn.")]
    return PluginManager(PluginSettings(), own)


def fuzz_one(data: bytes) -> None:
    """Any file is a configuration, or has problems of one line each, with a line that the file has."""
    kinds()
    FILE.write_bytes(data)
    with within_budget(len(data)):
        source = read()
        if isinstance(source, str):
            assert source.startswith(str(FILE))
            return
        try:
            plugin_settings(source)
        except LinnError as error:
            said(error)
        config, problems = check_config(source, kinds())
        check_lines(source, problems)
        assert (config is None) is (problems.error_count > 0)
        if config is not None:
            check_config_comes_back(config)


def read() -> TomlSource | str:
    """The file, or what is wrong with it."""
    try:
        return read_toml(str(FILE))
    except LinnError as error:
        return said(error)


def check_lines(source: TomlSource, problems: Problems) -> None:
    """Keys and problems stand on lines of the file."""
    lines = source.text.count("\n") + 1
    assert all(1 <= line <= lines for line in key_lines(source.text).values())
    for problem in problems.in_order():
        assert problems.describe(problem).isprintable()
        assert 1 <= problem.line <= lines
    try:
        problems.raise_first()
    except LinnError as error:
        said(error)


def check_config_comes_back(config: Config) -> None:
    """Written as plain values, as the broker keeps them, each table is read as an equal one."""
    plugins = (config.listeners, config.storage, config.delivery, config.exchanges, config.interceptors)
    settings: list[Any] = [config.broker, config.log, config.plugins, *config.topics.values()]
    settings += [configured.settings for table in plugins for configured in table.values()]
    for each in settings:
        if each is None:
            continue
        problems = Problems()
        table = msgspec.json.decode(msgspec.json.encode(encode_settings(each)))
        assert decode_settings(type(each), table, ("again",), problems) == each, (table, problems.found)
