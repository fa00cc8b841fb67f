"""The verbs about consumer groups, which belong to the broker and read any number of streams.

`Administration` calls the verbs: changes one at a time, queries at any time. Each verb raises LinnErrors.
"""

from __future__ import annotations

from collections.abc import Sequence

from linn import verbs
from linn.core.admin.place import check_offset, place_of
from linn.core.config.config import Config
from linn.core.config.topic_settings import PARTITIONS_MAX
from linn.core.errors.tree import ConfigError, LimitExceeded, SubscriptionWrongKind
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.groups.event import OffsetCommitted
from linn.core.groups.group import ConsumerGroup
from linn.core.log.partition import Partition
from linn.core.ports.principal import Principal
from linn.core.security.access import Access
from linn.core.topics.catalog import Catalog
from linn.core.topics.topic import Topic
from linn.descriptions import GroupDescription, GroupMember, GroupOffset, GroupSummary
from linn.rights import GROUP, SEE, TOPIC

Place = tuple[Topic, int, OffsetCommitted | None]
"""A topic, one of its partitions, and the group's commit there."""


class GroupAdministration:
    """Groups, shown and changed while the broker runs."""

    def __init__(self, catalog: Catalog, groups: GroupCoordinator, config: Config) -> None:
        self._catalog = catalog
        self._groups = groups
        self._config = config

    async def list_all(self, asked: verbs.OfTopic, caller: Principal) -> list[GroupSummary]:
        """The groups that the caller may see; with a topic, its groups, and none for a queue."""
        names = caller.access.visible(GROUP, sorted(self._groups.groups))
        groups = [self._groups.known(name) for name in names]
        if asked.topic is not None:
            caller.access.check(SEE, TOPIC, asked.topic)
            topic = self._catalog.led_topic(asked.topic)
            groups = [group for group in groups if topic.stream is not None and topic.name in group.topics]
        return [self._summary(group, caller.access) for group in groups]

    def _summary(self, group: ConsumerGroup, access: Access) -> GroupSummary:
        return {
            "group": group.name,
            "topics": access.visible(TOPIC, sorted(group.topics)),
            "members": len(group.membership.members),
            "epoch": group.epoch,
            "assignor": self._config.assignor_of(group.name),
            "lag": sum(_lag(topic.partitions[index], committed) for topic, index, committed in self._places(group)),
        }

    async def show(self, asked: verbs.OfGroup, caller: Principal) -> GroupDescription:
        """One group with its members, and offset and owner of each partition of its topics that the caller may see."""
        group = self._groups.known(asked.group)
        access = caller.access
        offsets = _offsets(group, self._places(group), access)
        return {**self._summary(group, access), "members": self._members(group, access), "offsets": offsets}

    def _members(self, group: ConsumerGroup, access: Access) -> list[GroupMember]:
        seats = self._groups.seats(group.name)
        return [
            {
                "member": name,
                "is_static": any(seats[name, topic].is_static for topic in member.seats if (name, topic) in seats),
                "epoch": group.membership.reached(name),
                "session_s": member.session_s,
                "topics": access.visible(TOPIC, sorted(member.seats)),
                "partitions": len(member.owned),
            }
            for name, member in group.membership.members.items()
        ]

    def _places(self, group: ConsumerGroup, topic: Topic | None = None) -> list[Place]:
        """The partitions of the streams that a group reads, or of one topic."""
        known = [self._catalog.topics[name] for name in sorted(group.topics) if name in self._catalog.topics]
        streams = [stream for stream in known if stream.stream is not None] if topic is None else [topic]
        offsets = group.offsets()
        return [(stream, index, offsets.get((stream.name, index))) for stream in streams for index in stream.partitions]

    async def reset(self, asked: verbs.GroupReset, caller: Principal) -> list[GroupOffset]:
        """Move a group's offsets in one or all of its topics; returns the offsets, even if only validated."""
        topic, group = self._stream(asked.topic), self._groups.known(asked.group)
        places = self._places(group, topic)
        chosen = places if asked.partitions is None else _chosen(places, asked.partitions)
        if asked.offset is not None:
            check_offset(asked.offset, [stream.partitions[index] for stream, index, _ in chosen])
        moved = {(stream.name, index): await _committed(stream, index, asked) for stream, index, _ in chosen}
        if asked.validate_only:
            for name in dict.fromkeys(stream.name for stream, _, _ in chosen):
                group.check_idle(name)
        else:
            for stream in dict.fromkeys(stream for stream, _, _ in chosen):
                await stream.open_positions(self._groups)
            await self._groups.reset(group.name, list(moved.values()))
        now = [(stream, index, moved.get((stream.name, index), old)) for stream, index, old in places]
        return _offsets(group, now, caller.access)

    async def delete(self, asked: verbs.GroupDeletion) -> verbs.Nothing:
        """Delete a group with all its offsets; or its offsets in one topic, and the group when no offsets are left."""
        self._stream(asked.topic)
        group = self._groups.known(asked.group)
        if asked.validate_only:
            group.check_idle(asked.topic)
        else:
            await self._groups.forget(group.name, asked.topic)
        return {}

    def _stream(self, name: str | None) -> Topic | None:
        """The stream of this name; None: all streams. Raises TopicUnknown, SubscriptionWrongKind."""
        topic = None if name is None else self._catalog.led_topic(name)
        if topic is not None and topic.stream is None:
            raise SubscriptionWrongKind(f"topic {topic.name} is a queue and has no groups")
        return topic


def _chosen(places: Sequence[Place], partitions: Sequence[int]) -> Sequence[Place]:
    """The places in some partitions of one topic. Raises ConfigError, LimitExceeded, PartitionUnknown."""
    if len(partitions) > PARTITIONS_MAX:
        raise LimitExceeded(f"{len(partitions)} partitions, more than the {PARTITIONS_MAX} that a topic may have")
    topics = {topic.name: topic for topic, _, _ in places}
    if len(topics) != 1:
        raise ConfigError('with "partitions" a group of several topics needs the argument "topic"')
    (topic,) = topics.values()
    for index in partitions:
        topic.partition(index)
    return [place for place in places if place[1] in partitions]


def _offsets(group: ConsumerGroup, places: Sequence[Place], access: Access) -> list[GroupOffset]:
    return [
        {
            "topic": topic.name,
            "partition": index,
            "offset": committed.offset if committed is not None else None,
            "text": committed.text if committed is not None else "",
            "lag": _lag(partition, committed),
            "start": partition.start_offset,
            "end": partition.stable_offset,
            "member": group.membership.owner((topic.name, index)),
        }
        for topic, index, committed in places
        if access.may(SEE, TOPIC, topic.name)
        for partition in [topic.partition(index)]
    ]


def _lag(partition: Partition, committed: OffsetCommitted | None) -> int:
    return partition.readable_count(committed.offset if committed is not None else 0)


async def _committed(topic: Topic, index: int, asked: verbs.Placed) -> OffsetCommitted:
    """Make the commit for a requested place. Raises ConfigError, PartitionUnknown."""
    partition = topic.partition(index)
    offset = await place_of(partition, asked)
    return OffsetCommitted(topic.name, index, offset, leader_epoch=partition.leader_epoch, topic_id=topic.id.bytes)
