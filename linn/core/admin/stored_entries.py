"""Entries of topics and exchanges in the metadata store, and the check of their shape.

Law: an entry is used only after all of it was found to have the shape that linn writes. Any other shape is damage, or
was written by another version; it is refused by name and never skipped, for its topic would be lost silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from linn.core.config.decoder import decode_settings, known_keys
from linn.core.config.problem import Problems
from linn.core.config.tables import ExchangeTable
from linn.core.config.toml_source import Path
from linn.core.config.topic_settings import BindingSettings, TopicSettings
from linn.core.errors.names import name_problem
from linn.core.errors.tree import ConfigError, LogCorrupt
from linn.core.topics.live_settings import live_keys_problem
from linn.core.topics.shared_entry import decode_entries

S = TypeVar("S", bound=msgspec.Struct)
EXCHANGE = "exchanges/"
"""Prefix of the exchanges' keys in the metadata store."""
TOPIC = "topics/"
"""Prefix of the topics' keys in the metadata store."""
_TOPIC_KEYS = ({"id", "settings", "live_bindings"}, {"id", "settings", "live_bindings", "deleted"})
"""Keys besides `live_keys`, `unfinished`, and the `subscriptions` of a topic that has some."""
_EXCHANGE_KEYS = ({"live_bindings"}, {"settings", "live_bindings"})


def settings_of_topics(entries: Mapping[str, Any]) -> dict[str, TopicSettings]:
    """Check the store's values, by key, and return the settings of the topics among them, by name.

    The settings are those of the last change of a topic; today's limits are not applied to them.

    Raises LogCorrupt.
    """
    found = {}
    for key, entry in entries.items():
        try:
            settings = _checked(key, entry)
        except (ConfigError, ValueError, msgspec.ValidationError) as error:
            said = error.text if isinstance(error, ConfigError) else str(error)
            raise LogCorrupt(
                f"the entry {key!r:.280} of the metadata is damaged, or another version's: {said}. Nothing was changed"
            ) from error
        if settings is not None:
            found[key.removeprefix(TOPIC)] = settings
    return found


def _checked(key: str, entry: object) -> TopicSettings | None:
    """The settings if the entry is a topic's. Raises ValueError, ConfigError, ValidationError."""
    prefix, slash, name = key.partition("/")
    if prefix + slash not in (TOPIC, EXCHANGE):
        raise ValueError("it is of no topic and of no exchange")
    wrong = name_problem(name)
    if wrong is not None:
        raise ValueError(wrong)
    is_topic = prefix + slash == TOPIC
    if not isinstance(entry, dict):
        raise ValueError("it is no JSON object")
    beside = {"live_keys", "unfinished", "subscriptions"} if is_topic else set()
    if entry.keys() - beside not in (_TOPIC_KEYS if is_topic else _EXCHANGE_KEYS):
        raise ValueError("it has not the keys of one")
    for mark in ("deleted", "unfinished"):
        if entry.get(mark, True) is not True:
            raise ValueError(f"{mark} is something else than true")
    msgspec.convert(entry["live_bindings"], list[BindingSettings])
    if is_topic:
        if not isinstance(entry["id"], str) or str(UUID(entry["id"])) != entry["id"]:
            raise ValueError("its id is no UUID")
        if (wrong := live_keys_problem(entry.get("live_keys", []))) is not None:
            raise ValueError(wrong)
        decode_entries(entry.get("subscriptions", {}))
        settings = _decoded(TopicSettings, entry["settings"], ("topics", name))
        for key, table in settings.services.items():
            if not isinstance(table, dict):  # What linn does not know is the table of a service.
                raise ValueError(f"its setting {key!r:.80} is neither known nor a table")
        return settings
    if "settings" in entry:
        if not isinstance(entry["settings"], dict):
            raise ValueError("its settings are no JSON object")
        # The other keys are those of the exchange's type, which decodes them.
        head = {key: entry["settings"][key] for key in known_keys(ExchangeTable) if key in entry["settings"]}
        _decoded(ExchangeTable, head, ("exchanges", name))
    return None


def _decoded(settings: type[S], table: object, path: Path) -> S:
    """Decode settings. Raises ConfigError."""
    problems = Problems()
    found = decode_settings(settings, table, path, problems)
    problems.raise_first()
    assert found is not None, "a table without problems decodes"
    return found
