"""Topics that join a name's transactions: what the log has of them, and what the next coordinator knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_transactional_producer import FRESH, abort, add_branch, opened, restarted

from linn.core.errors.tree import LimitExceeded
from linn.core.transactions import producer as producer_module
from linn.core.transactions.producer import TopicKey, TransactionalProducer, Unmarked

A, B = 1, 2
BILLS, LINES = TopicKey("bills", "0" * 32), TopicKey("lines", "1" * 32)


def join(producer: TransactionalProducer, branch: int, topic: TopicKey) -> None:
    joined = producer.joining(branch, topic)
    if joined is not None:
        producer.apply(joined)


def with_branches() -> TransactionalProducer:
    producer = opened()
    add_branch(producer, A)
    add_branch(producer, B)
    return producer


def test_a_producer_joins_in_a_topic_once_in_each_transaction() -> None:
    producer = with_branches()
    join(producer, A, BILLS)
    assert producer.joining(A, BILLS) is None
    assert producer.joining(B, BILLS) is not None
    assert producer.joining(A, LINES) is not None
    abort(producer)
    producer.ended()
    assert producer.joining(A, BILLS) is not None, "the next transaction has joined nowhere"


def test_a_commit_is_unmarked_where_its_producers_have_joined_and_counts_the_named_ones() -> None:
    producer = with_branches()
    for branch, topic in ((A, BILLS), (B, BILLS), (B, LINES), (FRESH, LINES)):
        join(producer, branch, topic)
    producer.end(producer.decided([A]))
    producer.ended()
    left = {BILLS: {A: None, B: None}, LINES: {B: None, FRESH: None}}
    assert producer.unmarked == Unmarked(producer.number - 1, True, frozenset((A, FRESH)), left)
    assert restarted(producer).unmarked == producer.unmarked


def test_an_abort_is_unmarked_and_counts_nothing() -> None:
    producer = with_branches()
    join(producer, A, BILLS)
    abort(producer, "it was open for too long")
    producer.ended()
    assert producer.unmarked == Unmarked(producer.number - 1, False, frozenset(), {BILLS: {A: None}})
    assert restarted(producer).unmarked == producer.unmarked


def test_a_transaction_that_has_joined_nowhere_leaves_nothing_to_mark() -> None:
    producer = with_branches()
    join(producer, A, BILLS)
    abort(producer)
    producer.ended()
    producer.unmarked = None  # It is marked.
    abort(producer)
    producer.ended()
    assert producer.unmarked is None
    assert restarted(producer).unmarked is None


def test_a_producer_that_has_joined_makes_no_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "BRANCHES_MAX", 2)
    producer = with_branches()
    join(producer, A, BILLS)
    assert producer.adding(3).dropped == B
    join(producer, B, LINES)
    with pytest.raises(LimitExceeded):
        producer.adding(3)


def test_joins_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "PLACES_MAX", 2)
    producer = with_branches()
    join(producer, A, BILLS)
    join(producer, A, LINES)
    assert producer.joining(A, LINES) is None
    with pytest.raises(LimitExceeded):
        producer.joining(B, BILLS)


STEPS = st.lists(st.sampled_from(["join A", "join B", "ack", "commit A", "commit", "abort", "take over", "marked"]))


@given(STEPS)
def test_the_next_coordinator_knows_what_the_log_says(steps: list[str]) -> None:
    producer = with_branches()
    for step in steps:
        match step.split():
            case ["join", branch]:
                join(producer, A if branch == "A" else B, BILLS if branch == "A" else LINES)
            case ["ack"]:
                join(producer, FRESH, LINES)
            case ["marked"]:
                producer.unmarked = None
            case ["take", "over"] if producer.unmarked is None and not producer.joined:
                opened(before=producer)
            case ["commit", *branches] if producer.unmarked is None:
                producer.end(producer.decided([A] if branches else [A, B]))
                producer.ended()
            case ["abort"] if producer.unmarked is None:
                abort(producer)
                producer.ended()
        again = restarted(producer)
        assert (again.unmarked, again.joined) == (producer.unmarked, producer.joined)
        assert (again.number, again.committed, again.branches) == (
            producer.number,
            producer.committed,
            producer.branches,
        )
