"""The right to commit, the effects of a restart, and the records of a group log."""

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
    EpochStarted,
    GroupForgotten,
    OffsetCommitted,
    OffsetPending,
    PendingEnded,
    TopicForgotten,
    decode_group_events,
    encode_group_events,
)
from linn.core.groups.group import TEXT_BYTES_MAX, ConsumerGroup
from linn.plugins.assignors import StickyAssignor

PARTITIONS = 2


def made(name: str = "g") -> ConsumerGroup:
    return ConsumerGroup(name, StickyAssignor())


def with_members(*members: str) -> ConsumerGroup:
    """A settled group whose members read the topic "t"."""
    group = made()
    for member in members:
        group.membership.join((member, "t"), PARTITIONS, 0.0, release_s=1.0)
    while shares := group.membership.take_shares():
        for seat in shares:
            group.membership.heartbeat(seat, group.epoch, 0.0)
    return group


def commit(group: ConsumerGroup, member: str, partition: int, offset: int, epoch: int | None = None) -> None:
    committed = OffsetCommitted("t", partition, offset)
    group.commit(member, group.epoch if epoch is None else epoch, committed, PARTITIONS)


def test_a_commit_is_remembered_and_may_go_back() -> None:
    group = with_members("ann")
    assert group.position("t", 1) is None
    commit(group, "ann", 1, 500)
    commit(group, "ann", 1, 20)
    assert (group.position("t", 0), group.position("t", 1), group.position("other", 1)) == (None, 20, None)


@pytest.mark.parametrize(
    ("member", "epoch", "partition", "offset", "error"),
    [
        ("bob", 2, 0, 5, GroupFenced),
        ("cyd", 2, 0, 5, GroupFenced),
        ("ann", 0, 0, 5, GroupFenced),
        ("ann", 3, 0, 5, GroupFenced),
        ("bob", 1, 1, 5, GroupFenced),
        ("ann", 2, 2, 5, PartitionUnknown),
        ("ann", 2, -1, 5, PartitionUnknown),
        ("ann", 2, 0, -1, OffsetOutOfRange),
        ("ann", 2, 0, 2**63, OffsetOutOfRange),
    ],
)
def test_a_commit_that_is_not_the_owners_is_refused_and_changes_nothing(member, epoch, partition, offset, error):
    group = with_members("ann", "bob")
    commit(group, "ann", 0, 3)
    assert group.membership.owner(("t", 1)) == "bob"
    group.take_events()
    with pytest.raises(error):
        commit(group, member, partition, offset, epoch)
    assert (group.position("t", 0), group.position("t", 1)) == (3, None)
    assert group.take_events() == []


