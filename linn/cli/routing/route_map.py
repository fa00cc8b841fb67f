"""Copies of the exchanges of a configuration or a running broker, to be evaluated without publishing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from linn.cli.session import with_client
from linn.client.client import Client
from linn.core.batch.record import Labels
from linn.core.config.checks import NoSettings
from linn.core.config.config import load_config, plugin_settings, read_toml
from linn.core.config.decoder import decode_settings
from linn.core.config.kinds import kind_named
from linn.core.config.problem import Problems
from linn.core.config.tables import PluginSettings
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import ExchangeUnknown, PluginUnknown
from linn.core.plugins.manager import PluginManager, installed
from linn.core.routing.binding_table import BindingTable
from linn.core.routing.default_exchange import DEFAULT_EXCHANGE, DefaultExchange
from linn.core.routing.exchange import Binding, Exchange, Subject, Target
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.router import Router
from linn.descriptions import ExchangeDescription, TopicDescription

Description = Mapping[str, Any]
"""Description of an exchange by a broker."""


class ForeignExchange:
    """Exchange of a type that no installed plugin brings: it has bindings, and can't be evaluated."""

    def __init__(self, name: str, kind: str) -> None:
        self._error = (
            f'exchange {name} has the type "{kind}", which no plugin provides here: what it matches is not known'
        )
        self._table = BindingTable()

    def bind(self, binding: Binding) -> None:
        """Add a binding. Raises BindingInvalid."""
        self._table.add(binding)

    def unbind(self, binding: Binding) -> None:
        """Remove a binding. Raises BindingInvalid."""
        self._table.remove(binding)

    def bindings(self) -> Sequence[Binding]:
        """Return the bindings in the order of their creation."""
        return self._table.all()

    def fields(self) -> frozenset[str]:
        """Return no fields, as the exchange is never evaluated."""
        return frozenset()

    def match(self, subject: Subject) -> Sequence[Binding]:
        """Raise PluginUnknown."""
        raise PluginUnknown(self._error)


class RouteMap:
    """Exchanges, linked as in a broker, and the names of topics."""

    def __init__(self, plugins: PluginManager, topics: Iterable[str]) -> None:
        self.topics = dict.fromkeys(topics)
        self._plugins = plugins
        self._graph: ExchangeGraph[Router] = ExchangeGraph()
        self._default = Router(DEFAULT_EXCHANGE, "default", lambda: DefaultExchange(self.topics), self._graph)

    @property
    def exchanges(self) -> Mapping[str, Router]:
        """Exchanges by name, without the default one."""
        return self._graph.routers

    def router(self, name: str) -> Router:
        """Return an exchange. Raises ExchangeUnknown."""
        if name == DEFAULT_EXCHANGE:
            return self._default
        found = self._graph.routers.get(name)
        if found is None:
            raise ExchangeUnknown(f'there is no exchange "{name[:80]}"{did_you_mean(name, self._graph.routers)}')
        return found

    def add(self, name: str, kind_name: str, settings: Any, alternate: str | None) -> None:
        """Add an exchange. Raises PluginUnknown, PluginError."""
        kind = kind_named(self._plugins.exchanges, kind_name, "exchange type")

        def make() -> Exchange:
            made: Exchange = self._plugins.make(kind, name, settings)
            return made

        owner = self._plugins.owner_of(kind)
        self._graph.routers[name] = Router(name, kind_name, make, self._graph, alternate, owner=owner)

    def add_foreign(self, name: str, kind_name: str, alternate: str | None) -> None:
        """Add an exchange of an unknown type, whose evaluation raises PluginUnknown."""
        self._graph.routers[name] = Router(
            name, kind_name, lambda: ForeignExchange(name, kind_name), self._graph, alternate
        )

    def bind(self, exchange: str, binding: Binding) -> None:
        """Add a binding. Raises ExchangeUnknown, BindingInvalid."""
        self.router(exchange).bind(binding)


def map_of_config(file: str) -> RouteMap:
    """Map a configuration file. Raises ConfigError, PluginError."""
    source = read_toml(file)
    plugins = PluginManager(plugin_settings(source), installed())
    config = load_config(source, plugins)
    routes = RouteMap(plugins, config.topics)
    for name, exchange in config.exchanges.items():
        routes.add(name, exchange.kind, exchange.settings, exchange.alternate)
    for name, exchange in config.exchanges.items():
        for binding in exchange.bindings:
            target = Target(name, is_exchange=True)
            routes.bind(binding.exchange, Binding(target, binding.key, binding.arguments))
    for name, topic in config.topics.items():
        for binding in topic.bindings:
            routes.bind(binding.exchange, Binding(Target(name), binding.key, binding.arguments))
    return routes


def map_of_broker(url: str) -> RouteMap:
    """Map a running broker. Raises LinnError."""

    async def ask(client: Client) -> tuple[list[ExchangeDescription], list[TopicDescription]]:
        return await client.admin.exchanges(), await client.admin.topics()

    exchanges, topics = with_client(url, ask)
    plugins = PluginManager(PluginSettings(), installed())
    return map_of_description(exchanges, [topic["name"] for topic in topics], plugins)


def map_of_description(exchanges: Sequence[Description], topics: Iterable[str], plugins: PluginManager) -> RouteMap:
    """Map descriptions of exchanges. Raises ConfigError or BindingInvalid where the broker has other plugins."""
    routes = RouteMap(plugins, topics)
    for shown in exchanges:
        if shown["type"] in plugins.exchanges:
            routes.add(shown["name"], shown["type"], _settings(plugins, shown), shown.get("alternate"))
        else:
            routes.add_foreign(shown["name"], shown["type"], shown.get("alternate"))
    for shown in exchanges:
        for binding in shown["bindings"]:
            target = Target(binding["topic"]) if "topic" in binding else Target(binding["exchange"], is_exchange=True)
            routes.bind(shown["name"], Binding(target, binding["key"], binding["arguments"]))
    return routes


def _settings(plugins: PluginManager, shown: Description) -> Any:
    """Decode the type's own settings in a description of an exchange. Raises ConfigError."""
    kind, problems = plugins.exchanges[shown["type"]], Problems()
    path = ("exchanges", shown["name"])
    settings = decode_settings(kind.settings or NoSettings, shown.get("settings", {}), path, problems)
    problems.raise_first()
    return settings if kind.settings else None


def subject_from(
    routing_key: str,
    labels: Labels,
    key: str | bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    *,
    size_bytes: int,
) -> Subject:
    """Make the subject that exchanges evaluate. The last of repeated headers counts, and only if it has a value."""
    named = {name: value for name, value in dict(headers).items() if value is not None}
    raw = key.encode(errors="surrogateescape") if isinstance(key, str) else key
    return Subject(routing_key, labels, raw, named, size_bytes)
