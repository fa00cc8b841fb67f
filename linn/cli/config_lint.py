"""Lint of a valid configuration: contradictions, bindings and rights that match nothing, a machine that is too small.

The checks of `linn.core` find errors, which keep a broker from starting. These warn, or hint at what may be intended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from linn.cli.doctor.machine import disk_space, memory_bytes
from linn.cli.exposure import exposures
from linn.core.config.config import Config
from linn.core.config.problem import Problems
from linn.core.config.toml_source import Path
from linn.core.config.topic_settings import BindingSettings, TopicSettings, deliveries_max
from linn.core.config.units import format_size_bytes
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.texts import counted, nearest
from linn.core.errors.tree import LinnError
from linn.core.ports.principal import ANONYMOUS
from linn.core.routing.predicate.predicate import Predicate
from linn.core.security.rule import OWN_PREFIX
from linn.rights import EXCHANGE, TOPIC


def lint(config: Config, problems: Problems) -> None:
    """Add warnings and hints about a configuration without errors to `problems`."""
    for exposure in exposures(config):
        problems.warn(*exposure)
    _authorities(config, problems)
    _exchanges(config, problems)
    for path, binding in _bindings(config):
        text = _binding_warning(config.exchanges[binding.exchange].kind, binding)
        if text is not None:
            problems.warn(path, text)
    _unreached_topics(config, problems)
    _endless_attempts(config, problems)
    for name, topic in config.topics.items():
        _topic(name, topic, config, problems)
        _exactly_once(name, topic, config, problems)
    _roles(config, problems)
    _users(config, problems)
    _disk(config, problems)
    _memory(config, problems)


# --- exchanges and bindings ------------------------------------------------------------------------------------------


def _bindings(config: Config) -> Iterator[tuple[Path, BindingSettings]]:
    for table, bound in (("topics", config.topics), ("exchanges", config.exchanges)):
        for name, settings in bound.items():
            for index, binding in enumerate(settings.bindings):
                yield (table, name, "bindings", index), binding


def _exchanges(config: Config, problems: Problems) -> None:
    used = Counter(binding.exchange for _, binding in _bindings(config))
    for name, exchange in config.exchanges.items():
        if not used[name] and exchange.alternate is None:
            problems.warn(("exchanges", name), "no binding leads away from it: what is published there goes nowhere")


def _unreached_topics(config: Config, problems: Problems) -> None:
    """Hint at topics without bindings, if there are exchanges: without any, clients publish to topics by name."""
    dead_letters = {topic.dead_letter for topic in config.topics.values()}
    for name, topic in config.topics.items():
        if config.exchanges and not topic.bindings and name not in dead_letters and name != AUDIT_TOPIC:
            problems.hint(("topics", name), "no exchange leads to it: it gets what is published to it by name")


def _binding_warning(kind: str, binding: BindingSettings) -> str | None:
    """Warn of a binding that hardly matches as intended; None for a good one, and for types of other plugins."""
    if kind == "direct":
        return _direct_warning(binding.key)
    if kind == "topic":
        return _pattern_warning(binding.key)
    if kind == "fanout" and binding.key:
        return "a fanout sends everything: the key has no effect"
    if kind == "content":
        return _predicate_warning(binding.arguments.get("when"))
    return None


def _direct_warning(key: str) -> str | None:
    if {"*", "#"} & set(key.split(".")):
        return f'a direct exchange takes only keys that are equal to "{key}"; patterns need type = "topic"'
    return None


def _pattern_warning(pattern: str) -> str | None:
    words = pattern.split(".")
    odd = next((word for word in words if len(word) > 1 and ("*" in word or "#" in word)), None)
    if odd is not None:
        return f'"{odd}" is taken as it is: * and # stand for whole words, between dots'
    if "" in words and pattern:
        return "has an empty word: only keys with a dot too many match"
    return None


def _predicate_warning(when: object) -> str | None:
    try:
        if isinstance(when, str) and Predicate.parse(when).demands() == ():
            return "is never true: no message matches"
    except LinnError:
        return None  # The exchange itself reports it.
    return None


# --- contradictory settings ------------------------------------------------------------------------------------------


def _authorities(config: Config, problems: Problems) -> None:
    for name, table in config.tls.items():
        if table.client_ca is not None and table.client_certificate == "none":
            problems.warn(("tls", name, "client_ca"), 'has no effect with client_certificate = "none"')


def _topic(name: str, topic: TopicSettings, config: Config, problems: Problems) -> None:
    path: Path = ("topics", name)
    if topic.kind != "queue" and topic.retention_ms is None and topic.retention_bytes is None:
        problems.warn((*path, "retention"), 'is "forever" without retention_bytes: the disk will be full one day')
    segment_bytes_max = _engine_setting(config, topic, "segment_bytes_max")
    if topic.keeps_settled and topic.retention_bytes is not None and segment_bytes_max > topic.retention_bytes:
        shown = format_size_bytes(segment_bytes_max)
        problems.warn(
            (*path, "retention_bytes"), f"is less than one segment, and only whole ones go: up to {shown} more stays"
        )
    if topic.kind != "stream" and topic.max_deliveries == 1 and (topic.redelivery_delay_ms or 0) > 0:
        problems.warn((*path, "redelivery_delay"), "has no effect with max_deliveries = 1: nothing is delivered again")
    dead = config.topics.get(topic.dead_letter or "")
    limit = deliveries_max(dead) if dead is not None and not dead.has_dead_letters and dead.kind != "stream" else None
    if limit is not None:
        problems.warn(
            (*path, "dead_letter"),
            f"{topic.dead_letter} drops records itself, after {counted(limit, 'attempt')}",
        )


def _endless_attempts(config: Config, problems: Problems) -> None:
    """Hint at queues, other than dead-letter queues, whose attempts never end."""
    dead_letters = {topic.dead_letter for topic in config.topics.values()}
    for name, topic in config.topics.items():
        is_leased = topic.kind != "stream" and topic.lease_ms is not None
        if is_leased and deliveries_max(topic) is None and not topic.has_dead_letters and name not in dead_letters:
            text = "a message that no consumer can handle comes again for ever: max_deliveries and dead_letter end that"
            problems.hint(("topics", name), text)


def _exactly_once(name: str, topic: TopicSettings, config: Config, problems: Problems) -> None:
    """Warn if exactly-once delivery does not outlast a power failure, and explain the consequence."""
    if config.delivery[topic.delivery or config.broker.default_delivery].kind != "exactly-once":
        return
    storage = config.storage[topic.storage or config.broker.default_storage]
    fsync = getattr(storage.settings, "fsync", None)
    if storage.kind == "dram":
        lost = "a restart takes its records, and what was decided: exactly once holds while the broker runs"
    elif fsync is not None and fsync != "always":
        lost = (
            f'a power failure may take the last records and decisions (fsync = "{fsync}"): a record is then lost, or '
            'another consumer has its effect again; fsync = "always" prevents that'
        )
    else:
        return
    problems.warn(("topics", name, "delivery"), lost)


def _engine_setting(config: Config, topic: TopicSettings, name: str) -> int:
    """Return a numeric setting of a topic's storage engine; 0 where it has none of that name."""
    value = getattr(config.storage[topic.storage or config.broker.default_storage].settings, name, 0)
    return value if isinstance(value, int) else 0


