"""A consumer group and a naive model of it on one long way that follows from a seed."""

from __future__ import annotations

import random

from linn.core.errors.tree import GroupFenced
from linn.core.groups.event import decode_group_events, encode_group_events
from linn.core.groups.group import ConsumerGroup, Rebalance

STEPS = 200
PARTITIONS = 5


class GroupWalk:
    """The assignments and commits known to the members, and the logged part of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.group = ConsumerGroup("g", PARTITIONS)
        self.shares: dict[str, set[int]] = {}
        self.generation = 0
        self.committed: dict[int, int] = {}
        self.logged: dict[int, int] = {}
        self.rows: list[bytes] = []

    def walk(self) -> None:
        for _ in range(STEPS):
            step = self.rng.choice([self.come_or_go, *3 * [self.commit], self.flush, self.fail, self.restart])
            step()
            self.check()

    def come_or_go(self) -> None:
        member = f"m{self.rng.randrange(4)}"
        comes = member not in self.shares
        self.told(self.group.join(member) if comes else self.group.leave(member))

    def told(self, rebalance: Rebalance) -> None:
        assert rebalance.generation > self.generation, "generations grow, also over restarts"
        self.generation = rebalance.generation
        self.shares = {member: set(owned) for member, owned in rebalance.assignment.items()}
        self.flush()

    def commit(self) -> None:
        """Commit by any member, in this generation or in one that is over."""
        member, partition = f"m{self.rng.randrange(4)}", self.rng.randrange(PARTITIONS)
        generation = self.generation - self.rng.choice([0, 0, 0, 1])
        offset = self.rng.randrange(100)
        may = generation == self.generation and partition in self.shares.get(member, ())
        try:
            self.group.commit(member, generation, partition, offset)
        except GroupFenced:
            assert not may, "the owner may commit"
            return
        assert may, "only the owner commits, and only in the current generation"
        self.committed[partition] = offset

    def flush(self) -> None:
        events = self.group.take_events()
        if events:
            self.rows.append(encode_group_events("g", events))
        self.logged = dict(self.committed)

    def fail(self) -> None:
        """The log has no room."""
        self.group.keep_events(self.group.take_events())

    def restart(self) -> None:
        """Members, and what was not logged, are gone."""
        if self.rng.random() < 0.3:
            self.flush()
            self.rows = [encode_group_events("g", self.group.snapshot_events())]
        self.group = ConsumerGroup("g", PARTITIONS)
        for row in self.rows:
            for event in decode_group_events(row)[1]:
                self.group.apply(event)
        self.shares, self.committed = {}, dict(self.logged)

    def check(self) -> None:
        owned = sorted(partition for share in self.shares.values() for partition in share)
        assert owned == (list(range(PARTITIONS)) if self.shares else []), "each partition has one owner"
        found = {partition: self.group.position(partition) for partition in range(PARTITIONS)}
        assert found == {p: self.committed.get(p) for p in found}, "the group goes on where it committed last"


def walk(seed: int) -> None:
    """Compare the group and the model over random steps. Raises AssertionError where the two differ."""
    GroupWalk(seed).walk()
