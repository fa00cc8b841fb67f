"""The consumer group of one topic: which member reads which partition, and the group's offsets.

Laws:
- Each change of members or partitions is a new generation, strictly greater than every one before. The generation is an
  event like a commit: it must be durable before a member hears of it, and then no restart gives the same number again.
- In a generation each partition has exactly one owner while there are members; their shares differ by at most one.
- A partition moves only where balance asks for it: when members leave, those that stay keep all they own; when one
  joins, partitions move to it alone. The same history gives the same assignment.
- Only the owner commits, and only in the current generation: anything else is fenced, and nothing changes.
- Members do not survive a restart; committed offsets do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from linn.core.errors.texts import counted
from linn.core.errors.tree import (
    DeliveryError,
    GroupBusy,
    GroupFenced,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionUnknown,
)
from linn.core.groups.event import GROUP_NAME_BYTES_MAX, GenerationStarted, GroupEvent, GroupForgotten, OffsetCommitted

OFFSET_MAX = 2**63 - 1

Partitions = tuple[int, ...]
"""Partition numbers, ascending."""
EVENTS_AT_ONCE_MAX = 256
"""Limit of the events of one `take_events`: events that a full disk refuses are tried again with each commit."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The result of a change: the new generation, the assignment, and the partitions that moved."""

    generation: int
    assignment: Mapping[str, Partitions]
    """Partitions by member, including members without any."""
    gained: Mapping[str, Partitions]
    """Gained partitions, only of members that gained any."""
    lost: Mapping[str, Partitions]
    """Lost partitions, only of members that lost any; includes the member that left, which need not be told."""


