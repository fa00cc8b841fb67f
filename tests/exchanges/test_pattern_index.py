"""Patterns in blocks: as many as there are, whichever come and go, the answer is that of reading each pattern aloud."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exchanges import KEYS, WORDS, matches

from linn.core.batch.steps import run_steps
from linn.core.routing.exchange import Binding, MatchesInSteps, Subject, Target
from linn.plugins import pattern_index
from linn.plugins.exchanges import KEY_WORDS_MAX, PATTERN_WORDS_MAX, NoSettings, TopicExchange
from linn.plugins.pattern_index import PatternIndex

CHANGES = st.lists(st.tuples(st.booleans(), WORDS), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(changes=CHANGES, keys=st.lists(KEYS, min_size=1, max_size=5))
def test_patterns_that_come_and_go_in_many_small_blocks_match_as_if_alone(
    changes: list[tuple[bool, str]], keys: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_index, "BLOCK_BITS", 16)
        index, there = PatternIndex(), dict[int, str]()
        for number, (comes, pattern) in enumerate(changes):
            if comes or not there:
                index.add(number, pattern)
                there[number] = pattern
            else:
                gone = sorted(there)[number % len(there)]
                index.remove(gone, there.pop(gone))
        for key in keys:
            expected = [n for n, pattern in there.items() if matches(pattern.split("."), key.split("."))]
            assert sorted(run_steps(index.matching(key))) == expected
        for number, pattern in there.items():
            index.remove(number, pattern)
        assert index.is_empty()


def test_bits_of_removed_patterns_are_reused() -> None:
    index = PatternIndex()
    for number in range(20_000):
        index.add(number, f"*.{number}")
        if number >= 10:
            index.remove(number - 10, f"*.{number - 10}")
    (beginning,) = index._beginnings.values()
    assert len(beginning.blocks) <= 2


def hostile() -> TopicExchange:
    """2,000 bindings of as many words as there may be, all of which follow a key of the same word to its end."""
    exchange = TopicExchange("e", NoSettings())
    for number in range(2_000):
        words = ["#", "a"] * (PATTERN_WORDS_MAX // 2 - 1)
        exchange.bind(Binding(Target("t"), ".".join([*words, "*", f"b{number}"])))
        exchange.bind(Binding(Target("u"), ".".join([f"{number:011b}".replace("0", "*.").replace("1", "a."), "#"])))
    return exchange


LONG_KEY = ".".join(["a"] * (KEY_WORDS_MAX - 1) + ["b7"])


def test_one_key_against_many_bindings_takes_many_short_steps() -> None:
    exchange = hostile()
    assert isinstance(exchange, MatchesInSteps)
    steps = 0
    shown: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        plain = pattern_index._Block.matching

        def counted(block: pattern_index._Block, words: list[str]) -> list[int]:
            shown[-1] += len(words)
            return plain(block, words)

        patch.setattr(pattern_index._Block, "matching", counted)
        work = exchange.match_in_steps(Subject(LONG_KEY, {}))
        while True:
            shown.append(0)
            try:
                next(work)
            except StopIteration as end:
                found = end.value
                break
            steps += 1
    assert {binding.key.rpartition(".")[2] for binding in found} >= {"b7"}
    assert steps > 5
    assert max(shown) < pattern_index.WORDS_A_STEP + KEY_WORDS_MAX


def test_bindings_may_go_while_a_key_is_matched() -> None:
    exchange = hostile()
    work = exchange.match_in_steps(Subject(LONG_KEY, {}))
    next(work)
    for binding in list(exchange.bindings())[::2]:
        exchange.unbind(binding)
    left = {binding.key for binding in exchange.bindings()}
    assert {binding.key for binding in run_steps(work)} <= left
    found = {binding.key for binding in exchange.match(Subject(LONG_KEY, {}))}
    assert found == {binding.key for binding in hostile().match(Subject(LONG_KEY, {}))} & left
