"""A member of a consumer group at run time: it reads the partitions of one topic that it owns, and commits there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol

from linn.core.batch.steps import Steps, no_steps
from linn.core.delivery.consumer import OnAssigned, do_nothing
from linn.core.delivery.delivery import Delivery
from linn.core.delivery.settlement import SETTLE_STEP, Settlement, SettleOutcome
from linn.core.delivery.vocabulary import ConsumerKind, Verdict
from linn.core.errors.tree import (
    GroupFenced,
    LinnError,
    OffsetOutOfRange,
    StorageError,
    SubscriptionWrongKind,
    TopicUnknown,
)
from linn.core.groups.event import OffsetCommitted
from linn.core.groups.group import ConsumerGroup, Part
from linn.core.groups.membership import Seat, Share
from linn.core.groups.reader import TOLD_INTERVAL_S, StreamReader
from linn.core.log.mark import Mark
from linn.core.log.partition import Partition
from linn.core.log.selection import Selection
from linn.core.loop.waiting import WaitDeadline

Start = Callable[[int], int]
"""The start offset for a partition without a committed offset, fixed when the member joined."""
PASSED_RANGES_MAX = 1_024
"""Limit of the filtered ranges kept between a partition's uncommitted deliveries. The oldest are forgotten, so that the
next owner filters them again."""


class JoinRequest(NamedTuple):
    """A request to read a topic as a member of a group."""

    group: str
    topic: str
    start: Start
    on_assigned: OnAssigned
    member: str = ""
    """The member's name. A member of the same name is replaced; "": the broker chooses a name."""
    session_s: float = 0.0
    """Time without a heartbeat after which the member is removed; 0: it lives as long as its connection."""
    is_static: bool = False
    """Whether the member keeps its share for the length of a session after it leaves."""
    selection: Selection | None = None
    """The records to read; other records are skipped and count as consumed. None: all."""
    is_uncommitted: bool = False
    """Whether to read records of open and aborted transactions too."""


class Coordinator(Protocol):
    """The group coordinator, as its members see it."""

    closed: bool

    def leave(self, member: GroupMember) -> None:
        """Give up a member's seat."""

    def heartbeat(self, member: GroupMember, epoch: int) -> None:
        """Renew a member's session; it has given up the partitions revoked up to `epoch`. Raises GroupFenced."""

    def flush(self, group: ConsumerGroup, topic: str) -> Sequence[tuple[Mark, int]]:
        """Log a group's pending events; returns the marks to wait for, in a topic. Raises StorageError, NotLeader."""

    def move(self, group: ConsumerGroup, offsets: Sequence[OffsetCommitted]) -> Sequence[tuple[Mark, int]]:
        """Log a group's new offsets, then move the group there. Raises StorageError."""

    def pend(self, group: ConsumerGroup, part: Part, committed: OffsetCommitted) -> Sequence[tuple[Mark, int]]:
        """Log an offset that a transaction commits later. Raises StorageError, NotLeader."""

    def when_committed(
        self, group: ConsumerGroup, seat: Seat, partitions: Iterable[int], callback: Callable[[], None]
    ) -> None:
        """Call back once all logged events of a group in a seat's topic are committed, and no transaction may move it
        in these partitions any more."""


