"""Consumer groups of a topic at run time: members read the partitions that they own, commits go to a log.

Law: a member starts reading a partition at the offset that was committed last when it came to own the partition.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from linn.core.batch.steps import Steps
from linn.core.env.env import Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import (
    DescriptorsExhausted,
    DiskFull,
    GroupFenced,
    GroupUnknown,
    LinnError,
    OffsetOutOfRange,
    StorageError,
    SubscriptionWrongKind,
    TopicUnknown,
)
from linn.core.groups.event import (
    GroupEvent,
    GroupForgotten,
    OffsetCommitted,
    decode_group_events,
    encode_group_events,
)
from linn.core.groups.group import ConsumerGroup, Rebalance
from linn.core.groups.reader import TOLD_INTERVAL_S, StreamReader
from linn.core.log.delivery import SETTLE_STEP, Delivery, Settlement, SettleOutcome, nobody
from linn.core.log.partition import Partition
from linn.core.log.selection import Selection
from linn.core.log.state_log import ROOM_RETRY_S, StateLog
from linn.core.loop.waiting import WaitDeadline

Start = Callable[[int], int]
"""The start offset for a partition in which the group has committed nothing, fixed when the member joined."""
PASSED_RANGES_MAX = 1_024
"""Limit of the ranges between a partition's uncommitted deliveries that a filter has passed over; the oldest are
forgotten, so that whoever continues behind them looks at them again.
"""
OnAssigned = Callable[[int, Sequence[int]], None]
"""A callback with (generation, partitions) when a member joins and whenever its share changes."""

logger = logging.getLogger("linn.group")


class Groups:
    """All consumer groups of one topic, and their one internal log."""

    def __init__(
        self,
        topic: str,
        partitions: Mapping[int, Partition],
        state: StateLog | None,
        commits_on_delivery: bool,
        spawn: Spawn,
    ) -> None:
        """`state` is None for groups that do not survive a restart; `partitions` may grow: see `grow`."""
        self.topic = topic
        self.partitions = partitions
        self.commits_on_delivery = commits_on_delivery
        self.groups: dict[str, ConsumerGroup] = {}
        self._members: dict[str, dict[str, GroupConsumer]] = {}
        self._member_ids = itertools.count(1)
        self._leaving: dict[str, list[str]] = {}
        """Members by group that have left and still own their partitions, until all other tasks had a turn."""
        self._counting_out = False
        """Whether a task to redistribute is pending: with a connection, a thousand members may leave in one turn."""
        self.state = state
        self._spawn = spawn
        self.clipped = False
        """Whether the log has commits beyond the end of the records, because a power loss took some."""
        self.closed = False

    async def recover(self, left_off: Mapping[str, Sequence[GroupEvent]]) -> None:
        """Rebuild the groups from their log, and from what the closed topic left in memory; a full disk does not
        prevent it.

        Raises LogCorrupt, StorageError.
        """
        if self.state is not None:
            async for record in self.state.replay():
                name, events = decode_group_events(record)
                self._apply(name, events)
                if events == [GroupForgotten()]:
                    del self.groups[name]
        for name, unwritten in left_off.items():
            self._apply(name, unwritten)
        if self.state is None:
            return
        clipped = [self._clip(group) for group in self.groups.values()]
        for name, unwritten in left_off.items():
            self.groups[name].keep_events(unwritten)
        self.clipped = any(clipped)
        if self.clipped:
            await self._replace_clipped(self.state)

    async def _replace_clipped(self, state: StateLog) -> None:
        try:
            await state.compact(self._snapshot, force=True)
            self.clipped = False
        except DiskFull as error:
            text = "nothing is stored in topic %(topic)s until the disk has room for its groups' log: %(error)s"
            logger.error(text, {"topic": self.topic} | log_fields(error))
            self._spawn(lambda: self._replace_clipped_later(state))

    async def _replace_clipped_later(self, state: StateLog) -> None:
        while self.clipped and not self.closed:
            await state.clock.sleep(ROOM_RETRY_S)
            with contextlib.suppress(DiskFull, DescriptorsExhausted):
                await state.compact(self._snapshot, force=True)
                self.clipped = False

    def _apply(self, name: str, events: Sequence[GroupEvent]) -> None:
        group = self._group(name)
        for event in events:
            group.apply(event)

    def _clip(self, group: ConsumerGroup) -> bool:
        """Move a group back to the end of a log that lost records, which the group had committed, in a power failure.

        Records appended at their offsets later are new to it. Returns whether there was such a log.
        """
        clipped = False
        for number, partition in self.partitions.items():
            position, end = group.position(number), partition.log.bounds()[1]
            if position is not None and position > end:
                group.apply(OffsetCommitted(number, end))
                clipped = True
        return clipped

    def _group(self, name: str) -> ConsumerGroup:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = ConsumerGroup(name, len(self.partitions))
        self._count_out(name)
        return group

    def join(
        self, name: str, start: Start, on_assigned: OnAssigned, selection: Selection | None = None
    ) -> GroupConsumer:
        """Add a member to a group, which is made if it is new. Raises DeliveryError, LimitExceeded.

        With a selection the other records are passed over, and count as consumed.
        """
        group = self._group(name)
        member = GroupConsumer(self, group, f"member-{next(self._member_ids)}", start, on_assigned)
        member.reader.selection = selection
        self._members.setdefault(name, {})[member.name] = member
        self._tell(group, group.join(member.name))
        return member

    def leave(self, member: GroupConsumer) -> None:
        """Remove a member; its partitions are redistributed at once, or together with those of members that leave right
        after it.
        """
        if self.closed:
            return
        name = member.group.name
        del self._members[name][member.name]
        self._leaving.setdefault(name, []).append(member.name)
        if not self._counting_out:
            self._counting_out = True
            self._count_out(name)
            self._spawn(self._count_out_all)

    async def _count_out_all(self) -> None:
        try:
            while self._leaving and not self.closed:
                self._count_out(next(iter(self._leaving)))
                await trio.lowlevel.checkpoint()
        finally:
            self._counting_out = False

    def _count_out(self, name: str) -> None:
        """Redistribute a group's partitions among its remaining members. Call it before looking at the group."""
        leaving = self._leaving.pop(name, None)
        if leaving is not None and not self.closed:
            group = self.groups[name]
            self._tell(group, group.leave(*leaving))

    def grow(self) -> None:
        """Redistribute after the topic has been given more partitions."""
        for name, group in self.groups.items():
            self._count_out(name)
            self._tell(group, group.grow(len(self.partitions)))

    def _tell(self, group: ConsumerGroup, rebalance: Rebalance) -> None:
        try:
            self.flush(group)
        except StorageError as error:
            # Membership changed, full disk or not; the generation is written with the next event.
            about = {"group": group.name, "topic": self.topic} | log_fields(error)
            logger.warning("group %(group)s of topic %(topic)s: %(error)s", about)
        generation, gained, lost = rebalance.generation, rebalance.gained, rebalance.lost
        for name, member in self._members.get(group.name, {}).items():
            if member.generation and name not in gained and name not in lost:
                # It is not notified: of a thousand members, few are affected when another comes or goes.
                member.generation = generation
            else:
                share = rebalance.assignment.get(name, ())
                member.assigned(generation, share, gained.get(name, ()), lost.get(name, ()))

    def flush(self, group: ConsumerGroup, ahead: Sequence[OffsetCommitted] = ()) -> Sequence[tuple[Partition, int]]:
        """Log a group's pending events, then `ahead`, which is to happen; returns what to wait for.

        Raises StorageError: pending events are kept and written with the next ones; `ahead` is not.
        """
        state = self.state
        if state is None:
            group.drop_events()
            return ()
        while events := group.take_events():
            try:
                state.append(encode_group_events(group.name, events))
            except StorageError:
                group.keep_events(events)
                raise
        if ahead:
            state.append(encode_group_events(group.name, ahead))
        if state.is_due():

            async def compact() -> None:
                await state.compact(self._snapshot)

            self._spawn(compact)
        return ((state.partition, state.partition.log.bounds()[1]),)

    def move(self, group: ConsumerGroup, offsets: Mapping[int, int]) -> Sequence[tuple[Partition, int]]:
        """Log a group's new offsets, and only then move the group there; returns what to wait for.

        Raises StorageError: the group stays where it was, also after a restart.
        """
        awaits = self.flush(group, [OffsetCommitted(*item) for item in offsets.items()])
        group.move(offsets)
        return awaits

    def when_committed(self, callback: Callable[[], None]) -> None:
        """Call back once everything logged is as durable as the topic: at once, or later from the loop."""
        if self.state is None:
            callback()
        else:
            self.state.partition.when_committed(self.state.partition.log.bounds()[1], callback)

    def _snapshot(self) -> list[bytes]:
        for group in list(self.groups.values()):
            self.flush(group)
        return [encode_group_events(name, group.snapshot_events()) for name, group in self.groups.items()]

    def left_off(self) -> Mapping[str, Sequence[GroupEvent]]:
        """The events that no log has, taken over by the successor when this is closed."""
        unlogged = [name for name, group in self.groups.items() if self.state is None or group.take_events()]
        return {name: self.groups[name].snapshot_events() for name in unlogged}

    def show(self, name: str) -> dict[int, int | None]:
        """Committed offsets by partition. Raises GroupUnknown."""
        group = self.known(name)
        return {partition: group.position(partition) for partition in self.partitions}

    def known(self, name: str) -> ConsumerGroup:
        """The group of that name. Raises GroupUnknown."""
        group = self.groups.get(name)
        if group is None:
            raise GroupUnknown(f'topic {self.topic} has no group "{name[:80]}"{did_you_mean(name, self.groups)}')
        self._count_out(name)
        return group

    async def reset(self, name: str, offsets: Mapping[int, int]) -> None:
        """Move a group to other offsets; durable when this returns.

        Raises GroupUnknown, GroupBusy; StorageError: there is no room, and nothing changes.
        """
        group = self.known(name)
        group.check_idle()
        self.move(group, offsets)
        await self._commit()

    async def forget(self, name: str) -> None:
        """Delete a group; durable when this returns. Raises GroupUnknown, GroupBusy, StorageError."""
        self.known(name).check_idle()
        if self.state is not None:
            self.state.append(encode_group_events(name, [GroupForgotten()]))
        self.groups.pop(name).drop_events()  # Nothing writes them after the group's end.
        await self._commit()

    async def _commit(self) -> None:
        # An administrative change is not cancelled, so it must not wait for a task that may be.
        if self.state is not None:
            await self.state.partition.commit_all()

    def members(self, name: str) -> int:
        """The number of a group's members."""
        return len(self._members.get(name, {}))

    def end_members(self) -> None:
        """Make every member's `next` raise; members are not told of new shares any more."""
        self.closed = True
        for members in self._members.values():
            for member in list(members.values()):
                member.reader.close()

    async def close(self) -> None:
        """End all members, sync and close the log."""
        self.end_members()
        if self.state is not None:
            await self.state.partition.close()


