"""Settings of topics that were set live, beside those that the configuration file names.

Laws: a setting that was asked for live keeps its value over restarts, unless the file names its key; then the file's
value counts from the next start on, and the log says what it replaces. Partitions never shrink: of two numbers the
larger one counts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from linn.core.config.config import Config
from linn.core.config.decoder import encode_value, extra_of, fields_of
from linn.core.config.topic_settings import TopicSettings

_FIELDS = {field.encode_name: field for field in fields_of(TopicSettings)}
_TRIMMING = ("retention", "retention_bytes")


def live_keys_after(before: Iterable[str], changes: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that are set live once `changes` are made; null takes the value of a key back, unless it is a value."""
    keys = dict.fromkeys([*before, *changes])
    return tuple(key for key in keys if changes.get(key, key) is not None or "none" in extra_of(_FIELDS[key]))


def live_keys_problem(keys: object) -> str | None:
    """What keeps a stored value from being the keys of settings, in words for the end of one line."""
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in _FIELDS for key in keys):
        return "its live_keys are no keys of a topic"
    return None


def merged(
    configured: TopicSettings, before: TopicSettings, live_keys: Collection[str], named: Collection[str]
) -> tuple[TopicSettings, tuple[str, ...]]:
    """The settings at a start, and the keys whose live value counts. `named`: the keys that the file names."""
    kept = []
    for key in live_keys:
        value, file_value = _value(before, key), _value(configured, key)
        if key not in named or (key == "partitions" and value > file_value):
            kept.append(key)
    values = {_FIELDS[key].name: _value(before, key) for key in kept}
    return msgspec.structs.replace(configured, **values), tuple(kept)


def replaced(name: str, config: Config, before: TopicSettings, live_keys: Collection[str]) -> list[str]:
    """A line for each setting for which a start has the file's value in place of a live one, or the other way round."""
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


def warnings_of(name: str, config: Config, settings: TopicSettings, keys: Iterable[str]) -> list[dict[str, Any]]:
    """What `topic.alter` says of keys that the file names with another value than `settings` now have."""
    found: list[dict[str, Any]] = []
    named = config.topic_lines.get(name, {})
    for key in keys:
        if key not in named or _value(settings, key) == _value(config.topics[name], key):
            continue
        end = "the partitions stay, for they never shrink" if key == "partitions" else "it counts at the next start"
        text = f"{_place(config, name, key)}: {end}"
        found.append({"key": key, "file": config.file, "line": named[key], "text": text})
    return found


def _value(settings: TopicSettings, key: str) -> Any:
    return getattr(settings, _FIELDS[key].name)


def _place(config: Config, name: str, key: str) -> str:
    return f"{config.file}:{config.topic_lines[name][key]} sets {key} = {_shown(key, _value(config.topics[name], key))}"


def _shown(key: str, value: Any) -> str:
    """A value as one writes it in TOML, or the number of bindings."""
    if key == "bindings":
        return f"[{len(value)} bindings]"
    encoded = encode_value(_FIELDS[key], value)
    return "its default" if encoded is None else json.dumps(encoded)


def _drops(configured: TopicSettings, key: str, old: int | None, new: int | None) -> bool:
    """Whether a stream keeps less than before."""
    return key in _TRIMMING and configured.kind != "queue" and new is not None and (old is None or new < old)