# --- roles and users -------------------------------------------------------------------------------------------------


def _roles(config: Config, problems: Problems) -> None:
    """Hint at roles without users and at rules without a resource, which may be made live; warn where it looks like a
    misspelt name."""
    given = {role for user in config.users.values() for role in user.roles}
    known = {TOPIC: config.topics, EXCHANGE: config.exchanges}
    for role, rules in config.roles.items():
        if role not in given:
            problems.hint(("roles", role), "no user in this file has it")
        for kind, name, is_prefix, _ in rules:
            names = known.get(kind)
            if names is None or is_prefix or name in names or name.startswith(OWN_PREFIX):
                continue
            path = ("roles", role, f"{kind}:{name}")
            near = nearest(name, names)
            if near is not None:
                problems.warn(path, f'there is no {kind} {name} in this file; did you mean "{near}"?')
            else:
                problems.hint(path, f"there is no {kind} {name} in this file")


def _users(config: Config, problems: Problems) -> None:
    for name, user in config.users.items():
        has_password = user.scram or name in config.verifiers
        if name != ANONYMOUS and not (has_password or user.certificate or user.uid is not None):
            problems.hint(("users", name), "can log in with a token only: it has no scram, certificate or uid")


# --- limits of the machine -------------------------------------------------------------------------------------------


def _kept_bytes_max(topic: TopicSettings) -> int:
    """Return the maximum size of a topic by its own limits; 0 where it has none."""
    if topic.kind == "queue":
        return max(topic.bytes_max or 0, (topic.retention_bytes or 0) * topic.partitions if topic.keeps_settled else 0)
    return min(
        [limit for limit in (topic.bytes_max, (topic.retention_bytes or 0) * topic.partitions) if limit], default=0
    )


def _disk(config: Config, problems: Problems) -> None:
    space = disk_space(config.broker.data_dir)
    if space is None:
        return
    kept = {name: _kept_bytes_max(topic) for name, topic in config.topics.items()}
    if sum(kept.values()) > space.total_bytes:
        largest = max(kept, key=lambda name: kept[name])
        key = "bytes_max" if config.topics[largest].retention_bytes is None else "retention_bytes"
        problems.warn(
            ("topics", largest, key),
            f"topics may keep {_size(sum(kept.values()))} together, "
            f"and the disk of {config.broker.data_dir} has {_size(space.total_bytes)}",
        )


def _memory(config: Config, problems: Problems) -> None:
    wanted, memory = config.broker.memory_bytes_max, memory_bytes()
    if wanted is not None and wanted > memory:
        problems.warn(("broker", "memory_bytes_max"), f"the broker may use {_size(memory)}, not {_size(wanted)}")


def _size(size_bytes: int) -> str:
    """Format a size: "1.5 GiB"."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:,.4g} TiB"
