"""linn's own exchanges keep the promises that anybody's must."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from linn.core.routing.exchange import Binding, Subject
from linn.plugins.consistent_hash_exchange import ConsistentHashExchange, ConsistentHashSettings
from linn.plugins.content_exchange import ContentExchange, ContentSettings
from linn.plugins.exchanges import DirectExchange, FanoutExchange, KeyedExchange, NoSettings, TopicExchange
from linn.plugins.headers_exchange import HeadersExchange, HeadersSettings
from linn.testing.exchanges import ExchangeConformance, ExchangeHarness, Rule


class TestDirect(ExchangeConformance):
    @pytest.fixture
    def harness(self) -> ExchangeHarness:
        return ExchangeHarness(
            make=lambda: DirectExchange("e", NoSettings()),
            bindings=[Rule("a.b"), Rule(""), Rule("#")],
            matching=[Subject("a.b", {}), Subject("", {"x": 1}), Subject("#", {})],
        )


class TestFanout(ExchangeConformance):
    @pytest.fixture
    def harness(self) -> ExchangeHarness:
        return ExchangeHarness(
            make=lambda: FanoutExchange("e", NoSettings()),
            bindings=[Rule(""), Rule("ignored")],
            matching=[Subject("anything", {}), Subject("", {})],
        )


class TestTopic(ExchangeConformance):
    @pytest.fixture
    def harness(self) -> ExchangeHarness:
        return ExchangeHarness(
            make=lambda: TopicExchange("e", NoSettings()),
            bindings=[Rule("a.*"), Rule("#.b"), Rule("#.*.#.*"), Rule("a.b")],
            matching=[Subject("a.b", {}), Subject("b", {}), Subject("x.y.z", {})],
            refused=[Rule(".".join("a" * 65))],
        )


class TestContent(ExchangeConformance):
    @pytest.fixture
    def harness(self) -> ExchangeHarness:
        predicates = ['label.region = "eu" and size > 10', 'header.kind = "a" or key exists', "routing_key = 'k'"]
        return ExchangeHarness(
            make=lambda: ContentExchange("e", ContentSettings()),
            bindings=[Rule(arguments={"when": text}) for text in predicates],
            matching=[
                Subject("", {"region": "eu"}, size=11),
                Subject("", {}, headers={"kind": b"a"}),
                Subject("", {}, key=b"k"),
                Subject("k", {}),
            ],
            refused=[Rule(), Rule("key"), Rule(arguments={"when": "label."}), Rule(arguments={"when": 7})],
        )


class TestHeaders(ExchangeConformance):
    @pytest.fixture
    def harness(self) -> ExchangeHarness:
        return ExchangeHarness(
            make=lambda: HeadersExchange("e", HeadersSettings()),
            bindings=[
                Rule(arguments={"labels": {"format": "pdf", "pages": 3}}),
                Rule(arguments={"match": "any", "headers": {"type": "a"}, "exists": ["label.urgent"]}),
            ],
            matching=[
                Subject("", {"format": "pdf", "pages": 3}),
                Subject("", {"urgent": False}),
                Subject("", {}, headers={"type": b"a"}),
            ],
            refused=[Rule("key"), Rule(arguments={"match": "some"}), Rule(arguments={"labels": {"x-a": 1}})],
        )


class TestConsistentHash(ExchangeConformance):
    @pytest.fixture
    def harness(self) -> ExchangeHarness:
        return ExchangeHarness(
            make=lambda: ConsistentHashExchange("e", ConsistentHashSettings("header.customer")),
            bindings=[Rule("1"), Rule("3")],
            matching=[Subject("", {}), Subject("", {}, headers={"customer": b"a"}), Subject("x", {})],
            refused=[Rule("0"), Rule("many"), Rule("100000")],
            independent=False,
        )


# --- the suite notices what is broken --------------------------------------------------------------------------------


class Newest(FanoutExchange):
    """Matches the binding that was made last, whatever the message."""

    def match(self, subject: Subject) -> Sequence[Binding]:
        return self.bindings()[-1:]


class Counting(FanoutExchange):
    """Matches every other time."""

    turn = 0

    def match(self, subject: Subject) -> Sequence[Binding]:
        self.turn += 1
        return super().match(subject) if self.turn % 2 else ()


class Peeping(FanoutExchange):
    """Looks at a field that it does not name."""

    def match(self, subject: Subject) -> Sequence[Binding]:
        return super().match(subject) if subject.size < 1_000 else ()


class Backwards(FanoutExchange):
    def match(self, subject: Subject) -> Sequence[Binding]:
        return super().match(subject)[::-1]


class Fragile(FanoutExchange):
    def match(self, subject: Subject) -> Sequence[Binding]:
        return [binding for binding in self.bindings() if float(subject.labels.get("n", 0)) >= 0]


class Careless(DirectExchange):
    """Keeps what it refuses."""

    def bind(self, binding: Binding) -> None:
        self._table.add(binding)
        super().bind(binding)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Newest, "test_a_binding_matches_whatever_others_there_are"),
        (Counting, "test_matching_changes_nothing"),
        (Peeping, "test_only_the_fields_that_are_named_are_looked_at"),
        (Backwards, "test_any_message_gets_an_answer_out_of_the_bindings"),
        (Fragile, "test_required_matches_occur"),
        (Careless, "test_an_argument_that_is_unknown_is_refused_by_its_name"),
    ],
)
def test_a_broken_exchange_is_noticed(broken: type[KeyedExchange], promise: str) -> None:
    harness = ExchangeHarness(
        make=lambda: broken("e", NoSettings()),
        bindings=[Rule("a"), Rule("b")],
        matching=[Subject("a", {}, size=2_000), Subject("b", {"n": "x"})],
    )
    with pytest.raises((AssertionError, ValueError)):
        getattr(ExchangeConformance(), promise)(harness)