class GroupMember:
    """A member's seat; a `delivery.Member`."""

    kind: Literal[ConsumerKind.GROUP] = ConsumerKind.GROUP
    lease_ms = 0
    wants = False

    def __init__(
        self,
        coordinator: Coordinator,
        group: ConsumerGroup,
        seat: Seat,
        partitions: Mapping[int, Partition],
        request: JoinRequest,
    ) -> None:
        self.group = group
        self.seat = seat
        self.name = seat[0]
        self.commits_on_delivery = False
        self.topic_id = b""
        """Id of the topic, stored with each offset."""
        self.reader = StreamReader(seat[1], partitions)
        self.on_ended: Callable[[], None] = do_nothing
        self.on_released: Callable[[], None] = do_nothing
        self.on_lease_lost: Callable[[int, int], None] = do_nothing
        self.held = 0
        self.reader.on_ended = lambda: self.on_ended()
        self.reader.selection = request.selection
        self.reader.on_passed = self._pass
        self._passed: dict[int, dict[int, int]] = {}
        """Filtered ranges by partition: end by first offset, ascending. Earlier deliveries are not committed yet."""
        self._begun: dict[int, int] = {}
        """The offsets at which reading began, by partition; only with a filter."""
        self._passes_logged_s = 0.0
        self._coordinator = coordinator
        self._partitions = partitions
        self._start = request.start
        self._on_assigned = request.on_assigned
        self._has_session = request.session_s > 0
        self.is_static = request.is_static and self._has_session
        self._gains: dict[int, Share] = {}
        """For each gained partition that is not read yet, the share with which it was gained."""
        self._reason: LinnError | None = None
        self._closed = False

    @property
    def takes_stored(self) -> bool:
        """See `delivery.Consumer.takes_stored`."""
        return self.reader.takes_stored

    @takes_stored.setter
    def takes_stored(self, takes: bool) -> None:
        self.reader.takes_stored = takes

    @property
    def accepts(self) -> Sequence[int]:
        """See `delivery.Consumer.accepts`."""
        return self.reader.accepts

    @accepts.setter
    def accepts(self, accepts: Sequence[int]) -> None:
        self.reader.accepts = accepts

    @property
    def ended(self) -> bool:
        """See `delivery.Consumer.ended`."""
        return self.reader.ended

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self.seat[1]

    # --- the share ---

    def assigned(self, share: Share) -> None:
        """Record a change of the member's share. The member learns of it when the epoch is committed."""
        for partition in share.revoked:
            self.reader.stop_reading(partition)
            self._gains.pop(partition, None)
            self._passed.pop(partition, None)
        self._gains.update(dict.fromkeys(share.gained, share))
        self._coordinator.when_committed(self.group, self.seat, share.gained, lambda: self._begin(share))

    def _begin(self, share: Share) -> None:
        if self._closed or self.reader.ended:
            return
        # A partition lost meanwhile has another owner; if it was regained as well, the later gain starts reading.
        mine = [partition for partition in share.gained if self._gains.get(partition) is share]
        for partition in mine:
            del self._gains[partition]
        places = {partition: self._place(partition) for partition in mine}
        if self.reader.selection is not None:
            self._begun.update(places)
        self.reader.read_all_from(places)
        self._on_assigned(share.epoch, share.owned, share.revoked)

    def _place(self, partition: int) -> int:
        committed = self.group.position(self.seat[1], partition)
        if committed is None:
            return self._start(partition)
        return min(committed, self._partitions[partition].stable_offset)

    def _since(self, partition: int) -> int:
        return self.group.membership.since(self.seat[0], (self.seat[1], partition))

    def heartbeat(self, epoch: int) -> None:
        """Renew the session; the member has given up the partitions revoked up to `epoch`. Raises GroupFenced."""
        if self._closed or self.reader.ended:
            raise self._ended_error()
        self._coordinator.heartbeat(self, epoch)

    # --- reading ---

    async def next(self, records_max: int, bytes_max: int, deadline: WaitDeadline) -> Delivery:
        """See `delivery.Consumer.next`. The delivery's id is the epoch in which the member gained the partition."""
        while True:
            try:
                delivery = await self.reader.next(records_max, bytes_max, deadline)
            except TopicUnknown:
                raise self._ended_error() from None
            if not delivery.batches:
                if self._reason is not None:
                    raise self._reason
                return delivery
            epoch, place = self._since(delivery.partition), self.reader.place(delivery.partition)
            if epoch and (not self.commits_on_delivery or await self._commit_first(delivery)):
                if self.reader.place(delivery.partition) != place:
                    continue  # The position moved while the commit was stored: the client expects no more records.
                return replace(delivery, delivery_id=epoch)

    def _ended_error(self) -> LinnError:
        if self._reason is None and self._closed:
            return GroupFenced(f'the member has left group "{self.group.name}", or its connection was lost')
        return self._reason or TopicUnknown(f"topic {self.seat[1]} is gone")

    async def _commit_first(self, delivery: Delivery) -> bool:
        """Commit records before they are delivered, for at-most-once delivery; False if the partition was lost.

        Raises StorageError: they are not delivered, and the positions of group and reader are unchanged.
        """
        number, (_, topic) = delivery.partition, self.seat
        if self._coordinator.closed:
            return False
        end = max(delivery.batches[-1].end_offset, self.group.position(topic, number) or 0)  # A nack rereads.
        try:
            awaits = self._coordinator.move(self.group, [self._committed(number, end)])
        except StorageError:
            self.reader.read_from(number, delivery.batches[0].base_offset)
            raise
        for mark, offset in awaits:
            await mark.wait(offset)
        return True

    def seek(self, partition: int, offset: int | None, *, is_paused: bool) -> None:
        """Continue at `offset`, or pause; see `StreamReader.seek`. Commits nothing. Also raises GroupFenced."""
        if self._closed or self.reader.ended:
            raise self._ended_error()
        if not self._since(partition):
            text = f'partition {partition} of {self.seat[1]} is not this member\'s in group "{self.group.name}"'
            raise GroupFenced(text)
        self.reader.seek(partition, offset, is_paused=is_paused)
        self._passed.pop(partition, None)

    # --- settling ---

    def _committed(self, partition: int, offset: int, text: str = "") -> OffsetCommitted:
        """Make the event of a commit."""
        known = self._partitions.get(partition)
        epoch = known.leader_epoch if known is not None else -1
        return OffsetCommitted(self.seat[1], partition, offset, text, epoch, self.topic_id)

    def _pass(self, partition: int, first: int, end: int) -> None:
        """Record a filtered range: it is committed together with the deliveries before it."""
        passed = self._passed.setdefault(partition, {})
        passed[first] = end
        if len(passed) > PASSED_RANGES_MAX:
            del passed[next(iter(passed))]
        id, topic = self.seat
        position = self.group.position(topic, partition)
        if position is None:
            position = self._begun.get(partition, -1)
        selection, epoch = self.reader.selection, self._since(partition)
        if selection is not None and epoch and first <= position < end and not self._coordinator.closed:
            # On a full disk, or with another owner, a successor only filters these records again.
            with contextlib.suppress(StorageError, GroupFenced):
                self.group.commit(id, epoch, self._committed(partition, end), len(self._partitions))
                now_s = selection.monotonic()
                if now_s - self._passes_logged_s >= TOLD_INTERVAL_S:
                    self._passes_logged_s = now_s
                    self._coordinator.flush(self.group, topic)

    def _behind_passed(self, partition: int, end: int) -> int:
        """The offset to commit for records up to `end`: filtered records right after them count as consumed."""
        passed = self._passed.get(partition)
        if not passed:
            return end
        while passed and (first := next(iter(passed))) < end:
            del passed[first]
        return passed.get(end, end)

    def commit(self, partition: int, epoch: int, offset: int, text: str = "") -> Sequence[tuple[Mark, int]]:
        """Commit an offset with a text, independent of deliveries; returns the marks to wait for.

        Raises GroupFenced, PartitionUnknown, OffsetOutOfRange, LimitExceeded; StorageError: it is written later.
        """
        if self._coordinator.closed or self._closed or self.reader.ended:
            raise self._ended_error()
        self._commit(partition, epoch, offset, text)
        return self._coordinator.flush(self.group, self.seat[1])

    def pend(self, part: Part, partition: int, epoch: int, offset: int, text: str = "") -> Sequence[tuple[Mark, int]]:
        """Let a transaction commit an offset later, also if the member has left then; returns the marks to wait for.

        Raises what `commit` raises; StorageError, NotLeader: nothing changes.
        """
        if self._coordinator.closed or self._closed or self.reader.ended:
            raise self._ended_error()
        self._check_offset(partition, offset)
        committed = self._committed(partition, offset, text)
        self.group.check_commit(self.seat[0], epoch, committed, len(self._partitions))
        return self._coordinator.pend(self.group, part, committed)

    def _check_offset(self, partition: int, offset: int) -> None:
        known = self._partitions.get(partition)
        if known is not None and offset > known.stable_offset:
            raise OffsetOutOfRange(f"offset {offset} of {known.id} is beyond the end")

    def _commit(self, partition: int, epoch: int, offset: int, text: str = "") -> None:
        self._check_offset(partition, offset)
        self.group.commit(self.seat[0], epoch, self._committed(partition, offset, text), len(self._partitions))

    def settle(self, settlements: Iterable[Settlement]) -> Steps[SettleOutcome]:
        """Settle deliveries: ack commits the offset after the records; nack rereads from the first, never forward."""
        refused: list[tuple[int, LinnError]] = []
        for index, settlement in enumerate(settlements):
            if index and index % SETTLE_STEP == 0:
                yield
            try:
                if self._coordinator.closed or self.reader.ended:
                    raise self._ended_error()
                self._settle_one(settlement)
            except LinnError as error:
                refused.append((index, error))
        is_over = self._coordinator.closed or self.reader.ended
        return SettleOutcome(refused, () if is_over else self._coordinator.flush(self.group, self.seat[1]))

    def _settle_one(self, settlement: Settlement) -> None:
        (id, topic), partition = self.seat, settlement.partition
        if settlement.is_whole:
            raise SubscriptionWrongKind("a stream has no leases: a settlement names the offsets that it is about")
        if settlement.verdict == Verdict.ACK:
            end = self._behind_passed(partition, settlement.end)
            if self.commits_on_delivery:
                end = max(end, self.group.position(topic, partition) or 0)  # Later commits stay.
            self._commit(partition, settlement.delivery_id, end)
        elif settlement.verdict == Verdict.NACK:
            self.group.membership.check_owner(id, (topic, partition), settlement.delivery_id)
            if not self._since(partition):
                raise GroupFenced(f'partition {partition} of {topic} moves to another member of "{self.group.name}"')
            if not 0 <= settlement.first <= self._partitions[partition].stable_offset:
                raise OffsetOutOfRange(f"{settlement.first} is not an offset of partition {partition}")
            self._passed.pop(partition, None)
            place = self.reader.place(partition)
            if place is None or settlement.first < place:  # The last of several nacks skips nothing.
                self.reader.read_from(partition, settlement.first)
        else:
            raise SubscriptionWrongKind("a stream has no leases: only ack, to commit, and nack, to read again, apply")

    def is_holding(self) -> bool:
        """False: a stream has no leases."""
        return False

    # --- the end ---

    def end(self, reason: LinnError | None) -> None:
        """See `delivery.Consumer.end`. None: the topic is gone."""
        self._reason = reason or TopicUnknown(f"topic {self.seat[1]} is gone")
        self.reader.close()

    def close(self) -> None:
        """Leave the group; a static member's seat stays for the length of a session. Idempotent."""
        self._close(keeps_seat=self.is_static)

    def disconnect(self) -> Steps[None]:
        """Close after the connection was lost: the seat stays for the length of a session."""
        self._close(keeps_seat=self._has_session)
        return no_steps()

    def _close(self, *, keeps_seat: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self.reader.close()
        self.on_ended = do_nothing  # The callee refers to this consumer and its share.
        del self._on_assigned
        if not keeps_seat:
            self._coordinator.leave(self)
