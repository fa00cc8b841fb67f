"""Membership: the members of a consumer group, and the partitions that each owns.

The protocol follows Kafka's KIP-848, with assignment by the broker. A change of members, of their subscriptions or
of a topic's partitions starts an epoch, for which an assignor computes the target. Members reach it one by one: a
member is told which partitions to give up, and a partition that it has given up goes to the next owner.

Laws:
- Epochs grow by one. An epoch must be durable before a member hears of it; so no restart reuses its number.
- A partition has at most one owner at any time. It moves only after its owner has given it up or left, or after its
  session or its time to give it up has expired.
- A partition whose owner is the same in the new target stays with it without a pause.
- When all members have answered, or their time is up, every member owns its partitions of the target.
- An owner is checked by the epoch in which it became the owner: a request of an earlier ownership is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from linn.core.errors.tree import GroupFenced
from linn.core.groups.assignor import Assignor, TopicPartition

Seat = tuple[str, str]
"""(member, topic): one subscription of a member."""


@dataclass(slots=True)
class Member:
    """A member of a group. It is removed with its last seat."""

    id: str
    session_s: float
    """Time without a heartbeat after which a seat expires; 0: a seat lasts until the member leaves."""
    release_s: float
    """Time that the member has to give up a partition."""
    seats: dict[str, float] = field(default_factory=dict)
    """End of the session by subscribed topic."""
    owned: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions, with the epoch in which the member became the owner; includes `revoked`."""
    revoked: dict[TopicPartition, tuple[int, float]] = field(default_factory=dict)
    """Partitions to give up: the epoch in which the member was told, and the deadline."""

    def _seen(self, topic: str, now_s: float) -> None:
        self.seats[topic] = now_s + self.session_s if self.session_s else math.inf


@dataclass(frozen=True, slots=True)
class Share:
    """A change of one seat's partitions."""

    epoch: int
    owned: tuple[int, ...]
    """Partitions to read from now on, ascending."""
    gained: tuple[int, ...]
    """New ones among them."""
    revoked: tuple[int, ...]
    """Partitions to give up; the member answers with a heartbeat of this epoch. Commits count until then."""


