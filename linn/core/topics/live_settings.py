"""Settings of topics that were set live, in addition to the configuration file.

Laws: a live setting keeps its value over restarts, unless the file names its key; then the file's value applies from
the next start on, and the log names the value that it replaces. Partitions never shrink: of two numbers
the larger one applies.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from linn.core.config.config import Config
from linn.core.config.decoder import encode_value, extra_of, fields_of, rest_of
from linn.core.config.kinds import Kinds
from linn.core.config.service_tables import not_live
from linn.core.config.topic_settings import TopicSettings
from linn.core.env.log_fields import log_fields
from linn.core.env.secret import masked
from linn.core.errors.names import name_problem
from linn.core.errors.texts import counted
from linn.verbs import FileWarning, LineWarning

logger = logging.getLogger("linn.administration")

_TABLES = rest_of(TopicSettings)
_FIELDS = {field.encode_name: field for field in fields_of(TopicSettings) if field is not _TABLES}
"""The settings that linn itself knows; any other key is the table of a service."""
_TRIMMING = ("retention", "retention_bytes")


def live_keys_after(before: Iterable[str], changes: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that are set live after `changes`; null resets a key, unless null is a value of it."""
    keys = dict.fromkeys([*before, *changes])
    return tuple(key for key in keys if changes.get(key, key) is not None or _takes_null(key))


def _takes_null(key: str) -> bool:
    return key in _FIELDS and "none" in extra_of(_FIELDS[key])


def live_keys_problem(keys: object) -> str | None:
    """The reason why a stored value can't be a list of setting keys, worded as the end of a line; None if it can."""
    # The table of a service may be that of a plugin which is no longer installed.
    if not isinstance(keys, list) or not all(isinstance(key, str) and name_problem(key) is None for key in keys):
        return "its live_keys are no keys of a topic"
    return None


def merged(
    configured: TopicSettings, before: TopicSettings, live_keys: Collection[str], named: Collection[str]
) -> tuple[TopicSettings, tuple[str, ...]]:
    """The settings at a start, and the keys whose live value applies. `named`: the keys that the file names."""
    kept = []
    for key in live_keys:
        value, file_value = _value(before, key), _value(configured, key)
        if key not in named or (key == "partitions" and value > file_value):
            kept.append(key)
    values = {_FIELDS[key].name: _value(before, key) for key in kept if key in _FIELDS}
    tables = {key: _value(before, key) for key in kept if key not in _FIELDS}
    if tables:
        services = {**configured.services, **tables}
        values["services"] = {key: table for key, table in services.items() if table is not None}
    return msgspec.structs.replace(configured, **values), tuple(kept)


def permitted(
    name: str, settings: TopicSettings, live_keys: tuple[str, ...], config: Config, kinds: Kinds
) -> tuple[TopicSettings, tuple[str, ...]]:
    """The settings at a start and their live keys, without stored tables of services that only the file may have.

    Each refused table is logged, and gives way to the file's.
    """
    configured = config.topics.get(name)
    in_file = configured.services if configured is not None else {}
    refused = not_live(name, settings, in_file, kinds.services.values(), config.services)
    services = {key: in_file.get(key) if key in refused else table for key, table in settings.services.items()}
    kept = {key: table for key, table in services.items() if table is not None}
    keys = tuple(key for key in live_keys if key not in refused)
    for error in refused.values():
        logger.warning("a stored table is dropped: %(error)s", {"topic": name} | log_fields(error))
    return msgspec.structs.replace(settings, services=kept), keys


def replaced(name: str, config: Config, before: TopicSettings, live_keys: Collection[str]) -> list[str]:
    """A line for each setting that a start takes from the file instead of a live one, or the other way round."""
    configured, lines = config.topics[name], []
    for key in live_keys:
        old, new = _value(before, key), _value(configured, key)
        if key not in config.topic_lines[name] or old == new:
            continue
        what = f"topic {name}: {_place(config, name, key)}"
        if key == "partitions" and old > new:
            lines.append(f"{what}, and it has {old}: partitions never shrink, so it keeps them")
        else:
            loss = ": records beyond it are dropped" if _drops(configured, key, old, new) else ""
            lines.append(f"{what}, which replaces the live value {_shown(key, old)}{loss}")
    return lines


def warnings_of(name: str, config: Config, settings: TopicSettings, keys: Iterable[str]) -> list[LineWarning]:
    """The warnings of `topic.alter` about keys to which the file gives another value than `settings` now have."""
    found: list[LineWarning] = []
    named = config.topic_lines.get(name, {})
    for key in keys:
        if key not in named or _value(settings, key) == _value(config.topics[name], key):
            continue
        end = "the partitions stay, for they never shrink" if key == "partitions" else "it counts at the next start"
        text = f"{_place(config, name, key)}: {end}"
        found.append({"key": key, "file": config.file, "line": named[key], "text": text})
    return found


def warnings_of_deletion(name: str, config: Config) -> list[FileWarning]:
    """The warnings of `topic.delete` about a topic that the file names."""
    if name not in config.topics:
        return []
    text = f"{config.file} has a topic {name}: the next start makes it again, empty"
    return [{"file": config.file, "text": text}]


def differences(existing: TopicSettings, asked: TopicSettings) -> str:
    """The settings in which two topics differ, as the end of an error's line."""
    found = []
    for key in dict.fromkeys([*_FIELDS, *existing.services, *asked.services]):
        has, wanted = _value(existing, key), _value(asked, key)
        if has != wanted and key in ("bindings", "dead_letter", "dead_letter_exchange"):  # Of names that may be hidden.
            found.append(f"it has {'other bindings' if key == 'bindings' else f'another {key}'}")
        elif has != wanted:
            found.append(f"{key} is {_shown(key, has, 'none')}, not {_shown(key, wanted, 'none')}")
    return "; ".join(found)


def _value(settings: TopicSettings, key: str) -> Any:
    return getattr(settings, _FIELDS[key].name) if key in _FIELDS else settings.services.get(key)


def _place(config: Config, name: str, key: str) -> str:
    return f"{config.file}:{config.topic_lines[name][key]} sets {key} = {_shown(key, _value(config.topics[name], key))}"


def _shown(key: str, value: Any, nothing: str = "its default") -> str:
    """A value in TOML's notation, `nothing` if it is not written, or the number of bindings."""
    if key == "bindings":
        return f"[{counted(len(value), 'binding')}]"
    encoded = encode_value(_FIELDS[key], value) if key in _FIELDS else masked(value)
    return nothing if encoded is None else json.dumps(encoded)


def _drops(configured: TopicSettings, key: str, old: int | None, new: int | None) -> bool:
    """Whether a stream would keep less than before."""
    return key in _TRIMMING and configured.kind != "queue" and new is not None and (old is None or new < old)
