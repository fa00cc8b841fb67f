"""The consumer group: its membership, and its committed offsets in any number of topics.

Laws:
- Only the owner of a partition commits, and only with an epoch announced since it became the owner: any other commit is
  fenced, and nothing changes.
- Members do not survive a restart; the epoch, the offsets, and the offsets of open transactions do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from linn.core.errors.texts import counted
from linn.core.errors.tree import (
    DeliveryError,
    GroupBusy,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionUnknown,
)
from linn.core.groups.assignor import Assignor, TopicPartition
from linn.core.groups.event import (
    EpochStarted,
    GroupEvent,
    GroupForgotten,
    OffsetCommitted,
    OffsetPending,
    PendingEnded,
    TopicForgotten,
)
from linn.core.groups.membership import Membership

Part = tuple[int, int]
"""A transaction: the producer id of its name, and its number."""
OFFSET_MAX = 2**63 - 1
NAME_BYTES_MAX = 255
"""Limit of the names of groups and consumers."""
TEXT_BYTES_MAX = 4096
"""Limit of the text stored with an offset, in memory and in each snapshot of the groups' log; the same as Kafka's."""


def check_name(name: str, whose: str) -> None:
    """Check the name of a group or a consumer.

    Raises:
        DeliveryError: it is empty, or not encodable as UTF-8.
        LimitExceeded: it is longer than NAME_BYTES_MAX bytes of UTF-8.
    """
    try:
        name_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise DeliveryError(f"a {whose}'s name must be encodable as UTF-8") from error
    if not name:
        raise DeliveryError(f"a {whose}'s name must not be empty")
    if name_bytes > NAME_BYTES_MAX:
        raise LimitExceeded(f"a {whose}'s name has at most {NAME_BYTES_MAX} bytes")


class ConsumerGroup:
    """A consumer group."""

    def __init__(self, name: str, assignor: Assignor) -> None:
        """Make a group without members and without committed offsets. Raises what `check_name` raises."""
        check_name(name, "group")
        self.name = name
        self.membership = Membership(name, assignor)
        self._offsets: dict[TopicPartition, OffsetCommitted] = {}
        self.pending: dict[Part, dict[TopicPartition, OffsetCommitted]] = {}
        """Offsets that open transactions commit later."""
        self._logged_epoch = 0
        self._events: dict[TopicPartition, OffsetCommitted] = {}

    @property
    def epoch(self) -> int:
        """The number of changes of its members and their topics."""
        return self.membership.epoch

    @property
    def topics(self) -> set[str]:
        """The topics in which it has members or offsets."""
        read = {topic for member in self.membership.members.values() for topic in member.seats}
        pending = {topic for places in self.pending.values() for topic, _ in places}
        return read | {topic for topic, _ in self._offsets} | pending

    # --- offsets -----------------------------------------------------------------------------------------------------

    def commit(self, member: str, epoch: int, committed: OffsetCommitted, partitions: int) -> None:
        """Commit an offset in a topic of `partitions` partitions. It may be lower than the last one: a user may seek
        back.

        Raises:
            PartitionUnknown: the topic has no such partition.
            OffsetOutOfRange: no log can have this offset.
            LimitExceeded: the text is too long.
            GroupFenced: the member does not own the partition, or names an epoch from before it became the owner.
        Nothing changes when it raises.
        """
        self.check_commit(member, epoch, committed, partitions)
        place = committed.topic, committed.partition
        self._offsets[place] = self._events[place] = committed

    def check_commit(self, member: str, epoch: int, committed: OffsetCommitted, partitions: int) -> None:
        """Check whether `commit` would succeed. Raises what `commit` raises."""
        topic, partition = place = committed.topic, committed.partition
        if not 0 <= partition < partitions:
            raise PartitionUnknown(f"topic {topic} has no partition {partition}")
        if not 0 <= committed.offset <= OFFSET_MAX:
            raise OffsetOutOfRange(f"{committed.offset} is not an offset")
        if len(committed.text) > TEXT_BYTES_MAX or len(committed.text.encode()) > TEXT_BYTES_MAX:
            raise LimitExceeded(f"the text of an offset has at most {TEXT_BYTES_MAX} bytes")
        self.membership.check_owner(member, place, epoch)

    def check_idle(self, topic: str | None = None) -> None:
        """Check that no member reads the topic, or any topic: it would continue at its position. Raises GroupBusy."""
        members = self.membership.members.values()
        reading = len(members) if topic is None else sum(topic in member.seats for member in members)
        if reading:
            where = " there" if topic is not None else ""
            raise GroupBusy(f'group "{self.name}" has {counted(reading, "member")}{where}: stop its consumers first')
        if any(topic in (None, place[0]) for places in self.pending.values() for place in places):
            raise GroupBusy(f'an open transaction commits an offset of group "{self.name}"')

    def move(self, offsets: Iterable[OffsetCommitted]) -> None:
        """Set offsets that are already in the log, without events."""
        for committed in offsets:
            place = committed.topic, committed.partition
            self._offsets[place] = committed
            self._events.pop(place, None)

    def pend(self, part: Part, committed: OffsetCommitted) -> None:
        """Record an offset that a transaction commits later; it is in the log."""
        self.pending.setdefault(part, {})[committed.topic, committed.partition] = committed

    def pending_in(self, topic: str, partitions: Iterable[int]) -> set[Part]:
        """The transactions that commit an offset in one of these partitions later."""
        wanted = {(topic, partition) for partition in partitions}
        return {part for part, places in self.pending.items() if not wanted.isdisjoint(places)}

    def has_pending(self, topic: str, part: Part) -> bool:
        """Whether a transaction commits offsets in a topic later."""
        return any(place[0] == topic for place in self.pending.get(part, ()))

    def end_pending(self, topic: str, part: Part, *, is_commit: bool) -> None:
        """Commit or drop the offsets of a transaction in a topic; the log says so."""
        places = self.pending.pop(part, {})
        if is_commit:
            self.move(committed for place, committed in places.items() if place[0] == topic)
        left = {place: committed for place, committed in places.items() if place[0] != topic}
        if left:
            self.pending[part] = left

    def forget_topic(self, topic: str) -> None:
        """Drop the offsets in a topic, which the log already records."""
        for part in list(self.pending):
            self.end_pending(topic, part, is_commit=False)
        self._offsets = {place: kept for place, kept in self._offsets.items() if place[0] != topic}
        self._events = {place: kept for place, kept in self._events.items() if place[0] != topic}

    def position(self, topic: str, partition: int) -> int | None:
        """The committed offset: the next one to read. None: the group never committed there."""
        committed = self._offsets.get((topic, partition))
        return committed.offset if committed is not None else None

    def offsets(self) -> Mapping[TopicPartition, OffsetCommitted]:
        """All committed offsets."""
        return self._offsets

    # --- events ------------------------------------------------------------------------------------------------------

    @property
    def has_events(self) -> bool:
        """Whether `take_events` would return events."""
        return bool(self._events) or self._logged_epoch < self.epoch

    def take_events(self) -> list[GroupEvent]:
        """Take the events since the last call that must survive; of several commits to a partition, only the last."""
        events: list[GroupEvent] = list(self._events.values())
        self._events = {}
        if self._logged_epoch < self.epoch:
            self._logged_epoch = self.epoch
            events.insert(0, EpochStarted(self.epoch))
        return events

    def snapshot_events(self) -> list[GroupEvent]:
        """The epoch and the offsets, as events that replace all earlier ones."""
        pending = [OffsetPending(*part, each) for part, places in self.pending.items() for each in places.values()]
        return [EpochStarted(self.epoch), *self._offsets.values(), *pending]

    def take_over(self, earlier: ConsumerGroup) -> None:
        """Go on with the epoch and the offsets of the same group in topics that another broker led before."""
        if not self.epoch:
            self._logged_epoch = earlier.epoch
        self.membership.epoch = max(self.epoch, earlier.epoch)
        self._offsets |= earlier._offsets
        for part, places in earlier.pending.items():
            self.pending.setdefault(part, {}).update(places)

    def apply(self, event: GroupEvent) -> None:
        """Apply an event of the log, before the first member joins. Epochs never go back."""
        assert not self.membership.members
        match event:
            case EpochStarted(epoch):
                self.membership.epoch = self._logged_epoch = max(self.epoch, epoch)
            case OffsetCommitted(topic, partition):
                self._offsets[topic, partition] = event
            case OffsetPending(producer_id, number, offset):
                self.pend((producer_id, number), offset)
            case PendingEnded(producer_id, number, is_commit):
                part = producer_id, number
                for topic in sorted({topic for topic, _ in self.pending.get(part, ())}):
                    self.end_pending(topic, part, is_commit=is_commit)
            case TopicForgotten(topic):
                self.forget_topic(topic)
            case GroupForgotten():
                self.membership.epoch = self._logged_epoch = 0
                self._offsets, self.pending = {}, {}
