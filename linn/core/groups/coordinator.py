"""The group coordinator: the consumer groups of the topics that this broker leads, and their members.

Laws: the positions of groups in a topic are in a log of the topic's own, which is adopted when the topic is opened and
released when it is led elsewhere or deleted. A member starts reading a partition at the offset that was committed last
before it became the owner, and learns its share once the epoch is committed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import trio

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
from linn.core.groups.event import GroupEvent, GroupForgotten, OffsetCommitted, TopicForgotten
from linn.core.groups.group import ConsumerGroup, Part, check_name
from linn.core.groups.member import GroupMember, JoinRequest
from linn.core.groups.membership import Seat
from linn.core.groups.topic_positions import PositionLogs, TopicPositions
from linn.core.log.mark import Mark
from linn.core.log.partition import Partition
from linn.core.log.state_log import ROOM_RETRY_S, StateLog
from linn.core.log.uncommitted import UncommittedViews

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
    """All consumer groups. In a topic without a log, their positions are kept in memory."""

    def __init__(
        self, find: Callable[[str], Stream | None], assignor_of: Callable[[str], Assignor], clock: Clock, spawn: Spawn
    ) -> None:
        """`find` returns a topic by name; None if it does not exist, or is a queue. `assignor_of` returns the assignor
        of a group.
        """
        self.groups: dict[str, ConsumerGroup] = {}
        self.closed = False
        self._topics = PositionLogs(self.groups, spawn)
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
        self._waiting: dict[tuple[str, Seat], deque[tuple[set[Part], Callable[[], None]]]] = {}
        """Callbacks by group and seat, with the open transactions that they wait for."""

    # --- topics that are led -----------------------------------------------------------------------------------------

    async def adopt(self, topic: str, state: StateLog, ends: Mapping[int, int]) -> TopicPositions:
        """Take over the positions in a topic that this broker has begun to lead, from the topic's own log.

        `ends`: the ends of the topic's partitions, where groups go on whose records are lost. While the returned log is
        `clipped`, the topic must store nothing: new records at those offsets are for the groups. Call it before members
        can join. A group's epoch does not go back.

        Raises LogCorrupt, StorageError, NotLeader: nothing was taken over.
        """
        log = TopicPositions(topic, state)
        found = await log.replay(self._new_group)
        left = [(group, committed) for group in found.values() for committed in _beyond(group, ends)]
        for group, committed in left:
            self._warn_of_lost(group, committed)
            group.move([committed])
            with _waiting_for_room(state):
                log.write(group.name, [committed], found)
        assert topic not in self._topics.logs, "a topic is released before it is adopted again"
        if left:
            log.clipped = True
            with _waiting_for_room(state):
                await self._sync_clipped(log, found)
        self._topics.logs[topic] = log
        for name, group in found.items():
            self._group(name).take_over(group)
        if log.clipped:
            logger.error("topic %(topic)s stores nothing until the disk has room for its groups", {"topic": topic})
            self._spawn(partial(self._sync_clipped_later, log))
        return log

    @staticmethod
    async def _sync_clipped(log: TopicPositions, groups: Mapping[str, ConsumerGroup]) -> None:
        log.write("", (), groups)
        await log.state.make_durable()
        log.clipped = False

    async def _sync_clipped_later(self, log: TopicPositions) -> None:
        while log.clipped and not self.closed and self._topics.logs.get(log.topic) is log:
            await self._clock.sleep(ROOM_RETRY_S)
            with contextlib.suppress(DiskFull, DescriptorsExhausted):
                await self._sync_clipped(log, self.groups)

    def release(self, topic: str, reason: NotLeader | None = None) -> None:
        """Forget the positions in a topic that this broker leads no more: members there end with the reason.

        None: the topic is gone. Nothing is written to the topic's log. A group of which nothing is left is gone here.
        """
        log = self._topics.logs.pop(topic, None)
        if log is not None and reason is not None:
            log.state.abandon(reason)
        for key in [key for key in self._waiting if key[1][1] == topic]:
            del self._waiting[key]
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
        place, before = f"{left.topic}/{left.partition}", group.position(left.topic, left.partition)
        text = "group %(group)s goes on at offset %(offset)d of %(partition)s: what it read up to %(before)d is lost"
        logger.warning(text, {"group": group.name, "partition": place, "before": before, "offset": left.offset})

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
        if (group := self.groups.get(name)) is None:
            group = self.groups[name] = self._new_group(name)
        self._rebalance_after_leaves(name)
        return group

    def _new_group(self, name: str) -> ConsumerGroup:
        return ConsumerGroup(name, self._assignor_of(name))

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
        if (leaving := self._leaving.pop(name, None)) is not None and not self.closed:
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
        if (alarm := self._alarms.get(name)) is None:
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

    # --- the logs ----------------------------------------------------------------------------------------------------

    def flush(self, group: ConsumerGroup, topic: str | None = None) -> Sequence[tuple[Mark, int]]:
        """Log a group's pending events; returns the marks to wait for. Waits and errors concern `topic`, or all topics.

        Raises StorageError: the events have taken effect, and are written with the next ones. NotLeader: they are lost.
        """
        return self._topics.flush(group, topic)

    def move(self, group: ConsumerGroup, offsets: Sequence[OffsetCommitted]) -> Sequence[tuple[Mark, int]]:
        """Log a group's new offsets, then move the group there; returns the marks to wait for.

        Raises StorageError: the group stays where it was, in this topic and those after it.
        """
        return self._topics.move(group, offsets)

    def pend(self, group: ConsumerGroup, part: Part, committed: OffsetCommitted) -> Sequence[tuple[Mark, int]]:
        """Log an offset that a transaction commits later; returns the marks to wait for.

        The next owner of the partition begins to read it when the transaction has ended.

        Raises StorageError, NotLeader: nothing was logged.
        """
        return self._topics.pend(group, part, committed)

    def pending(self) -> Iterator[tuple[str, str, Part]]:
        """The group, the topic and the transaction of all offsets that transactions commit later."""
        for name, group in self.groups.items():
            for part, places in list(group.pending.items()):
                for topic in sorted({topic for topic, _ in places}):
                    yield name, topic, part

    def end_pending(self, name: str, topic: str, part: Part, *, is_commit: bool) -> Sequence[tuple[Mark, int]]:
        """Commit or drop the offsets of a transaction in a topic; returns the marks to wait for. Can be repeated.

        Raises StorageError, NotLeader: they are as they were.
        """
        group = self.groups.get(name)
        if group is None:
            return ()
        awaits = self._topics.end_pending(group, topic, part, is_commit=is_commit)
        for key in [key for key in self._waiting if key[0] == name and key[1][1] == topic]:
            waiting = self._waiting[key]
            for parts, _ in waiting:
                parts.discard(part)
            while waiting and not waiting[0][0]:
                self._when_logged(topic, waiting.popleft()[1])
            if not waiting:
                del self._waiting[key]
        return awaits

    async def make_durable(self, topic: str) -> None:
        """Put the positions in a topic on stable storage, whatever the policy of their log. Raises StorageError."""
        log = self._topics.logs.get(topic)
        if log is not None and not log.state.partition.log.capabilities.confirm_after_sync:
            await log.state.make_durable()

    def when_committed(
        self, group: ConsumerGroup, seat: Seat, partitions: Iterable[int], callback: Callable[[], None]
    ) -> None:
        """Call back once all logged events of a group in a seat's topic are committed, and no transaction may move it
        in these partitions any more: at once, or later from the loop. Callbacks of a seat come in order."""
        key, parts = (group.name, seat), group.pending_in(seat[1], partitions)
        if parts or key in self._waiting:
            self._waiting.setdefault(key, deque()).append((parts, callback))
        else:
            self._when_logged(seat[1], callback)

    def _when_logged(self, topic: str, callback: Callable[[], None]) -> None:
        log = self._topics.logs.get(topic)
        if log is None:
            callback()
        else:
            mark, end = log.state.committed, log.state.partition.log.bounds()[1]
            # Where the log is led elsewhere, so are the groups: nothing begins here.
            mark.when_passed(end, lambda failure: callback() if failure is None else None)

    # --- administration ----------------------------------------------------------------------------------------------

    def known(self, name: str) -> ConsumerGroup:
        """Return the group of this name. Raises GroupUnknown."""
        if (group := self.groups.get(name)) is None:
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
        await self._commit([self._topics.logs[topic] for topic in topics if topic in self._topics.logs])

    async def forget(self, name: str, topic: str | None = None) -> None:
        """Drop a group, or its offsets in a topic, and the group when no offsets are left; durable when this returns.

        A group is dropped in the topics that this broker leads.

        Raises GroupUnknown, GroupBusy, StorageError, NotLeader.
        """
        group = self.known(name)
        group.check_idle(topic)
        is_last = topic is None or not group.topics - {topic}
        event: GroupEvent = GroupForgotten() if topic is None or is_last else TopicForgotten(topic)
        logs = [log for log in self._topics.of(group) if is_last or log.topic == topic]
        if logs:
            self.flush(group, topic)
        for log in logs:
            log.append(name, [event])
        if topic is not None:
            group.forget_topic(topic)
        if is_last:
            self._drop(name)
        await self._commit(logs)

    @staticmethod
    async def _commit(logs: Sequence[TopicPositions]) -> None:
        # An administrative change is not cancelled, so it must not wait for a task that may be.
        for log in logs:
            await log.state.commit_all()

    def members(self, name: str, topic: str) -> int:
        """The number of a group's members that read a topic."""
        if (group := self.groups.get(name)) is None:
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


@contextlib.contextmanager
def _waiting_for_room(state: StateLog) -> Iterator[None]:
    """Let a log's records wait while the disk is full; a replicated log is led elsewhere then."""
    try:
        yield
    except (DiskFull, DescriptorsExhausted):
        if state.is_replicated:
            raise


def _beyond(group: ConsumerGroup, ends: Mapping[int, int]) -> list[OffsetCommitted]:
    """The log ends for partitions that lost records which the group had committed; they replace its offsets."""
    return [
        OffsetCommitted(topic, partition, ends[partition])
        for (topic, partition), committed in group.offsets().items()
        if committed.offset > ends.get(partition, committed.offset)
    ]
