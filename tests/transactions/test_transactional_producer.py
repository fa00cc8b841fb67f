"""TransactionalProducer: the states of a name's transaction, each refusal, and a snapshot that says the same."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.errors.tree import (
    LimitExceeded,
    SequenceTaken,
    TransactionAborted,
    TransactionBusy,
    TransactionError,
    TransactionFenced,
    TransactionUnknown,
)
from linn.core.groups.event import OffsetCommitted
from linn.core.transactions.event import (
    Committed,
    Named,
    NameForgotten,
    OffsetsApplied,
    TransactionEvent,
    decode_transaction_events,
    encode_transaction_events,
)
from linn.core.transactions.producer import (
    BRANCHES_MAX,
    OFFSETS_MAX,
    PLACES_MAX,
    PendingOffset,
    State,
    TransactionalProducer,
)

FRESH, A, B = 70, 1, 2
FIRST = 1 << 32
OFFSET = OffsetCommitted("prices", 0, 7)


def opened(owner: tuple[int, int] | None = None, before: TransactionalProducer | None = None) -> TransactionalProducer:
    """A name that a client has taken over."""
    each = before or TransactionalProducer("billing")
    each.opened(each.opening(FRESH, 1_000, owner), 60.0)
    return each


def pending(offset: OffsetCommitted = OFFSET) -> PendingOffset:
    return PendingOffset(cast(Any, None), 1, offset)


def restarted(each: TransactionalProducer) -> TransactionalProducer:
    """The name as the next start of the broker knows it, from a snapshot."""
    again = TransactionalProducer(each.name)
    _, events = decode_transaction_events(encode_transaction_events(each.snapshot(), restart=True))
    for event in events:
        again.apply(event)
    return again


# --- the owner -------------------------------------------------------------------------------------------------------


def test_each_opening_has_a_later_epoch_and_numbers_that_were_never_used() -> None:
    each = TransactionalProducer("billing")
    named = each.opening(FRESH, 1_000, None)
    assert named == Named("billing", FRESH, 0, FIRST, 1_000)
    each.opened(named, 60.0)
    assert (each.state, each.timeout_s, each.is_closed, each.is_untouched) == (State.IDLE, 60.0, False, True)
    for _ in range(3):
        each.begin(0.0)
        each.end(None)
        each.ended()
    assert each.number == FIRST + 3
    assert each.opening(FRESH + 1, 2_000, None) == Named("billing", FRESH, 1, 2 * FIRST, 2_000)


def test_after_the_last_epoch_the_name_gets_another_producer_id() -> None:
    each = opened()
    each.apply(Named("billing", FRESH, 2**16 - 1, 5 * FIRST, 0))
    assert each.opening(FRESH + 1, 3, (FRESH, 2**16 - 1)) == Named("billing", FRESH + 1, 0, 6 * FIRST, 3)


def test_an_owner_that_opens_its_name_again_is_known_by_each_of_its_epochs() -> None:
    each = opened()
    each = opened((FRESH, 0), each)
    each = opened((FRESH, 1), each)
    assert (each.epoch, each.resumed) == (2, 0)
    assert [each.is_its_own((FRESH, epoch)) for epoch in range(4)] == [True, True, True, False]
    assert not each.is_its_own((FRESH + 1, 2))
    each = opened(None, each)
    assert (each.epoch, each.resumed) == (3, -1)
    assert [each.is_its_own((FRESH, epoch)) for epoch in range(4)] == [False, False, False, True]


def test_another_epoch_is_fenced_and_after_a_restart_the_name_is_opened_again() -> None:
    each = opened()
    each.check_owner(0)
    assert not each.is_untouched
    for epoch in (1, 7):
        with pytest.raises(TransactionFenced):
            each.check_owner(epoch)
    again = restarted(each)
    assert again.is_closed
    with pytest.raises(TransactionUnknown, match="restarted"):
        again.check_owner(0)
    with pytest.raises(TransactionFenced):
        again.check_owner(1)


def test_opening_a_name_forgets_its_branches_and_why_it_was_aborted() -> None:
    each = opened()
    each.add_branch(A)
    each.begin(0.0)
    each.end(None, "it took too long")
    each.ended()
    number = each.number - 1
    with pytest.raises(TransactionAborted, match="took too long"):
        each.check_current(number)
    opened(None, each)
    assert each.branches == {}
    with pytest.raises(TransactionUnknown):
        each.check_current(number)


# --- states ----------------------------------------------------------------------------------------------------------


def test_a_transaction_is_idle_then_open_then_ending_and_the_next_one_is_idle() -> None:
    each = opened()
    each.check_current(FIRST)
    assert each.begin(5.0)
    assert (each.state, each.began_s) == (State.OPEN, 5.0)
    assert not each.begin(6.0)
    assert each.began_s == 5.0
    each.check_current(FIRST)
    work = each.end(None)
    assert work is each.work
    assert each.is_ending
    with pytest.raises(TransactionBusy):
        each.check_current(FIRST)
    assert not each.begin(7.0)
    each.ended()
    assert (each.state, each.number, each.is_ending) == (State.IDLE, FIRST + 1, False)
    assert each.work is not work
    for number in (FIRST, FIRST + 2):
        with pytest.raises(TransactionUnknown):
            each.check_current(number)


def test_an_idle_transaction_ends_as_well() -> None:
    each = opened()
    each.end(each.decided([]))
    assert each.is_ending
    each.ended()
    assert each.was_committed(FIRST)
    assert each.number == FIRST + 1


@pytest.mark.parametrize("state", [State.OPEN, State.ENDING])
def test_a_name_is_not_taken_over_before_its_transaction_has_ended(state: State) -> None:
    each = opened()
    each.begin(0.0)
    if state is State.ENDING:
        each.end(None)
    with pytest.raises(AssertionError):
        each.opening(FRESH, 0, None)


def test_an_abort_says_why_unless_it_was_asked_for() -> None:
    each = opened()
    each.begin(0.0)
    each.end(None, "an operator aborted it")
    for _ in range(2):
        with pytest.raises(TransactionAborted, match="an operator"):
            each.check_current(FIRST)
        with pytest.raises(TransactionAborted, match="an operator"):
            each.check_ended(FIRST)
        if each.is_ending:
            each.ended()
    each.begin(0.0)
    each.end(None)
    each.ended()
    with pytest.raises(TransactionUnknown):
        each.check_ended(FIRST + 1)


def test_the_last_commit_of_a_name_is_known_and_those_before_are_not() -> None:
    each = opened()
    assert not each.was_committed(FIRST)
    for number in (FIRST, FIRST + 1):
        each.begin(0.0)
        each.end(each.decided([]))
        assert each.was_committed(number)
        each.ended()
    assert not each.was_committed(FIRST)
    with pytest.raises(TransactionUnknown):
        each.check_ended(FIRST)
    with pytest.raises(TransactionAborted, match="restarted"):
        restarted(each).check_ended(FIRST + 2)


# --- work ------------------------------------------------------------------------------------------------------------


def test_the_next_transaction_waits_for_the_end_of_this_one() -> None:
    each = opened()
    each.begin(0.0)
    each.end(None)
    for number in (FIRST, FIRST + 1):
        with pytest.raises(TransactionBusy, match=f"transaction {FIRST} "):
            each.check_current(number)
    with pytest.raises(TransactionUnknown):
        each.check_current(FIRST + 2)
    each.ended()
    each.check_current(FIRST + 1)


def test_a_commit_names_branches_of_the_name_only() -> None:
    each = opened()
    each.add_branch(A)
    each.add_branch(A)
    each.check_branches([A])
    each.check_branches([])
    with pytest.raises(TransactionError, match="producer 2 is no branch"):
        each.check_branches([A, B])


def test_branches_have_a_limit() -> None:
    each = opened()
    for branch in range(BRANCHES_MAX):
        assert each.add_branch(branch) is None
    each.add_branch(0)
    each.work.wrote = {branch: {} for branch in range(1, BRANCHES_MAX)}
    assert each.add_branch(BRANCHES_MAX) == 0, "the one that has not written makes room"
    each.work.wrote[BRANCHES_MAX] = {}
    with pytest.raises(LimitExceeded):
        each.add_branch(BRANCHES_MAX + 1)


def test_the_last_sequence_has_taken_effect_for_good_and_only_with_its_identity() -> None:
    each = opened()
    assert not each.has_taken_effect(7, "rows 3")
    each.work.sequence, each.work.identity = 7, "rows 3"
    each.end(each.decided([]))
    each.ended()
    each.end(each.decided([]))  # A commit without a sequence forgets nothing.
    each.ended()
    again = TransactionalProducer("billing")
    for event in each.snapshot():
        again.apply(event)
    for one in (each, again):
        assert [one.has_taken_effect(*wanted) for wanted in ((0, ""), (7, "rows 3"), (8, "rows 3"))] == [
            False, True, False,
        ]  # fmt: skip
        for identity in ("", "rows 4"):
            with pytest.raises(SequenceTaken, match=f'sequence 7 with the identity "rows 3", not "{identity}"'):
                one.has_taken_effect(7, identity)
        with pytest.raises(SequenceTaken, match="has committed sequence 7, which is later than 6"):
            one.has_taken_effect(6, "rows 3")


def test_a_name_with_sequences_makes_room_later() -> None:
    each = opened()
    hour_ms, week_ms = 3_600_001, 7 * 86_400_000 + 1
    each.opened_ms = 0
    assert each.is_unused(hour_ms, hour_ms / 1000)
    each.work.sequence = 1
    each.end(each.decided([]))
    each.ended()
    assert not each.is_unused(hour_ms, hour_ms / 1000)
    assert each.is_unused(week_ms, week_ms / 1000)


def test_partitions_have_a_limit_whether_written_to_or_held() -> None:
    each = opened()
    topic = cast(Any, object())
    for index in range(PLACES_MAX - 2):
        each.work.add(A, topic, index, 1)
        each.work.add(A, topic, index, 2)  # The same partition again.
    each.work.add(B, topic, 0, 1)
    each.check_room()
    each.work.held[cast(Any, object())] = None
    with pytest.raises(LimitExceeded):
        each.check_room()


def test_of_offsets_in_one_partition_the_last_counts_and_all_have_a_limit() -> None:
    each = opened()
    for index in range(OFFSETS_MAX):
        each.add_offset("g", pending(OffsetCommitted("prices", index, 1)))
    each.add_offset("g", pending())
    decision = each.decided([A])
    assert (decision.number, decision.branches, len(decision.offsets)) == (FIRST, [A], OFFSETS_MAX)
    assert decision.offsets[0] == ("g", OFFSET)
    for group, offset in (("other", OFFSET), ("g", OffsetCommitted("prices", OFFSETS_MAX, 1))):
        with pytest.raises(LimitExceeded):
            each.add_offset(group, pending(offset))


@pytest.mark.parametrize("with_offsets", [False, True])
def test_offsets_of_a_decision_are_applied_once(with_offsets: bool) -> None:
    each = opened()
    each.begin(0.0)
    if with_offsets:
        each.add_offset("g", pending())
    each.end(each.decided([A]))
    assert each.has_offsets_to_apply is with_offsets
    assert restarted(each).has_offsets_to_apply is with_offsets
    each.apply(OffsetsApplied("billing"))
    assert not each.has_offsets_to_apply
    assert not restarted(each).has_offsets_to_apply


# --- the log ---------------------------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 2**40)
EVENTS: st.SearchStrategy[TransactionEvent] = st.one_of(
    st.builds(Named, st.just("billing"), NUMBERS, st.integers(0, 9), NUMBERS, NUMBERS, st.integers(-1, 9)),
    st.builds(
        Committed,
        st.just("billing"),
        NUMBERS,
        st.lists(NUMBERS, max_size=2),
        st.sampled_from([[], [("g", OFFSET)], [("g", OFFSET), ("h", OFFSET)]]),
    ),
    st.just(OffsetsApplied("billing")),
    st.just(NameForgotten("billing")),
)


def known(each: TransactionalProducer) -> dict[str, object]:
    names = "producer_id", "epoch", "number", "opened_ms", "resumed", "committed", "has_offsets_to_apply"
    return {name: getattr(each, name) for name in names}


@given(st.lists(EVENTS))
def test_a_snapshot_restores_whatever_the_events_have_made(events: list[TransactionEvent]) -> None:
    each = TransactionalProducer("billing")
    each.apply(Named("billing", FRESH, 0, FIRST, 1))
    for event in events:
        each.apply(event)
    assert known(restarted(each)) == known(each)


@given(st.lists(EVENTS))
def test_numbers_never_go_back(events: list[TransactionEvent]) -> None:
    each = TransactionalProducer("billing")
    for event in events:
        before = each.number
        each.apply(event)
        assert each.number >= before
        if isinstance(event, Committed):
            assert each.number > event.number
