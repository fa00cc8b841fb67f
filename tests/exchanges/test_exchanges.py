"""The built-in exchanges against what they promise, and against a slow reading of the topic exchange's rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stopwatch import at_most

from linn.core.errors.tree import BindingInvalid, LimitExceeded
from linn.core.routing.exchange import Binding, Subject, Target
from linn.plugins.exchanges import KEY_WORDS_MAX, DirectExchange, FanoutExchange, NoSettings, TopicExchange


def matches(pattern: list[str], words: list[str]) -> bool:
    """AMQP's rules, read aloud."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return matches(pattern[1:], words) or (bool(words) and matches(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


def _route(exchange, key: str) -> list[str]:  # type: ignore[no-untyped-def]
    return list(dict.fromkeys(binding.target.name for binding in exchange.match(Subject(key, {}))))


WORDS = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), min_size=1, max_size=5).map(".".join)
KEYS = st.lists(st.sampled_from(["a", "b", "c", "", "*", "#"]), min_size=1, max_size=6).map(".".join)


@settings(max_examples=400, deadline=None)
@given(patterns=st.lists(WORDS, min_size=1, max_size=5), keys=st.lists(KEYS, min_size=1, max_size=5))
def test_a_topic_exchange_matches_as_amqp_says(patterns: list[str], keys: list[str]) -> None:
    exchange = TopicExchange("e", NoSettings())
    for number, pattern in enumerate(patterns):
        exchange.bind(Binding(Target(f"t{number}"), pattern))
    for key in keys:
        expected = {f"t{n}" for n, pattern in enumerate(patterns) if matches(pattern.split("."), key.split("."))}
        got = _route(exchange, key)
        assert set(got) == expected
        assert len(got) == len(expected)


@settings(max_examples=100, deadline=None)
@given(patterns=st.lists(WORDS, min_size=2, max_size=6, unique=True), key=KEYS)
def test_removed_bindings_match_no_more_and_the_others_as_before(patterns: list[str], key: str) -> None:
    exchange, fresh = TopicExchange("e", NoSettings()), TopicExchange("e", NoSettings())
    for pattern in patterns:
        exchange.bind(Binding(Target("t" + pattern), pattern))
        exchange.bind(Binding(Target("t" + pattern), pattern))
    exchange.unbind(Binding(Target("t" + patterns[0]), patterns[0]))
    exchange.unbind(Binding(Target("never"), "x"))
    for pattern in patterns[1:]:
        fresh.bind(Binding(Target("t" + pattern), pattern))
    assert exchange.bindings() == fresh.bindings()
    assert set(_route(exchange, key)) == set(_route(fresh, key))


@pytest.mark.measured
def test_no_pattern_makes_matching_slow() -> None:
    exchange = TopicExchange("e", NoSettings())
    for number in range(10):
        exchange.bind(Binding(Target(f"t{number}"), ".".join(["#", "a"] * 31 + [f"b{number}"])))
    exchange.bind(Binding(Target("stars"), ".".join(["*", "#"] * 32)))
    key = ".".join(["a"] * (KEY_WORDS_MAX - 1))
    with at_most(cpu_s=2):
        assert _route(exchange, key) == ["stars"]
    assert _route(exchange, key + ".b3") == ["stars", "t3"] or _route(exchange, key + ".b3") == ["t3", "stars"]


def test_a_pattern_has_a_bounded_number_of_words() -> None:
    exchange = TopicExchange("e", NoSettings())
    exchange.bind(Binding(Target("t"), ".".join(["a"] * 64)))
    with pytest.raises(BindingInvalid):
        exchange.bind(Binding(Target("t"), ".".join(["a"] * 65)))
    assert len(exchange.bindings()) == 1


def test_a_direct_exchange_matches_the_whole_key_only() -> None:
    exchange = DirectExchange("e", NoSettings())
    for topic, key in (("t", "a.b"), ("u", "a.b"), ("v", "a"), ("w", ""), ("x", "#")):
        exchange.bind(Binding(Target(topic), key))
    assert {key: _route(exchange, key) for key in ("a.b", "a", "", "#", "b")} == {
        "a.b": ["t", "u"],
        "a": ["v"],
        "": ["w"],
        "#": ["x"],
        "b": [],
    }


def test_a_fanout_exchange_matches_everything_once() -> None:
    exchange = FanoutExchange("e", NoSettings())
    for topic, key in (("t", "a"), ("u", ""), ("t", "b")):
        exchange.bind(Binding(Target(topic), key))
    assert _route(exchange, "whatever") == ["t", "u"]
    exchange.unbind(Binding(Target("t"), "a"))
    assert set(_route(exchange, "whatever")) == {"t", "u"}
    exchange.unbind(Binding(Target("t"), "b"))
    assert _route(exchange, "whatever") == ["u"]


def test_the_limit_on_the_words_of_a_routing_key_holds_exactly() -> None:
    exchange = TopicExchange("e", NoSettings())
    exchange.bind(Binding(Target("t"), "#"))
    assert _route(exchange, ".".join(["a"] * KEY_WORDS_MAX)) == ["t"]
    with pytest.raises(LimitExceeded, match="129 words, more than 128"):
        _route(exchange, ".".join(["a"] * (KEY_WORDS_MAX + 1)))