class ConsumerGroup:
    """One group on one topic. The caller names the members; no two members have the same name at a time."""

    def __init__(self, name: str, partitions: int) -> None:
        """Make a group without members and without committed offsets.

        Raises:
            DeliveryError: the name is empty, or not encodable as UTF-8.
            LimitExceeded: the name is longer than GROUP_NAME_BYTES_MAX bytes of UTF-8.
        """
        assert partitions > 0
        try:
            name_bytes = len(name.encode())
        except UnicodeEncodeError as error:
            raise DeliveryError("a group's name must be encodable as UTF-8") from error
        if not name:
            raise DeliveryError("a group's name must not be empty")
        if name_bytes > GROUP_NAME_BYTES_MAX:
            raise LimitExceeded(f"a group's name has at most {GROUP_NAME_BYTES_MAX} bytes")
        self.name = name
        self.generation = 0
        self._partitions = partitions
        self._owned: dict[str, list[int]] = {}
        self._owner: dict[int, str] = {}
        self._offsets: dict[int, int] = {}
        self._generation_pending = False
        self._offsets_pending: dict[int, int] = {}

    # --- members -----------------------------------------------------------------------------------------------------

    def join(self, member: str) -> Rebalance:
        """Add a member. Joining again changes nothing: the answer is the current generation, and nothing moves."""
        if member in self._owned:
            return Rebalance(self.generation, self.assignment(), {}, {})
        self._owned[member] = []
        return self._rebalance({})

    def leave(self, *members: str) -> Rebalance:
        """Remove members that left or were disconnected: one generation, however many there are.

        Raises GroupFenced if one of them is no member; nothing changes.
        """
        for member in members:
            if member not in self._owned:
                raise GroupFenced(f'"{member}" is no member of group "{self.name}"')
        gone = {member: tuple(self._owned.pop(member)) for member in members}
        return self._rebalance({member: owned for member, owned in gone.items() if owned})

    def grow(self, partitions: int) -> Rebalance:
        """Raise the number of partitions, which never shrinks."""
        assert partitions >= self._partitions
        self._partitions = partitions
        return self._rebalance({})

    def assignment(self) -> dict[str, Partitions]:
        """Partitions by member, in the order in which the members joined."""
        return {member: tuple(owned) for member, owned in self._owned.items()}

    def owner(self, partition: int) -> str | None:
        """The member that owns the partition; None if there are no members."""
        return self._owner.get(partition)

    def _rebalance(self, lost: dict[str, Partitions]) -> Rebalance:
        """Start a generation: every member keeps up to its share, the rest goes to those below theirs.

        `lost` holds the partitions of members that left, and is added to.
        """
        self.generation += 1
        self._generation_pending = True
        shares = self._shares()
        for member, owned in self._owned.items():
            if len(owned) > shares[member]:
                lost[member] = tuple(owned[shares[member] :])
                del owned[shares[member] :]
        for partitions in lost.values():
            for partition in partitions:
                del self._owner[partition]
        free = iter([partition for partition in range(self._partitions) if partition not in self._owner])
        gained: dict[str, Partitions] = {}
        for member, owned in self._owned.items():
            missing = shares[member] - len(owned)
            if missing:
                gained[member] = tuple(islice(free, missing))
                owned.extend(gained[member])
                owned.sort()
                self._owner.update(dict.fromkeys(gained[member], member))
        return Rebalance(self.generation, self.assignment(), gained, lost)

    def _shares(self) -> dict[str, int]:
        """The number of partitions for each member: those that own most keep the larger shares."""
        if not self._owned:
            return {}
        share, larger = divmod(self._partitions, len(self._owned))
        by_owned = sorted(self._owned, key=lambda member: -len(self._owned[member]))
        return {member: share + (at < larger) for at, member in enumerate(by_owned)}

    # --- offsets -----------------------------------------------------------------------------------------------------

    def commit(self, member: str, generation: int, partition: int, offset: int) -> None:
        """Commit an offset. It may be lower than the last one: a user may seek back.

        Raises:
            PartitionUnknown: the topic has no such partition.
            OffsetOutOfRange: no log can have this offset.
            GroupFenced: the member does not own the partition, or is of another generation.
        Nothing changes when it raises.
        """
        if not 0 <= partition < self._partitions:
            raise PartitionUnknown(f'the topic of group "{self.name}" has no partition {partition}')
        if not 0 <= offset <= OFFSET_MAX:
            raise OffsetOutOfRange(f"{offset} is not an offset")
        if generation != self.generation:
            raise GroupFenced(f'group "{self.name}" is at generation {self.generation}, not {generation}')
        if self._owner.get(partition) != member:
            raise GroupFenced(f'"{member}" does not own partition {partition} of group "{self.name}"')
        self._offsets[partition] = self._offsets_pending[partition] = offset

    def check_idle(self) -> None:
        """Check that the group has no members, which would continue at their own positions. Raises GroupBusy."""
        if self._owned:
            raise GroupBusy(f'group "{self.name}" has {counted(len(self._owned), "member")}: stop its consumers first')

    def move(self, offsets: Mapping[int, int]) -> None:
        """Set offsets that the log already has: they are no events."""
        self._offsets.update(offsets)

    def position(self, partition: int) -> int | None:
        """The committed offset: the next one to read. None: the group never committed there."""
        return self._offsets.get(partition)

    # --- events ------------------------------------------------------------------------------------------------------

    def take_events(self) -> list[GroupEvent]:
        """Take the events since the last call that must survive; of several commits to a partition the last one.

        At most EVENTS_AT_ONCE_MAX commits: the next call gives more, until there are none.
        """
        events: list[GroupEvent] = [GenerationStarted(self.generation)] if self._generation_pending else []
        pending, self._generation_pending = self._offsets_pending, False
        events += [OffsetCommitted(number, pending.pop(number)) for number in list(islice(pending, EVENTS_AT_ONCE_MAX))]
        return events

    def drop_events(self) -> None:
        """Drop pending events that no log wants."""
        self._generation_pending = False
        self._offsets_pending = {}

    def keep_events(self, events: Iterable[GroupEvent]) -> None:
        """Return events to `take_events`: they happened, and no log has them.

        However much happens until then, a partition has one event at most.
        """
        for event in events:
            match event:
                case GenerationStarted():
                    self._generation_pending = True
                case OffsetCommitted(partition):
                    self._offsets_pending[partition] = self._offsets[partition]

    def snapshot_events(self) -> list[GroupEvent]:
        """The generation and offsets as events that replace all earlier ones."""
        offsets = [OffsetCommitted(partition, offset) for partition, offset in sorted(self._offsets.items())]
        return [GenerationStarted(self.generation), *offsets]

    def apply(self, event: GroupEvent) -> None:
        """Apply an event of the log, before the first member joins. Generations never go back."""
        assert not self._owned
        match event:
            case GenerationStarted(generation):
                self.generation = max(self.generation, generation)
            case OffsetCommitted(partition, offset):
                self._offsets[partition] = offset
            case GroupForgotten():
                self.generation = 0
                self._offsets = {}
