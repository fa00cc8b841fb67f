"""From a batch to topics: bytes that pass untouched, slices with the right records, and answers that are remembered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.core import router as router_module
from linn.core.batch import RecordBatch
from linn.core.batch_builder import build_from_records
from linn.core.errors import TopicError
from linn.core.exchange import Binding
from linn.core.record import Record
from linn.core.router import Router
from linn.core.routes import Pair
from linn.plugins.exchanges import NoSettings, TopicExchange


def topic_router(*bindings: tuple[str, str]) -> Router:
    router = Router("e", "topic", lambda: TopicExchange("e", NoSettings()))
    for topic, key in bindings:
        router.bind(Binding(topic, key))
    return router


def keyed(*keys: str, **properties: object) -> RecordBatch:
    made = [Record(value=b"%d" % n, routing_key=key, **properties) for n, key in enumerate(keys)]  # type: ignore[arg-type]
    return build_from_records(made, base_id=7)


class Counting:
    """An exchange that counts what it is asked, and answers with the values of a label."""

    def __init__(self) -> None:
        self.asked: list[Pair] = []
        self.error: Exception | None = None
        self.answer: Sequence[str] | None = None

    def bind(self, binding: Binding) -> None:
        pass

    unbind = bind

    def bindings(self) -> Sequence[Binding]:
        return []

    def route(self, pair: Pair) -> Sequence[str]:
        self.asked.append(pair)
        if self.error is not None:
            raise self.error
        return self.answer if self.answer is not None else [f"{type(v).__name__}-{v}" for _, v in pair.labels]


def counting() -> tuple[Router, Counting]:
    exchange = Counting()
    return Router("e", "counting", lambda: exchange), exchange


def test_a_batch_with_one_destination_passes_as_it_is() -> None:
    router = topic_router(("t", "#"), ("u", "x"))
    batch = keyed("a", "b", "a.b")
    before = bytes(batch.message)
    ((topic, routed),) = router.route(batch)
    assert (topic, routed) == ("t", batch)
    assert bytes(routed.message) == before


def test_a_batch_without_destination_goes_nowhere() -> None:
    assert topic_router(("t", "x")).route(keyed("a", "b")) == []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "a.b", "b.a", ""]), min_size=1, max_size=12))
def test_each_topic_gets_the_records_that_match_in_their_order(keys: list[str]) -> None:
    bindings = [("all", "#"), ("a", "a.#"), ("one", "*"), ("b", "#.b")]
    router = topic_router(*bindings)
    got = {topic: part.records() for topic, part in router.route(keyed(*keys))}
    expected: dict[str, list[bytes]] = {}
    for topic, pattern in bindings:
        alone = topic_router((topic, pattern))
        for number, key in enumerate(keys):
            if alone.route(keyed(key)):
                expected.setdefault(topic, []).append(b"%d" % number)
    assert {topic: [record.value for record in records] for topic, records in got.items()} == expected
    whole = keyed(*keys).records()
    for records in got.values():
        for record in records:
            assert record == whole[int(record.value or b"")], "with all its properties, the id included"


def test_a_pair_is_asked_about_once() -> None:
    router, exchange = counting()
    for _ in range(5):
        router.route(keyed("a", "b", "a", "b", labels={"x": 1}))
    assert len(exchange.asked) == 2


def test_labels_of_equal_value_and_other_type_are_other_labels() -> None:
    router, _ = counting()
    for value, topic in ((1, "int-1"), (True, "bool-True"), (1.0, "float-1.0"), ("1", "str-1")):
        assert [name for name, _ in router.route(keyed("a", labels={"x": value}))] == [topic]


def test_a_change_of_bindings_counts_at_once() -> None:
    router = topic_router(("t", "a"))
    assert [topic for topic, _ in router.route(keyed("a"))] == ["t"]
    router.bind(Binding("u", "a"))
    assert [topic for topic, _ in router.route(keyed("a"))] == ["t", "u"]
    router.unbind(Binding("t", "a"))
    assert [topic for topic, _ in router.route(keyed("a"))] == ["u"]
    router.unbind_topic("u")
    assert router.route(keyed("a")) == []


def test_a_refused_binding_changes_nothing() -> None:
    router = topic_router(("t", "a"))
    with pytest.raises(TopicError):
        router.check(Binding("u", ".".join("a" * 100)))
    with pytest.raises(TopicError):
        router.bind(Binding("u", ".".join("a" * 100)))
    router.check(Binding("u", "a"))
    assert router.bindings() == [Binding("t", "a")]


@pytest.mark.parametrize("answer", [RuntimeError("broken"), ["t", 5], "t", None, [None]])
def test_an_exchange_that_misbehaves_fails_that_publish_by_name(answer: object) -> None:
    router, exchange = counting()
    if isinstance(answer, Exception):
        exchange.error = answer
    elif answer is None:
        exchange.route = lambda pair: None  # type: ignore[assignment, return-value, method-assign]
    else:
        exchange.answer = answer  # type: ignore[assignment]
    with pytest.raises(TopicError, match=r"exchange e \(counting\) failed"):
        router.route(keyed("a"))
    exchange.error, exchange.answer = None, ["t"]
    exchange.__dict__.pop("route", None)
    assert [topic for topic, _ in router.route(keyed("a"))] == ["t"], "the failure is not remembered"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "CACHED_PAIRS_MAX", 50)
    monkeypatch.setattr(router_module, "CACHED_BATCHES_MAX", 20)
    router, exchange = counting()
    for number in range(300):
        router.route(keyed(f"k{number}"))
    assert len(router._by_pair) <= 50
    assert len(router._by_routes) <= 20
    asked = len(exchange.asked)
    large = keyed("k", labels={"x": "v" * 3000, "y": "v" * 3000})
    for _ in range(3):
        router.route(large)
    assert len(exchange.asked) == asked + 3, "what is too large is not kept"
