"""The consistent-hash exchange: one target for each value, pinned; shares by weight; little moves when they change."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stopwatch import at_most

from linn.core.errors.tree import BindingInvalid
from linn.core.routing.exchange import Binding, Subject, Target
from linn.plugins import consistent_hash_exchange as module
from linn.plugins.consistent_hash_exchange import (
    POINTS_MAX,
    ConsistentHashExchange,
    ConsistentHashSettings,
    hash_of,
    points_of,
)

VALUES = [f"customer-{number}" for number in range(10_000)]


def ring(*bindings: tuple[str, str], hash_on: str = "routing_key") -> ConsistentHashExchange:
    exchange = ConsistentHashExchange("e", ConsistentHashSettings(hash_on))
    for topic, key in bindings:
        exchange.bind(Binding(Target(topic), key))
    return exchange


def placed(exchange: ConsistentHashExchange) -> list[str]:
    return [exchange.match(Subject(value, {}))[0].target.name for value in VALUES]


def equal(count: int, weight: str = "10") -> ConsistentHashExchange:
    return ring(*((f"t{number}", weight) for number in range(count)))


# --- placement is API ------------------------------------------------------------------------------------------------

VECTORS = {
    "": "orders.1",
    "a": "orders.2",
    "b": "orders.2",
    "customer-1": "orders.2",
    "customer-2": "orders.2",
    "größe": "orders.0",
    "\U0001f600": "orders.2",
}


def test_placement_never_changes() -> None:
    exchange = ring(("orders.0", "1"), ("orders.1", "1"), ("orders.2", "2"))
    assert {value: exchange.match(Subject(value, {}))[0].target.name for value in VECTORS} == VECTORS


def test_hashes_and_points_never_change() -> None:
    assert [hash_of(value) for value in ("", "a", b"a", 1, "größe")] == [
        13020603013274838756,
        3405396810240292928,
        3405396810240292928,
        8518482412311870710,
        16832822397561338100,
    ]
    assert points_of(Target("orders.0"), 0, 3) == [18228718437748771820, 16983880608382928245, 7129801823753564535]
    assert points_of(Target("orders.0", is_exchange=True), 0, 1) == [17540370694832531676]


def test_a_field_that_is_absent_counts_as_empty_and_equal_numbers_as_one() -> None:
    assert hash_of(None) == hash_of("") == hash_of(b"")
    assert hash_of(1) == hash_of(1.0) == hash_of("1")
    assert hash_of(True) == hash_of("true")
    assert hash_of(1.5) != hash_of(1)


# --- shares ----------------------------------------------------------------------------------------------------------


def test_each_value_has_one_target_and_always_the_same() -> None:
    exchange = equal(5)
    assert placed(exchange) == placed(exchange)
    assert all(len(exchange.match(Subject(value, {}))) == 1 for value in VALUES[:100])
    assert ring().match(Subject("a", {})) == ()


def test_shares_are_even_and_follow_the_weights() -> None:
    counts = Counter(placed(equal(10)))
    assert len(counts) == 10
    assert all(850 < count < 1_150 for count in counts.values())
    weighted = Counter(placed(ring(("one", "10"), ("two", "20"), ("three", "30"))))
    assert [round(weighted[name] / 1_000) for name in ("one", "two", "three")] == [2, 3, 5]


@pytest.mark.parametrize("count", [2, 5, 10])
def test_a_new_target_takes_its_share_and_moves_nothing_else(count: int) -> None:
    before, exchange = placed(equal(count)), equal(count)
    exchange.match(Subject("a", {}))
    exchange.bind(Binding(Target("new"), "10"))
    after = placed(exchange)
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {"new"}
    assert 0.8 / (count + 1) < len(moved) / len(VALUES) < 1.2 / (count + 1)
    exchange.unbind(Binding(Target("new"), "10"))
    assert placed(exchange) == before


def test_a_removed_targets_share_is_spread_over_all_others() -> None:
    before, exchange = placed(equal(5)), equal(5)
    exchange.unbind(Binding(Target("t2"), "10"))
    after = placed(exchange)
    assert {old for old, new in zip(before, after, strict=True) if old != new} == {"t2"}
    assert {new for old, new in zip(before, after, strict=True) if old == "t2"} == {"t0", "t1", "t3", "t4"}


@settings(max_examples=40, deadline=None)
@given(st.permutations([("a", "1"), ("b", "2"), ("c", ""), ("b", "1")]))
def test_the_order_of_binding_does_not_count(bindings: list[tuple[str, str]]) -> None:
    one, other = ring(*bindings), ring(("a", "1"), ("b", "3"), ("c", "1"))
    for value in VALUES[:200]:
        assert one.match(Subject(value, {}))[0].target == other.match(Subject(value, {}))[0].target


# --- what is hashed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hash_on", "asked", "change"),
    [
        ("routing_key", None, {"routing_key": "other"}),
        ("label.customer", None, {"labels": {"customer": "other"}}),
        ("key", "key", {"key": b"other"}),
        ('header["customer id"]', "header:customer id", {"headers": {"customer id": b"other"}}),
    ],
)
def test_the_setting_says_what_is_hashed(hash_on: str, asked: str | None, change: dict[str, object]) -> None:
    exchange = ring(*((f"t{number}", "1") for number in range(50)), hash_on=hash_on)
    assert exchange.fields() == frozenset([asked] if asked else [])
    subject = Subject("r", {"customer": "c"}, b"k", {"customer id": b"h"}, 5)
    others = subject._replace(
        **{name: value for name, value in OTHERS.items() if name not in change}  # type: ignore[arg-type]
    )
    assert exchange.match(subject) == exchange.match(others), "nothing else counts"
    assert exchange.match(subject) != exchange.match(subject._replace(**change))  # type: ignore[arg-type]


OTHERS: dict[str, object] = {
    "routing_key": "x",
    "labels": {"customer": "x"},
    "key": b"x",
    "headers": {"customer id": b"x"},
    "size": 6,
}


def test_a_setting_that_is_no_field_is_refused() -> None:
    with pytest.raises(ValueError, match='hash_on: column 1: unknown field "colour"'):
        ConsistentHashSettings("colour")
    with pytest.raises(msgspec.ValidationError, match="hash_on"):
        msgspec.convert({"hash_on": "label"}, ConsistentHashSettings)


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["0", "-1", "1001", "1.5", "ten", "१", "9" * 5_000, " 1"])
def test_a_weight_is_a_whole_number_from_1_to_1000(key: str) -> None:
    exchange = ring(("t", "1000"), ("u", ""))
    with pytest.raises(BindingInvalid, match="from 1 to 1000") as caught:
        exchange.bind(Binding(Target("v"), key))
    assert caught.value.key == "key"
    assert len(str(caught.value)) < 200
    assert len(exchange.bindings()) == 2


def test_the_ring_is_bounded_and_keeps_shares_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POINTS_MAX", 1_000)
    exchange = ring(("a", "10"), ("b", "10"), ("c", "20"), *((f"t{number}", "1") for number in range(20)))
    counts = Counter(placed(exchange))
    assert len(exchange._points) <= 1_000
    assert 2_500 < counts["c"] < 4_200
    assert counts["a"] > counts["t1"]


@pytest.mark.measured
def test_ten_thousand_heavy_targets_are_laid_out_in_a_bounded_time_and_place() -> None:
    exchange = ring(*((f"t{number}", "1000") for number in range(10_000)))
    with at_most(cpu_s=5):
        assert len(exchange.match(Subject("a", {}))) == 1
    assert len(exchange._points) <= POINTS_MAX


def test_an_explanation_names_the_hashs_target() -> None:
    exchange = ring(("t", "1"), ("u", "1"), hash_on="label.customer")
    subject = Subject("", {"customer": "c"})
    (chosen,) = exchange.match(subject)
    for binding in exchange.bindings():
        explanation = exchange.explain(subject, binding)
        assert explanation.truth is (binding == chosen)
        assert explanation.because == f'label.customer is "c", whose hash leads to {chosen.target.name}'
    assert "there is no label.customer" in exchange.explain(Subject("", {}), chosen).because
