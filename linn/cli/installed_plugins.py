"""Installed plugins, each loaded on its own, so that a failure of one does not hide the others.

Shared by `linn plugins` and `linn check`, and loaded only when one of them runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

import msgspec

from linn.cli.doctor.listener_trial import unmade
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
    "orders": "order",
    "assignors": "assignor",
    "formats": "format",
    "interceptors": "interceptor",
    "authenticators": "authenticator",
    "authorizers": "authorizer",
    "metadata_stores": "metadata store",
    "protocols": "protocol",
    "services": "service",
}
"""Nouns for the kinds in each of the manager's registries."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """Installed plugin and its state."""

    name: str
    module: str
    distribution: str
    state: str
    """loaded, incomplete (a dependency is not installed), blocked or failed."""
    error: str | None = None
    brings: Mapping[tuple[str, str], Kind | None] = field(default_factory=dict)
    """Kinds by noun and name; None for an observer, which has no settings."""

    def data(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        return {
            "name": self.name,
            "module": self.module,
            "distribution": self.distribution,
            "state": self.state,
            "error": self.error,
            "brings": [{"what": what, "name": name} for what, name in self.brings],
        }


def found(config: str | None) -> list[Plugin]:
    """Find every installed plugin, and every plugin that a configuration loads. Raises ConfigError."""
    settings = PluginSettings() if config is None else plugin_settings(read_toml(config))
    return [_load(entry, settings) for entry in _entries(settings)]


def _entries(settings: PluginSettings) -> list[EntryPoint]:
    return [*installed(), *(EntryPoint(module, module, ENTRY_POINT_GROUP) for module in settings.load)]


def _load(entry: EntryPoint, settings: PluginSettings) -> Plugin:
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
    """Make a manager with all plugins that can be loaded, and return it with the errors of the others."""
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


def load_error(config: str | None) -> str | None:
    """Return the error that keeps a broker from loading all plugins together; None if there is none."""
    settings = PluginSettings() if config is None else plugin_settings(read_toml(config))
    try:
        PluginManager(settings, installed())
    except PluginError as error:
        return str(error)
    return None


def plugin_named(name: str, plugins: Sequence[Plugin]) -> Plugin:
    """Return the plugin of that name, or else the one that brings a kind of that name. Raises PluginUnknown."""
    by_name = {brought: plugin for plugin in plugins for _, brought in plugin.brings}
    by_name |= {plugin.name: plugin for plugin in plugins}
    if name not in by_name:
        raise PluginUnknown(f'there is no plugin "{name[:80]}"{did_you_mean(name, by_name)}')
    return by_name[name]


def kind_settings(kind: Kind | None) -> list[dict[str, Any]]:
    """Describe the settings of a kind: key, default and help."""
    if kind is None or kind.settings is None:
        return []
    return [_setting(setting) for setting in msgspec.structs.fields(kind.settings)]


def _setting(setting: msgspec.structs.FieldInfo) -> dict[str, Any]:
    default = None if setting.default is msgspec.NODEFAULT else encode_value(setting, setting.default)
    if unit_of(setting.name) == "bytes" and isinstance(default, int):
        default = format_size_bytes(default)
    text = next((meta.description for meta in meta_of(setting) if meta.description), "")
    return {"key": setting.encode_name, "default": default, "help": inspect.cleandoc(text)}
