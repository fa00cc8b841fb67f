"""The group coordinator: all consumer groups of the broker, their members, and the internal logs of their offsets.

Laws: a group's log is chosen by its name; in a cluster each topic has a log of the groups' positions in it, which is
adopted with its leadership and released with it. A member starts reading a partition at the offset that was committed
last before it became the owner, and learns its share once the epoch is committed. Deleting a topic drops its offsets:
a topic of the same name is created only after the log records that.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import trio
from crc32c import crc32c

from linn.core.env.alarm import Alarm
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import (
    DescriptorsExhausted,
    DiskFull,
    GroupFenced,
    GroupSessionExpired,
    GroupUnknown,
    LinnError,
    StorageError,
)
from linn.core.groups.assignor import Assignor
from linn.core.groups.event import (
    GroupEvent,
    GroupForgotten,
    OffsetCommitted,
    TopicForgotten,
    decode_group_events,
    encode_group_events,
)
from linn.core.groups.group import ConsumerGroup, check_name
from linn.core.groups.member import GroupMember, JoinRequest
from linn.core.groups.membership import Seat
from linn.core.groups.topic_positions import PositionLogs, TopicPositions
from linn.core.log.mark import Mark
from linn.core.log.partition import Partition
from linn.core.log.state_log import ROOM_RETRY_S, StateLog
from linn.core.log.uncommitted import UncommittedViews

GROUPS_TOPIC = "__groups"
"""The internal topic of all groups."""
GROUP_LOGS = 16
"""Number of partitions of the internal topic."""
RELEASE_S = 30.0
"""Time to give up a partition that moves, for members without a session; others have the length of their session."""

logger = logging.getLogger("linn.group")


class Stream(NamedTuple):
    """A topic, as groups read it."""

    partitions: Mapping[int, Partition]
    commits_on_delivery: bool
    id: bytes = b""
    """Id of the topic."""


class GroupCoordinator:
    """All consumer groups. Without logs, they are kept in memory."""

    def __init__(
        self, find: Callable[[str], Stream | None], assignor_of: Callable[[str], Assignor], clock: Clock, spawn: Spawn
    ) -> None:
        """`find` returns a topic by name; None if it does not exist, or is a queue. `assignor_of` returns the assignor
        of a group.
        """
        self.groups: dict[str, ConsumerGroup] = {}
        self.states: Sequence[StateLog] = ()
        self.clipped = False
        """Whether a log has commits beyond the end of a topic's records, because a power loss destroyed records."""
        self.closed = False
        self._topics = PositionLogs(self.groups, spawn)
        """In a cluster, the logs of topics that this broker leads."""
        self._find = find
        self._clock = clock
        self._spawn = spawn
        self._assignor_of = assignor_of
        self._members: dict[str, dict[Seat, GroupMember]] = {}
        """Members at run time, by group and seat; a member whose session outlasts its connection is closed."""
        self._member_ids = itertools.count(1)
        self._leaving: dict[str, list[Seat]] = {}
        """Seats by group that were given up; they own their partitions until all other tasks have had a turn."""
        self._is_rebalancing = False
        """Whether a task to redistribute partitions is pending: a thousand members may leave in one turn."""
        self._alarms: dict[str, Alarm] = {}
        self._forgetting: dict[StateLog, None] = {}
        """Logs in which the removal of a deleted topic's offsets may not be durable yet."""
        self._tickets = 0
        self._held: dict[str, dict[int, None]] = {}
        """Tickets by group, ascending, of decisions that will move its positions and must be applied first."""
        self._waiting: dict[str, deque[tuple[int, str, Callable[[], None]]]] = {}
        """(last ticket, topic, callback) by group, of callbacks that wait for such decisions."""

    # --- recovery ----------------------------------------------------------------------------------------------------

    async def recover(
        self, states: Sequence[StateLog], topics: Collection[str], ends: Mapping[str, Mapping[int, int]]
    ) -> list[str]:
        """Rebuild the groups from their logs; a full disk does not prevent it.

        `topics` has the names of all topics, and `ends` the ends of the open ones' partitions. Returns the topics in
        which groups had committed records that are lost: while `clipped` is set, they must store nothing. New records
        at those offsets are delivered to the groups.

        Raises LogCorrupt, StorageError.
        """
        assert len(states) in (0, GROUP_LOGS)
        self.states = states
        for state in states:
            await self._replay(state)
        for group in self.groups.values():
            for topic in sorted({topic for topic, _ in group.offsets()}.difference(topics)):
                self._forget_offsets(group, topic)
        return await self.check_ends(ends)

    async def check_ends(self, ends: Mapping[str, Mapping[int, int]]) -> list[str]:
        """Let groups go on at the ends of partitions that have lost records; see `recover`. Raises SyncFailed."""
        clipped: dict[str, None] = {}
        for group in self.groups.values():
            for committed in _beyond(group, ends):
                self._warn_of_lost(group, committed)
                group.apply(committed)
                clipped[committed.topic] = None
                self._write(group.name, committed)
        if clipped:
            self.clipped = True
            await self._sync_clipped()
        return list(clipped)

    async def adopt(self, topic: str, state: StateLog, ends: Mapping[int, int]) -> None:
        """Take over the positions in a topic that this broker has begun to lead, from the topic's own log.

        `ends`: the ends of the topic's partitions, where groups go on whose records are lost. Call it before members
        can join. A group's epoch does not go back.

        Raises LogCorrupt, StorageError, NotLeader: nothing was taken over.
        """
        log = TopicPositions(topic, state)
        found = await log.replay(lambda name: ConsumerGroup(name, self._assignor_of(name)))
        left = [(group, committed) for group in found.values() for committed in _beyond(group, {topic: ends})]
        for group, committed in left:
            self._warn_of_lost(group, committed)
            log.append(group.name, [committed])
            group.move([committed])
        if left:
            await state.make_durable()
        assert topic not in self._topics.logs, "a topic is released before it is adopted again"
        self._topics.logs[topic] = log
        for name, group in found.items():
            self._group(name).take_over(group)

    def release(self, topic: str, reason: NotLeader | None = None) -> None:
        """Forget the positions in a topic that this broker leads no more: members there end with the reason.

        None: the topic is gone. Nothing is written to the topic's log. A group of which nothing is left is gone here.
        """
        log = self._topics.logs.pop(topic, None)
        if log is not None and reason is not None:
            log.state.abandon(reason)
        for name, group in list(self.groups.items()):
            self._end_seats(name, topic, reason)
            group.forget_topic(topic)
            group.membership.resize(topic, 0, self._clock.monotonic())
            self._tell(group)
            if not group.topics and not self._topics.of(group):
                self._drop(name)

    def _drop(self, name: str) -> None:
        del self.groups[name]
        self._members.pop(name, None)
        if (alarm := self._alarms.pop(name, None)) is not None:
            alarm.cancel()

    @staticmethod
    def _warn_of_lost(group: ConsumerGroup, left: OffsetCommitted) -> None:
        about: dict[str, object] = {"group": group.name, "partition": f"{left.topic}/{left.partition}"}
        about |= {"before": group.position(left.topic, left.partition), "offset": left.offset}
        text = (
            "group %(group)s goes on at offset %(offset)d of %(partition)s: what it had read up to %(before)d is lost"
        )
        logger.warning(text, about)

    async def _replay(self, state: StateLog) -> None:
        names: dict[str, None] = {}
        async for record in state.replay():
            is_restart, entries = decode_group_events(record)
            if is_restart:
                for name in names:
                    self.groups.pop(name, None)
            for name, events in entries:
                names[name] = None
                group = self._group(name)
                for event in events:
                    group.apply(event)
                if events and isinstance(events[-1], GroupForgotten):
                    del self.groups[name]

    def _write(self, name: str, event: GroupEvent) -> None:
        """Log an event. On a full disk it waits in the state log."""
        state = self._state_of(name)
        if state is not None:
            with contextlib.suppress(DiskFull, DescriptorsExhausted):
                state.write(encode_group_events([(name, [event])]), partial(self._restart_record, state))

    async def _sync_clipped(self) -> None:
        try:
            await self._try_to_sync()
        except (DiskFull, DescriptorsExhausted) as error:
            text = "topics whose records were lost store nothing until the disk has room for the groups' log: %(error)s"
            logger.error(text, log_fields(error))
            self._spawn(self._sync_clipped_later)

    async def _try_to_sync(self) -> None:
        for state in self.states:
            state.write(b"", partial(self._restart_record, state))
            await state.partition.make_durable()
        self.clipped = False

    async def _sync_clipped_later(self) -> None:
        while self.clipped and not self.closed:
            await self._clock.sleep(ROOM_RETRY_S)
            with contextlib.suppress(DiskFull, DescriptorsExhausted):
                await self._try_to_sync()

    # --- members -----------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest) -> GroupMember:
        """Add a member to a group, creating the group if it is new. Raises DeliveryError, LimitExceeded."""
        stream = self._find(request.topic)
        assert stream is not None
        if request.member:
            check_name(request.member, "member")
        group = self._group(request.group)
        seat = request.member or self._free_name(group), request.topic
        members = self._members.setdefault(group.name, {})
        if seat in members:
            members[seat].end(GroupFenced(f'another consumer took over "{seat[0]}" in group "{group.name}"'))
        partitions = UncommittedViews(stream.partitions) if request.is_uncommitted else stream.partitions
        member = members[seat] = GroupMember(self, group, seat, partitions, request)
        member.commits_on_delivery, member.topic_id = stream.commits_on_delivery, stream.id
        release_s = request.session_s or RELEASE_S
        now_s = self._clock.monotonic()
        group.membership.join(seat, len(stream.partitions), now_s, session_s=request.session_s, release_s=release_s)
        self._tell(group)
        return member

    def _free_name(self, group: ConsumerGroup) -> str:
        return next(name for n in self._member_ids if (name := f"member-{n}") not in group.membership.members)

    def _group(self, name: str) -> ConsumerGroup:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = ConsumerGroup(name, self._assignor_of(name))
        self._rebalance_after_leaves(name)
        return group

    def leave(self, member: GroupMember) -> None:
        """Give up a member's seat. Its partitions are redistributed at once, or together with the partitions of members
        that leave at the same time."""
        if self.closed or not self._forget(member):
            return
        name = member.group.name
        self._leaving.setdefault(name, []).append(member.seat)
        if not self._is_rebalancing:
            self._is_rebalancing = True
            self._rebalance_after_leaves(name)
            self._spawn(self._rebalance_left_groups)

    def _forget(self, member: GroupMember) -> bool:
        """Forget a member. Returns False if another member has its seat."""
        members = self._members.get(member.group.name, {})
        if members.get(member.seat) is not member:
            return False
        del members[member.seat]
        return True

    async def _rebalance_left_groups(self) -> None:
        try:
            while self._leaving and not self.closed:
                self._rebalance_after_leaves(next(iter(self._leaving)))
                await trio.lowlevel.checkpoint()
        finally:
            self._is_rebalancing = False

    def _rebalance_after_leaves(self, name: str) -> None:
        """Redistribute a group's partitions among its remaining members. Call it before looking at the group."""
        leaving = self._leaving.pop(name, None)
        if leaving is not None and not self.closed:
            group = self.groups[name]
            group.membership.leave(leaving, self._clock.monotonic())
            self._tell(group)

    def heartbeat(self, member: GroupMember, epoch: int) -> None:
        """Renew a member's session; it has given up the partitions revoked up to `epoch`. Raises GroupFenced."""
        group = member.group
        group.membership.heartbeat(member.seat, epoch, self._clock.monotonic())
        self._tell(group)

    def _tick(self, name: str) -> float | None:
        if self.closed or name not in self.groups:
            return None
        group = self.groups[name]
        self._rebalance_after_leaves(name)
        members = self._members.get(name, {})
        for seat in group.membership.tick(self._clock.monotonic()):
            member = members.pop(seat, None)
            if member is not None:
                text = f'the session of "{seat[0]}" in group "{name}" ended without a heartbeat'
                member.end(GroupSessionExpired(text))
        self._tell(group)
        deadline_s = group.membership.deadline_s()
        return deadline_s if deadline_s < math.inf else None

    def _tell(self, group: ConsumerGroup) -> None:
        shares = group.membership.take_shares()
        if not shares and not group.has_events:
            return
        try:
            self.flush(group)
        except NotLeader:
            pass  # The topic is about to be released, with its members.
        except StorageError as error:
            # The change takes effect even on a full disk; the epoch is written with the next event.
            logger.warning("group %(group)s: %(error)s", {"group": group.name} | log_fields(error))
        members = self._members.get(group.name, {})
        for seat, share in shares.items():
            if seat in members:
                members[seat].assigned(share)
        deadline_s = group.membership.deadline_s()
        if deadline_s < math.inf:
            self._alarm(group.name).set(deadline_s)

    def _alarm(self, name: str) -> Alarm:
        alarm = self._alarms.get(name)
        if alarm is None:
            alarm = self._alarms[name] = Alarm(self._clock, self._spawn, partial(self._tick, name))
        return alarm

    # --- topics ------------------------------------------------------------------------------------------------------

    def grow(self, topic: str, partitions: int) -> None:
        """Redistribute after a topic has been given more partitions."""
        for group in list(self.groups.values()):
            self._rebalance_after_leaves(group.name)
            group.membership.resize(topic, partitions, self._clock.monotonic())
            self._tell(group)

    def end_topic(self, topic: str) -> None:
        """End the members that read a topic, because it is deleted or becomes a queue. Offsets stay."""
        for name, group in list(self.groups.items()):
            self._end_seats(name, topic, None)
            group.membership.resize(topic, 0, self._clock.monotonic())
            self._tell(group)

    def _end_seats(self, name: str, topic: str, reason: LinnError | None) -> None:
        self._rebalance_after_leaves(name)
        members = self._members.get(name, {})
        for seat in [seat for seat in members if seat[1] == topic]:
            members.pop(seat).end(reason)

    def forget_topic(self, topic: str) -> None:
        """Drop all offsets in a topic that is deleted. A full disk does not prevent it: see `make_forgotten`."""
        if topic in self._topics.logs:
            self.release(topic)
        for group in list(self.groups.values()):
            if any(place[0] == topic for place in group.offsets()):
                self._forget_offsets(group, topic)

    def _forget_offsets(self, group: ConsumerGroup, topic: str) -> None:
        group.forget_topic(topic)
        self._write(group.name, TopicForgotten(topic))
        state = self._state_of(group.name)
        if state is not None:
            self._forgetting[state] = None

    async def make_forgotten(self) -> None:
        """Make the removal of deleted topics' offsets durable, before another topic is created. Raises StorageError."""
        for state in list(self._forgetting):
            state.write(b"", partial(self._restart_record, state))
            await state.partition.make_durable()
            self._forgetting.pop(state, None)

    # --- the logs ----------------------------------------------------------------------------------------------------

    def _state_of(self, name: str) -> StateLog | None:
        return self.states[crc32c(name.encode()) % GROUP_LOGS] if self.states else None

    def flush(self, group: ConsumerGroup, topic: str | None = None) -> Sequence[tuple[Mark, int]]:
        """Log a group's pending events; returns the marks to wait for.

        In a cluster each topic has a log. Waits and errors concern `topic`, or all topics.

        Raises StorageError: the events have taken effect, and are written with the next ones. NotLeader: they are lost.
        """
        if self._topics.logs:
            return self._topics.flush(group, topic)
        state, events = self._state_of(group.name), group.take_events()
        if state is None:
            return ()
        if events or state.waiting:
            record = encode_group_events([(group.name, events)]) if events else b""
            state.write(record, partial(self._restart_record, state))
        return self._awaits(state)

    def move(self, group: ConsumerGroup, offsets: Sequence[OffsetCommitted]) -> Sequence[tuple[Mark, int]]:
        """Log a group's new offsets, then move the group there; returns the marks to wait for.

        Raises StorageError: the group stays where it was, even after a restart; in a cluster, in this topic and those
        after it.
        """
        if self._topics.logs:
            return self._topics.move(group, offsets)
        awaits = self.flush(group)
        state = self._state_of(group.name)
        if state is not None:
            state.append(encode_group_events([(group.name, offsets)]))
            awaits = self._awaits(state)
        group.move(offsets)
        return awaits

    def hold_positions(self, name: str) -> int:
        """Keep members from starting to read at a group's positions, because a decision will move them; returns a
        ticket.

        Call `release_positions` with it.
        """
        self._tickets += 1
        self._held.setdefault(name, {})[self._tickets] = None
        return self._tickets

    def release_positions(self, name: str, ticket: int) -> None:
        """Let members start that waited for this decision, unless they also wait for an earlier one."""
        held, waiting = self._held[name], self._waiting.get(name)
        del held[ticket]
        first = next(iter(held), self._tickets + 1)
        while waiting and waiting[0][0] < first:
            self._when_logged(name, *waiting.popleft()[1:])
        if not held:
            del self._held[name]
            self._waiting.pop(name, None)

    async def commit_decided(self, name: str, offsets: Sequence[OffsetCommitted]) -> None:
        """Move a group to the offsets of a committed transaction; durable when this returns.

        Raises StorageError: the group stays where it was.
        """
        for mark, end in self.move(self._group(name), offsets):
            await mark.wait(end)

    def _awaits(self, state: StateLog) -> Sequence[tuple[Mark, int]]:
        if state.is_due():
            self._spawn(partial(state.compact, partial(self._snapshot, state)))
        return ((state.committed, state.partition.log.bounds()[1]),)

    def when_committed(self, group: ConsumerGroup, topic: str, callback: Callable[[], None]) -> None:
        """Call back once all logged events of a group, in a topic, are committed, and the decisions that move its
        positions are applied: at once, or later from the loop."""
        if group.name in self._held:
            self._waiting.setdefault(group.name, deque()).append((self._tickets, topic, callback))
        else:
            self._when_logged(group.name, topic, callback)

    def _when_logged(self, name: str, topic: str, callback: Callable[[], None]) -> None:
        state = self._topics.logs[topic].state if topic in self._topics.logs else self._state_of(name)
        if state is None:
            callback()
        else:
            mark, end = state.committed, state.partition.log.bounds()[1]
            # Where the log is led elsewhere, so are the groups: nothing begins here.
            mark.when_passed(end, lambda failure: callback() if failure is None else None)

    def _groups_in(self, state: StateLog) -> list[ConsumerGroup]:
        return [group for name, group in self.groups.items() if self._state_of(name) is state]

    def _restart_record(self, state: StateLog) -> bytes:
        entries = [(group.name, group.snapshot_events()) for group in self._groups_in(state)]
        return encode_group_events(entries, restart=True)

    def _snapshot(self, state: StateLog) -> list[bytes]:
        state.write(b"", partial(self._restart_record, state))
        return [encode_group_events([(group.name, group.snapshot_events())]) for group in self._groups_in(state)]

    async def enforce_retention(self) -> None:
        """Let the logs do their housekeeping."""
        for state in [*self.states, *(log.state for log in self._topics.logs.values())]:
            await state.partition.enforce_retention(self._clock.now_ms())

    # --- administration ----------------------------------------------------------------------------------------------

    def known(self, name: str) -> ConsumerGroup:
        """Return the group of this name. Raises GroupUnknown."""
        group = self.groups.get(name)
        if group is None:
            raise GroupUnknown(f'there is no group "{name[:80]}"')
        self._rebalance_after_leaves(name)
        return group

    def show(self, name: str, topic: str, partitions: Iterable[int]) -> dict[int, int | None]:
        """Committed offsets by partition. Raises GroupUnknown."""
        group = self.known(name)
        return {partition: group.position(topic, partition) for partition in partitions}

    def seats(self, name: str) -> Mapping[Seat, GroupMember]:
        """The members of a group at run time, by seat."""
        return self._members.get(name, {})

    async def reset(self, name: str, offsets: Sequence[OffsetCommitted]) -> None:
        """Move a group to other offsets; durable when this returns.

        Raises GroupUnknown, GroupBusy; StorageError: there is no room, and nothing changes. NotLeader.
        """
        group, topics = self.known(name), dict.fromkeys(committed.topic for committed in offsets)
        for topic in topics:
            group.check_idle(topic)
        self.move(group, offsets)
        await self._commit(name, [self._topics.logs[topic] for topic in topics if topic in self._topics.logs])

    async def forget(self, name: str, topic: str | None = None) -> None:
        """Drop a group, or its offsets in a topic, and the group when no offsets are left; durable when this returns.

        In a cluster, a group is dropped in the topics that this broker leads.

        Raises GroupUnknown, GroupBusy, StorageError, NotLeader.
        """
        group = self.known(name)
        group.check_idle(topic)
        is_last = topic is None or not group.topics - {topic}
        event: GroupEvent = GroupForgotten() if topic is None or is_last else TopicForgotten(topic)
        state = self._state_of(name)
        logs = [log for log in self._topics.of(group) if is_last or log.topic == topic]
        if state is not None or logs:
            self.flush(group, topic)
        if state is not None:
            state.append(encode_group_events([(name, [event])]))
        for log in logs:
            log.append(name, [event])
        if topic is not None:
            group.forget_topic(topic)
        if is_last:
            self._drop(name)
        await self._commit(name, logs)

    async def _commit(self, name: str, logs: Sequence[TopicPositions]) -> None:
        # An administrative change is not cancelled, so it must not wait for a task that may be.
        state = self._state_of(name)
        for each in [*([state] if state is not None else ()), *(log.state for log in logs)]:
            await each.commit_all()

    def members(self, name: str, topic: str) -> int:
        """The number of a group's members that read a topic."""
        group = self.groups.get(name)
        if group is None:
            return 0
        self._rebalance_after_leaves(name)
        return sum(topic in member.seats for member in group.membership.members.values())

    # --- closing -----------------------------------------------------------------------------------------------------

    def end_members(self) -> None:
        """End every member. Members learn of no further shares."""
        self.closed = True
        for alarm in self._alarms.values():
            alarm.cancel()
        for members in self._members.values():
            for member in list(members.values()):
                member.end(None)

    async def close(self) -> None:
        """End all members, sync and close the logs."""
        self.end_members()
        for state in self.states:
            await state.partition.close()


def _beyond(group: ConsumerGroup, ends: Mapping[str, Mapping[int, int]]) -> list[OffsetCommitted]:
    """The log ends for partitions that lost records which the group had committed; they replace its offsets."""
    return [
        OffsetCommitted(topic, partition, ends[topic][partition])
        for (topic, partition), committed in group.offsets().items()
        if topic in ends and committed.offset > ends[topic].get(partition, committed.offset)
    ]
