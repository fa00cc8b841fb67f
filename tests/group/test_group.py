"""Ownership of partitions, the right to commit, and the effects of a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.errors.tree import (
    DeliveryError,
    GroupBusy,
    GroupFenced,
    LimitExceeded,
    LogCorrupt,
    OffsetOutOfRange,
    PartitionUnknown,
)
from linn.core.groups.event import (
    GenerationStarted,
    GroupForgotten,
    OffsetCommitted,
    decode_group_events,
    encode_group_events,
)
from linn.core.groups.group import EVENTS_AT_ONCE_MAX, ConsumerGroup

partition_counts = st.integers(1, 20)
histories = st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=40)


def play(group: ConsumerGroup, history):
    """Members join, and leave if they are there; yields (joined, member, assignment before, rebalance)."""
    for joins, number in history:
        member, before = f"m{number}", group.assignment()
        if joins == (member in before):
            continue
        yield joins, member, before, group.join(member) if joins else group.leave(member)


@given(partition_counts, histories)
def test_each_partition_has_one_owner_and_shares_differ_by_at_most_one(partitions, history):
    group = ConsumerGroup("g", partitions)
    for generation, (_, _, _, rebalance) in enumerate(play(group, history), start=1):
        assert rebalance.generation == group.generation == generation
        owned = [partition for share in rebalance.assignment.values() for partition in share]
        assert sorted(owned) == (list(range(partitions)) if rebalance.assignment else [])
        sizes = [len(share) for share in rebalance.assignment.values()]
        assert not sizes or max(sizes) - min(sizes) <= 1
        for member, share in rebalance.assignment.items():
            assert all(group.owner(partition) == member for partition in share)
    if not group.assignment():
        assert group.owner(0) is None


@given(partition_counts, histories)
def test_a_partition_moves_only_if_balance_requires_it(partitions, history):
    for joins, member, before, rebalance in play(ConsumerGroup("g", partitions), history):
        after = rebalance.assignment
        for other in before.keys() & after.keys():
            if joins:
                assert set(after[other]) <= set(before[other]), "a join moves partitions to the new member only"
            else:
                assert set(after[other]) >= set(before[other]), "a leave takes nothing from those that stay"
        if joins and before:
            assert len(after[member]) == partitions // len(after), "a join moves no more than the smaller share"


@given(partition_counts, histories)
def test_gained_and_lost_are_the_difference(partitions, history):
    for _, _, before, rebalance in play(ConsumerGroup("g", partitions), history):
        for member in before.keys() | rebalance.assignment.keys():
            had, has = set(before.get(member, ())), set(rebalance.assignment.get(member, ()))
            assert set(rebalance.gained.get(member, ())) == has - had
            assert set(rebalance.lost.get(member, ())) == had - has


@given(partition_counts, histories)
def test_the_same_history_gives_the_same_assignment(partitions, history):
    one, other = ConsumerGroup("g", partitions), ConsumerGroup("g", partitions)
    assert list(play(one, history)) == list(play(other, history))


def test_joining_twice_starts_no_generation():
    group = ConsumerGroup("g", 3)
    group.join("ann")
    again = group.join("ann")
    assert (again.generation, again.gained, again.lost) == (1, {}, {})
    assert again.assignment == {"ann": (0, 1, 2)}


def test_only_members_can_leave():
    with pytest.raises(GroupFenced):
        ConsumerGroup("g", 1).leave("ann")


def test_new_partitions_go_to_the_members_and_move_none():
    group = ConsumerGroup("g", 2)
    group.join("ann")
    group.join("bob")
    before = group.assignment()
    rebalance = group.grow(6)
    assert rebalance.generation == 3
    assert rebalance.lost == {}
    assert all(set(before[member]) <= set(share) and len(share) == 3 for member, share in rebalance.assignment.items())


def test_a_commit_is_remembered_and_may_go_back():
    group = ConsumerGroup("g", 2)
    group.join("ann")
    assert group.position(1) is None
    group.commit("ann", 1, 1, 500)
    group.commit("ann", 1, 1, 20)
    assert (group.position(0), group.position(1)) == (None, 20)


@pytest.mark.parametrize(
    ("member", "generation", "partition", "offset", "error"),
    [
        ("bob", 2, 0, 5, GroupFenced),
        ("cyd", 2, 0, 5, GroupFenced),
        ("ann", 1, 0, 5, GroupFenced),
        ("ann", 3, 0, 5, GroupFenced),
        ("ann", 2, 2, 5, PartitionUnknown),
        ("ann", 2, -1, 5, PartitionUnknown),
        ("ann", 2, 0, -1, OffsetOutOfRange),
        ("ann", 2, 0, 2**63, OffsetOutOfRange),
    ],
)
def test_a_commit_that_is_not_the_owners_is_refused_and_changes_nothing(member, generation, partition, offset, error):
    group = ConsumerGroup("g", 2)
    group.join("ann")
    group.commit("ann", 1, 0, 3)
    group.join("bob")
    assert group.owner(0) == "ann"
    group.take_events()
    with pytest.raises(error):
        group.commit(member, generation, partition, offset)
    assert group.position(0) == 3
    assert group.take_events() == []


@given(partition_counts, histories, st.lists(st.integers(0, 99)), st.booleans())
def test_generation_and_offsets_survive_a_restart(partitions, history, offsets, from_snapshot):
    group, log = ConsumerGroup("the group", partitions), []
    for step, (_, _, _, rebalance) in enumerate(play(group, history)):
        for member, share in rebalance.assignment.items():
            for partition in share:
                group.commit(member, rebalance.generation, partition, step + sum(offsets[:partition]))
        if step % 3 == 0:
            log.append(encode_group_events(group.name, group.take_events()))
    log.append(encode_group_events(group.name, group.take_events()))
    if from_snapshot:
        log = [encode_group_events(group.name, group.snapshot_events())]
    after = ConsumerGroup("the group", partitions)
    for data in log:
        name, events = decode_group_events(data)
        assert name == "the group"
        for event in events:
            after.apply(event)
    assert [after.position(partition) for partition in range(partitions)] == [
        group.position(partition) for partition in range(partitions)
    ]
    assert after.assignment() == {}
    assert after.join("new").generation == group.generation + 1


def test_many_commits_to_a_partition_are_one_row():
    group = ConsumerGroup("g", 1)
    group.join("ann")
    for offset in range(1_000):
        group.commit("ann", 1, 0, offset)
    assert group.take_events() == [GenerationStarted(1), OffsetCommitted(0, 999)]
    assert group.take_events() == []


@pytest.mark.parametrize(
    ("name", "error"),
    [("", DeliveryError), ("\ud800", DeliveryError), ("x" * 256, LimitExceeded), ("é" * 128, LimitExceeded)],
)
def test_a_name_that_no_row_can_carry_is_refused(name, error):
    with pytest.raises(error):
        ConsumerGroup(name, 1)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60),
    st.lists(
        st.builds(GenerationStarted, st.integers(0, 2**63 - 1))
        | st.builds(OffsetCommitted, st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))
        | st.builds(GroupForgotten)
    ),
)
def test_any_events_survive_the_codec(name, events):
    assert decode_group_events(encode_group_events(name, events)) == (name, events)


@given(st.binary(max_size=60) | st.binary(min_size=16, max_size=16).map(lambda row: b"\x01\x01g" + row))
def test_any_bytes_are_events_or_corrupt(data):
    try:
        name, events = decode_group_events(data)
    except LogCorrupt:
        return
    assert encode_group_events(name, events) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\x02\x01g",
        b"\x01\x00",
        b"\x01\x02g",
        b"\x01\x01\xff",
        b"\x01\x01g" + bytes(15),
        b"\x01\x01g" + bytes(16),
        b"\x01\x01g" + b"\x01" + bytes(14) + b"\x80",
        b"\x01\x01g" + b"\x01\x00\x00\x00\x01" + bytes(11),
        b"\x01\x01g" + b"\x02\x01" + bytes(14),
        b"\x01\x01g" + b"\x03\x00\x00\x00\x01" + bytes(11),
    ],
)
def test_damaged_rows_are_corrupt(data):
    with pytest.raises(LogCorrupt):
        decode_group_events(data)


def test_a_reset_is_refused_for_a_group_with_members():
    group = ConsumerGroup("g", 2)
    group.join("m")
    group.commit("m", 1, 0, 5)
    with pytest.raises(GroupBusy):
        group.check_idle()
    group.leave("m")
    group.take_events()
    group.check_idle()
    group.move({0: 1, 1: 2})
    assert (group.position(0), group.position(1)) == (1, 2)
    assert group.take_events() == [], "the log has them already"


def test_events_that_no_log_has_are_given_again_in_their_latest_form():
    group = ConsumerGroup("g", 3)
    group.join("ann")
    for partition in range(3):
        group.commit("ann", 1, partition, 5)
    for offset in range(6, 100):
        group.keep_events(group.take_events())
        group.commit("ann", 1, 1, offset)
    found = group.take_events()
    assert found[0] == GenerationStarted(1)
    offsets = [OffsetCommitted(0, 5), OffsetCommitted(1, 99), OffsetCommitted(2, 5)]
    assert sorted(found[1:], key=lambda event: event.partition) == offsets
    group.keep_events(found)
    group.drop_events()
    assert group.take_events() == []


def test_events_are_taken_some_at_a_time_until_there_are_none():
    partitions = 2 * EVENTS_AT_ONCE_MAX + 3
    group = ConsumerGroup("g", partitions)
    group.join("ann")
    for partition in range(partitions):
        group.commit("ann", 1, partition, partition)
    taken = []
    while events := group.take_events():
        assert len(events) <= EVENTS_AT_ONCE_MAX + 1
        taken += events
    assert taken == [GenerationStarted(1), *[OffsetCommitted(number, number) for number in range(partitions)]]


def test_a_group_that_was_forgotten_is_fresh():
    group = ConsumerGroup("g", 2)
    for event in (GenerationStarted(7), OffsetCommitted(0, 5), GroupForgotten(), OffsetCommitted(1, 3)):
        group.apply(event)
    assert (group.generation, group.position(0), group.position(1)) == (0, None, 3)


@given(partition_counts, st.sets(st.integers(0, 7), min_size=1), st.sets(st.integers(0, 7), min_size=1))
def test_members_that_leave_together_make_one_generation_and_the_others_keep_their_partitions(
    partitions, members, leaving
):
    group, leaving = ConsumerGroup("g", partitions), leaving & members
    for member in sorted(members):
        group.join(str(member))
    before, generation = group.assignment(), group.generation
    with pytest.raises(GroupFenced):
        group.leave(*map(str, leaving), "stranger")
    assert (group.assignment(), group.generation) == (before, generation)
    rebalance = group.leave(*map(str, leaving))
    assert rebalance.generation == group.generation == generation + 1
    assert set(rebalance.assignment) == {str(member) for member in members - leaving}
    assert rebalance.lost == {str(member): before[str(member)] for member in leaving if before[str(member)]}
    for member, share in rebalance.assignment.items():
        assert set(before[member]) <= set(share)
    owned = sorted(partition for share in rebalance.assignment.values() for partition in share)
    assert owned == (list(range(partitions)) if rebalance.assignment else [])