def test_an_offset_is_kept_with_a_text_of_limited_length() -> None:
    group = with_members("ann")
    group.commit("ann", 1, OffsetCommitted("t", 0, 5, "é" * (TEXT_BYTES_MAX // 2)), PARTITIONS)
    assert group.offsets()["t", 0].text.startswith("é")
    with pytest.raises(LimitExceeded):
        group.commit("ann", 1, OffsetCommitted("t", 0, 6, "é" * (TEXT_BYTES_MAX // 2) + "x"), PARTITIONS)
    assert group.position("t", 0) == 5


def test_many_commits_to_a_partition_are_one_event() -> None:
    group = with_members("ann")
    for offset in range(1_000):
        commit(group, "ann", 1, offset)
    assert group.take_events() == [EpochStarted(1), OffsetCommitted("t", 1, 999)]
    assert group.take_events() == []


def test_moved_offsets_are_no_events() -> None:
    group = with_members("ann")
    commit(group, "ann", 0, 5)
    with pytest.raises(GroupBusy):
        group.check_idle("t")
    group.check_idle("other")
    group.membership.leave([("ann", "t")], 0.0)
    group.check_idle("t")
    group.move([OffsetCommitted("t", 0, 1), OffsetCommitted("t", 1, 2)])
    assert (group.position("t", 0), group.position("t", 1)) == (1, 2)
    assert group.take_events() == [EpochStarted(2)], "the log has the offsets already"


def test_topics_are_those_with_members_or_offsets() -> None:
    group = with_members("ann")
    assert group.topics == {"t"}
    group.move([OffsetCommitted("other", 0, 1)])
    assert group.topics == {"t", "other"}
    group.membership.leave([("ann", "t")], 0.0)
    assert group.topics == {"other"}


# --- restarts --------------------------------------------------------------------------------------------------------


def test_events_in_order_restore_a_group() -> None:
    group = made()
    for event in (EpochStarted(7), OffsetCommitted("t", 0, 5), OffsetCommitted("t", 0, 6), EpochStarted(3)):
        group.apply(event)
    assert (group.epoch, group.position("t", 0)) == (7, 6)
    after = made()
    for event in group.snapshot_events():
        after.apply(event)
    assert (after.epoch, after.offsets()) == (7, group.offsets())
    after.membership.join(("ann", "t"), PARTITIONS, 0.0)
    assert after.take_events() == [EpochStarted(8)]


def test_what_was_forgotten_is_fresh() -> None:
    group = made()
    for event in (EpochStarted(7), OffsetCommitted("t", 0, 5), OffsetCommitted("u", 0, 5), TopicForgotten("t")):
        group.apply(event)
    assert (group.epoch, group.position("t", 0), group.position("u", 0)) == (7, None, 5)
    group.apply(GroupForgotten())
    assert (group.epoch, group.offsets()) == (0, {})


FIRST, SECOND = (7, 1), (8, 1)


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_offset_of_a_transaction_moves_the_group_when_that_is_committed_also_after_a_restart(is_commit):
    group = made()
    group.move([OffsetCommitted("t", 0, 5)])
    for part, topic, partition in ((FIRST, "t", 0), (FIRST, "u", 0), (SECOND, "t", 1)):
        group.pend(part, OffsetCommitted(topic, partition, 9))
    group.pend(FIRST, OffsetCommitted("t", 0, 8))
    after = made()
    for event in group.snapshot_events():
        after.apply(event)
    for one in (group, after):
        assert one.topics == {"t", "u"}
        assert (one.pending_in("t", [0]), one.pending_in("t", [0, 1]), one.pending_in("t", [])) == (
            {FIRST}, {FIRST, SECOND}, set(),
        )  # fmt: skip
        with pytest.raises(GroupBusy, match="an open transaction"):
            one.check_idle("u")
        assert one.position("t", 0) == 5
        for _ in range(2):
            one.end_pending("t", FIRST, is_commit=is_commit)
        assert [one.position(*place) for place in (("t", 0), ("u", 0), ("t", 1))] == [8 if is_commit else 5, None, None]
        assert one.pending_in("t", [0, 1]) == {SECOND}
        assert one.has_pending("u", FIRST)
        one.forget_topic("u")
        assert not one.has_pending("u", FIRST)
        one.check_idle("u")


def test_the_log_of_one_topic_ends_what_it_has_of_a_transaction():
    group = made()
    for event in (
        OffsetPending(*FIRST, OffsetCommitted("t", 0, 3)),
        OffsetPending(*SECOND, OffsetCommitted("t", 1, 4)),
    ):
        group.apply(event)
    group.apply(PendingEnded(*FIRST, True))
    group.apply(PendingEnded(*SECOND, False))
    assert (group.position("t", 0), group.position("t", 1), group.pending) == (3, None, {})


# --- records ---------------------------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
committed = st.builds(
    OffsetCommitted,
    words,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    words,
    st.integers(-1, 2**31 - 1),
    st.binary(max_size=16),
)
events = st.lists(
    st.builds(EpochStarted, st.integers(0, 2**63 - 1))
    | committed
    | st.builds(TopicForgotten, words)
    | st.builds(GroupForgotten)
    | st.builds(OffsetPending, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), committed)
    | st.builds(PendingEnded, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.booleans())
)


@given(st.lists(st.tuples(words, events), max_size=4), st.booleans())
def test_any_events_survive_the_codec(entries, restart):
    assert decode_group_events(encode_group_events(entries, restart=restart)) == (restart, entries)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"\x02\x00" + rest))
def test_any_bytes_are_events_or_corrupt(data):
    try:
        restart, entries = decode_group_events(data)
    except LogCorrupt:
        return
    assert decode_group_events(encode_group_events(entries, restart=restart)) == (restart, entries)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02",
        b"\x01\x00\x90",
        b"\x02\x02\x90",
        b"\x02\x00",
        b"\x02\x00\x91\x92\xa0\x90",
        b"\x02\x00\x91\x92\xa1g\x91\x92\x01\xff",
        b"\x02\x00\x91\x92\xa1g\x91\x92\x09\x01",
        b"\x02\x00\x91\x92\xa1\xff\x90",
        b"\x02\x00\x90\x00",
    ],
)
def test_damaged_records_are_corrupt(data):
    with pytest.raises(LogCorrupt):
        decode_group_events(data)


@pytest.mark.parametrize(
    ("name", "error"),
    [("", DeliveryError), ("\ud800", DeliveryError), ("x" * 256, LimitExceeded), ("é" * 128, LimitExceeded)],
)
def test_a_name_that_no_event_can_carry_is_refused(name, error):
    with pytest.raises(error):
        made(name)
