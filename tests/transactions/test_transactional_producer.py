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
from linn.core.transactions.event import (
    Aborted,
    Branches,
    Committed,
    Named,
    NameEvent,
    NameForgotten,
    Started,
    decode_transaction_events,
    encode_transaction_events,
)
from linn.core.transactions.producer import (
    BRANCHES_MAX,
    OFFSETS_MAX,
    PLACES_MAX,
    Owner,
    State,
    TransactionalProducer,
)

FRESH, A, B = 70, 1, 2
FIRST = 1 << 32
USER = "ann"


def opened(owner: Owner | None = None, before: TransactionalProducer | None = None) -> TransactionalProducer:
    """A name that a client has taken over."""
    producer = before or TransactionalProducer("billing")
    producer.apply(producer.opening(FRESH, 1_000, owner, USER, 60.0, 7))
    return producer


def abort(producer: TransactionalProducer, why: str = "") -> None:
    """Abort the present transaction, which is to be marked."""
    producer.end(Aborted(producer.name, producer.number, why))


def add_branch(producer: TransactionalProducer, branch: int) -> None:
    producer.apply(producer.adding(branch))


def restarted(producer: TransactionalProducer) -> TransactionalProducer:
    """The name as the next start of the broker knows it, from a snapshot."""
    again = TransactionalProducer(producer.name)
    _, events = decode_transaction_events(encode_transaction_events(producer.snapshot(), restart=True))
    for event in events:
        assert not isinstance(event, Started)
        again.apply(event)
    return again


# --- the owner -------------------------------------------------------------------------------------------------------


def test_each_opening_has_a_later_epoch_and_numbers_that_were_never_used() -> None:
    producer = TransactionalProducer("billing")
    named = producer.opening(FRESH, 1_000, None, USER, 60.0, 7)
    assert named == Named("billing", FRESH, 0, FIRST, 1_000, -1, USER, 60_000, [7])
    producer.apply(named)
    assert (producer.state, producer.timeout_s, producer.user, producer.is_untouched) == (State.IDLE, 60.0, USER, True)
    for _ in range(3):
        producer.begin(0.0)
        abort(producer)
        producer.ended()
    assert producer.number == FIRST + 3
    named = producer.opening(FRESH + 1, 2_000, None, "bob", 1.5, 8)
    assert named == Named("billing", FRESH, 1, 2 * FIRST, 2_000, -1, "bob", 1_500, [7, 8])


def test_after_the_last_epoch_the_name_gets_another_producer_id() -> None:
    producer = opened()
    producer.apply(Named("billing", FRESH, 2**16 - 1, 5 * FIRST, 0))
    named = producer.opening(FRESH + 1, 3, Owner(FRESH, 2**16 - 1, USER), USER, 60.0)
    assert named == Named("billing", FRESH + 1, 0, 6 * FIRST, 3, -1, USER, 60_000, [0])


def test_an_owner_that_opens_its_name_again_is_known_by_each_of_its_epochs() -> None:
    producer = opened()
    producer = opened(Owner(FRESH, 0, USER), producer)
    producer = opened(Owner(FRESH, 1, USER), producer)
    assert (producer.epoch, producer.resumed) == (2, 0)
    assert [producer.is_owned_by(Owner(FRESH, epoch, USER)) for epoch in range(4)] == [True, True, True, False]
    assert not producer.is_owned_by(Owner(FRESH + 1, 2, USER))
    producer = opened(None, producer)
    assert (producer.epoch, producer.resumed) == (3, -1)
    assert [producer.is_owned_by(Owner(FRESH, epoch, USER)) for epoch in range(4)] == [False, False, False, True]


