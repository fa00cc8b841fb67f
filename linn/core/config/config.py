"""The configuration: TOML in, frozen structs out, every problem with its file, line, key and the nearest valid key.

Reading takes three steps, because plugins have settings of their own: `read_toml` (the text), `plugin_settings` (the
plugins to load), then `load_config` or `check_config` (everything, against the kinds of those plugins). The structs are
in `tables` and `topic_settings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from linn.core.config.checks import ConfigChecker, plugin_table
from linn.core.config.configured import ClusterSettings, Configured, ConfiguredExchange, Listener
from linn.core.config.kinds import Kinds
from linn.core.config.problem import Problems
from linn.core.config.service_tables import own_table
from linn.core.config.tables import (
    AuditTable,
    BrokerSettings,
    GroupTable,
    LogSettings,
    PluginSettings,
    TlsTable,
    TokensTable,
)
from linn.core.config.toml_source import Path, TomlSource
from linn.core.config.topic_checks import Replication, Surroundings
from linn.core.config.topic_settings import TopicSettings
from linn.core.env.secret import Secret, secrets_in
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.texts import one_line
from linn.core.errors.tree import ConfigUnreadable
from linn.core.security.rule import Rule
from linn.core.security.users import User

FILE_BYTES_MAX = 4 << 20
"""Limit of the file's size: a configuration of 10,000 topics has about 2 MiB."""


@dataclass(frozen=True, slots=True)
class Config:
    """A whole, checked configuration. Settings that topics inherit are filled in, and all names resolve."""

    broker: BrokerSettings
    log: LogSettings
    plugins: PluginSettings
    listeners: Mapping[str, Listener]
    storage: Mapping[str, Configured]
    delivery: Mapping[str, Configured]
    exchanges: Mapping[str, ConfiguredExchange]
    interceptors: Mapping[str, Configured]
    authenticators: Mapping[str, Configured]
    authorizers: Mapping[str, Configured]
    topics: Mapping[str, TopicSettings]
    groups: Mapping[str, GroupTable]
    audit: AuditTable
    tokens: TokensTable
    roles: Mapping[str, tuple[Rule, ...]]
    users: Mapping[str, User]
    services: Mapping[str, Any] = field(default_factory=dict)
    """Settings of services that have a table of their own, by the service's name."""
    tls: Mapping[str, TlsTable] = field(default_factory=dict)
    verifiers: Mapping[str, Secret] = field(default_factory=dict)
    """References to verifiers of passwords, by the user's name."""
    file: str = ""
    """The file's name in messages."""
    topic_services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The tables of services that topics have, decoded, by topic and table."""
    topic_lines: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The line of each key in the file, by topic and key."""
    cluster: ClusterSettings | None = None
    """None: the broker is alone."""

    @property
    def is_open(self) -> bool:
        """Whether every client may do everything, because nothing says who may do what."""
        logs_in = any(listener.login.is_required for listener in self.listeners.values())
        return not (self.roles or self.users or logs_in or self.broker.authorizer)

    def audit_settings(self) -> TopicSettings | None:
        """The settings of the audit trail's topic; None: there is none."""
        if not (not self.is_open if self.audit.enabled is None else self.audit.enabled):
            return None
        return TopicSettings(
            kind="stream",
            storage=self.audit.storage or self.broker.default_storage,
            delivery=self.broker.default_delivery,
            message_bytes_max=self.broker.message_bytes_max,
            retention_ms=self.audit.retention_ms,
            retention_bytes=self.audit.retention_bytes,
        )

    def secrets(self) -> Iterator[tuple[Path, Secret]]:
        """Yield every reference to a secret in the file, with its place."""
        for name, secret in self.verifiers.items():
            yield ("users", name, "scram"), secret
        if self.cluster is not None:
            if self.cluster.secret is not None:
                yield ("cluster", "secret"), self.cluster.secret
            for place, secret in secrets_in(self.cluster.store_settings):
                yield ("cluster", *place), secret
        tables: dict[str, Mapping[str, Configured | Listener]] = {
            "storage": self.storage,
            "delivery": self.delivery,
            "exchanges": self.exchanges,
            "interceptors": self.interceptors,
            "listeners": self.listeners,
        }
        for top, named in tables.items():
            for name, configured in named.items():
                for place, secret in secrets_in(configured.settings):
                    yield (top, name, *place), secret
        for place, secret in secrets_in(self.services):
            yield place, secret
        for place, secret in secrets_in(self.topic_services):
            yield ("topics", *place), secret

    def assignor_of(self, group: str) -> str:
        """The name of a group's assignor."""
        table = self.groups.get(group)
        return (table and table.assignor) or self.broker.default_assignor

    def surroundings(self, topics: Mapping[str, Any], exchanges: Mapping[str, Any], kinds: Kinds) -> Surroundings:
        """Names and limits that a new topic's settings may refer to: this configuration, and existing topics,
        exchanges."""
        delivery = {name: configured.settings for name, configured in self.delivery.items()}
        named = topics, exchanges, self.storage, delivery, self.interceptors, kinds.partitioners
        cluster = self.cluster if self.cluster is not None and self.cluster.listener is not None else None
        replication = Replication(cluster.replicas, cluster.min_in_sync) if cluster is not None else None
        return Surroundings(self.broker, *named, list(kinds.services.values()), replication, kinds.orders)


