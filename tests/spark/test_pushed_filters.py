"""Filters that a batch read takes over: what passes is read, and Spark gets back what is not applied."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_session import needs_spark

from linn.core.routing.exchange import Subject
from linn.core.routing.predicate.predicate import Predicate

needs_spark()

from pyspark.sql import datasource as ds  # noqa: E402

from linn.spark_plugin.source.pushed_filters import PushedFilters  # noqa: E402


class Row(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    routing_key: str


def time(second: int) -> datetime:
    return datetime(2026, 11, 26, tzinfo=UTC) + timedelta(seconds=second)


PLACES = [*product(("flights", "mails"), range(3))]
KEYS = ("", "from.1", "from.2", 'a "quoted" \\ key', "two\nlines", "\x00", "ünïcode")
ROWS = [
    Row(topic, partition, offset, time((offset * 7 + partition) % 10), KEYS[(offset + partition) % len(KEYS)])
    for topic, partition in PLACES
    for offset in range(20)
]
"""Times do not rise with offsets."""

PASSES: dict[type[Any], Callable[[Any, Any], bool]] = {
    ds.EqualTo: lambda found, value: bool(found == value),
    ds.LessThan: lambda found, value: bool(found < value),
    ds.LessThanOrEqual: lambda found, value: bool(found <= value),
    ds.GreaterThan: lambda found, value: bool(found > value),
    ds.GreaterThanOrEqual: lambda found, value: bool(found >= value),
    ds.In: lambda found, value: found in value,
    ds.StringStartsWith: lambda found, value: str(found).startswith(value),
    ds.StringEndsWith: lambda found, value: str(found).endswith(value),
}
COMPARED = [ds.EqualTo, ds.LessThan, ds.LessThanOrEqual, ds.GreaterThan, ds.GreaterThanOrEqual]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["flights", "mails", "no topic", ""]),
    "partition": st.integers(-1, 4),
    "offset": st.integers(-1, 21),
    "timestamp": st.builds(time, st.integers(-1, 11)),
    "routing_key": st.sampled_from([*KEYS, "from", "other"]),
}


@st.composite
def some_filter(draw: st.DrawFn) -> ds.Filter:
    name = draw(st.sampled_from([*VALUES]))
    values, path = VALUES[name], (name,)
    texts = [ds.StringStartsWith, ds.StringEndsWith] if name in ("topic", "routing_key") else []
    kind = draw(st.sampled_from([*COMPARED, ds.In, ds.IsNotNull, *texts]))
    if kind is ds.IsNotNull:
        return ds.IsNotNull(path)
    value = tuple(draw(st.lists(values, min_size=1, max_size=3))) if kind is ds.In else draw(values)
    made: ds.Filter = kind(path, value)
    return ds.Not(made) if draw(st.booleans()) else made


def passes(one: ds.Filter, row: Row) -> bool:
    if isinstance(one, ds.Not):
        return not passes(one.child, row)
    if isinstance(one, ds.IsNotNull):
        return True
    found: Any = one
    return PASSES[type(one)](getattr(row, found.attribute[0]), found.value)


def read(filters: PushedFilters) -> list[Row]:
    """The rows that a read has, as planning and the broker apply filters."""
    where = Predicate.parse(filters.where) if filters.where is not None else None
    since_ms = filters.timestamp_ms_min
    found = []
    for place in PLACES:
        rows = [row for row in ROWS if row[:2] == place]
        times_ms = [int(row.timestamp.timestamp() * 1000) for row in rows]
        start = next((at for at, ms in enumerate(times_ms) if since_ms is None or ms >= since_ms), len(rows))
        start, end = max(start, filters.offset_min), filters.offset_end
        if filters.takes(*place):
            found += [row for row in rows if start <= row.offset < end]
    return [row for row in found if where is None or where.matches(Subject(row.routing_key, {}))]


@given(st.lists(some_filter(), max_size=4))
def test_what_passes_all_filters_is_what_spark_leaves_of_the_read(given: list[ds.Filter]) -> None:
    filters = PushedFilters()
    rest = filters.push(given)
    assert all(any(each is one for one in given) for each in rest)
    left = [row for row in read(filters) if all(passes(each, row) for each in rest)]
    assert left == [row for row in ROWS if all(passes(each, row) for each in given)]


@pytest.mark.parametrize(
    "one",
    [
        ds.EqualTo(("topic",), "mails"),
        ds.Not(ds.In(("partition",), (0, 2))),
        ds.GreaterThan(("offset",), 17),
        ds.EqualTo(("offset",), 3),
        ds.StringStartsWith(("routing_key",), "from."),
        ds.In(("routing_key",), ("from.1", "")),
    ],
)
def test_the_read_itself_applies(one: ds.Filter) -> None:
    filters = PushedFilters()
    assert filters.push([one]) == []
    assert read(filters) == [row for row in ROWS if passes(one, row)] != ROWS


def test_a_time_says_where_to_start_and_spark_looks_at_each_record() -> None:
    filters, one = PushedFilters(), ds.GreaterThanOrEqual(("timestamp",), time(7))
    assert filters.push([one]) == [one]
    assert len(read(filters)) < len(ROWS)


@pytest.mark.parametrize(
    "one",
    [
        ds.EqualTo(("value",), b"x"),
        ds.IsNotNull(("value",)),
        ds.IsNull(("offset",)),
        ds.EqualTo(("labels", "late"), True),
        ds.EqualTo(("topic",), None),
        ds.In(("partition",), (1, None)),
        ds.LessThan(("timestamp",), time(5)),
        ds.GreaterThan(("timestamp",), datetime(1969, 1, 1, tzinfo=UTC)),
        ds.GreaterThan(("timestamp",), datetime(2026, 11, 26)),
        ds.StringStartsWith(("routing_key",), "x" * 100_000),
        ds.Not(ds.EqualTo(("routing_key",), "x")),
    ],
)
def test_spark_gets_back(one: ds.Filter) -> None:
    filters = PushedFilters()
    assert filters.push([one]) == [one]
    assert filters == PushedFilters()


def test_a_predicate_of_the_option_holds_besides() -> None:
    filters = PushedFilters("label.a = 1 or label.b = 2")
    assert filters.push([ds.EqualTo(("routing_key",), "x")]) == []
    assert filters.where == '(label.a = 1 or label.b = 2) and routing_key = "x"'
