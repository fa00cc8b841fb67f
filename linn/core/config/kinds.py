"""The kinds that plugins register, by name; the configuration is checked against them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, TypeVar

from linn.core.config.service_tables import ServiceTables
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import PluginUnknown
from linn.core.queue.dispatch_order import OrderKind

K = TypeVar("K")


class Kind(Protocol):
    """The interface that all kinds have in common."""

    @property
    def name(self) -> str:
        """The name that TOML uses."""

    @property
    def settings(self) -> type[Any] | None:
        """A frozen msgspec.Struct with a default and a help text for each field; None for a kind without settings."""

    @property
    def make(self) -> Callable[..., Any]:
        """The factory; the class of each kind documents its arguments."""


class Kinds(Protocol):
    """All kinds of all loaded plugins; implemented by `plugins.PluginManager`."""

    @property
    def engines(self) -> Mapping[str, Kind]: ...
    @property
    def semantics(self) -> Mapping[str, Kind]: ...
    @property
    def exchanges(self) -> Mapping[str, Kind]: ...
    @property
    def protocols(self) -> Mapping[str, Kind]: ...
    @property
    def interceptors(self) -> Mapping[str, Kind]: ...
    @property
    def authenticators(self) -> Mapping[str, Kind]: ...
    @property
    def authorizers(self) -> Mapping[str, Kind]: ...
    @property
    def metadata_stores(self) -> Mapping[str, Kind]: ...
    @property
    def partitioners(self) -> Mapping[str, Kind]: ...
    @property
    def orders(self) -> Mapping[str, OrderKind]: ...
    @property
    def assignors(self) -> Mapping[str, Kind]: ...
    @property
    def services(self) -> Mapping[str, ServiceTables]: ...
    @property
    def plugin_names(self) -> Collection[str]:
        """The names of all plugins that were found, including blocked ones."""


def kind_named(kinds: Mapping[str, K], name: str, noun: str) -> K:
    """Return the kind of this name; `noun` is the word for it in errors ("storage engine").

    Raises:
        PluginUnknown: no plugin registers it; the text names the nearest one.
    """
    kind = kinds.get(name)
    if kind is None:
        raise PluginUnknown(f'no plugin provides the {noun} "{name[:80]}"{did_you_mean(name, kinds)}')
    return kind
