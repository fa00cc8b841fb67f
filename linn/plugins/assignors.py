"""The built-in assignors: `assignor =` of a group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

from linn.api import AssignorKind, Owners, Sizes, TopicPartition, Topics, hookimpl, subscribers_of


class RangeAssignor:
    """Gives each member adjacent partitions of each topic, with members sorted by name."""

    def assign(self, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
        """See `Assignor.assign`."""
        target: dict[TopicPartition, str] = {}
        for topic, subscribers in subscribers_of(members, partitions).items():
            share, larger = divmod(partitions[topic], len(subscribers))
            first = 0
            for at, member in enumerate(sorted(subscribers)):
                end = first + share + (at < larger)
                target.update({(topic, index): member for index in range(first, end)})
                first = end
        return target


class RoundRobinAssignor:
    """Distributes the partitions of all topics in turn, with members sorted by name."""

    def assign(self, members: Topics, partitions: Sizes, previous: Owners) -> Owners:
        """See `Assignor.assign`."""
        target: dict[TopicPartition, str] = {}
        for subscribers, places in _pools(members, partitions):
            target.update(zip(places, cycle(sorted(subscribers)), strict=False))
        return target


class StickyAssignor:
    """Moves as few partitions as balance allows. The shares of members with the same topics differ by at most one."""

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
    """The partitions that stay with their owner: the first ones of each member, up to its share."""
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
    """The number of partitions per member: members that own most, then members with the least load, get one more."""
    share, larger = divmod(places, len(subscribers))
    ranked = sorted(subscribers, key=lambda member: (-owned.get(member, 0), load.get(member, 0)))
    return {member: share + (at < larger) for at, member in enumerate(ranked)}


def _pools(members: Topics, partitions: Sizes) -> Iterator[tuple[Sequence[str], Sequence[TopicPartition]]]:
    """Group topics with the same subscribers into pools of partitions, ascending."""
    pools: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for topic, subscribers in subscribers_of(members, partitions).items():
        pools[tuple(subscribers)].append(topic)
    for subscribed, topics in sorted(pools.items(), key=lambda pool: min(pool[1])):
        yield subscribed, [(topic, index) for topic in sorted(topics) for index in range(partitions[topic])]


@hookimpl
def linn_register_assignor() -> list[AssignorKind]:
    """Register `assignor = "sticky"`, `"range"` and `"round-robin"`."""
    return [
        AssignorKind("sticky", StickyAssignor),
        AssignorKind("range", RangeAssignor),
        AssignorKind("round-robin", RoundRobinAssignor),
    ]
