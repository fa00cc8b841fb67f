"""A graph of exchanges against a model that takes each record by itself and knows no index, cache or batch."""

from __future__ import annotations

from itertools import pairwise

import pytest
from field_exchange import FieldExchange, field_matches
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import BindingInvalid
from linn.core.routing.exchange import Binding, Subject, Target
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.router import Router
from linn.plugins.exchanges import DirectExchange, FanoutExchange, NoSettings, TopicExchange

EXCHANGES = {"d": "direct", "f": "fanout", "t": "topic", "c1": "field", "c2": "field"}
MAKERS = {
    "direct": lambda: DirectExchange("e", NoSettings()),
    "fanout": lambda: FanoutExchange("e", NoSettings()),
    "topic": lambda: TopicExchange("e", NoSettings()),
    "field": FieldExchange,
}
KEYS = ["a", "b", "a.b", "b.a", ""]
RULES = ["key=k1", "key=k2", "size>2", "size>0", "header:h=1", "header:g=2", "label:l=x", "label:l=y"]
PATTERNS = {
    "direct": st.sampled_from(KEYS),
    "fanout": st.just(""),
    "topic": st.sampled_from(["a", "*", "#", "a.#", "#.b", "*.*", "b.*"]),
    "field": st.sampled_from(RULES),
}
NAMES = st.sampled_from(sorted(EXCHANGES))
TARGETS = st.one_of(
    st.sampled_from(["q1", "q2", "q3", "q4"]).map(Target), NAMES.map(lambda name: Target(name, is_exchange=True))
)
RECORDS = st.lists(
    st.builds(
        Record,
        value=st.sampled_from([b"", b"xx", b"xxxx", None]),
        routing_key=st.sampled_from(KEYS),
        key=st.sampled_from([None, b"k1", b"k2"]),
        labels=st.sampled_from([{}, {"l": "x"}, {"l": "y"}, {"l": "x", "m": 1}]),
        headers=st.sampled_from(
            [(), (("h", b"1"),), (("g", b"2"), ("h", b"1")), (("h", b"1"), ("h", b"0")), (("h", b"1"), ("h", None))]
        ),
    ),
    min_size=1,
    max_size=8,
)


def words_match(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return words_match(pattern[1:], words) or (bool(words) and words_match(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and words_match(pattern[1:], words[1:])


def rule_matches(kind: str, key: str, subject: Subject) -> bool:
    if kind == "direct":
        return key == subject.routing_key
    if kind == "topic":
        return words_match(key.split("."), subject.routing_key.split("."))
    return kind == "fanout" or field_matches(key, subject)


def subject_of(record: Record) -> Subject:
    headers = {name: value for name, value in dict(record.headers).items() if value is not None}
    return Subject(record.routing_key, record.labels, record.key, headers, len(record.value or b""))


class RoutingMachine(RuleBasedStateMachine):
    """`rules` and `alternates` are the model: per exchange a list of (target, key), and the alternate's name."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = ExchangeGraph()
        self.rules: dict[str, list[tuple[Target, str]]] = {name: [] for name in EXCHANGES}
        self.alternates: dict[str, str] = {}
        for name, kind in EXCHANGES.items():
            self.graph.routers[name] = Router(name, kind, MAKERS[kind], self.graph)

    def leads_to(self, start: str, end: str) -> bool:
        if start == end:
            return True
        exits = [target.name for target, _ in self.rules[start] if target.is_exchange]
        exits += [self.alternates[start]] if start in self.alternates else []
        return any(self.leads_to(there, end) for there in exits)

    @initialize(pairs=st.lists(st.tuples(NAMES, NAMES), min_size=3, max_size=6))
    def choose_alternates(self, pairs: list[tuple[str, str]]) -> None:
        for name, alternate in pairs:
            closes = self.leads_to(alternate, name)
            if name in self.alternates:
                continue
            if closes:
                with pytest.raises(BindingInvalid, match="circle"):
                    self.graph.check_link(name, alternate)
            else:
                self.graph.check_link(name, alternate)
                self.graph.routers[name].alternate = self.alternates[name] = alternate

    @rule(name=NAMES, leads_to=TARGETS, data=st.data())
    def bind(self, name: str, leads_to: Target, data: st.DataObject) -> None:
        target = leads_to
        key = data.draw(PATTERNS[EXCHANGES[name]])
        binding = Binding(target, key)
        router = self.graph.routers[name]
        if target.is_exchange and self.leads_to(target.name, name):
            for refuses in (router.check, router.bind):
                with pytest.raises(BindingInvalid, match=f"circle: {name} -> {target.name}"):
                    refuses(binding)
            return
        router.check(binding)
        router.bind(binding)
        if (target, key) not in self.rules[name]:
            self.rules[name].append((target, key))

    @rule(name=NAMES, data=st.data())
    def unbind(self, name: str, data: st.DataObject) -> None:
        if self.rules[name]:
            target, key = data.draw(st.sampled_from(self.rules[name]))
            self.rules[name].remove((target, key))
            self.graph.routers[name].unbind(Binding(target, key))

    def expected(self, start: str, record: Record) -> set[str]:
        """The topics of one record."""
        subject, topics, seen, waiting = subject_of(record), set(), set(), [start]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            matched = [target for target, key in self.rules[name] if rule_matches(EXCHANGES[name], key, subject)]
            if not matched and name in self.alternates:
                waiting.append(self.alternates[name])
            topics |= {target.name for target in matched if not target.is_exchange}
            waiting += [target.name for target in matched if target.is_exchange]
        return topics

    @rule(name=NAMES, records=RECORDS, again=st.booleans())
    def route(self, name: str, records: list[Record], again: bool) -> None:
        batch = build_from_records(records, base_id=1)
        router = self.graph.routers[name]
        for _ in range(1 + again):
            self.compare(router, batch, [self.expected(name, record) for record in records])

    def compare(self, router: Router, batch: RecordBatch, expected: list[set[str]]) -> None:
        whole = batch.records()
        parts = router.route(batch)
        assert len({topic for topic, _ in parts}) == len(parts), "each topic once"
        got = {topic: part.records() for topic, part in parts}
        for topic in {"q1", "q2", "q3", "q4"}:
            wanted = [whole[n] for n, topics in enumerate(expected) if topic in topics]
            assert got.get(topic, []) == wanted, "each topic gets its records, in their order"
        ranges = router.unroutable(batch)
        lost = [index for first, end in zip(ranges[::2], ranges[1::2], strict=True) for index in range(first, end)]
        assert lost == [index for index, topics in enumerate(expected) if not topics]
        assert all(before < after for before, after in pairwise(ranges)), "ascending, and never adjoining"

    @invariant()
    def bindings_are_in_the_order_made(self) -> None:
        for name, rules in self.rules.items():
            assert [(each.target, each.key) for each in self.graph.routers[name].bindings()] == rules


RoutingMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRouting = RoutingMachine.TestCase