class GroupConsumer:
    """One member of a group; a `delivery.Consumer`."""

    lease_ms = 0

    def __init__(self, groups: Groups, group: ConsumerGroup, name: str, start: Start, on_assigned: OnAssigned) -> None:
        self.group = group
        self.name = name
        self.generation = 0
        self.reader = StreamReader(groups.topic, groups.partitions)
        self.on_ended: Callable[[], None] = nobody
        self.on_released: Callable[[], None] = nobody
        self.on_lease_lost: Callable[[int, int], None] = nobody
        self.held = 0
        self.reader.on_ended = lambda: self.on_ended()
        self._groups = groups
        self._start = start
        self._on_assigned = on_assigned
        self.reader.on_passed = self._pass
        self._passed: dict[int, dict[int, int]] = {}
        """By partition, the ends of ranges that a filter has passed over, by their first offsets, ascending; what was
        delivered before them is not committed yet.
        """
        self._begun: dict[int, int] = {}
        """The offsets at which reading began; only with a filter."""
        self._passes_logged_s = 0.0
        self._owned_since: dict[int, int] = {}
        """The generation in which it gained each of its partitions."""
        self._closed = False

    @property
    def takes_stored(self) -> bool:
        """See `delivery.Consumer.takes_stored`."""
        return self.reader.takes_stored

    @takes_stored.setter
    def takes_stored(self, takes: bool) -> None:
        self.reader.takes_stored = takes

    @property
    def ended(self) -> bool:
        """See `delivery.Consumer.ended`."""
        return self.reader.ended

    def assigned(self, generation: int, partitions: Sequence[int], gained: Sequence[int], lost: Sequence[int]) -> None:
        """Record a change of the member's share. The member is told when the generation is committed."""
        self.generation = generation
        for partition in lost:
            self.reader.stop_reading(partition)
            del self._owned_since[partition]
            self._passed.pop(partition, None)
        self._owned_since.update(dict.fromkeys(gained, generation))
        self._groups.when_committed(lambda: self._begin(generation, partitions, gained))

    def _begin(self, generation: int, partitions: Sequence[int], gained: Sequence[int]) -> None:
        if self._closed or self.reader.ended:
            return
        # Another member may own it again, or this one lost and regained it: then the later gain starts reading.
        mine = [partition for partition in gained if self._owned_since.get(partition) == generation]
        places = {partition: self._place(partition) for partition in mine}
        if self.reader.selection is not None:
            self._begun.update(places)
        self.reader.read_all_from(places)
        self._on_assigned(generation, partitions)

    def _place(self, partition: int) -> int:
        committed = self.group.position(partition)
        if committed is None:
            return self._start(partition)
        return min(committed, self._groups.partitions[partition].high_watermark)

    async def next(self, records_max: int, bytes_max: int, deadline: WaitDeadline) -> Delivery:
        """See `delivery.Consumer.next`."""
        while True:
            delivery = await self.reader.next(records_max, bytes_max, deadline)
            if not delivery.batches or not self._groups.commits_on_delivery or await self._commit_first(delivery):
                return delivery

    async def _commit_first(self, delivery: Delivery) -> bool:
        """Commit records before they are handed over, for at-most-once delivery; False if the partition was lost.

        Raises StorageError: they are not handed over, and the positions of group and reader are unchanged.
        """
        number, groups = delivery.partition, self._groups
        if groups.closed or self.group.owner(number) != self.name:
            return False
        end = max(delivery.batches[-1].end_offset, self.group.position(number) or 0)  # A nack rereads.
        try:
            awaits = groups.move(self.group, {number: end})
        except StorageError:
            self.reader.read_from(number, delivery.batches[0].base_offset)
            raise
        for partition, offset in awaits:
            await partition.wait_committed(offset)
        return True

    def _pass(self, partition: int, first: int, end: int) -> None:
        """Record that a filter has passed over a range: it is committed with what comes before it."""
        passed = self._passed.setdefault(partition, {})
        passed[first] = end
        if len(passed) > PASSED_RANGES_MAX:
            del passed[next(iter(passed))]
        position = self.group.position(partition)
        if position is None:
            position = self._begun.get(partition, -1)
        selection = self.reader.selection
        if selection is not None and first <= position < end and not self._groups.closed:
            # A full disk, or another owner, only makes a successor look at these records again.
            with contextlib.suppress(StorageError, GroupFenced):
                self.group.commit(self.name, self.generation, partition, end)
                now_s = selection.monotonic()
                if now_s - self._passes_logged_s >= TOLD_INTERVAL_S:
                    self._passes_logged_s = now_s
                    self._groups.flush(self.group)

    def _behind_passed(self, partition: int, end: int) -> int:
        """The offset to commit for records up to `end`: what was passed over behind them is consumed as well."""
        passed = self._passed.get(partition)
        if not passed:
            return end
        while passed and (first := next(iter(passed))) < end:
            del passed[first]
        return passed.get(end, end)

    def settle(self, settlements: Iterable[Settlement]) -> Steps[SettleOutcome]:
        """Settle deliveries: ack commits the offset after the records; nack rereads from the first of them."""
        refused: list[tuple[int, LinnError]] = []
        for index, settlement in enumerate(settlements):
            if index and index % SETTLE_STEP == 0:
                yield
            try:
                if self._groups.closed:
                    raise TopicUnknown(f"topic {self._groups.topic} is gone")
                self._settle_one(settlement)
            except LinnError as error:
                refused.append((index, error))
        return SettleOutcome(refused, () if self._groups.closed else self._groups.flush(self.group))

    def _settle_one(self, settlement: Settlement) -> None:
        partition = settlement.partition
        if settlement.is_whole:
            raise SubscriptionWrongKind("a stream has no leases: a settlement names the offsets that it is about")
        if settlement.verdict == 0:
            known = self._groups.partitions.get(partition)
            if known is not None and settlement.end > known.high_watermark:
                raise OffsetOutOfRange(f"offset {settlement.end} of {known.id} is beyond the end")
            end = self._behind_passed(partition, settlement.end)
            if self._groups.commits_on_delivery:
                end = max(end, self.group.position(partition) or 0)  # Deliveries committed since then stay committed.
            self.group.commit(self.name, self.generation, partition, end)
        elif settlement.verdict == 1:
            if self.group.owner(partition) != self.name:
                raise GroupFenced(f'this member does not own partition {partition} of group "{self.group.name}"')
            if not 0 <= settlement.first <= self._groups.partitions[partition].high_watermark:
                raise OffsetOutOfRange(f"{settlement.first} is not an offset of partition {partition}")
            self._passed.pop(partition, None)
            self.reader.read_from(partition, settlement.first)
        else:
            raise SubscriptionWrongKind("a stream has no leases: only ack, to commit, and nack, to read again, apply")

    def is_holding(self) -> bool:
        """False: a stream has no leases."""
        return False

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if not self._closed:
            self._closed = True
            self.reader.close()
            self.on_ended = nobody  # The callee refers to this consumer, and to its share as well.
            del self._on_assigned
            self._groups.leave(self)
