"""Metadata of a topic's named shared subscriptions.

Law: a number is given out again only after the logs that it names are deleted, so that no subscription finds the state
of another.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from linn.core.config.topic_settings import TopicSettings
from linn.core.errors.names import name_problem
from linn.core.errors.texts import counted
from linn.core.errors.tree import ConfigNotLive, LimitExceeded

SHARED_MAX = 64
"""Limit of the named subscriptions of one topic. Each keeps a log for each partition, and its number must fit into the
name of a folder beside the longest name of a topic.
"""
SHARED_PARTITIONS_MAX = 16_384
"""Limit of a topic's named subscriptions times its partitions: each of these takes about 3 KiB of memory and perhaps a
log, and any client may ask for a subscription.
"""
OWN_QUEUE = 0
"""The number of a topic's own queue."""


class SharedEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named subscription."""

    number: int
    """Names its logs: from 1 to SHARED_MAX."""
    starts: tuple[int, ...] = ()
    """Offset by partition at which it began; partitions that came later begin at 0."""
    deleted: bool = False
    """Whether all that is left of it are logs that could not be deleted yet."""


def state_topic(number: int, topic: str) -> str:
    """The internal topic that holds the events of a subscription's partitions; `number` is OWN_QUEUE or an entry's."""
    return f"__s{number or ''}.{topic}"


def is_state_topic(name: str) -> bool:
    """Whether a topic holds the events of a subscription."""
    prefix, dot, _ = name.partition(".")
    return bool(dot) and prefix.startswith("__s") and (prefix == "__s" or prefix[3:].isdecimal())


def check_entries(topic: str, settings: TopicSettings, entries: Mapping[str, SharedEntry], more: int = 0) -> None:
    """Check that a topic with these settings may have its named subscriptions, and so many more.

    Raises ConfigNotLive: a queue without `keep` has none. LimitExceeded: they are too many for its partitions.
    """
    names = [name for name, entry in sorted(entries.items()) if not entry.deleted]
    if names and not settings.keeps_settled:
        left = counted(len(names), "subscription")
        text = f"topic {topic}: kind, keep: a queue without keep has no named subscriptions; delete the {left} first"
        raise ConfigNotLive(text)
    if names and (len(names) + more) * settings.partitions > SHARED_PARTITIONS_MAX:
        most = max(1, SHARED_PARTITIONS_MAX // settings.partitions)
        text = f"topic {topic}: with {settings.partitions} partitions it may have {most} shared subscriptions"
        raise LimitExceeded(text)


def free_number(topic: str, entries: Mapping[str, SharedEntry]) -> int:
    """The lowest number that no subscription of a topic has. Raises LimitExceeded."""
    taken = {entry.number for entry in entries.values()}
    free = next((number for number in range(1, SHARED_MAX + 1) if number not in taken), None)
    if free is None:
        raise LimitExceeded(f"topic {topic} has {SHARED_MAX} shared subscriptions, the most that a topic may have")
    return free


def decode_entries(value: object) -> dict[str, SharedEntry]:
    """Decode the entries of a topic by name, as the metadata store has them. Raises ValueError, ValidationError."""
    entries = msgspec.convert(value, dict[str, SharedEntry])
    for name, entry in entries.items():
        if (wrong := name_problem(name)) is not None:
            raise ValueError(f"a shared subscription has a wrong name: {wrong}")
        if not 1 <= entry.number <= SHARED_MAX or any(start < 0 for start in entry.starts):
            raise ValueError(f"the shared subscription {name} has a number or a start that none can have")
    if len({entry.number for entry in entries.values()}) != len(entries):
        raise ValueError("two shared subscriptions have the same number")
    return entries
