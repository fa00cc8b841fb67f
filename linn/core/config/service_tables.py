"""Tables of services: `[NAME]` at the top of a file, and a table in each topic.

Laws: only the plugins know the keys, but unknown keys are refused, and errors have their file and line, as in other
tables. A topic's table comes from the file, unless its service says which others it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from linn.core.config.decoder import decode_settings, known_keys
from linn.core.config.problem import Problems, dotted
from linn.core.config.toml_source import Path
from linn.core.config.topic_settings import TopicSettings
from linn.core.env.secret import secrets_in
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import ConfigNotLive, ConfigUnknownKey, PluginError
from linn.core.security.access import Access
from linn.rights import Need

Report = Callable[[Path, str], None]
"""Adds an error of the configuration: its place, such as ("spark", "pipelines", 0, "topics"), and its text."""


class ServiceTopic(NamedTuple):
    """A topic, as a service sees it."""

    settings: TopicSettings
    own: Any
    """The topic's table for this service, decoded; None if it has none."""
    led_elsewhere: str | None = None
    """Sentence that names the broker of the cluster which leads the topic; None: this one does."""


class ServiceTables(Protocol):
    """The part of a service's kind that the configuration uses."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> type[Any]: ...
    @property
    def make(self) -> Callable[..., Any]: ...
    @property
    def topic_table(self) -> str | None: ...
    @property
    def topic_settings(self) -> type[Any] | None: ...
    @property
    def check(self) -> Callable[[Any, Mapping[str, ServiceTopic], Report], None] | None: ...
    @property
    def check_live(self) -> Callable[[Any, Any], str | None] | None: ...
    @property
    def needs(self) -> Callable[[str, Any], Iterable[Need]] | None: ...


def topic_tables(services: Iterable[ServiceTables]) -> dict[str, type[msgspec.Struct]]:
    """The tables that a topic may have for services, with their structs."""
    return {
        service.topic_table: service.topic_settings
        for service in services
        if service.topic_table is not None and service.topic_settings is not None
    }


def check_tables_of(name: str, topic: TopicSettings, services: Iterable[ServiceTables], problems: Problems) -> None:
    """Add an error for each key of a topic that is neither a setting nor a service's table, or is an invalid table."""
    if not topic.services:
        return
    tables = topic_tables(services)
    for key, table in topic.services.items():
        if key not in tables:
            meant = did_you_mean(key, [*known_keys(TopicSettings), *tables])
            problems.add(("topics", name, key), f"unknown key{meant}", error=ConfigUnknownKey)
        elif table is not None:
            decode_settings(tables[key], table, ("topics", name, key), problems)


def own_table(topic: TopicSettings, service: ServiceTables) -> Any:
    """A topic's table for a service, decoded; None if it has none, or one that the service no longer accepts."""
    raw = topic.services.get(service.topic_table) if service.topic_table is not None else None
    if raw is None or service.topic_settings is None:
        return None
    return decode_settings(service.topic_settings, raw, (), Problems())


def check_services(
    services: Iterable[ServiceTables],
    settings: Mapping[str, Any],
    topics: Mapping[str, TopicSettings],
    problems: Problems,
) -> None:
    """Let each configured service check its tables against each other and against the topics.

    `settings`: the settings of services with a table of their own. A check that raises counts as an error.
    """
    for service in services:
        if service.check is None:
            continue
        has_table = any(service.topic_table in topic.services for topic in topics.values() if topic.services)
        if service.name not in settings and not has_table:
            continue
        seen = {name: ServiceTopic(topic, own_table(topic, service)) for name, topic in topics.items()}
        try:
            service.check(settings.get(service.name) or service.settings(), seen, problems.add)
        except Exception as error:
            text = f'the check of "{service.name}" failed: {type(error).__name__}: {error}'
            problems.add((service.name,), text, error=PluginError)


FILE_ONLY = "comes from the configuration file alone"


def not_live(
    name: str,
    topic: TopicSettings,
    present: Mapping[str, Any],
    services: Iterable[ServiceTables],
    settings: Mapping[str, Any],
) -> dict[str, ConfigNotLive]:
    """A topic's tables that only the file may have, each with its error.

    `present`: tables that need no permission, for they are in the file or were permitted before. `settings`: as for
    `check_services`. A check that raises refuses the table.
    """
    found: dict[str, ConfigNotLive] = {}
    for service in services:
        key = service.topic_table
        if key is None or key not in topic.services or topic.services[key] == present.get(key):
            continue
        why: str | None = FILE_ONLY
        own = own_table(topic, service)
        if any(secrets_in(own)):
            why = f"has a secret, which {FILE_ONLY}"
        elif service.check_live is not None and own is not None:
            try:
                why = service.check_live(settings.get(service.name) or service.settings(), own)
            except Exception as error:
                why = f'the check of "{service.name}" failed: {type(error).__name__}: {error}'
        if why is not None:
            found[key] = ConfigNotLive(f"{dotted(('topics', name, key))}: {why}")
    return found


def check_live_tables(
    name: str,
    topic: TopicSettings,
    before: TopicSettings | None,
    services: Iterable[ServiceTables],
    settings: Mapping[str, Any],
    access: Access,
) -> None:
    """Check that a request may give a topic its tables.

    `before`: its present settings. `access`: the rights of the caller. Raises ConfigNotLive, Forbidden.
    """
    present = before.services if before is not None else {}
    for error in not_live(name, topic, present, services, settings).values():
        raise error
    for service in services:
        key = service.topic_table
        if service.needs is not None and topic.services.get(key or "") != present.get(key or ""):
            own = own_table(topic, service)
            access.check_all(service.needs(name, own) if own is not None else ())
