"""Entries of topics, exchanges and secrets in the metadata store, and the check of their shape.

Law: an entry is used only after its whole shape was checked. A wrong shape is damage, or was written by another
version; the entry is refused by name and never skipped, because its topic would be lost silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import hexdigits
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from linn.core.config.decoder import decode_settings, known_keys
from linn.core.config.problem import Problems
from linn.core.config.tables import ExchangeTable
from linn.core.config.toml_source import Path
from linn.core.config.topic_settings import BindingSettings, TopicSettings
from linn.core.errors.names import AUDIT_TOPIC, name_problem
from linn.core.errors.tree import ConfigError, LogCorrupt
from linn.core.security.quota import Limits
from linn.core.security.rule import rules_of
from linn.core.security.users import NO_LIMITS, check_user_name
from linn.core.topics.holder import HOLDER, holder_of
from linn.core.topics.live_settings import live_keys_problem
from linn.core.topics.shared_entry import decode_entries
from linn.verbs import TRANSACTIONS_TOPIC

S = TypeVar("S", bound=msgspec.Struct)
EXCHANGE = "exchanges/"
"""Prefix of the exchanges' keys in the metadata store."""
TOPIC = "topics/"
"""Prefix of the topics' keys in the metadata store."""
SECRET = "secrets/"  # noqa: S105  A prefix of keys.
"""Prefix of the keys of secrets that the broker has drawn itself, stored as hexadecimal digits."""
SECRET_BYTES = 32
ROLE = "roles/"
"""Prefix of the roles' keys in the metadata store."""
USER = "users/"
"""Prefix of the users' keys in the metadata store."""
_TOPIC_KEYS = ({"id", "settings", "live_bindings"}, {"id", "settings", "live_bindings", "deleted"})
"""Keys besides `live_keys`, `unfinished`, `subscriptions` and HOLDER, which a topic has only where needed."""
_EXCHANGE_KEYS = ({"live_bindings"}, {"settings", "live_bindings"})


class StoredRole(msgspec.Struct, forbid_unknown_fields=True):
    """A role's entry."""

    rules: dict[str, list[str]]


class StoredUser(msgspec.Struct, forbid_unknown_fields=True):
    """A user's entry."""

    roles: tuple[str, ...]
    scram: str
    certificate: str
    uid: int | None
    limits: Limits = NO_LIMITS


def settings_of_topics(entries: Mapping[str, Any]) -> dict[str, TopicSettings]:
    """Check the store's values, by key, and return the settings of the topics among them, by name.

    The settings are the last ones stored for a topic; present limits are not applied to them.

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
    """Check an entry; returns the settings if it is a topic's. Raises ValueError, ConfigError, ValidationError."""
    prefix, slash, name = key.partition("/")
    if prefix + slash == USER:
        check_user_name(name)
        msgspec.convert(entry, StoredUser)
        return None
    if prefix + slash not in (TOPIC, EXCHANGE, ROLE, SECRET):
        raise ValueError("it belongs to neither a topic, an exchange, a role, a user nor a secret")
    wrong = name_problem(name)
    if wrong is not None and key not in (TOPIC + AUDIT_TOPIC, TOPIC + TRANSACTIONS_TOPIC):
        raise ValueError(wrong)
    if prefix + slash == SECRET:
        if not isinstance(entry, str) or len(entry) != 2 * SECRET_BYTES or not set(entry) <= set(hexdigits):
            raise ValueError(f"it is not {SECRET_BYTES} bytes as hexadecimal digits")
        return None
    if prefix + slash == ROLE:
        rules_of(msgspec.convert(entry, StoredRole).rules)
        return None
    is_topic = prefix + slash == TOPIC
    if not isinstance(entry, dict):
        raise ValueError("it is not a JSON object")
    beside = {"live_keys", "unfinished", "subscriptions", HOLDER} if is_topic else {HOLDER}
    if entry.keys() - beside not in (_TOPIC_KEYS if is_topic else _EXCHANGE_KEYS):
        raise ValueError("its keys are wrong")
    for mark in ("deleted", "unfinished"):
        if entry.get(mark, True) is not True:
            raise ValueError(f"{mark} is not true")
    msgspec.convert(entry["live_bindings"], list[BindingSettings])
    holder_of(entry)
    if is_topic:
        if not isinstance(entry["id"], str) or str(UUID(entry["id"])) != entry["id"]:
            raise ValueError("its id is not a UUID")
        if (wrong := live_keys_problem(entry.get("live_keys", []))) is not None:
            raise ValueError(wrong)
        decode_entries(entry.get("subscriptions", {}))
        settings = _decoded(TopicSettings, entry["settings"], ("topics", name))
        for key, table in settings.services.items():
            if not isinstance(table, dict):  # Other keys are tables of services.
                raise ValueError(f"its setting {key!r:.80} is neither known nor a table")
        return settings
    if "settings" in entry:
        if not isinstance(entry["settings"], dict):
            raise ValueError("its settings are not a JSON object")
        # The other keys belong to the exchange's type, which decodes them.
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
