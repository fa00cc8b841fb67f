"""The assignor port: a strategy that decides which member of a group reads which partition.

Laws: an assignor is a pure function: the same members, partitions and previous owners give the same answer. Each
partition of a topic with a subscriber gets one owner, which subscribes to the topic; others get none.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

from linn.core.errors.tree import InternalError

TopicPartition = tuple[str, int]
"""A topic and the number of a partition."""
Topics = Mapping[str, Iterable[str]]
"""Subscribed topics by member; members in the order in which they joined."""
Sizes = Mapping[str, int]
"""Number of partitions by topic."""
Owners = Mapping[TopicPartition, str]
"""Owning member by partition."""
DEFAULT_ASSIGNOR = "sticky"

logger = logging.getLogger("linn.group")


class Assignor(Protocol):
    """A strategy that divides partitions among the members of a group."""

    def assign(self, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
        """Choose the owner of each partition.

        `members`: the topics that each member reads, in the order in which the members joined. `partitions`: the number
        of partitions by topic. `previous`: the last answer, which may name members and partitions that no longer exist.

        Synchronous: the broker's loop calls it once for each change of a group's members or of its topics' partitions.
        """


@dataclass(frozen=True, slots=True)
class AssignorKind:
    """An assignor, as a plugin registers it."""

    name: str
    """The value of `assignor =` in a group."""
    make: Callable[[], Assignor]
    """Makes the assignor, which serves all groups that name it. Does no I/O."""
    settings: None = None
    """None: assignors have no settings."""


def subscribers_of(members: Topics, partitions: Sizes) -> dict[str, list[str]]:
    """The members by topic, without topics that have no subscriber or no partition."""
    found: dict[str, list[str]] = defaultdict(list)
    for member, topics in members.items():
        for topic in topics:
            if partitions.get(topic):
                found[topic].append(member)
    return found


class CheckedAssignor:
    """A wrapper that contains an assignor's failures, so that a member can leave while a plugin is broken."""

    def __init__(self, name: str, assignor: Assignor, owner: str) -> None:
        """`owner`: a description of the plugin that registered it."""
        self.name = name
        self._assignor = assignor
        self._owner = owner

    def assign(self, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
        """Call the assignor. If it fails, partitions keep their owners, and the others are distributed in turn."""
        try:
            return checked_owners(self._assignor, members, partitions, previous)
        except Exception as error:
            said = getattr(error, "text", None) or f"{type(error).__name__}: {error}"
            text = 'assignor "%(assignor)s", of %(plugin)s, failed; partitions stay with their owners: %(error)s'
            code = getattr(error, "code", InternalError.code)
            logger.error(text, {"assignor": self.name, "plugin": self._owner, "error": said, "code": code})
            return _kept_or_dealt(subscribers_of(members, partitions), partitions, previous)


def checked_owners(assignor: Assignor, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
    """Call an assignor and check its answer. Raises ValueError for a wrong answer, and the assignor's errors."""
    target = assignor.assign(members, partitions, previous)
    subscribers = subscribers_of(members, partitions)
    wanted = {(topic, index) for topic in subscribers for index in range(partitions[topic])}
    if target.keys() != wanted:
        topic, index = min(target.keys() ^ wanted)
        raise ValueError(f"partition {index} of {topic} has {'no owner' if (topic, index) in wanted else 'an owner'}")
    reads = {topic: set(names) for topic, names in subscribers.items()}
    for (topic, index), member in target.items():
        if member not in reads[topic]:
            raise ValueError(f'partition {index} of {topic} went to "{member}", which does not read it')
    return target


def _kept_or_dealt(subscribers: Mapping[str, Sequence[str]], partitions: Sizes, previous: Owners) -> Owners:
    """Keep the previous owners that still read the topic; distribute the other partitions to its members in turn."""
    target: dict[TopicPartition, str] = {}
    for topic, names in subscribers.items():
        known, turns = set(names), cycle(names)
        for index in range(partitions[topic]):
            owner = previous.get((topic, index))
            target[topic, index] = owner if owner in known else next(turns)
    return target
