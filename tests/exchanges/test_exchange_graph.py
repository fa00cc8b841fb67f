"""Paths between exchanges: cycles are refused by name, and long paths use no stack."""

from __future__ import annotations

import pytest
from field_exchange import FieldExchange

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import BindingInvalid, TopicError
from linn.core.routing.exchange import Binding, Exchange, Subject, Target
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.router import Router
from linn.plugins.exchanges import DirectExchange, FanoutExchange, NoSettings


def graph_of(*names: str) -> ExchangeGraph:
    graph = ExchangeGraph()
    for name in names:
        graph.routers[name] = Router(name, "fanout", lambda: FanoutExchange("e", NoSettings()), graph)
    return graph


def link(graph: ExchangeGraph, source: str, target: str) -> None:
    graph.routers[source].bind(Binding(Target(target, is_exchange=True)))


def topics_of(router: Router, record: Record) -> list[str]:
    return [topic for topic, _ in router.route(build_from_records([record], base_id=1))]


def test_an_exchange_is_not_bound_to_itself() -> None:
    graph = graph_of("a")
    with pytest.raises(BindingInvalid, match=r"circle: a -> a \["):
        link(graph, "a", "a")
    assert graph.routers["a"].bindings() == []


def test_a_cycle_is_named_by_the_link_that_closes_it() -> None:
    graph = graph_of("a", "b", "c", "d")
    link(graph, "a", "b")
    graph.routers["b"].alternate = "c"
    link(graph, "c", "d")
    with pytest.raises(BindingInvalid, match=r"circle: d -> a -> \.\.\. -> d \["):
        link(graph, "d", "a")
    link(graph, "a", "d")


def test_removed_bindings_close_no_cycle() -> None:
    graph = graph_of("a", "b")
    link(graph, "a", "b")
    graph.routers["a"].unbind(Binding(Target("b", is_exchange=True)))
    link(graph, "b", "a")
    with pytest.raises(BindingInvalid):
        link(graph, "a", "b")


def test_a_path_of_a_thousand_exchanges_is_followed_and_its_cycle_named_in_a_line() -> None:
    names = [f"e{number:04}" for number in range(1_000)]
    graph = graph_of(*names)
    for source, target in zip(reversed(names[:-1]), reversed(names[1:]), strict=True):
        link(graph, source, target)
    graph.routers[names[-1]].bind(Binding(Target("q")))
    assert topics_of(graph.routers[names[0]], Record()) == ["q"]
    with pytest.raises(BindingInvalid) as refused:
        link(graph, names[-1], names[0])
    assert len(refused.value.text) < 200
    assert refused.value.text.endswith("-> ... -> e0999")


def test_a_change_at_a_distant_exchange_takes_effect_at_once() -> None:
    graph = graph_of("a", "b", "c")
    link(graph, "a", "b")
    link(graph, "b", "c")
    assert topics_of(graph.routers["a"], Record()) == []
    graph.routers["c"].bind(Binding(Target("q")))
    assert topics_of(graph.routers["a"], Record()) == ["q"]
    graph.routers["c"].unbind(Binding(Target("q")))
    assert topics_of(graph.routers["a"], Record()) == []


def test_an_alternate_exchange_is_used_only_if_nothing_matches() -> None:
    graph = graph_of("late")
    graph.routers["late"].bind(Binding(Target("rest")))
    direct = Router("first", "direct", lambda: DirectExchange("e", NoSettings()), graph, "late")
    direct.bind(Binding(Target("q"), "k"))
    assert topics_of(direct, Record(routing_key="k")) == ["q"]
    assert topics_of(direct, Record(routing_key="other")) == ["rest"]


def test_a_binding_to_a_dead_end_counts_as_a_match_as_in_rabbitmq() -> None:
    graph = graph_of("empty", "late")
    graph.routers["late"].bind(Binding(Target("rest")))
    first = graph.routers["first"] = Router("first", "fanout", lambda: FanoutExchange("e", NoSettings()), graph, "late")
    link(graph, "first", "empty")
    assert topics_of(first, Record()) == []


def test_an_exchange_sees_only_the_fields_that_it_requested() -> None:
    shown: list[Subject] = []

    class Curious(FanoutExchange):
        def match(self, subject: Subject) -> list[Binding]:
            shown.append(subject)
            return list(super().match(subject))

    graph = ExchangeGraph()
    makes: dict[str, Exchange] = {"curious": Curious("e", NoSettings()), "field": FieldExchange()}
    for name, exchange in makes.items():
        graph.routers[name] = Router(name, name, lambda exchange=exchange: exchange, graph)  # type: ignore[misc]
    link(graph, "curious", "field")
    graph.routers["field"].bind(Binding(Target("q"), "key=k"))
    records = [Record(value=b"xyz", key=key, headers=(("h", b"1"),)) for key in (b"k", b"l", b"k")]
    parts = graph.routers["curious"].route(build_from_records(records, base_id=1))
    assert [(topic, part.count) for topic, part in parts] == [("q", 2)]
    assert shown == [Subject("", {})] * 2, "once for each key"


@pytest.mark.parametrize("fields", [{"value"}, {"header"}, "key", [7], None])
def test_fields_that_are_none_fail_the_publish_with_the_exchanges_name(fields: object) -> None:
    class Wrong(FanoutExchange):
        def fields(self) -> frozenset[str]:
            return fields  # type: ignore[return-value]

    router = Router("e", "wrong", lambda: Wrong("e", NoSettings()))
    with pytest.raises(TopicError, match=r"exchange e \(wrong\) failed"):
        topics_of(router, Record())
