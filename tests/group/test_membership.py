"""Ownership of partitions while members come, go, answer, and fall silent."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from linn.core.errors.tree import GroupFenced
from linn.core.groups.assignor import Assignor
from linn.core.groups.membership import Membership, Share
from linn.plugins.assignors import RangeAssignor, RoundRobinAssignor, StickyAssignor

SESSION_S, RELEASE_S = 10.0, 5.0
TOPICS = {"a": 4, "b": 3, "c": 1}
ASSIGNORS: list[Assignor] = [StickyAssignor(), RangeAssignor(), RoundRobinAssignor()]


def joined(membership: Membership, *members: str, topic: str = "a", partitions: int = 4) -> None:
    for member in members:
        membership.join((member, topic), partitions, 0.0, session_s=SESSION_S, release_s=RELEASE_S)


def settle(membership: Membership, now_s: float = 0.0) -> dict[str, Share]:
    """Have all members answer until nothing moves; the last share of each that had news."""
    heard: dict[str, Share] = {}
    while news := membership.take_shares():
        for (member, topic), share in news.items():
            heard[member] = share
            membership.heartbeat((member, topic), share.epoch, now_s)
    return heard


def owners(membership: Membership, topic: str = "a", partitions: int = 4) -> list[str | None]:
    return [membership.owner((topic, index)) for index in range(partitions)]


# --- moving ----------------------------------------------------------------------------------------------------------


def test_a_partition_moves_when_its_owner_has_let_go() -> None:
    membership = Membership("g", StickyAssignor())
    joined(membership, "ann")
    assert settle(membership) == {"ann": Share(1, (0, 1, 2, 3), (0, 1, 2, 3), ())}
    joined(membership, "bob")
    assert membership.take_shares() == {
        ("ann", "a"): Share(2, (0, 1), (), (2, 3)),
        ("bob", "a"): Share(2, (), (), ()),
    }
    assert owners(membership) == ["ann"] * 4
    membership.heartbeat(("ann", "a"), 1, 0.0)
    assert owners(membership) == ["ann"] * 4, "the answer to an earlier epoch lets nothing go"
    membership.heartbeat(("ann", "a"), 2, 0.0)
    assert membership.take_shares() == {("bob", "a"): Share(2, (2, 3), (2, 3), ())}
    assert owners(membership) == ["ann", "ann", "bob", "bob"]


def test_a_member_that_does_not_let_go_in_time_loses_the_partition() -> None:
    membership = Membership("g", StickyAssignor())
    joined(membership, "ann", "bob")
    membership.heartbeat(("ann", "a"), 1, 4.0)
    assert membership.deadline_s() == RELEASE_S
    assert membership.tick(RELEASE_S) == []
    assert owners(membership) == ["ann", "ann", "bob", "bob"]
    with pytest.raises(GroupFenced):
        membership.check_owner("ann", ("a", 2), 2)


def test_a_session_without_heartbeats_ends() -> None:
    membership = Membership("g", StickyAssignor())
    joined(membership, "ann", "bob", "cyd")
    settle(membership)
    for member in ("ann", "bob"):
        membership.heartbeat((member, "a"), 3, 6.0)
    assert membership.deadline_s() == SESSION_S
    assert membership.tick(SESSION_S - 0.001) == []
    assert membership.tick(SESSION_S) == [("cyd", "a")]
    settle(membership, SESSION_S)
    assert sorted(map(str, owners(membership))) == ["ann", "ann", "bob", "bob"]
    with pytest.raises(GroupFenced):
        membership.heartbeat(("cyd", "a"), 3, SESSION_S)


def test_a_member_without_a_session_stays_until_it_leaves() -> None:
    membership = Membership("g", StickyAssignor())
    membership.join(("ann", "a"), 1, 0.0)
    assert membership.deadline_s() == math.inf
    membership.leave([("ann", "a")], 1e9)
    assert owners(membership, partitions=1) == [None]
    with pytest.raises(GroupFenced):
        membership.leave([("ann", "a")], 1e9)


def test_a_member_that_comes_back_has_its_share_at_once() -> None:
    membership = Membership("g", StickyAssignor())
    joined(membership, "ann", "bob")
    settle(membership)
    epoch, share = membership.epoch, owners(membership)
    joined(membership, "ann")
    assert membership.take_shares() == {("ann", "a"): Share(epoch, (0, 1), (0, 1), ())}
    assert (membership.epoch, owners(membership)) == (epoch, share)


def test_a_member_that_comes_back_has_let_go_of_what_it_was_asked_to() -> None:
    membership = Membership("g", StickyAssignor())
    joined(membership, "ann", "bob")
    membership.take_shares()
    joined(membership, "ann")
    assert membership.take_shares() == {
        ("ann", "a"): Share(2, (0, 1), (0, 1), ()),
        ("bob", "a"): Share(2, (2, 3), (2, 3), ()),
    }


def test_members_that_leave_together_are_one_epoch() -> None:
    membership = Membership("g", StickyAssignor())
    joined(membership, "ann", "bob", "cyd")
    settle(membership)
    epoch = membership.epoch
    membership.leave([("ann", "a"), ("cyd", "a")], 0.0)
    assert membership.epoch == epoch + 1
    assert owners(membership) == ["bob"] * 4


def test_a_topic_that_grows_moves_nothing_and_one_that_is_gone_takes_its_members() -> None:
    membership = Membership("g", StickyAssignor())
    joined(membership, "ann", "bob")
    settle(membership)
    before = owners(membership)
    membership.resize("a", 6, 0.0)
    assert owners(membership, partitions=6)[:4] == before
    assert sorted(map(str, owners(membership, partitions=6))) == ["ann"] * 3 + ["bob"] * 3
    membership.resize("other", 0, 0.0)
    membership.resize("a", 0, 0.0)
    assert membership.members == {}
    assert membership.take_shares() == {}
    assert owners(membership, partitions=6) == [None] * 6


def test_a_commit_is_checked_by_the_epoch_in_which_the_partition_was_gained() -> None:
    membership = Membership("g", StickyAssignor())
    joined(membership, "ann")
    settle(membership)
    membership.check_owner("ann", ("a", 3), 1)
    joined(membership, "bob")
    membership.take_shares()
    membership.check_owner("ann", ("a", 3), 1)  # It has not let go.
    settle(membership)
    membership.heartbeat(("ann", "a"), 2, 0.0)
    membership.check_owner("ann", ("a", 0), 1)
    membership.check_owner("ann", ("a", 0), 2)
    membership.leave([("bob", "a")], 0.0)
    assert membership.since("ann", ("a", 3)) == 3
    for epoch in (1, 2, 4):
        with pytest.raises(GroupFenced):
            membership.check_owner("ann", ("a", 3), epoch)
    membership.check_owner("ann", ("a", 3), 3)
    with pytest.raises(GroupFenced):
        membership.check_owner("bob", ("a", 3), 3)


# --- assignors -------------------------------------------------------------------------------------------------------

subscriptions = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(6)]), st.sets(st.sampled_from(list(TOPICS)), min_size=1)
)
sizes = st.dictionaries(st.sampled_from(list(TOPICS)), st.integers(0, 6))


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: type(assignor).__name__)
@given(steps=st.lists(st.tuples(subscriptions, sizes), min_size=1, max_size=4))
def test_each_partition_has_one_owner_that_subscribes_to_it(assignor, steps):
    previous: dict[tuple[str, int], str] = {}
    for members, partitions in steps:
        target = assignor.assign(members, partitions, previous)
        wanted = {topic for topics in members.values() for topic in topics}
        assert set(target) == {(topic, at) for topic in wanted for at in range(partitions.get(topic, 0))}
        assert all(topic in members[member] for (topic, _), member in target.items())
        assert target == assignor.assign(members, partitions, previous), "it is a pure function"
        previous = dict(target)


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: type(assignor).__name__)
@given(st.integers(1, 8), st.integers(0, 20))
def test_shares_of_a_topic_differ_by_at_most_one(assignor, count, partitions):
    members = {f"m{number}": ["a"] for number in range(count)}
    owned = list(assignor.assign(members, {"a": partitions}, {}).values())
    shares = [owned.count(member) for member in members]
    assert max(shares) - min(shares) <= 1


@given(st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=2, max_size=5), st.sampled_from(["a", "ab", "abc"]))
def test_sticky_moves_a_partition_only_where_balance_asks_for_it(steps, topics):
    previous: dict[tuple[str, int], str] = {}
    for before, now in pairwise(steps):
        members = {f"m{number}": topics for number in sorted(before)}
        previous = dict(StickyAssignor().assign(members, TOPICS, previous))
        members = {f"m{number}": topics for number in sorted(now)}
        after = StickyAssignor().assign(members, TOPICS, previous)
        shares = [list(after.values()).count(member) for member in members]
        assert max(shares) - min(shares) <= 1, "over all topics, not over each"
        moved = [place for place in after if previous[place] in members and previous[place] != after[place]]
        surplus = sum(max(0, list(previous.values()).count(member) - shares[at]) for at, member in enumerate(members))
        assert len(moved) == surplus


def test_range_gives_neighbours_and_round_robin_deals_over_topics() -> None:
    members = {"x": "ab", "y": "ab"}
    ranges = RangeAssignor().assign(members, {"a": 3, "b": 1}, {})
    assert ranges == {("a", 0): "x", ("a", 1): "x", ("a", 2): "y", ("b", 0): "x"}
    dealt = RoundRobinAssignor().assign(members, {"a": 3, "b": 1}, {})
    assert dealt == {("a", 0): "x", ("a", 1): "y", ("a", 2): "x", ("b", 0): "y"}


# --- any order of events ---------------------------------------------------------------------------------------------

names = st.sampled_from(["ann", "bob", "cyd", "dan"])
topics = st.sampled_from(list(TOPICS))


class AnyMembership(RuleBasedStateMachine):
    """Members as they see themselves: each reads what it was given until it has let go, or its time is up."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = Membership("g", StickyAssignor())
        self.now_s = 0.0
        self.sizes = dict(TOPICS)
        self.reads: dict[tuple[str, str], set[int]] = {}
        self.asked: dict[tuple[str, str], set[int]] = {}
        """Partitions by seat that it was asked to let go of, and has not."""
        self.epoch = 0

    def hear(self) -> None:
        """Tell the members their news; a move is told once, and nothing that stays is touched."""
        assert self.membership.epoch >= self.epoch
        self.epoch = self.membership.epoch
        for seat, share in self.membership.take_shares().items():
            reads = self.reads.setdefault(seat, set())
            assert set(share.gained) <= set(share.owned)
            assert not set(share.gained) & set(share.revoked)
            assert set(share.revoked) <= reads | set(share.gained), "only what is read is let go of"
            reads |= set(share.gained)
            if share.revoked:
                self.asked[seat] = self.asked.get(seat, set()) | set(share.revoked)
            assert reads - self.asked.get(seat, set()) == set(share.owned), "what is not let go of stays"

    @rule(name=names, topic=topics, session=st.booleans())
    def join(self, name: str, topic: str, session: bool) -> None:
        self.reads[name, topic] = set()
        self.asked.pop((name, topic), None)
        self.membership.join(
            (name, topic),
            self.sizes[topic],
            self.now_s,
            session_s=SESSION_S if session else 0.0,
            release_s=RELEASE_S,
        )
        self.hear()

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        seats = data.draw(st.sets(st.sampled_from(sorted(self.reads)), min_size=1))
        self.forget(seats)
        self.membership.leave(seats, self.now_s)
        self.hear()

    def forget(self, seats) -> None:
        for seat in seats:
            del self.reads[seat]
            self.asked.pop(seat, None)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from(sorted(self.asked)))
        self.answer(seat)

    def answer(self, seat: tuple[str, str]) -> None:
        self.reads[seat] -= self.asked.pop(seat)
        self.membership.heartbeat(seat, self.epoch, self.now_s)
        self.hear()

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        """Renew a session without letting go of anything."""
        self.membership.heartbeat(data.draw(st.sampled_from(sorted(self.reads))), 0, self.now_s)
        self.hear()

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        overdue = [
            (id, topic, index)
            for id, member in self.membership.members.items()
            for (topic, index), (_, until_s) in member.revoked.items()
            if until_s <= self.now_s
        ]
        self.forget(self.membership.tick(self.now_s))
        assert self.membership.deadline_s() > self.now_s
        for id, topic, index in overdue:
            if (id, topic) in self.reads:
                self.reads[id, topic].discard(index)
                self.asked[id, topic].discard(index)
        self.asked = {seat: waiting for seat, waiting in self.asked.items() if waiting}
        self.hear()

    @rule(topic=topics)
    def grow(self, topic: str) -> None:
        if self.sizes[topic] < 8:
            self.sizes[topic] += 1
            self.membership.resize(topic, self.sizes[topic], self.now_s)
            self.hear()

    @rule(topic=topics)
    def delete(self, topic: str) -> None:
        self.forget([seat for seat in self.reads if seat[1] == topic])
        self.membership.resize(topic, 0, self.now_s)
        self.sizes[topic] = TOPICS[topic]
        self.hear()

    @invariant()
    def nobody_else_reads_a_partition(self) -> None:
        read = [(topic, index) for (_, topic), indexes in self.reads.items() for index in indexes]
        assert len(read) == len(set(read))
        for (id, topic), indexes in self.reads.items():
            assert all(self.membership.owner((topic, index)) == id for index in indexes)

    @invariant()
    def it_settles_when_all_answer(self) -> None:
        if not self.asked:
            assert self.membership.is_settled
            wanted = {(topic, at) for _, topic in self.reads for at in range(self.sizes[topic])}
            read = {(topic, index) for (_, topic), indexes in self.reads.items() for index in indexes}
            assert read == wanted

    def teardown(self) -> None:
        while self.asked:
            self.answer(min(self.asked))
        self.it_settles_when_all_answer()


TestAnyMembership = AnyMembership.TestCase
TestAnyMembership.settings = settings(max_examples=60, stateful_step_count=30)
