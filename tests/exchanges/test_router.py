"""The way of a batch to topics: bytes that pass untouched, slices with the right records, and cached answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from field_exchange import FieldExchange
from hypothesis import given, settings
from hypothesis import strategies as st
from stopwatch import at_most

from linn.core.batch.batch import Codec, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.batch.steps import Steps, run_steps
from linn.core.errors.tree import LimitExceeded, TopicError
from linn.core.routing import budget as publish_budget
from linn.core.routing import routed_batch
from linn.core.routing import router as router_module
from linn.core.routing.budget import PublishBudget
from linn.core.routing.exchange import Binding, Subject, Target
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.router import ROUTING_S_MAX, Router
from linn.plugins.exchanges import DirectExchange, NoSettings, TopicExchange


def topic_router(*bindings: tuple[str, str]) -> Router:
    router = Router("e", "topic", lambda: TopicExchange("e", NoSettings()))
    for topic, key in bindings:
        router.bind(Binding(Target(topic), key))
    return router


def keyed(*keys: str, **properties: object) -> RecordBatch:
    made = [Record(value=b"%d" % n, routing_key=key, **properties) for n, key in enumerate(keys)]  # type: ignore[arg-type]
    return build_from_records(made, base_id=7)


class Counting:
    """An exchange that counts what it is asked, and answers with the values of a label."""

    def __init__(self) -> None:
        self.asked: list[Subject] = []
        self.error: Exception | None = None
        self.answer: Sequence[object] | None = None

    def bind(self, binding: Binding) -> None:
        pass

    unbind = bind

    def bindings(self) -> Sequence[Binding]:
        return []

    def fields(self) -> frozenset[str]:
        return frozenset()

    def match(self, subject: Subject) -> Sequence[Binding]:
        self.asked.append(subject)
        if self.error is not None:
            raise self.error
        if self.answer is not None:
            return self.answer  # type: ignore[return-value]
        return [Binding(Target(f"{type(v).__name__}-{v}")) for v in subject.labels.values()]


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


def test_a_batch_without_destination_is_stored_nowhere() -> None:
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


def test_an_exchange_is_asked_about_a_pair_once() -> None:
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
    router.bind(Binding(Target("u"), "a"))
    assert [topic for topic, _ in router.route(keyed("a"))] == ["t", "u"]
    router.unbind(Binding(Target("t"), "a"))
    assert [topic for topic, _ in router.route(keyed("a"))] == ["u"]
    router.unbind(Binding(Target("u"), "a"))
    assert router.route(keyed("a")) == []


def test_a_refused_binding_changes_nothing() -> None:
    router = topic_router(("t", "a"))
    with pytest.raises(TopicError):
        router.check(Binding(Target("u"), ".".join("a" * 100)))
    with pytest.raises(TopicError):
        router.bind(Binding(Target("u"), ".".join("a" * 100)))
    router.check(Binding(Target("u"), "a"))
    assert router.bindings() == [Binding(Target("t"), "a")]


@pytest.mark.parametrize("answer", [RuntimeError("broken"), [Binding(Target("t")), 5], "t", None, [None]])
def test_an_exchange_that_misbehaves_fails_that_publish_by_name(answer: object) -> None:
    router, exchange = counting()
    if isinstance(answer, Exception):
        exchange.error = answer
    elif answer is None:
        exchange.match = lambda subject: None  # type: ignore[assignment, return-value, method-assign]
    else:
        exchange.answer = answer  # type: ignore[assignment]
    with pytest.raises(TopicError, match=r"exchange e \(counting\) failed"):
        router.route(keyed("a"))
    exchange.error, exchange.answer = None, [Binding(Target("t"))]
    exchange.__dict__.pop("match", None)
    assert [topic for topic, _ in router.route(keyed("a"))] == ["t"], "the failure is not remembered"


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "CACHED_PAIRS_MAX", 50)
    monkeypatch.setattr(router_module, "CACHED_BATCHES_MAX", 20)
    monkeypatch.setattr(router_module, "CACHED_LARGE_CHARACTERS_MAX", 5_000)
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


def field_router(*rules: str) -> tuple[Router, FieldExchange]:
    exchange = FieldExchange()
    router = Router("e", "field", lambda: exchange)
    for number, each in enumerate(rules):
        router.bind(Binding(Target(f"q{number}"), each))
    return router, exchange


def test_an_exchange_is_asked_once_per_distinct_tuple_of_the_fields_its_bindings_read() -> None:
    router, exchange = field_router("key=a", "header:h=1")
    records = [
        Record(value=b"%d" % n, key=key, headers=(("h", header), ("other", b"%d" % n)))
        for n, (key, header) in enumerate([(b"a", b"1"), (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (None, None)] * 20)
    ]
    for _ in range(2):
        got = {topic: part.count for topic, part in router.route(build_from_records(records, base_id=1))}
        assert got == {"q0": 60, "q1": 60}
    assert len(exchange.asked) == 4
    assert exchange.asked[0] == Subject("", {}, b"a", {"h": b"1"}, 0)
    router.unbind(Binding(Target("q0"), "key=a"))
    router.route(build_from_records(records, base_id=1))
    assert [subject.key for subject in exchange.asked[4:]] == [None] * 3, "nobody looks at the key any more"


def test_bindings_that_look_at_labels_only_leave_the_body_closed() -> None:
    router, exchange = field_router("label:l=x")
    records = [Record(value=b"%d" % n, key=b"%d" % n, labels={"l": "x"}) for n in range(10)]
    batch = build_from_records(records, base_id=1, codec=Codec.ZSTD)
    assert [part for _, part in router.route(batch)] == [batch]
    assert len(exchange.asked) == 1
    assert batch._body is None


def test_the_cache_of_contents_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "CACHED_PAIRS_MAX", 50)
    router, exchange = field_router("key=a")
    for number in range(10):
        router.route(build_from_records([Record(key=b"%d-%d" % (number, n)) for n in range(30)], base_id=1))
    assert len(router._by_pair) <= 50
    large = build_from_records([Record(key=bytes(2_000))], base_id=1)
    asked = len(exchange.asked)
    for _ in range(3):
        router.route(large)
    assert len(exchange.asked) == asked + 3, "what is too large is not kept"


def test_topics_that_take_the_same_records_share_one_new_batch() -> None:
    router = topic_router(*[(f"t{number}", "a") for number in range(10_000)], ("u", "b"))
    batch = keyed("a", "b", "a")
    parts = dict(router.route(batch))
    assert len(parts) == 10_001
    assert len({id(part) for part in parts.values()}) == 2
    assert [record.value for record in parts["t77"].records()] == [b"0", b"2"]


def test_unroutable_records_are_named_in_ranges() -> None:
    router = topic_router(("t", "a"))
    for keys, ranges in (("a", []), ("b", [0, 1]), ("bab", [0, 1, 2, 3]), ("aabbba", [2, 5]), ("bbb", [0, 3])):
        assert run_steps(router.route_steps(keyed(*keys), PublishBudget())).unroutable() == ranges


@pytest.mark.measured
@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_ten_thousand_bindings_come_and_go_without_being_looked_through(kind: str) -> None:
    exchange = DirectExchange("e", NoSettings()) if kind == "direct" else TopicExchange("e", NoSettings())
    router = Router("e", kind, lambda: exchange)
    bindings = [Binding(Target(f"t{n % 100}"), f"departed.{n}.late") for n in range(10_000)]
    batch = keyed("departed.7.late")
    with at_most(cpu_s=10):  # Looking through all would take minutes.
        for binding in bindings:
            router.bind(binding)
            router.route(batch)
        for binding in bindings:
            router.unbind(binding)
            router.route(batch)
    assert router.bindings() == []
    if isinstance(exchange, TopicExchange):
        assert exchange._index.is_empty(), "nothing is left of them"


class Endless(Counting):
    """An exchange that takes ten milliseconds for each of its steps, and never comes to an end."""

    now_s = 0.0

    def match_in_steps(self, subject: Subject) -> Steps[Sequence[Binding]]:
        while True:
            self.now_s += 0.01
            yield


def test_one_key_that_takes_too_long_is_refused_without_delay_for_others() -> None:
    exchange = Endless()
    router = Router("e", "endless", lambda: exchange, ExchangeGraph(lambda: exchange.now_s))
    steps = router.route_steps(keyed("a"), PublishBudget())
    with pytest.raises(LimitExceeded, match="more than 2 s"):
        run_steps(steps)
    assert exchange.now_s == pytest.approx(ROUTING_S_MAX, abs=0.02)


def test_an_answer_that_bindings_overtook_is_not_remembered() -> None:
    router = topic_router(*[(f"t{number}", f"*.{number}.#.{number}.#") for number in range(20_000)])
    batch = keyed(".".join(["a"] + ["19999"] * 100))
    steps = router.route_steps(batch, PublishBudget())
    next(steps)
    router.unbind(Binding(Target("t19999"), "*.19999.#.19999.#"))
    assert run_steps(steps).unroutable() == [0, 1]
    router.bind(Binding(Target("t19999"), "*.19999.#.19999.#"))
    assert [topic for topic, _ in router.route(batch)] == ["t19999"]


def test_equal_answers_are_kept_once_and_large_ones_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    router = topic_router(*[(f"t{number}", "#") for number in range(1_000)], *[(f"u{n}", f"k{n}") for n in range(300)])
    batch = keyed(*[f"k{number}" for number in range(300)], *[f"other{number}" for number in range(300)])
    assert len(dict(router.route(batch))) == 1_300
    assert len({id(answer) for answer in router._by_pair.values()}) == 301
    monkeypatch.setattr(router_module, "CACHED_NAMES_MAX", 10_000)
    for number in range(300):
        router.route(keyed(f"k{number}", "more"))
    assert router._known_names <= 11_002
    assert sum(map(len, router._known)) == router._known_names


# --- bounds -----------------------------------------------------------------------------------------------------------


class Slow(Counting):
    """An exchange that takes a second for each answer."""

    now = 0.0

    def match(self, subject: Subject) -> Sequence[Binding]:
        Slow.now += 1.0
        return super().match(subject)


def slow_router() -> tuple[Router, Slow]:
    Slow.now = 0.0
    exchange = Slow()
    return Router("e", "slow", lambda: exchange, ExchangeGraph(lambda: Slow.now)), exchange


def test_a_batch_that_takes_too_long_to_route_is_refused_and_what_was_found_is_kept() -> None:
    router, exchange = slow_router()
    batch = keyed("a", "b", "c", "d", "e")
    with pytest.raises(LimitExceeded, match=r"exchange e .* more than 2 s"):
        router.route(batch)
    assert router.route(batch) == []
    assert len(exchange.asked) == 5


def test_a_batch_may_be_routed_step_by_step() -> None:
    router, exchange = slow_router()
    exchange.answer = [Binding(Target("t"))]
    batch = keyed("a", "b")
    assert len(list(router.route_steps(batch, PublishBudget()))) == 1, "the answer comes with the second pair"
    asked = len(exchange.asked)
    routed = run_steps(router.route_steps(batch, PublishBudget()))
    assert run_steps(routed.part_steps(PublishBudget())) == [("t", batch)]
    assert router.route(batch) == [("t", batch)]
    assert len(exchange.asked) == asked


def test_large_pairs_are_kept_for_the_next_batch_as_well_within_a_bound() -> None:
    router, exchange = slow_router()
    Slow.now = -1e9
    batch = keyed(*[f"{number:04}" * 1_000 for number in range(500)])
    router._graph.monotonic = lambda: 0.0
    list(router.route_steps(batch, PublishBudget()))
    router.route(batch)
    assert len(exchange.asked) == 500
    for turn in range(3):
        router.route(keyed(*[f"{turn}{number:04}" * 800 for number in range(500)]))
        assert router.remembered_characters <= router_module.CACHED_LARGE_CHARACTERS_MAX


# --- in steps ---------------------------------------------------------------------------------------------------------


def in_steps(router: Router, batch: RecordBatch) -> dict[str, list[bytes | None]]:
    budget = PublishBudget()
    parts = run_steps(run_steps(router.route_steps(batch, budget)).part_steps(budget))
    return {topic: [record.value for record in part.records()] for topic, part in parts}


@pytest.mark.parametrize("sorted_max", [0, 1_000_000])
def test_a_large_batch_is_taken_apart_in_steps_as_it_would_be_at_once(
    sorted_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed_batch, "SORTED_AT_ONCE_MAX", sorted_max)
    router = topic_router(("a", "a.#"), ("ab", "a"), ("ab", "b"), ("bc", "b"), ("bc", "c"), ("all", "#"))
    keys = [("a", "b", "c", "a.x", "d")[(n * n) % 5] for n in range(5_000)]
    expected = {
        topic: [b"%d" % n for n, key in enumerate(keys) if key in those]
        for topic, those in {"a": {"a", "a.x"}, "ab": {"a", "b"}, "bc": {"b", "c"}, "all": set(keys)}.items()
    }
    assert in_steps(router, keyed(*keys)) == expected
    assert {topic: [r.value for r in part.records()] for topic, part in router.route(keyed(*keys))} == expected


def test_contents_are_routed_in_steps_once_each_and_split_by_answer() -> None:
    router, exchange = field_router("key=k1", "key=k2", "header:h=1")
    records = [
        Record(value=b"%d" % n, key=b"k%d" % (n % 3), headers=(("h", b"1"),) if n % 2 else ()) for n in range(5_000)
    ]
    batch = build_from_records(records, base_id=1)
    found = in_steps(router, batch)
    assert found["q0"] == [b"%d" % n for n in range(5_000) if n % 3 == 1]
    assert found["q1"] == [b"%d" % n for n in range(5_000) if n % 3 == 2]
    assert found["q2"] == [b"%d" % n for n in range(5_000) if n % 2]
    assert len(exchange.asked) == 6


def test_a_binding_that_looks_at_something_else_in_the_middle_counts_for_all_records() -> None:
    router, exchange = field_router("key=a")
    batch = build_from_records(
        [Record(value=b"%d" % n, key=b"a", headers=(("h", b"1"),)) for n in range(10)], base_id=1
    )
    steps = router.route_steps(batch, PublishBudget())
    next(steps)
    router.bind(Binding(Target("new"), "header:h=1"))
    routed = run_steps(steps)
    assert [topic for topic, _ in run_steps(routed.part_steps(PublishBudget()))] == ["q0", "new"]
    exchange.asked.clear()
    router.unbind(Binding(Target("q0"), "key=a"))
    assert [topic for topic, _ in router.route(batch)] == ["new"], "no answer to other questions is remembered"


def test_copies_of_a_batch_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    router = topic_router(*[(f"t{n}", f"k{key}") for n in range(12) for key in (n % 4, (n + 1 + n // 4) % 4)])
    batch = keyed(*[f"k{n % 4}" for n in range(100)])
    monkeypatch.setattr(publish_budget, "RECORD_STEPS_MAX", 300)
    monkeypatch.setattr(routed_batch, "take_steps", None)
    with pytest.raises(LimitExceeded, match="look at and copy more than 300 records"):
        router.route(batch)
    whole = topic_router(*[(f"t{n}", "#") for n in range(1_000)])
    assert len(whole.route(batch)) == 1_000, "what goes there as a whole costs nothing of it"


def test_the_memory_of_a_batchs_parts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    router = topic_router(("t0", "k0"), ("t1", "k1"))
    monkeypatch.setattr(publish_budget, "PARTS_BYTES_MAX", 4_000)
    router.route(keyed(*["k0", "k1"] * 20))
    with pytest.raises(LimitExceeded, match="batches of more than 4000 bytes"):
        router.route(keyed(*["k0", "k1"] * 200))
