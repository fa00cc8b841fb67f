"""The conformance suite of exchanges: `ExchangeConformance`, to subclass.

    class TestByLength(ExchangeConformance):
        @pytest.fixture
        def harness(self) -> ExchangeHarness:
            return ExchangeHarness(
                make=lambda: ByLength("spread", ByLengthSettings()),
                bindings=[Rule("0"), Rule("1")],
                refused=[Rule("2"), Rule("x")],
                matching=[Subject("ab", {}), Subject("abc", {})],
            )

Laws: a test does not know the meaning of keys and arguments; the harness lists subjects that must match, and all other
answers of the exchange are compared with one another.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linn.core.batch.record import LabelValue
from linn.core.errors.tree import BindingInvalid, LinnError
from linn.core.routing.exchange import Binding, Exchange, Subject, Target
from linn.core.routing.explanation import explain

FIELD = re.compile(r"key|size|header:.+", re.DOTALL)
MATCH_S_MAX = 0.5
"""Time limit for one subject of the largest size on the wire; a pattern that backtracks takes hours."""
LONG_KEY_WORDS = 8_192
"""Words, of two bytes each, in a routing key of 16 KiB, the longest in a batch."""

_MANY = settings(
    max_examples=60,
    deadline=None,
    # A harness only makes exchanges, so it can be reused; subclasses share these methods on purpose.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
_LABELS: st.SearchStrategy[LabelValue] = st.one_of(
    st.text(max_size=20), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.booleans()
)
SUBJECTS: st.SearchStrategy[Subject] = st.builds(
    Subject,
    routing_key=st.text(max_size=40) | st.lists(st.sampled_from(["a", "*", "#", ""]), max_size=6).map(".".join),
    labels=st.dictionaries(st.text(max_size=10), _LABELS, max_size=4),
    key=st.none() | st.binary(max_size=20),
    headers=st.dictionaries(st.text(max_size=10), st.binary(max_size=10), max_size=3),
    size=st.integers(0, 1 << 20),
)
"""Arbitrary messages."""


@dataclass(frozen=True)
class Rule:
    """A binding without its target."""

    key: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def to(self, name: str, *, is_exchange: bool = False) -> Binding:
        """Make the binding of this rule to a topic or an exchange."""
        return Binding(Target(name, is_exchange), self.key, self.arguments)


@dataclass(frozen=True)
class ExchangeHarness:
    """An exchange, and bindings for it."""

    make: Callable[[], Exchange]
    """Make a new exchange without bindings."""
    bindings: Sequence[Rule]
    """Different rules that it accepts; at least two, if there are as many."""
    matching: Sequence[Subject]
    """Messages that match at least one of `bindings`, when all are bound."""
    refused: Sequence[Rule] = ()
    """Rules that it refuses."""
    independent: bool = True
    """Whether a binding's matches are independent of other bindings; not so for an exchange that divides messages."""

    def bound(self) -> tuple[Exchange, list[Binding]]:
        """Make an exchange with all bindings, each to a topic of its own; also return the bindings."""
        exchange = self.make()
        made = [rule.to(f"topic-{number}") for number, rule in enumerate(self.bindings)]
        for binding in made:
            exchange.bind(binding)
        return exchange, made