def read_toml(path: str) -> TomlSource:
    """Read a configuration file, the only file that is read before there is an Env.

    Raises:
        ConfigUnreadable: no such file, no permission, not UTF-8, not TOML, or larger than 4 MiB.
    """
    shown = one_line(path)
    try:
        file = FilePath(path)
        if file.stat().st_size > FILE_BYTES_MAX:
            raise ConfigUnreadable(f"{shown}: larger than {FILE_BYTES_MAX >> 20} MiB: not a configuration")
        raw = file.read_bytes()
    except OSError as error:
        raise ConfigUnreadable(f"{shown}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigUnreadable(f"{shown}: can't be read: {error}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigUnreadable(f"{shown}:{line}: not UTF-8: byte 0x{raw[error.start]:02x}") from error
    return TomlSource(text, shown)


def plugin_settings(source: TomlSource) -> PluginSettings:
    """The `[plugins]` table, which is needed before any other check.

    Raises:
        ConfigError: the first error in that table.
    """
    problems = Problems(source)
    settings = plugin_table(source.data, problems)
    problems.raise_first()
    return settings


def load_config(source: TomlSource, kinds: Kinds) -> Config:
    """Check a file's configuration and return it.

    Raises:
        ConfigError, PluginError: the first error, by line.
    """
    config, problems = check_config(source, kinds)
    problems.raise_first()
    assert config is not None, "a file without errors gives a configuration"
    return config


def check_config(source: TomlSource, kinds: Kinds) -> tuple[Config | None, Problems]:
    """The configuration, or None if there is an error, and all problems of the file, including warnings."""
    config, problems = examine_config(source, kinds)
    return (None if problems.error_count else config), problems


def examine_config(source: TomlSource, kinds: Kinds) -> tuple[Config, Problems]:
    """The valid part of the configuration, with defaults for the rest, and all problems of the file."""
    checker = ConfigChecker(source, kinds)
    checker.unknown_tables()
    roles = checker.roles()
    users, verifiers = checker.users(roles)
    listeners = checker.listeners()
    config = Config(
        broker=checker.broker(),
        log=checker.log(),
        plugins=checker.plugins(),
        listeners=listeners,
        storage=checker.storage(),
        delivery=checker.delivery(),
        exchanges=checker.exchanges(),
        interceptors=checker.interceptors(),
        authenticators=checker.authenticators(),
        authorizers=checker.authorizers(),
        topics={},
        groups=checker.groups(),
        audit=checker.audit(),
        tokens=checker.tokens(),
        roles=roles,
        users=users,
        verifiers=verifiers,
        services=checker.services(),
        tls=checker.tls(),
        cluster=checker.cluster(listeners),
    )
    around = config.surroundings(checker.names("topics"), checker.names("exchanges"), kinds)
    topics = checker.topics(around, config.exchanges)
    checker.check_services(config.services, topics)
    tables = checker.names("topics")
    lines = {name: {key: source.line_of(("topics", name, key)) for key in tables[name]} for name in topics}
    audit = config.audit_settings()
    if audit is not None:
        topics[AUDIT_TOPIC], lines[AUDIT_TOPIC] = audit, {}
    own = {
        name: {service.topic_table or "": own_table(topic, service) for service in kinds.services.values()}
        for name, topic in topics.items()
        if topic.services
    }
    checked = replace(config, topics=topics, topic_services=own, file=source.file, topic_lines=lines)
    return checked, checker.problems
