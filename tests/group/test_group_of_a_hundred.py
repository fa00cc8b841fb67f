"""A group of 100 members of which some crash: it is balanced soon after their sessions, and nothing else pauses."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random

import pytest

from linn.core.groups.membership import Membership
from linn.plugins.assignors import StickyAssignor

MEMBERS = 100
PARTITIONS = 400
SESSION_S = 10.0
BEAT_S = SESSION_S / 3
ANSWER_S = 0.1
"""Time in which a member answers at most, and the broker hears of it."""
BALANCED_S = 0.2


class HundredMembers:
    """The members of one group in simulated time. Each beats three times in a session, and answers what it is asked."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now_s = 0.0
        self.membership = Membership("g", StickyAssignor())
        self.released: dict[str, int] = {}
        """The epoch up to which each living member has let go."""
        self.reading: dict[str, set[int]] = {}
        """The partitions that each living member has been told to read, and does not have to let go of."""
        self.paused: set[int] = set()
        """Partitions that a living member has been told to let go of, or that were another's in between."""
        self._events: list[tuple[float, int, str, int]] = []
        self._order = 0
        for number in range(MEMBERS):
            name = f"m{number:03}"
            self.released[name], self.reading[name] = 0, set()
            self.membership.join((name, "t"), PARTITIONS, self.now_s, session_s=SESSION_S, release_s=SESSION_S)
            self._later(self.rng.uniform(0, BEAT_S), name, -1)
            self._tell()

    def _later(self, delay_s: float, name: str, epoch: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._order, name, epoch))

    def _tell(self) -> None:
        for (name, _), share in self.membership.take_shares().items():
            if name not in self.reading:
                continue
            self.paused |= self.reading[name] - set(share.owned)
            self.reading[name] = set(share.owned)
            if share.revoked:
                self._later(self.rng.uniform(0, ANSWER_S), name, share.epoch)

    def run(self, until_s: float) -> None:
        """Let the time pass."""
        while True:
            at_s = min(self._events[0][0], self.membership.deadline_s())
            if at_s > until_s:
                self.now_s = until_s
                return
            self.now_s = at_s
            if self._events[0][0] <= self.membership.deadline_s():
                _, _, name, epoch = heapq.heappop(self._events)
                if name in self.released:
                    self.released[name] = max(self.released[name], epoch)
                    self.membership.heartbeat((name, "t"), self.released[name], self.now_s)
                    if epoch < 0:
                        self._later(BEAT_S, name, -1)
            else:
                self.membership.tick(self.now_s)
            self._tell()

    def crash(self, count: int) -> None:
        """Lose members at any times within a second."""
        for name in self.rng.sample(sorted(self.released), count):
            self.run(self.now_s + self.rng.uniform(0, 1 / count))
            del self.released[name], self.reading[name]

    def is_balanced(self) -> bool:
        """Whether all partitions are read by living members, whose shares differ by at most one."""
        shares = Counter(self.membership.owner(("t", index)) for index in range(PARTITIONS))
        counts = [shares[name] for name in self.released]
        return sum(counts) == PARTITIONS and max(counts) - min(counts) <= 1


@pytest.mark.parametrize("crashed", [1, 10, 50, 99])
@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_members_are_balanced_soon_after_a_crash_and_nothing_else_pauses(seed: int, crashed: int) -> None:
    group = HundredMembers(seed)
    group.run(SESSION_S)
    assert group.is_balanced()
    assert group.membership.is_settled
    group.crash(crashed)
    kept = {name: set(partitions) for name, partitions in group.reading.items()}
    group.paused.clear()
    group.run(group.now_s + SESSION_S + BALANCED_S)
    assert group.is_balanced()
    assert group.membership.is_settled
    assert group.paused == set(), "survivors go on with all that they had"
    assert all(partitions <= group.reading[name] for name, partitions in kept.items())


def test_a_member_that_comes_is_given_its_share_and_only_that_pauses() -> None:
    group = HundredMembers(0)
    group.run(SESSION_S)
    group.paused.clear()
    group.released["new"], group.reading["new"] = 0, set()
    group.membership.join(("new", "t"), PARTITIONS, group.now_s, session_s=SESSION_S, release_s=SESSION_S)
    group._tell()
    group.run(group.now_s + BALANCED_S)
    assert group.is_balanced()
    assert group.paused == group.reading["new"]
