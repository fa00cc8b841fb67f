"""Why the built-in exchanges match or not: what they say agrees with what they do, and names the word that parts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core.routing.default_exchange import DefaultExchange
from linn.core.routing.exchange import Binding, Exchange, Subject, Target
from linn.core.routing.explanation import Explanation, explain
from linn.plugins.exchanges import DirectExchange, FanoutExchange, NoSettings, TopicExchange, explain_pattern

PATTERNS = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), min_size=1, max_size=6).map(".".join)
KEYS = st.lists(st.sampled_from(["a", "b", "c", "", "*", "#"]), min_size=1, max_size=6).map(".".join)


@settings(max_examples=600, deadline=None)
@given(PATTERNS, KEYS)
def test_a_pattern_is_explained_as_it_is_matched(pattern: str, key: str) -> None:
    exchange = TopicExchange("e", NoSettings())
    exchange.bind(Binding(Target("t"), pattern))
    explained = explain_pattern(pattern, key)
    assert explained.truth is bool(exchange.match(Subject(key, {})))
    assert [part.text for part in explained.parts] == pattern.split(".")
    if explained.truth:
        # What the words stand for is the key again.
        taken = [part.because[4:-1] for part in explained.parts if part.because != "is nothing"]
        assert ".".join(taken) == key
        assert explained.nearness() == 1
    else:
        assert explained.because
        assert explained.nearness() < 1


@pytest.mark.parametrize(
    ("pattern", "key", "because"),
    [
        ("departed.*.late", "departed.jfk.late", '* is "jfk"'),
        ("departed.#", "departed", "# is nothing"),
        ("a.b", "a.b", "word for word"),
        ("departed.*.late", "departed.jfk.early", '"early" is not "late"'),
        ("departed.*.late", "departed.jfk", 'the key ends before "late"'),
        ("departed.*", "departed.jfk.late.again", 'the pattern ends before "late.again"'),
        ("#.cargo", "departed.jfk", 'none of the remaining words is "cargo"'),
        ("a", "", '"" is not "a"'),
    ],
)
def test_a_patterns_explanation_names_the_first_difference(pattern: str, key: str, because: str) -> None:
    assert explain_pattern(pattern, key).because == because


def test_long_keys_and_patterns_are_explained_in_a_bounded_time() -> None:
    assert explain_pattern(".".join(["#", "a"] * 32), ".".join(["a"] * 2_000 + ["b"])).truth is False
    assert explain_pattern(".".join(["#", "a"] * 32), ".".join(["a"] * 2_000)).truth is True


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=3), st.sampled_from(["a", "b", ""]))
def test_every_built_in_exchange_explains_what_it_does(keys: list[str], routing_key: str) -> None:
    subject = Subject(routing_key, {})
    exchanges: list[Exchange] = [kind("e", NoSettings()) for kind in (DirectExchange, FanoutExchange, TopicExchange)]
    for exchange in exchanges:
        for number, key in enumerate(keys):
            exchange.bind(Binding(Target(f"t{number}"), key))
        for binding in exchange.bindings():
            assert explain(exchange, subject, binding).truth is (binding in exchange.match(subject))


def test_the_default_exchange_explains_itself() -> None:
    exchange = DefaultExchange(["t"])
    (binding,) = exchange.match(Subject("t", {}))
    assert explain(exchange, Subject("t", {}), binding).truth is True
    assert explain(exchange, Subject("u", {}), binding).truth is False


class Silent:
    """An exchange of a plugin that knows nothing of explanations."""

    def __init__(self, answer: list[Binding]) -> None:
        self._answer = answer

    def bind(self, binding: Binding) -> None: ...

    def unbind(self, binding: Binding) -> None: ...

    def bindings(self) -> list[Binding]:
        return self._answer

    def fields(self) -> frozenset[str]:
        return frozenset()

    def match(self, subject: Subject) -> list[Binding]:
        return self._answer


def test_an_exchange_that_does_not_explain_itself_is_still_asked() -> None:
    mine, other = Binding(Target("t"), "k"), Binding(Target("u"), "k")
    assert explain(Silent([mine]), Subject("x", {}), mine) == Explanation(
        "key 'k'", True, "this type of exchange does not say why"
    )
    assert explain(Silent([mine]), Subject("x", {}), other).truth is False


def test_the_nearest_miss_has_the_most_of_it_true() -> None:
    near, nearer = explain_pattern("a.b.c", "a.x.c"), explain_pattern("a.b.c", "a.b.x")
    far = explain_pattern("a.b.c", "x")
    assert far.nearness() < near.nearness() < nearer.nearness() < 1
