"""Plugins as they are found: each loaded on its own, so that one that fails hides none of the others."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

import msgspec
from rich.markup import escape
from rich.text import Text

from linn.cli.doctor.listener_trial import unmade
from linn.cli.render.console import console
from linn.cli.render.table import Cell, print_table, wide
from linn.core.config.config import plugin_settings, read_toml
from linn.core.config.decoder import encode_value, meta_of, unit_of
from linn.core.config.kinds import Kind
from linn.core.config.tables import PluginSettings
from linn.core.config.units import format_size_bytes
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import PluginError, PluginUnknown
from linn.core.plugins.manager import ENTRY_POINT_GROUP, PluginManager, installed

_REGISTRIES = {
    "engines": "storage engine",
    "semantics": "delivery semantics",
    "exchanges": "exchange type",
    "partitioners": "partitioner",
    "interceptors": "interceptor",
    "protocols": "protocol",
}
"""The manager's registries of kinds, and what a person calls what is in each."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin, loaded, blocked or failed."""

    name: str
    module: str
    distribution: str
    state: str
    """loaded, incomplete (something that it needs is not installed), blocked or failed."""
    error: str | None = None
    brings: Mapping[tuple[str, str], Kind | None] = field(default_factory=dict)
    """(what a person calls it, name) -> the kind; None for an observer, which has no settings."""

    def data(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "module": self.module,
            "distribution": self.distribution,
            "state": self.state,
            "error": self.error,
            "brings": [{"what": what, "name": name} for what, name in self.brings],
        }


def found(config: str | None) -> list[Plugin]:
    """Every installed plugin, and those that a configuration loads. Raises ConfigError."""
    settings = PluginSettings() if config is None else plugin_settings(read_toml(config))
    return [_look(entry, settings) for entry in _entries(settings)]


def _entries(settings: PluginSettings) -> list[EntryPoint]:
    return [*installed(), *(EntryPoint(module, module, ENTRY_POINT_GROUP) for module in settings.load)]


def _look(entry: EntryPoint, settings: PluginSettings) -> Plugin:
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "listed in [plugins]"
    make = partial(Plugin, entry.name, entry.value, distribution)
    if entry.name in settings.block:
        return make("blocked")
    try:
        manager = PluginManager(PluginSettings(), [entry])
    except PluginError as error:
        return make("failed", str(error))
    brings = dict(_brought(manager))
    for kind in manager.protocols.values():
        reason = unmade(manager, kind)
        if reason is not None:
            return make("incomplete", str(reason), brings)
    return make("loaded", None, brings)


def loadable(settings: PluginSettings) -> tuple[PluginManager, list[PluginError]]:
    """A manager with all plugins that can be loaded, and what is wrong with the others, one error for each."""
    try:
        return PluginManager(settings, installed()), []
    except PluginError as error:
        first = error
    failed: dict[str, PluginError] = {}
    for entry in _entries(settings):
        try:
            PluginManager(PluginSettings(), [] if entry.name in settings.block else [entry])
        except PluginError as error:
            failed[entry.name] = error
    kept = msgspec.structs.replace(settings, block=(*settings.block, *failed))
    try:
        return PluginManager(kept, installed()), list(failed.values())
    except PluginError as at_odds:
        own = [entry for entry in installed() if entry.dist is not None and entry.dist.name == "linn"]
        return PluginManager(PluginSettings(), own), [*failed.values(), at_odds] if failed else [first]


def _brought(manager: PluginManager) -> Iterator[tuple[tuple[str, str], Kind | None]]:
    for registry, noun in _REGISTRIES.items():
        kinds: Mapping[str, Kind] = getattr(manager, registry, {})
        for name, kind in kinds.items():
            yield (noun, name), kind
    for name in manager.observers.failures:
        yield ("observer", name), None


def list_all(config: str | None, *, as_json: bool) -> bool:
    """Print all plugins; whether a broker could load all that are not blocked. Raises ConfigError."""
    plugins = found(config)
    error = _together(config)
    if as_json:
        print(json.dumps({"plugins": [plugin.data() for plugin in plugins], "error": error}, indent=2))
    else:
        _show(plugins)
        if error is not None and error not in (plugin.error for plugin in plugins):
            console().print(escape(error), soft_wrap=True)
    return error is None


def _together(config: str | None) -> str | None:
    """What keeps a broker from loading all of them: one that fails, or two that are at odds."""
    settings = PluginSettings() if config is None else plugin_settings(read_toml(config))
    try:
        PluginManager(settings, installed())
    except PluginError as error:
        return str(error)
    return None


def _show(plugins: list[Plugin]) -> None:
    rows: list[list[Cell]] = []
    for plugin in plugins:
        brings = ", ".join(f"{what} {name}" for what, name in plugin.brings)
        colour = {"failed": "red", "incomplete": "yellow", "blocked": "yellow"}.get(plugin.state, "green")
        rows.append([plugin.name, plugin.distribution, brings, Text(plugin.state, colour)])
    print_table(["plugin", wide("from"), "brings", "state"], rows)
    for plugin in plugins:
        if plugin.error is not None:
            console().print(escape(plugin.error), soft_wrap=True)


def describe_one(name: str, config: str | None, *, as_json: bool) -> None:
    """Print one plugin with the settings of what it brings. Raises ConfigError, PluginUnknown."""
    plugin = _named(name, found(config))
    if as_json:
        settings = [_kind_data(what, kind_name, kind) for (what, kind_name), kind in plugin.brings.items()]
        print(json.dumps(plugin.data() | {"brings": settings}, indent=2))
        return
    console().print(escape(f"{plugin.name}: {plugin.module}, {plugin.distribution}, {plugin.state}"), soft_wrap=True)
    if plugin.error is not None:
        console().print(escape(plugin.error), soft_wrap=True)
    for (what, kind_name), kind in plugin.brings.items():
        settings = _settings(kind)
        if settings:
            _show_settings(f"{what} {kind_name}", settings)
        else:
            console().print(escape(f"{what} {kind_name}: no settings"), soft_wrap=True)


def _named(name: str, plugins: list[Plugin]) -> Plugin:
    """The plugin of that name, or else the one that brings something of that name."""
    by_name = {brought: plugin for plugin in plugins for _, brought in plugin.brings}
    by_name |= {plugin.name: plugin for plugin in plugins}
    if name not in by_name:
        raise PluginUnknown(f'there is no plugin "{name[:80]}"{did_you_mean(name, by_name)}')
    return by_name[name]


def _kind_data(what: str, name: str, kind: Kind | None) -> dict[str, Any]:
    return {"what": what, "name": name, "settings": _settings(kind)}


def _settings(kind: Kind | None) -> list[dict[str, Any]]:
    if kind is None or kind.settings is None:
        return []
    return [_setting(setting) for setting in msgspec.structs.fields(kind.settings)]


def _setting(setting: msgspec.structs.FieldInfo) -> dict[str, Any]:
    default = None if setting.default is msgspec.NODEFAULT else encode_value(setting, setting.default)
    if unit_of(setting.name) == "bytes" and isinstance(default, int):
        default = format_size_bytes(default)
    text = next((meta.description for meta in meta_of(setting) if meta.description), "")
    return {"key": setting.encode_name, "default": default, "help": inspect.cleandoc(text)}


def _show_settings(title: str, settings: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        [setting["key"], "" if setting["default"] is None else json.dumps(setting["default"]), setting["help"]]
        for setting in settings
    ]
    print_table(["setting", "default", "what it says"], rows, title)
