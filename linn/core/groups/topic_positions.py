"""The positions of all groups in one topic, in a log of the topic's own: it is led, replicated and deleted with the
topic.

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
    OffsetPending,
    PendingEnded,
    decode_group_events,
    encode_group_events,
)
from linn.core.groups.group import ConsumerGroup, Part
from linn.core.log.mark import Mark
from linn.core.log.state_log import StateLog
from linn.core.log.storage import PartitionId


def groups_log(topic: str) -> PartitionId:
    """The log of the positions that groups have in a topic."""
    return PartitionId(f"__g.{topic}", 0)


class TopicPositions:
    """The log of one topic, and the names of the groups in it."""

    def __init__(self, topic: str, state: StateLog) -> None:
        self.topic = topic
        self.state = state
        self.clipped = False
        """Whether the log has positions beyond the end of the topic's records, because a power loss destroyed records,
        and a full disk keeps it from being corrected.
        """
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
        return [it for it in events if _topic_of(it) in ("", self.topic)]

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
    """The logs of the topics that this broker leads, by topic. Each topic that a group reads has the group's epochs.

    Positions in a topic without a log are kept in memory: its records do not survive a restart either.
    """

    def __init__(self, groups: Mapping[str, ConsumerGroup], spawn: Spawn) -> None:
        self.logs: dict[str, TopicPositions] = {}
        self._groups = groups
        self._spawn = spawn

    def of(self, group: ConsumerGroup) -> list[TopicPositions]:
        """The logs of topics that a group reads or has read; this takes time for each log of the broker."""
        topics = group.topics
        return [log for topic, log in self.logs.items() if topic in topics or group.name in log.known]

    def flush(self, group: ConsumerGroup, topic: str | None) -> Sequence[tuple[Mark, int]]:
        """Log a group's pending events; returns the marks to wait for in one topic, or in all.

        Raises StorageError, NotLeader: in one topic, or in any. The other topics' events are logged.
        """
        awaits, failure = list[tuple[Mark, int]](), None
        for name, events in self._pending(group, topic).items():
            log = self.logs.get(name)
            if log is None:
                continue
            try:
                log.write(group.name, events, self._groups)
            except StorageError as error:
                failure = error if topic in (None, name) else failure
            if topic in (None, name):
                awaits.append(self._await(log))
        if failure is not None:
            raise failure
        return awaits

    @staticmethod
    def _pending(group: ConsumerGroup, topic: str | None) -> Mapping[str, Sequence[GroupEvent]]:
        """Pending events by topic; `topic`, or all, may be without, since events of before may wait for the disk.

        An epoch is for all topics that the group reads or has positions in.
        """
        pending: dict[str, list[GroupEvent]] = {} if topic is None else {topic: []}
        events = group.take_events()
        if topic is None or (events and not isinstance(events[0], OffsetCommitted)):
            pending |= {name: [] for name in sorted(group.topics)}
        for event in events:
            if isinstance(event, OffsetCommitted):
                pending.setdefault(event.topic, []).append(event)
            else:
                for each in pending.values():
                    each.append(event)
        return pending

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
                awaits.append(self._await(log))
            group.move(moved)
        return awaits

    def pend(self, group: ConsumerGroup, part: Part, committed: OffsetCommitted) -> Sequence[tuple[Mark, int]]:
        """Log an offset that a transaction commits later; returns the marks to wait for.

        Raises StorageError, NotLeader: nothing was logged.
        """
        self.flush(group, committed.topic)
        log = self.logs.get(committed.topic)
        if log is not None:
            log.append(group.name, [OffsetPending(*part, committed)])
        group.pend(part, committed)
        return [self._await(log)] if log is not None else []

    def end_pending(
        self, group: ConsumerGroup, topic: str, part: Part, *, is_commit: bool
    ) -> Sequence[tuple[Mark, int]]:
        """Log that a transaction with offsets in a topic has ended; returns the marks to wait for.

        Raises StorageError, NotLeader: they are as they were.
        """
        self.flush(group, topic)
        log = self.logs.get(topic)
        if log is not None and group.has_pending(topic, part):
            log.append(group.name, [PendingEnded(*part, is_commit)])
        group.end_pending(topic, part, is_commit=is_commit)
        return [self._await(log)] if log is not None else []

    def _await(self, log: TopicPositions) -> tuple[Mark, int]:
        state = log.state
        if state.is_due():
            self._spawn(partial(state.compact_in_background, partial(log.snapshot, self._groups)))
        return state.committed, state.partition.log.bounds()[1]


def _topic_of(event: GroupEvent) -> str:
    """The topic that an event is about; "": any."""
    if isinstance(event, OffsetPending):
        return event.offset.topic
    return event.topic if isinstance(event, OffsetCommitted) else ""