class ExchangeConformance:
    """The promises of `linn.core.routing.exchange`. A subclass gives the fixture `harness`."""

    # --- bindings ----------------------------------------------------------------------------------------------------

    def test_a_new_exchange_is_bound_to_nothing(self, harness: ExchangeHarness) -> None:
        exchange = harness.make()
        assert list(exchange.bindings()) == []
        for subject in harness.matching:
            assert list(exchange.match(subject)) == []

    def test_bindings_are_kept_in_the_order_in_which_they_were_made(self, harness: ExchangeHarness) -> None:
        exchange, made = harness.bound()
        assert list(exchange.bindings()) == made

    def test_a_binding_that_is_made_twice_is_kept_once(self, harness: ExchangeHarness) -> None:
        exchange, made = harness.bound()
        before = [list(exchange.match(subject)) for subject in harness.matching]
        for binding in made:
            exchange.bind(binding)
            exchange.bind(as_stored(binding))
        assert list(exchange.bindings()) == made
        assert [list(exchange.match(subject)) for subject in harness.matching] == before

    def test_unbinding_takes_that_binding_away_and_no_other(self, harness: ExchangeHarness) -> None:
        exchange, made = harness.bound()
        for place, binding in enumerate(made):
            exchange.unbind(as_stored(binding))
            assert list(exchange.bindings()) == made[place + 1 :]
            for subject in harness.matching:
                assert binding not in exchange.match(subject)

    def test_unbinding_a_missing_binding_is_no_error(self, harness: ExchangeHarness) -> None:
        exchange, made = harness.bound()
        exchange.unbind(harness.bindings[0].to("a topic that was never bound"))
        exchange.unbind(harness.bindings[0].to("topic-0", is_exchange=True))
        assert list(exchange.bindings()) == made

    def test_one_rule_may_lead_to_several_targets(self, harness: ExchangeHarness) -> None:
        for rule in harness.bindings:
            exchange = harness.make()
            made = [rule.to("a"), rule.to("b"), rule.to("a", is_exchange=True)]
            for binding in made:
                exchange.bind(binding)
            assert list(exchange.bindings()) == made
            exchange.unbind(made[0])
            assert list(exchange.bindings()) == made[1:]

    def test_a_binding_that_is_refused_changes_nothing(self, harness: ExchangeHarness) -> None:
        exchange, made = harness.bound()
        before = [list(exchange.match(subject)) for subject in harness.matching]
        for rule in harness.refused:
            with pytest.raises(BindingInvalid) as raised:
                exchange.bind(rule.to("refused"))
            assert raised.value.text
            assert raised.value.text.isprintable()
        assert list(exchange.bindings()) == made
        assert [list(exchange.match(subject)) for subject in harness.matching] == before

    def test_an_argument_that_is_unknown_is_refused_by_its_name(self, harness: ExchangeHarness) -> None:
        for rule in harness.bindings:
            exchange = harness.make()
            with pytest.raises(BindingInvalid, match="whre"):
                exchange.bind(Rule(rule.key, {**rule.arguments, "whre": "x"}).to("a"))
            assert list(exchange.bindings()) == []

    def test_exchanges_have_nothing_in_common(self, harness: ExchangeHarness) -> None:
        harness.bound()
        other = harness.make()
        assert list(other.bindings()) == []

    # --- matching ----------------------------------------------------------------------------------------------------

    def test_required_matches_occur(self, harness: ExchangeHarness) -> None:
        exchange, _ = harness.bound()
        assert harness.matching, "the harness says what matches"
        for subject in harness.matching:
            assert exchange.match(subject), f"nothing matches {subject}"

    @_MANY
    @given(subject=SUBJECTS)
    def test_any_message_gets_an_answer_out_of_the_bindings(self, harness: ExchangeHarness, subject: Subject) -> None:
        exchange, made = harness.bound()
        found = list(exchange.match(subject))
        assert found == [binding for binding in made if binding in found], "in order, and each once"

    @_MANY
    @given(subject=SUBJECTS)
    def test_matching_changes_nothing(self, harness: ExchangeHarness, subject: Subject) -> None:
        exchange, made = harness.bound()
        asked = [*harness.matching, subject]
        before = [list(exchange.match(tried)) for tried in asked]
        assert [list(exchange.match(tried)) for tried in reversed(asked)] == before[::-1]
        assert list(exchange.bindings()) == made

    @_MANY
    @given(subject=SUBJECTS)
    def test_a_binding_matches_whatever_others_there_are(self, harness: ExchangeHarness, subject: Subject) -> None:
        if not harness.independent:
            return
        exchange, made = harness.bound()
        for tried in (*harness.matching, subject):
            expected: list[Binding] = []
            for binding in made:
                alone = harness.make()
                alone.bind(binding)
                expected += alone.match(tried)
            assert list(exchange.match(tried)) == expected

    @_MANY
    @given(data=st.data())
    def test_only_the_bindings_count_and_not_how_they_came_about(
        self, harness: ExchangeHarness, data: st.DataObject
    ) -> None:
        exchange = harness.make()
        known = [rule.to(name) for rule in harness.bindings for name in ("a", "b")]
        steps = st.lists(st.tuples(st.booleans(), st.sampled_from(known)), max_size=20)
        for binds, binding in data.draw(steps):
            exchange.bind(binding) if binds else exchange.unbind(binding)
        fresh = harness.make()
        for binding in exchange.bindings():
            fresh.bind(binding)
        assert list(fresh.bindings()) == list(exchange.bindings())
        assert fresh.fields() == exchange.fields()
        for subject in (*harness.matching, data.draw(SUBJECTS)):
            assert list(fresh.match(subject)) == list(exchange.match(subject))

    @_MANY
    @given(subject=SUBJECTS)
    def test_only_the_fields_that_are_named_are_looked_at(self, harness: ExchangeHarness, subject: Subject) -> None:
        exchange, _ = harness.bound()
        fields = exchange.fields()
        assert isinstance(fields, frozenset)
        assert all(FIELD.fullmatch(name) for name in sorted(fields))
        for tried in (*harness.matching, subject):
            assert list(exchange.match(only(tried, fields))) == list(exchange.match(tried))

    @_MANY
    @given(subject=SUBJECTS)
    def test_an_explanation_says_what_matching_does(self, harness: ExchangeHarness, subject: Subject) -> None:
        exchange, made = harness.bound()
        for tried in (*harness.matching, subject):
            matched = exchange.match(tried)
            for binding in made:
                assert (explain(exchange, tried, binding).truth is True) == (binding in matched)

    def test_no_message_takes_long(self, harness: ExchangeHarness) -> None:
        exchange, _ = harness.bound()
        words = [subject.routing_key for subject in harness.matching] or [""]
        for word in [*words, "a", "#", ""]:
            key = ".".join([word] * LONG_KEY_WORDS)[: 2 * LONG_KEY_WORDS]
            started = time.perf_counter()
            with contextlib.suppress(LinnError):  # It may refuse the size.
                exchange.match(Subject(key, {}))
            assert time.perf_counter() - started < MATCH_S_MAX


def as_stored(binding: Binding) -> Binding:
    """Return the binding as a broker restores it after a restart: live bindings are stored as JSON."""
    return Binding(binding.target, binding.key, json.loads(json.dumps(dict(binding.arguments))))


def only(subject: Subject, fields: frozenset[str]) -> Subject:
    """Return the subject that the router passes to an exchange with these fields."""
    headers = {name: value for name, value in subject.headers.items() if f"header:{name}" in fields}
    return Subject(
        subject.routing_key,
        subject.labels,
        subject.key if "key" in fields else None,
        headers,
        subject.size if "size" in fields else 0,
    )
