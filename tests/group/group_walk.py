"""A consumer group and a naive model of it on one long way that follows from a seed."""

from __future__ import annotations

import random

from linn.core.errors.tree import GroupFenced
from linn.core.groups.event import OffsetCommitted, decode_group_events, encode_group_events
from linn.core.groups.group import ConsumerGroup
from linn.plugins.assignors import StickyAssignor

STEPS = 200
PARTITIONS = 5
RELEASE_S = 10.0


class GroupWalk:
    """The shares and commits known to the members, and the logged part of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.group = ConsumerGroup("g", StickyAssignor())
        self.shares: dict[str, dict[int, int]] = {}
        """By member the partitions that it owns, with the epoch in which it gained each."""
        self.revoked: dict[str, set[int]] = {}
        """By member the partitions among them that it was asked to let go of."""
        self.epoch = 0
        self.committed: dict[int, int] = {}
        self.logged: dict[int, int] = {}
        self.rows: list[bytes] = []

    def walk(self) -> None:
        for _ in range(STEPS):
            steps = [self.come_or_go, self.let_go, *3 * [self.commit], self.flush, self.wait, self.restart]
            self.rng.choice(steps)()
            self.check()

    # --- members ---

    def come_or_go(self) -> None:
        member = f"m{self.rng.randrange(4)}"
        if member in self.shares:
            del self.shares[member], self.revoked[member]
            self.group.membership.leave([(member, "t")], self.now_s)
        else:
            self.shares[member], self.revoked[member] = {}, set()
            self.group.membership.join((member, "t"), PARTITIONS, self.now_s, release_s=RELEASE_S)
        assert self.group.epoch > self.epoch, "epochs grow, also over restarts"
        self.hear()

    def hear(self) -> None:
        self.epoch = self.group.epoch
        for (member, _), share in self.group.membership.take_shares().items():
            assert not set(share.gained) & self.shares[member].keys(), "what is gained was not owned"
            self.shares[member].update(dict.fromkeys(share.gained, share.epoch))
            self.revoked[member] |= set(share.revoked)
            assert set(share.owned) == self.shares[member].keys() - self.revoked[member], "what stays is not touched"
        self.flush()

    def let_go(self) -> None:
        for member in [member for member, revoked in self.revoked.items() if revoked][:1]:
            self._drop(member)
            self.group.membership.heartbeat((member, "t"), self.epoch, self.now_s)
            self.hear()

    def _drop(self, member: str) -> None:
        for partition in self.revoked[member]:
            del self.shares[member][partition]
        self.revoked[member] = set()

    def wait(self) -> None:
        """Let time pass; now and then as much as a member has to let go."""
        self.now_s += self.rng.choice([1.0, RELEASE_S / 2, RELEASE_S])
        overdue: dict[str, set[int]] = {
            id: {place[1] for place, (_, until_s) in member.revoked.items() if until_s <= self.now_s}
            for id, member in self.group.membership.members.items()
        }
        self.group.membership.tick(self.now_s)
        for member, partitions in overdue.items():
            for partition in partitions:
                del self.shares[member][partition]
            self.revoked[member] -= partitions
        self.hear()

    # --- offsets ---

    def commit(self) -> None:
        """Commit by any member, of any epoch that it may have heard of."""
        member, partition = f"m{self.rng.randrange(4)}", self.rng.randrange(PARTITIONS)
        epoch = self.epoch - self.rng.choice([0, 0, 0, 1, 2])
        offset = self.rng.randrange(100)
        since = self.shares.get(member, {}).get(partition)
        may = since is not None and epoch >= since
        try:
            self.group.commit(member, epoch, OffsetCommitted("t", partition, offset), PARTITIONS)
        except GroupFenced:
            assert not may, "the owner may commit"
            return
        assert may, "only the owner commits, and only with an epoch since it owns the partition"
        self.committed[partition] = offset

    def flush(self) -> None:
        events = self.group.take_events()
        if events:
            self.rows.append(encode_group_events([("g", events)]))
        self.logged = dict(self.committed)

    def restart(self) -> None:
        """Members, and what was not logged, are gone."""
        if self.rng.random() < 0.3:
            self.flush()
            self.rows = [encode_group_events([("g", self.group.snapshot_events())])]
        self.group = ConsumerGroup("g", StickyAssignor())
        for row in self.rows:
            for _, events in decode_group_events(row)[1]:
                for event in events:
                    self.group.apply(event)
        self.shares, self.revoked, self.committed = {}, {}, dict(self.logged)

    # --- the model ---

    def check(self) -> None:
        owned = [partition for share in self.shares.values() for partition in share]
        assert len(owned) == len(set(owned)), "each partition has one owner"
        if not any(self.revoked.values()):
            assert sorted(owned) == (list(range(PARTITIONS)) if self.shares else []), "each partition has an owner"
        for member, share in self.shares.items():
            assert all(self.group.membership.owner(("t", partition)) == member for partition in share)
        found = {partition: self.group.position("t", partition) for partition in range(PARTITIONS)}
        assert found == {p: self.committed.get(p) for p in found}, "the group goes on where it committed last"


def walk(seed: int) -> None:
    """Compare the group and the model over random steps. Raises AssertionError where the two differ."""
    GroupWalk(seed).walk()