def test_another_epoch_and_another_user_are_fenced_also_after_a_restart() -> None:
    producer = opened()
    producer.check_owner(Owner(FRESH, 0, USER))
    assert not producer.is_untouched
    for known in (producer, restarted(producer)):
        known.check_owner(Owner(FRESH, 0, USER))
        for owner in (Owner(FRESH, 1, USER), Owner(FRESH, 7, USER), Owner(FRESH, 0, "bob")):
            with pytest.raises(TransactionFenced):
                known.check_owner(owner)


def test_an_opening_is_repeated_and_an_earlier_one_is_fenced_also_after_a_restart() -> None:
    producer = opened()
    producer.apply(producer.opening(FRESH, 1_000, None, USER, 60.0, 8))
    for known in (producer, restarted(producer)):
        again = known.repeated_opening(USER, None, 8)
        assert again is not None
        assert (again.producer_id, again.epoch, again.number) == (FRESH, 1, 2 * FIRST)
        assert known.repeated_opening(USER, None, 9) is None
        assert known.repeated_opening("bob", None, 8) is None
        with pytest.raises(TransactionFenced):
            known.repeated_opening(USER, None, 7)


@pytest.mark.parametrize("touch", ["", "branch", "commit", "abort"])
def test_an_owner_that_does_not_know_its_opening_gets_it_again_if_it_was_not_used(touch: str) -> None:
    producer = opened(Owner(FRESH, 0, USER), opened())
    if touch == "branch":
        add_branch(producer, A)
    elif touch == "commit":
        producer.apply(producer.decided([]))
    elif touch == "abort":
        producer.apply(Aborted("billing", producer.number))
    for known in (producer, restarted(producer), restarted(restarted(producer))):
        if touch:
            with pytest.raises(TransactionFenced):
                known.repeated_opening(USER, Owner(FRESH, 0, USER), 9)
        else:
            assert known.repeated_opening(USER, Owner(FRESH, 0, USER), 9) is not None


def test_opening_a_name_forgets_its_branches_and_why_it_was_aborted() -> None:
    producer = opened()
    add_branch(producer, A)
    producer.begin(0.0)
    abort(producer, "it took too long")
    producer.ended()
    number = producer.number - 1
    with pytest.raises(TransactionAborted, match="took too long"):
        producer.check_current(number)
    opened(None, producer)
    assert producer.branches == {}
    with pytest.raises(TransactionUnknown):
        producer.check_current(number)


# --- states ----------------------------------------------------------------------------------------------------------


def test_a_transaction_is_idle_then_open_then_ending_and_the_next_one_is_idle() -> None:
    producer = opened()
    producer.check_current(FIRST)
    assert producer.begin(5.0)
    assert (producer.state, producer.began_s) == (State.OPEN, 5.0)
    assert not producer.begin(6.0)
    assert producer.began_s == 5.0
    producer.check_current(FIRST)
    work = producer.work
    abort(producer)
    assert producer.is_ending
    with pytest.raises(TransactionBusy):
        producer.check_current(FIRST)
    assert not producer.begin(7.0)
    producer.ended()
    assert (producer.state, producer.number, producer.is_ending) == (State.IDLE, FIRST + 1, False)
    assert producer.work is not work
    for number in (FIRST, FIRST + 2):
        with pytest.raises(TransactionUnknown):
            producer.check_current(number)


def test_an_idle_transaction_ends_as_well() -> None:
    producer = opened()
    producer.end(producer.decided([]))
    assert producer.is_ending
    producer.ended()
    assert producer.was_committed(FIRST)
    assert producer.number == FIRST + 1


@pytest.mark.parametrize("state", [State.OPEN, State.ENDING])
def test_a_name_is_not_taken_over_before_its_transaction_has_ended(state: State) -> None:
    producer = opened()
    producer.begin(0.0)
    if state is State.ENDING:
        abort(producer)
    with pytest.raises(AssertionError):
        producer.opening(FRESH, 0, None, USER, 60.0)


