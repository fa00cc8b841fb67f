"""Checks of a whole configuration file, table by table, against itself and the kinds of plugins.

Laws: every table is checked, even if another is wrong, and its valid part is compared with the others, so that one run
shows all problems. An invalid table still counts as existing, so that references to it are not reported as well;
nothing is concluded from an invalid key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from linn.core.config.configured import ClusterSettings, Configured, ConfiguredExchange, Listener
from linn.core.config.dead_letter_circles import warn_of_circles
from linn.core.config.decoder import decode_settings, known_keys
from linn.core.config.kinds import Kind, Kinds
from linn.core.config.problem import Problems
from linn.core.config.service_tables import check_services
from linn.core.config.tables import (
    TABLES,
    AuditTable,
    AuthenticatorTable,
    AuthorizerTable,
    BrokerSettings,
    ClusterTable,
    DeliveryTable,
    ExchangeTable,
    GroupTable,
    InterceptorTable,
    ListenerTable,
    LogSettings,
    PluginSettings,
    StorageTable,
    TlsTable,
    TokensTable,
    UserTable,
)
from linn.core.config.toml_source import Path, TomlSource
from linn.core.config.topic_checks import Surroundings, check_name, check_topic, must_exist
from linn.core.config.topic_settings import BindingSettings, TopicSettings
from linn.core.env.address import anonymous_text, is_beyond_loopback, is_wildcard, open_text, parse_address
from linn.core.env.secret import Secret
from linn.core.errors.texts import did_you_mean, nearest
from linn.core.errors.tree import (
    AddressInvalid,
    BindingInvalid,
    ConfigError,
    ConfigUnknownKey,
    LinnError,
    PluginError,
    PluginUnknown,
)
from linn.core.groups.group import check_name as check_group_name
from linn.core.routing.exchange import Binding, Exchange, Target
from linn.core.routing.graph import circle_text, way_between
from linn.core.security.logins import LOGIN_METHODS, LoginRules
from linn.core.security.policy import ADMINISTRATOR
from linn.core.security.rule import Rule, rules_of
from linn.core.security.sasl.scram import Verifier
from linn.core.security.users import User, check_user_name

S = TypeVar("S", bound=msgspec.Struct)

_SELECTORS = ("protocol", "engine", "semantics", "interceptor", "authenticator", "authorizer", "type", "store")
"""Keys by which a table chooses a kind."""

_NOUNS = {
    "listeners": "protocol",
    "storage": "storage engine",
    "delivery": "delivery semantics",
    "exchanges": "exchange type",
    "interceptors": "interceptor",
    "authenticators": "authenticator",
    "authorizers": "authorizer",
    "cluster": "metadata store",
}


def plugin_table(data: Mapping[str, Any], problems: Problems) -> PluginSettings:
    """Decode the valid part of `[plugins]`; errors are added to `problems`."""
    found = decode_settings(PluginSettings, data.get("plugins", {}), ("plugins",), problems, partial=True)
    return found or PluginSettings()


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a kind without settings: every key is unknown."""