class Membership:
    """The members of a group. Times are in seconds of any monotonic clock. Call `take_shares` after each change."""

    def __init__(self, group: str, assignor: Assignor) -> None:
        self.epoch = 0
        self.members: dict[str, Member] = {}
        self._group = group
        self._assignor = assignor
        self._sizes: dict[str, int] = {}
        self._target: dict[TopicPartition, str] = {}
        self._owner: dict[TopicPartition, str] = {}
        self._news: dict[Seat, tuple[list[int], list[int]]] = {}
        """Gained and revoked partitions that were not announced to a seat yet."""

    # --- changes -----------------------------------------------------------------------------------------------------

    def join(
        self, seat: Seat, partitions: int, now_s: float, *, session_s: float = 0.0, release_s: float = 0.0
    ) -> None:
        """Take a seat in a topic of `partitions` partitions.

        A seat that is already taken is taken over with its partitions: the member has come back, and has given up all
        revoked partitions. Then no partition moves, and no epoch starts.
        """
        id, topic = seat
        member = self.members.get(id)
        if member is None:
            member = self.members[id] = Member(id, session_s, release_s)
        member.session_s, member.release_s = session_s, release_s
        comes_back = topic in member.seats
        member._seen(topic, now_s)
        self._news.setdefault(seat, ([], []))
        if comes_back:
            self._release(member, [place for place in member.revoked if place[0] == topic])
            self._news[seat] = ([index for name, index in member.owned if name == topic], [])
        if not comes_back or self._sizes[topic] != partitions:
            self._sizes[topic] = partitions
            self._start_epoch(now_s)

    def leave(self, seats: Iterable[Seat], now_s: float) -> None:
        """Give up seats in one epoch. Raises GroupFenced if a seat is not taken; then nothing changes."""
        seats = list(seats)
        for id, topic in seats:
            if id not in self.members or topic not in self.members[id].seats:
                raise GroupFenced(f'"{id}" does not read topic {topic} in group "{self._group}"')
        self._vacate(seats, now_s)

    def resize(self, topic: str, partitions: int, now_s: float) -> None:
        """Set the number of partitions of a topic; 0: the topic and the seats in it are gone."""
        if self._sizes.get(topic, partitions) == partitions:
            return
        if partitions:
            self._sizes[topic] = partitions
            self._start_epoch(now_s)
        else:
            self._vacate([(id, topic) for id, member in self.members.items() if topic in member.seats], now_s)

    def heartbeat(self, seat: Seat, epoch: int, now_s: float) -> None:
        """Renew a session. The member has given up the partitions revoked up to this epoch.

        Raises GroupFenced if the seat is not taken.
        """
        id, topic = seat
        member = self.members.get(id)
        if member is None or topic not in member.seats:
            raise GroupFenced(f'"{id}" does not read topic {topic} in group "{self._group}" any more')
        member._seen(topic, now_s)
        if member.revoked:
            done = [place for place, (told, _) in member.revoked.items() if place[0] == topic and told <= epoch]
            self._release(member, done)

    def tick(self, now_s: float) -> list[Seat]:
        """End sessions, and take partitions from members that did not give them up in time; returns the lost seats."""
        lost = [(id, topic) for id, member in self.members.items() for topic, at in member.seats.items() if at <= now_s]
        if lost:
            self._vacate(lost, now_s)
        for member in list(self.members.values()):
            self._release(member, [place for place, (_, until_s) in member.revoked.items() if until_s <= now_s])
        return lost

    # --- looking -----------------------------------------------------------------------------------------------------

    def deadline_s(self) -> float:
        """The earliest time at which `tick` may change anything; infinity if there is none."""
        ends = [at for member in self.members.values() for at in member.seats.values()]
        ends += [until_s for member in self.members.values() for _, until_s in member.revoked.values()]
        return min(ends, default=math.inf)

    def owner(self, place: TopicPartition) -> str | None:
        """The member that owns a partition or has not given it up yet."""
        return self._owner.get(place)

    def since(self, id: str, place: TopicPartition) -> int:
        """The epoch in which a member became the owner of a partition; 0 if it does not own it or must give it up."""
        member = self.members.get(id)
        return 0 if member is None or place in member.revoked else member.owned.get(place, 0)

    def check_owner(self, id: str, place: TopicPartition, epoch: int) -> None:
        """Check that a member which knows `epoch` owns a partition. Raises GroupFenced."""
        member = self.members.get(id)
        since = member.owned.get(place) if member is not None else None
        if since is None:
            raise GroupFenced(f'"{id}" does not own partition {place[1]} of {place[0]} in group "{self._group}"')
        if not since <= epoch <= self.epoch:
            text = f'"{id}" owns partition {place[1]} of {place[0]} since epoch {since} of group "{self._group}"'
            raise GroupFenced(f"{text}, and its request is of epoch {epoch}")

    def reached(self, id: str) -> int:
        """The epoch that a member has reached: lower than the group's while it has partitions to give up."""
        return min([told - 1 for told, _ in self.members[id].revoked.values()], default=self.epoch)

    @property
    def is_settled(self) -> bool:
        """Whether every member owns exactly its target."""
        return self._owner == self._target

    def take_shares(self) -> dict[Seat, Share]:
        """Take the changes since the last call. Seats without a change are left out."""
        news, self._news = self._news, {}
        return {seat: self._share(seat, *changes) for seat, changes in news.items()}

    def _share(self, seat: Seat, gained: list[int], revoked: list[int]) -> Share:
        id, topic = seat
        member = self.members[id]
        owned = [place[1] for place in member.owned if place[0] == topic and place not in member.revoked]
        return Share(self.epoch, tuple(sorted(owned)), tuple(sorted(gained)), tuple(sorted(revoked)))

    # --- moving ------------------------------------------------------------------------------------------------------

    def _vacate(self, seats: Iterable[Seat], now_s: float) -> None:
        for id, topic in seats:
            member = self.members[id]
            del member.seats[topic]
            self._news.pop((id, topic), None)
            for place in [place for place in member.owned if place[0] == topic]:
                self._disown(member, place)
            if not member.seats:
                del self.members[id]
        read = {topic for member in self.members.values() for topic in member.seats}
        self._sizes = {topic: size for topic, size in self._sizes.items() if topic in read}
        self._start_epoch(now_s)

    def _start_epoch(self, now_s: float) -> None:
        self.epoch += 1
        topics = {id: tuple(member.seats) for id, member in self.members.items()}
        self._target = dict(self._assignor.assign(topics, self._sizes, self._target))
        for place, id in list(self._owner.items()):
            if self._target.get(place) != id:
                self._revoke(self.members[id], place, now_s)
        for place in self._target:
            self._give(place)

    def _revoke(self, member: Member, place: TopicPartition, now_s: float) -> None:
        if place not in member.revoked:
            member.revoked[place] = self.epoch, now_s + member.release_s
            self._changes(member, place)[1].append(place[1])

    def _release(self, member: Member, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self._disown(member, place)
            self._give(place)

    def _disown(self, member: Member, place: TopicPartition) -> None:
        del self._owner[place], member.owned[place]
        member.revoked.pop(place, None)

    def _give(self, place: TopicPartition) -> None:
        """Give a partition without an owner to its next owner, if there is one."""
        id = self._target.get(place)
        if id is not None and place not in self._owner:
            self._owner[place] = id
            member = self.members[id]
            member.owned[place] = self.epoch
            self._changes(member, place)[0].append(place[1])

    def _changes(self, member: Member, place: TopicPartition) -> tuple[list[int], list[int]]:
        return self._news.setdefault((member.id, place[0]), ([], []))