def test_an_abort_says_why_unless_it_was_asked_for() -> None:
    producer = opened()
    producer.begin(0.0)
    abort(producer, "an operator aborted it")
    producer.ended()
    for known in (producer, restarted(producer)):
        assert known.number == FIRST + 1
        with pytest.raises(TransactionAborted, match="an operator"):
            known.check_current(FIRST)
    producer.begin(0.0)
    abort(producer)
    producer.ended()
    for known in (producer, restarted(producer)):
        with pytest.raises(TransactionUnknown):
            known.check_current(FIRST + 1)


def test_an_abort_of_all_that_may_have_been_begun_says_why_for_each_number() -> None:
    producer = opened()
    producer.apply(Aborted("billing", FIRST, "the power failed", producer.unused_number - 1))
    for known in (producer, restarted(producer)):
        for number in (FIRST, FIRST + 1, 2 * FIRST - 1):
            with pytest.raises(TransactionAborted, match="the power failed"):
                known.check_current(number)
        known.check_current(2 * FIRST)
        known.check_owner(Owner(FRESH, 0, USER))


def test_the_last_commit_of_a_name_is_known_and_those_before_are_not() -> None:
    producer = opened()
    assert not producer.was_committed(FIRST)
    for number in (FIRST, FIRST + 1):
        producer.begin(0.0)
        producer.end(producer.decided([]))
        assert producer.was_committed(number)
        producer.ended()
    for known in (producer, restarted(producer)):
        assert [known.was_committed(FIRST + at) for at in range(3)] == [False, True, False]
        with pytest.raises(TransactionUnknown):
            known.check_current(FIRST)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_restart_before_the_marks_goes_on_at_the_next_number(is_committed: bool) -> None:
    producer = opened()
    producer.begin(0.0)
    if is_committed:
        producer.end(producer.decided([]))
    else:
        abort(producer)
    assert producer.number == FIRST
    again = restarted(producer)
    assert (again.number, again.state) == (FIRST + 1, State.IDLE)
    producer.ended()
    assert known(restarted(producer)) == known(producer)


# --- work ------------------------------------------------------------------------------------------------------------


def test_the_next_transaction_waits_for_the_end_of_this_one() -> None:
    producer = opened()
    producer.begin(0.0)
    abort(producer)
    for number in (FIRST, FIRST + 1):
        with pytest.raises(TransactionBusy, match=f"transaction {FIRST} "):
            producer.check_current(number)
    with pytest.raises(TransactionUnknown):
        producer.check_current(FIRST + 2)
    producer.ended()
    producer.check_current(FIRST + 1)


def test_a_commit_names_branches_of_the_name_only() -> None:
    producer = opened()
    add_branch(producer, A)
    add_branch(producer, A)
    producer.check_branches([A])
    producer.check_branches([])
    with pytest.raises(TransactionError, match="producer 2 is no branch"):
        producer.check_branches([A, B])


def test_branches_have_a_limit() -> None:
    producer = opened()
    for branch in range(1, BRANCHES_MAX + 1):
        add_branch(producer, branch)
    producer.work.wrote = {branch: {} for branch in range(2, BRANCHES_MAX + 1)}
    added = producer.adding(BRANCHES_MAX + 1)
    assert added == Branches("billing", [BRANCHES_MAX + 1], dropped=1), "the one that has not written makes room"
    producer.apply(added)
    assert list(restarted(producer).branches) == list(producer.branches) == list(range(2, BRANCHES_MAX + 2))
    producer.work.wrote[BRANCHES_MAX + 1] = {}
    with pytest.raises(LimitExceeded):
        producer.adding(BRANCHES_MAX + 2)


