"""The positions of all groups in one topic, in a log of the topic's own: in a cluster it fails over with the topic.

Laws: applying all records of the log gives each group's positions in this topic, and an epoch that is not lower than
any that a member of the group was told while it read this topic. The log has nothing about other topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from linn.core.env.env import Spawn
from linn.core.errors.tree import StorageError
from linn.core.groups.event import (
    GroupEvent,
    GroupForgotten,
    OffsetCommitted,
    decode_group_events,
    encode_group_events,
)
from linn.core.groups.group import ConsumerGroup
from linn.core.log.mark import Mark
from linn.core.log.state_log import StateLog


class TopicPositions:
    """The log of one topic, and the names of the groups in it."""

    def __init__(self, topic: str, state: StateLog) -> None:
        self.topic = topic
        self.state = state
        self.known: dict[str, None] = {}
        """Groups of which the log has events."""

    async def replay(self, make: Callable[[str], ConsumerGroup]) -> dict[str, ConsumerGroup]:
        """The groups as the log has them, each made by `make`. Raises LogCorrupt, NotLeader."""
        groups: dict[str, ConsumerGroup] = {}
        async for record in self.state.replay():
            is_restart, entries = decode_group_events(record)
            if is_restart:
                groups.clear()
            for name, events in entries:
                group = groups.get(name) or groups.setdefault(name, make(name))
                for event in events:
                    group.apply(event)
                if events and isinstance(events[-1], GroupForgotten):
                    del groups[name]
        self.known = dict.fromkeys(groups)
        return groups

    def own(self, events: Iterable[GroupEvent]) -> list[GroupEvent]:
        """The events that this log needs: those about its topic, and new epochs."""
        return [it for it in events if not isinstance(it, OffsetCommitted) or it.topic == self.topic]

    def write(self, name: str, events: Sequence[GroupEvent], groups: Mapping[str, ConsumerGroup]) -> None:
        """Log a group's events, which wait on a full disk. Raises StorageError, NotLeader."""
        if events:
            self.known[name] = None
        if events or self.state.waiting:
            record = encode_group_events([(name, events)]) if events else b""
            self.state.write(record, lambda: encode_group_events(self._entries(groups), restart=True))

    def append(self, name: str, events: Sequence[GroupEvent]) -> None:
        """Log a group's events at once. Raises StorageError, NotLeader: nothing was stored."""
        self.state.append(encode_group_events([(name, events)]))
        if isinstance(events[-1], GroupForgotten):
            self.known.pop(name, None)
        else:
            self.known[name] = None

    def snapshot(self, groups: Mapping[str, ConsumerGroup]) -> list[bytes]:
        """The whole state, as a record for each group. Raises StorageError."""
        self.state.write(b"", lambda: encode_group_events(self._entries(groups), restart=True))
        return [encode_group_events([entry]) for entry in self._entries(groups)]

    def _entries(self, groups: Mapping[str, ConsumerGroup]) -> list[tuple[str, list[GroupEvent]]]:
        known = [groups[name] for name in self.known if name in groups]
        return [(group.name, self.own(group.snapshot_events())) for group in known]


class PositionLogs:
    """The logs of the topics that this broker leads, by topic. A group's epochs belong to each that it has reached."""

    def __init__(self, groups: Mapping[str, ConsumerGroup], spawn: Spawn) -> None:
        self.logs: dict[str, TopicPositions] = {}
        self._groups = groups
        self._spawn = spawn

    def of(self, group: ConsumerGroup) -> list[TopicPositions]:
        """The logs of topics that a group reads or has read."""
        topics = group.topics
        return [log for topic, log in self.logs.items() if topic in topics or group.name in log.known]

    def flush(self, group: ConsumerGroup, topic: str | None) -> Sequence[tuple[Mark, int]]:
        """Log a group's pending events; returns the marks to wait for in one topic, or in all.

        Raises StorageError, NotLeader: in one topic, or in any. The other topics' events are logged.
        """
        events, awaits, failure = group.take_events(), list[tuple[Mark, int]](), None
        for log in self.of(group):
            try:
                log.write(group.name, log.own(events), self._groups)
            except StorageError as error:
                failure = error if topic in (None, log.topic) else failure
            if topic in (None, log.topic):
                awaits += self._awaits(log)
        if failure is not None:
            raise failure
        return awaits

    def move(self, group: ConsumerGroup, offsets: Sequence[OffsetCommitted]) -> Sequence[tuple[Mark, int]]:
        """Log a group's new offsets, then move the group there, topic by topic; returns the marks to wait for.

        Raises StorageError, NotLeader: the group stays where it was in this topic, and in those after it.
        """
        awaits = list[tuple[Mark, int]]()
        for topic in dict.fromkeys(committed.topic for committed in offsets):
            self.flush(group, topic)
            moved = [committed for committed in offsets if committed.topic == topic]
            log = self.logs.get(topic)
            if log is not None:
                log.append(group.name, moved)
                awaits += self._awaits(log)
            group.move(moved)
        return awaits

    def _awaits(self, log: TopicPositions) -> list[tuple[Mark, int]]:
        state = log.state
        if state.is_due():
            self._spawn(partial(state.compact_in_background, partial(log.snapshot, self._groups)))
        return [(state.committed, state.partition.log.bounds()[1])]