class ConfigChecker:
    """One pass over a file. Each method decodes one table and adds its errors to `problems`."""

    def __init__(self, source: TomlSource, kinds: Kinds) -> None:
        self.problems = Problems(source)
        self._data = source.data
        self._kinds = kinds

    def unknown_tables(self) -> None:
        """Report top-level keys that are not configuration tables."""
        known = [*TABLES, *self._kinds.services]
        for key in self._data:
            if key not in known:
                self.problems.add((key,), f"unknown key{did_you_mean(key, known)}", error=ConfigUnknownKey)

    def broker(self) -> BrokerSettings:
        """Decode `[broker]`; the defaults if it is invalid."""
        table = self._data.get("broker", {})
        settings = decode_settings(BrokerSettings, table, ("broker",), self.problems, partial=True)
        settings = settings or BrokerSettings()
        self._exists("default_storage", "storage", settings.default_storage, self._kinds.engines)
        self._exists("default_delivery", "delivery", settings.default_delivery, self._kinds.semantics)
        if settings.transaction_storage is not None:
            self._exists("transaction_storage", "storage", settings.transaction_storage, self._kinds.engines)
        if settings.authorizer is not None:
            self._exists("authorizer", "authorizers", settings.authorizer, self._kinds.authorizers)
        self._check_assignor(settings.default_assignor, ("broker", "default_assignor"))
        return settings

    def log(self) -> LogSettings:
        """Decode `[log]`; the defaults if it is invalid."""
        return decode_settings(LogSettings, self._data.get("log", {}), ("log",), self.problems) or LogSettings()

    def plugins(self) -> PluginSettings:
        """Decode `[plugins]`; blocking an unknown plugin is only a warning: it may just not be installed here."""
        settings = plugin_table(self._data, self.problems)
        for index, name in enumerate(settings.block):
            if name not in self._kinds.plugin_names:
                meant = did_you_mean(name, self._kinds.plugin_names)
                self.problems.warn(("plugins", "block", index), f'there is no plugin "{name}"{meant}')
        return settings

    def listeners(self) -> dict[str, Listener]:
        """Decode `[listeners.*]`; the default listener if there is none."""
        tables = self._tables("listeners") or {"native": {}}
        found: dict[str, Listener] = {}
        for name, table in tables.items():
            path: Path = ("listeners", name)
            head, own = self._split(ListenerTable, table, path)
            if head is not None:
                at = (*path, "protocol")
                settings = self._kind_settings(self._kinds.protocols, head.protocol, own, at, ListenerTable)
                login, mode = LoginRules(head.login == "required", self._methods(head)), int(head.socket_mode, 8)
                found[name] = Listener(
                    name, head.address, head.protocol, settings, head.tls, mode, login, head.advertise
                )
                must_exist(head.tls, self.names("tls"), "TLS table", (*path, "tls"), self.problems)
                known = {*LOGIN_METHODS, *self.names("authenticators"), *self._kinds.authenticators}
                for method in head.methods or ():
                    must_exist(method, known, "way to log in", (*path, "methods"), self.problems)
                self._check_login(head, path)
                self._check_open(head, path)
                self._check_advertised(head, path)
        self._check_addresses(found)
        return found

    def tls(self) -> dict[str, TlsTable]:
        """Decode `[tls.*]`. The files are read when the broker starts."""
        tables = {
            name: decode_settings(TlsTable, table, ("tls", name), self.problems)
            for name, table in self._tables("tls").items()
        }
        return {name: table for name, table in tables.items() if table is not None}

    def _methods(self, head: ListenerTable) -> tuple[str, ...]:
        """A listener's ways to log in, which are its protocol's unless its table lists some."""
        has = getattr(self._kinds.protocols.get(head.protocol), "login_methods", ())
        if head.methods is None:
            return tuple(method for method in has if method != "plain" or "scram" not in has)
        return tuple(method for method in head.methods if method in has or method not in LOGIN_METHODS)

    def _check_login(self, head: ListenerTable, path: Path) -> None:
        """Refuse a login that no client can pass, or that the protocol does not have: all would be served then."""
        kind = self._kinds.protocols.get(head.protocol)
        if head.login != "required" or kind is None or self.problems.any_wrong(path, "address", "tls", "methods"):
            return
        if not getattr(kind, "login_methods", ()):
            self.problems.add((*path, "login"), f'the protocol "{head.protocol}" has no logins')
            return
        is_local = head.address.startswith("unix:")
        possible = {"scram"} | ({"token", "plain"} if is_local or head.tls else set())
        possible |= {"peer"} if is_local else {"certificate"} if head.tls else set()
        if is_local or head.tls:
            possible |= {method for method in head.methods or () if method not in LOGIN_METHODS}
        if not possible & {*self._methods(head)}:
            text = "nobody could log in: plain passwords, tokens and certificates need TLS, and peer a Unix socket"
            self.problems.add((*path, "login"), text)

    def _check_open(self, head: ListenerTable, path: Path) -> None:
        """Refuse an address that other machines reach, if nothing says that it may be without TLS."""
        if self.problems.any_wrong(path, "address", "tls", "plaintext"):
            return
        try:
            reaches_others = is_beyond_loopback(head.address)
        except AddressInvalid:
            return
        if reaches_others and head.tls is None and not head.plaintext:
            self.problems.add((*path, "address"), open_text(head.address))
        elif reaches_others and head.login is None and not self._is_for_brokers(head.protocol):
            self.problems.add((*path, "address"), anonymous_text(head.address))
        if not reaches_others and head.plaintext:
            self.problems.warn((*path, "plaintext"), f"has no effect: only this machine reaches {head.address}")
        if head.tls is not None and head.address.startswith("unix:"):
            self.problems.add((*path, "tls"), "a Unix socket needs no TLS: only this machine reaches it")
        elif head.tls is not None and head.plaintext:
            self.problems.warn((*path, "plaintext"), "has no effect: the listener speaks only TLS")

    def _check_advertised(self, head: ListenerTable, path: Path) -> None:
        """Refuse an address to which no client can connect."""
        if head.advertise is None or self.problems.any_wrong(path, "advertise"):
            return
        try:
            place = parse_address(head.advertise)
        except AddressInvalid as error:
            self.problems.add((*path, "advertise"), error.text)
            return
        if isinstance(place, str) or place[1] == 0 or is_wildcard(place[0]):
            text = f'{head.advertise} is no address to connect to: write "HOST:PORT" as others reach it'
            self.problems.add((*path, "advertise"), text)

    def cluster(self, listeners: Mapping[str, Listener]) -> ClusterSettings | None:
        """Decode `[cluster]`; None if there is none, or an invalid one."""
        if "cluster" not in self._data:
            return None
        path: Path = ("cluster",)
        head, own = self._split(ClusterTable, self._data["cluster"], path)
        if head is None:
            return None
        check_name(head.name, (*path, "name"), self.problems)
        if head.listener is not None:
            must_exist(head.listener, self.names("listeners"), "listener", (*path, "listener"), self.problems)
            self._check_links(head, listeners.get(head.listener))
        settings = self._kind_settings(
            self._kinds.metadata_stores, head.store, own, (*path, "store"), ClusterTable, path=path
        )
        self._warn_of_unreachable(listeners)
        broker = self._data.get("broker")
        if isinstance(broker, dict) and broker.get("workers") is not None:
            text = "workers are a cluster of one machine: leave out either them or [cluster]"
            self.problems.add(("broker", "workers"), text)
        return ClusterSettings(
            name=head.name,
            node=head.node,
            store=head.store,
            store_settings=settings,
            listener=head.listener,
            secret=head.secret,
            rack=head.rack,
            session_timeout_s=head.session_timeout_s,
            replicas=head.replicas,
            min_in_sync=head.min_in_sync,
            catch_up_bytes=head.catch_up_bytes,
        )

    def _check_links(self, head: ClusterTable, listener: Listener | None) -> None:
        """Refuse a listener that is none for brokers, and one without a secret."""
        if listener is not None and not self._is_for_brokers(listener.protocol):
            text = f'listeners.{listener.name} speaks "{listener.protocol}": brokers need protocol = "peers"'
            self.problems.add(("cluster", "listener"), text)
        if head.secret is None:
            self.problems.add(("cluster", "listener"), "needs a secret, by which brokers know each other: set secret")

    def _is_for_brokers(self, protocol: str) -> bool:
        return getattr(self._kinds.protocols.get(protocol), "links", None) is not None

    def _warn_of_unreachable(self, listeners: Mapping[str, Listener]) -> None:
        """Warn of listeners of which the cluster would tell an address that is none to others."""
        for name, listener in listeners.items():
            path: Path = ("listeners", name)
            if listener.advertise is not None or self.problems.any_wrong(path, "address", "advertise"):
                continue
            try:
                place = parse_address(listener.address)
            except AddressInvalid:
                continue
            if not isinstance(place, str) and is_wildcard(place[0]):
                text = f"{listener.address} is no address that others can use: set advertise to the one that is"
                self.problems.warn((*path, "address"), text)

    def storage(self) -> dict[str, Configured]:
        """Decode `[storage.*]`, and add every engine under its own name."""
        return self._configured("storage", StorageTable, "engine", self._kinds.engines)

    def delivery(self) -> dict[str, Configured]:
        """Decode `[delivery.*]`, and add every semantics under its own name."""
        return self._configured("delivery", DeliveryTable, "semantics", self._kinds.semantics)

    def interceptors(self) -> dict[str, Configured]:
        """Decode `[interceptors.*]`, and add every interceptor under its own name."""
        return self._configured("interceptors", InterceptorTable, "interceptor", self._kinds.interceptors)

    def authenticators(self) -> dict[str, Configured]:
        """Decode `[authenticators.*]`, and add every authenticator under its own name."""
        for name in self.names("authenticators"):
            if name in LOGIN_METHODS:
                self.problems.add(("authenticators", name), f'"{name}" is a way to log in already')
        return self._configured("authenticators", AuthenticatorTable, "authenticator", self._kinds.authenticators)

    def authorizers(self) -> dict[str, Configured]:
        """Decode `[authorizers.*]`, and add every authorizer under its own name."""
        return self._configured("authorizers", AuthorizerTable, "authorizer", self._kinds.authorizers)

    def groups(self) -> dict[str, GroupTable]:
        """Decode `[groups.*]`. A group's name may be any text."""
        found: dict[str, GroupTable] = {}
        for name, table in self._tables("groups").items():
            path: Path = ("groups", name)
            try:
                check_group_name(name, "group")
            except LinnError as error:
                self.problems.add(path, error.text)
            settings = decode_settings(GroupTable, table, path, self.problems, partial=True)
            if settings is not None:
                found[name] = settings
                self._check_assignor(settings.assignor, (*path, "assignor"))
        return found

    def tokens(self) -> TokensTable:
        """Decode `[tokens]`; the defaults if it is invalid."""
        return decode_settings(TokensTable, self._data.get("tokens", {}), ("tokens",), self.problems) or TokensTable()

    def audit(self) -> AuditTable:
        """Decode `[audit]`; the defaults if it is invalid."""
        found = decode_settings(AuditTable, self._data.get("audit", {}), ("audit",), self.problems) or AuditTable()
        if found.storage is not None:
            known = {*self.names("storage"), *self._kinds.engines}
            must_exist(found.storage, known, "storage", ("audit", "storage"), self.problems, PluginUnknown)
        return found

    def roles(self) -> dict[str, tuple[Rule, ...]]:
        """Decode `[roles.*]`; a role with an error allows nothing."""
        found: dict[str, tuple[Rule, ...]] = {}
        for name, table in self._tables("roles").items():
            path: Path = ("roles", name)
            found[name] = ()
            if name == ADMINISTRATOR:
                self.problems.add(path, f"the role {ADMINISTRATOR} may do everything, and has no table")
            elif not isinstance(table, dict):
                self.problems.add(path, "must be a table")
            else:
                for resource, operations in table.items():
                    try:
                        found[name] += rules_of({resource: operations})
                    except ConfigError as error:
                        self.problems.add((*path, resource), error.text)
        return found

    def users(self, roles: Mapping[str, tuple[Rule, ...]]) -> tuple[dict[str, User], dict[str, Secret]]:
        """Decode `[users.*]`, with the verifiers that are elsewhere. A user's name may be any text."""
        found: dict[str, User] = {}
        verifiers: dict[str, Secret] = {}
        for name, table in self._tables("users").items():
            path: Path = ("users", name)
            try:
                check_user_name(name)
            except LinnError as error:
                self.problems.add(path, error.text)
            settings = decode_settings(UserTable, table, path, self.problems, partial=True)
            if settings is None:
                continue
            scram = settings.scram
            if isinstance(scram, Secret):
                verifiers[name], scram = scram, ""
            elif scram:
                try:
                    Verifier.parse(scram)
                except ConfigError as error:
                    self.problems.add((*path, "scram"), error.text)
            for index, role in enumerate(settings.roles):
                if role != ADMINISTRATOR:
                    must_exist(role, roles, "role", (*path, "roles", index), self.problems)
            found[name] = User(
                name=name,
                roles=settings.roles,
                scram=scram,
                certificate=settings.certificate,
                uid=settings.uid,
                limits=settings.limits,
            )
        return found, verifiers

    def _check_assignor(self, name: str | None, path: Path) -> None:
        must_exist(name, self._kinds.assignors, "assignor", path, self.problems, PluginUnknown)

    def exchanges(self) -> dict[str, ConfiguredExchange]:
        """Decode `[exchanges.*]`."""
        found: dict[str, ConfiguredExchange] = {}
        heads: dict[str, ExchangeTable] = {}
        for name, table in self._tables("exchanges").items():
            path: Path = ("exchanges", name)
            head, own = self._split(ExchangeTable, table, path)
            if head is not None:
                settings = self._kind_settings(self._kinds.exchanges, head.type, own, (*path, "type"), ExchangeTable)
                found[name] = ConfiguredExchange(name, head.type, settings, head)
                heads[name] = head
                if head.lifetime != "kept":
                    text = "an exchange of the file is kept: make this one live"
                    self.problems.add((*path, "lifetime"), text)
        check_links(heads, self.names("exchanges"), self.problems)
        return found

    def topics(self, around: Surroundings, exchanges: Mapping[str, ConfiguredExchange]) -> dict[str, TopicSettings]:
        """Decode `[topics.*]` and fill in defaults; bindings are tried on temporary exchanges."""
        trial = self._trial_exchanges(exchanges)
        for name, exchange in exchanges.items():
            for index, binding in enumerate(exchange.bindings):
                path: Path = ("exchanges", name, "bindings", index)
                self._try_binding(path, Target(name, is_exchange=True), binding, trial)
        found: dict[str, TopicSettings] = {}
        for name, table in self._tables("topics").items():
            topic = decode_settings(TopicSettings, table, ("topics", name), self.problems, partial=True)
            if topic is None:
                check_name(name, ("topics", name), self.problems)
                continue
            found[name] = check_topic(name, topic, around, self.problems)
            if topic.is_transient:
                self.problems.add(("topics", name, "lifetime"), "a topic of the file is kept: make this one live")
            for index, binding in enumerate(topic.bindings):
                self._try_binding(("topics", name, "bindings", index), Target(name), binding, trial)
        warn_of_circles(found, exchanges, self.problems)
        return found

    def services(self) -> dict[str, Any]:
        """The services' tables in the file; the defaults for a table with errors."""
        found: dict[str, Any] = {}
        for name, kind in self._kinds.services.items():
            if name in self._data:
                table = self._data[name]
                settings = decode_settings(kind.settings, table, (name,), self.problems, partial=True)
                found[name] = settings if settings is not None else kind.settings()
        return found

    def check_services(self, settings: Mapping[str, Any], topics: Mapping[str, TopicSettings]) -> None:
        """Let the services check their tables, unless a table has an error already."""
        if not self.problems.error_count:
            check_services(self._kinds.services.values(), settings, topics, self.problems)

    def names(self, table: str) -> dict[str, Any]:
        """The names under a top-level table, including tables with invalid settings."""
        tables = self._data.get(table, {})
        return tables if isinstance(tables, dict) else {}

    def _tables(self, top: str) -> dict[str, Any]:
        """The named tables under `[top]`, their names checked."""
        tables = self._data.get(top, {})
        if not isinstance(tables, dict):
            self.problems.add((top,), f"must hold tables: [{top}.NAME]")
            return {}
        for name in tables:
            if top not in ("topics", "groups", "users"):
                check_name(name, (top, name), self.problems)
        return tables

    def _exists(self, key: str, top: str, name: str, kinds: Mapping[str, Kind]) -> None:
        known = {*self.names(top), *kinds}
        if name not in known:
            text = f'there is no {top} "{name[:80]}"{did_you_mean(name, known)}'
            self.problems.add(("broker", key), text, error=PluginUnknown)

    def _configured(
        self, top: str, head_type: type[msgspec.Struct], selector: str, kinds: Mapping[str, Kind]
    ) -> dict[str, Configured]:
        """Decode tables that choose a kind by a key, or else by their own name; add each kind under its own name."""
        found = {name: Configured(name, name, kind.settings and kind.settings()) for name, kind in kinds.items()}
        for name, table in self._tables(top).items():
            path: Path = (top, name)
            head, own = self._split(head_type, table, path)
            chosen = getattr(head, selector, None)
            at = (*path, selector) if chosen else path
            settings = self._kind_settings(kinds, chosen or name, own, at, head_type) if head is not None else None
            found[name] = Configured(name, chosen or name, settings)
        return found

    def _split(self, head_type: type[S], table: object, path: Path) -> tuple[S | None, dict[str, Any]]:
        """Split a table into linn's own keys, decoded, and the remaining keys, which belong to the kind."""
        if not isinstance(table, dict):
            self.problems.add(path, "must be a table")
            return None, {}
        heads = known_keys(head_type)
        known = {key: table[key] for key in heads if key in table}
        head = decode_settings(head_type, known, path, self.problems, partial=True)
        return head, {key: value for key, value in table.items() if key not in heads}

    def _kind_settings(
        self,
        kinds: Mapping[str, Kind],
        kind_name: str,
        own: dict[str, Any],
        at: Path,
        head_type: type[msgspec.Struct],
        path: Path | None = None,
    ) -> Any:
        """Decode a kind's own settings; None if it has none, is unknown (an error at `at`), or has invalid settings.

        `path`: their table; None: the first two keys of `at`.
        """
        path, heads = path or at[:2], known_keys(head_type)
        if self.problems.any_wrong(path, *_SELECTORS):
            self._report_misspelt(own, heads, path)
            return None
        kind = kinds.get(kind_name)
        if kind is not None:
            settings = decode_settings(kind.settings or NoSettings, own, path, self.problems, also_known=heads)
            return settings if kind.settings else None
        noun = _NOUNS[str(path[0])]
        text = f'no plugin provides the {noun} "{kind_name[:80]}"{did_you_mean(kind_name, kinds)}'
        self.problems.add(at, text, error=PluginUnknown)
        self._report_misspelt(own, heads, path)
        return None

    def _report_misspelt(self, keys: Iterable[str], known: Sequence[str], path: Path) -> None:
        """Report `keys` that resemble a known key, when only a plugin could tell that they are wrong."""
        for key in keys:
            meant = nearest(key, known)
            if meant is not None:
                self.problems.add((*path, key), f'unknown key; did you mean "{meant}"?', error=ConfigUnknownKey)

    def _check_addresses(self, listeners: Mapping[str, Listener]) -> None:
        taken: dict[object, str] = {}
        for name, listener in listeners.items():
            path: Path = ("listeners", name, "address")
            try:
                place = parse_address(listener.address)
            except AddressInvalid as error:
                self.problems.add(path, error.text)
                continue
            if self.problems.any_wrong(("listeners", name), "address"):
                continue
            if place in taken:
                self.problems.add(path, f'{listener.address} is the address of listener "{taken[place]}" as well')
            if isinstance(place, str) or place[1] != 0:
                taken.setdefault(place, name)

    def _trial_exchanges(self, exchanges: Mapping[str, ConfiguredExchange]) -> dict[str, Exchange]:
        trial: dict[str, Exchange] = {}
        for name, configured in exchanges.items():
            kind = self._kinds.exchanges.get(configured.kind)
            if kind is None or (kind.settings is not None and configured.settings is None):
                continue
            try:
                trial[name] = kind.make(name, configured.settings)
            except LinnError as error:
                self.problems.add(("exchanges", name), error.text, error=type(error))
            except Exception as error:
                self._plugin_failed(("exchanges", name), configured.kind, error)
        return trial

    def _try_binding(self, path: Path, target: Target, binding: BindingSettings, trial: Mapping[str, Exchange]) -> None:
        exchange = trial.get(binding.exchange)
        if exchange is None:
            return
        try:
            exchange.bind(Binding(target, binding.key, binding.arguments))
        except LinnError as error:
            at = (*path, error.key) if isinstance(error, BindingInvalid) and error.key else path
            self.problems.add(at, error.text, error=type(error))
            self._report_misspelt(binding.arguments, known_keys(BindingSettings), path)
        except Exception as error:
            self._plugin_failed(path, binding.exchange, error)

    def _plugin_failed(self, path: Path, kind: str, error: Exception) -> None:
        self.problems.add(path, f'"{kind}" failed: {type(error).__name__}: {error}', error=PluginError)


def check_links(tables: Mapping[str, ExchangeTable], known: Collection[str], problems: Problems) -> None:
    """Add an error for each alternate or binding that names an unknown exchange or closes a cycle.

    `known`: the names of all exchanges, including exchanges with invalid settings.
    """
    exits: dict[str, list[str]] = {}
    for source, target, path in _links(tables):
        must_exist(source, known, "exchange", path, problems)
        must_exist(target, known, "exchange", path, problems)
        way = way_between(target, source, lambda name: exits.get(name, ()))
        if way is not None:
            problems.add(path, circle_text([source, *way]), error=BindingInvalid)
        else:
            exits.setdefault(source, []).append(target)


def _links(tables: Mapping[str, ExchangeTable]) -> Iterator[tuple[str, str, Path]]:
    """(source, target, place of the setting), in the order of the file."""
    for name, table in tables.items():
        if table.alternate is not None:
            yield name, table.alternate, ("exchanges", name, "alternate")
        for index, binding in enumerate(table.bindings):
            yield binding.exchange, name, ("exchanges", name, "bindings", index, "exchange")