def test_the_last_sequence_has_taken_effect_for_good_and_only_with_its_identity() -> None:
    producer = opened()
    assert not producer.has_taken_effect(7, "rows 3")
    producer.work.sequence, producer.work.identity = 7, "rows 3"
    producer.end(producer.decided([]))
    producer.ended()
    producer.end(producer.decided([]))  # A commit without a sequence forgets nothing.
    producer.ended()
    again = TransactionalProducer("billing")
    for event in producer.snapshot():
        again.apply(event)
    for one in (producer, again):
        assert [one.has_taken_effect(*wanted) for wanted in ((0, ""), (7, "rows 3"), (8, "rows 3"))] == [
            False, True, False,
        ]  # fmt: skip
        for identity in ("", "rows 4"):
            with pytest.raises(SequenceTaken, match=f'sequence 7 with the identity "rows 3", not "{identity}"'):
                one.has_taken_effect(7, identity)
        with pytest.raises(SequenceTaken, match="has committed sequence 7, which is later than 6"):
            one.has_taken_effect(6, "rows 3")


def test_a_name_with_sequences_makes_room_later() -> None:
    producer = opened()
    hour_ms, week_ms = 3_600_001, 7 * 86_400_000 + 1
    producer.opened_ms = 0
    assert producer.is_unused(hour_ms, hour_ms / 1000)
    producer.work.sequence = 1
    producer.end(producer.decided([]))
    producer.ended()
    assert not producer.is_unused(hour_ms, hour_ms / 1000)
    assert producer.is_unused(week_ms, week_ms / 1000)


def test_partitions_have_a_limit_whether_written_to_or_held() -> None:
    producer = opened()
    topic = cast(Any, object())
    for index in range(PLACES_MAX - 2):
        producer.work.add(A, topic, cast(Any, index), 1)
        producer.work.add(A, topic, cast(Any, index), 2)  # The same partition again.
    producer.work.add(B, topic, cast(Any, 0), 1)
    producer.check_room()
    producer.work.held[cast(Any, object())] = None
    with pytest.raises(LimitExceeded):
        producer.check_room()


def test_offsets_have_a_limit() -> None:
    producer = opened()
    for index in range(OFFSETS_MAX):
        producer.check_offset("g", "prices", index)
        producer.work.offsets["g", "prices", index] = 1
    producer.check_offset("g", "prices", 0)
    for place in (("other", "prices", 0), ("g", "other", 0), ("g", "prices", OFFSETS_MAX)):
        with pytest.raises(LimitExceeded):
            producer.check_offset(*place)


# --- the log ---------------------------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 2**40)
EVENTS: st.SearchStrategy[NameEvent] = st.one_of(
    st.builds(Named, st.just("billing"), NUMBERS, st.integers(0, 9), NUMBERS, NUMBERS, st.integers(-1, 9)),
    st.builds(
        Committed,
        st.just("billing"),
        NUMBERS,
        st.lists(NUMBERS, max_size=2),
    ),
    st.builds(Branches, st.just("billing"), st.lists(st.integers(1, 4), max_size=2), st.integers(0, 4)),
    st.builds(Aborted, st.just("billing"), NUMBERS, st.sampled_from(["", "why"]), NUMBERS),
    st.just(NameForgotten("billing")),
)


def known(producer: TransactionalProducer) -> dict[str, object]:
    names = "producer_id", "epoch", "number", "opened_ms", "resumed", "committed"
    more = "user", "timeout_s", "branches", "is_untouched", "_aborted", "_openings"
    return {name: getattr(producer, name) for name in (*names, *more)}


@given(st.lists(EVENTS))
def test_a_snapshot_restores_whatever_the_events_have_made(events: list[NameEvent]) -> None:
    producer = TransactionalProducer("billing")
    producer.apply(Named("billing", FRESH, 0, FIRST, 1))
    for event in events:
        producer.apply(event)
    assert known(restarted(producer)) == known(producer)


@given(st.lists(EVENTS))
def test_numbers_never_go_back(events: list[NameEvent]) -> None:
    producer = TransactionalProducer("billing")
    for event in events:
        before = producer.number
        producer.apply(event)
        assert producer.number >= before
        if isinstance(event, Committed):
            assert producer.number > event.number
