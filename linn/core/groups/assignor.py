"""The assignor port and the built-in assignors: which member of a group is to read which partition.

Laws: an assignor is a pure function: the same members, partitions and previous owners give the same answer. Each
partition of a topic with a subscriber gets one owner, which subscribes to the topic; others get none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Protocol

TopicPartition = tuple[str, int]
"""(topic, partition)."""
Topics = Mapping[str, Iterable[str]]
"""Subscribed topics by member, the members in the order in which they joined."""
Sizes = Mapping[str, int]
"""Number of partitions by topic."""
Owners = Mapping[TopicPartition, str]
"""Member by partition."""


class Assignor(Protocol):
    """A strategy that divides partitions among the members of a group."""

    def assign(self, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
        """Choose the owner of each partition.

        `previous` is the last assignment; it may name members and partitions that are gone.
        """


class RangeAssignor:
    """Gives each member neighbouring partitions of each topic; members in the order of their names."""

    def assign(self, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
        """See `Assignor.assign`."""
        target: dict[TopicPartition, str] = {}
        for topic, subscribers in _subscribers(members, partitions).items():
            share, larger = divmod(partitions[topic], len(subscribers))
            first = 0
            for at, member in enumerate(sorted(subscribers)):
                end = first + share + (at < larger)
                target.update({(topic, index): member for index in range(first, end)})
                first = end
        return target


class RoundRobinAssignor:
    """Deals the partitions of all topics out in turn; members in the order of their names."""

    def assign(self, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
        """See `Assignor.assign`."""
        target: dict[TopicPartition, str] = {}
        for subscribers, places in _pools(members, partitions):
            target.update(zip(places, cycle(sorted(subscribers)), strict=False))
        return target


class StickyAssignor:
    """Moves as few partitions as balance allows. Shares of members with the same topics differ by at most one."""

    def assign(self, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
        """See `Assignor.assign`."""
        target: dict[TopicPartition, str] = {}
        load: Counter[str] = Counter()
        for subscribers, places in _pools(members, partitions):
            kept = _kept(subscribers, places, previous, load)
            free = iter([place for place in places if place not in kept])
            target.update(kept)
            owned = Counter(kept.values())
            for member, share in _shares(subscribers, len(places), owned, load).items():
                target.update({next(free): member for _ in range(share - owned[member])})
                load[member] += share
        return target


def _kept(
    subscribers: Sequence[str], places: Sequence[TopicPartition], previous: Owners, load: Mapping[str, int]
) -> dict[TopicPartition, str]:
    """The partitions that stay with their owner: of each member's the first, up to its share."""
    known = set(subscribers)
    before = {place: previous[place] for place in places if previous.get(place) in known}
    left = _shares(subscribers, len(places), Counter(before.values()), load)
    kept: dict[TopicPartition, str] = {}
    for place, member in before.items():
        if left[member]:
            left[member] -= 1
            kept[place] = member
    return kept


def _shares(
    subscribers: Sequence[str], places: int, owned: Mapping[str, int], load: Mapping[str, int]
) -> dict[str, int]:
    """The number of partitions for each member: those that own most, then those with the least load, get one more."""
    share, larger = divmod(places, len(subscribers))
    ranked = sorted(subscribers, key=lambda member: (-owned.get(member, 0), load.get(member, 0)))
    return {member: share + (at < larger) for at, member in enumerate(ranked)}


def _subscribers(members: Topics, partitions: Sizes) -> dict[str, list[str]]:
    """The members by topic, without topics that have no subscriber or no partition."""
    found: dict[str, list[str]] = defaultdict(list)
    for member, topics in members.items():
        for topic in topics:
            if partitions.get(topic):
                found[topic].append(member)
    return found


def _pools(members: Topics, partitions: Sizes) -> Iterator[tuple[Sequence[str], Sequence[TopicPartition]]]:
    """Topics with the same subscribers share a pool of partitions, ascending."""
    pools: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for topic, subscribers in _subscribers(members, partitions).items():
        pools[tuple(subscribers)].append(topic)
    for subscribed, topics in sorted(pools.items(), key=lambda pool: min(pool[1])):
        yield subscribed, [(topic, index) for topic in sorted(topics) for index in range(partitions[topic])]
