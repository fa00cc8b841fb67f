"""Filters of Spark that a batch read applies itself: by topic, partition, offset, time and routing key. Pure.

Law: a read leaves out only what a filter would have dropped, and a filter that Spark does not get back holds for every
record that is read.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from linn.core.errors.tree import PredicateInvalid
from linn.core.routing.record_filter import RecordFilter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Row = dict[tuple[str, ...], Any]
"""Values by the paths of their columns."""
_OFFSETS_END = 1 << 63
_ALWAYS_THERE = (("topic",), ("partition",), ("offset",), ("routing_key",))
_TESTS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    In: lambda found, values: found in values,
    StringStartsWith: str.startswith,
}


@dataclass(slots=True)
class PushedFilters:
    """The part of a read that filters leave."""

    where: str | None = None
    """Predicate that the broker applies."""
    offset_min: int = 0
    offset_end: int = _OFFSETS_END
    timestamp_ms_min: int | None = None
    """Reading may start at the first record with this time or a later one."""
    _of_places: list[Filter] = field(default_factory=list)

    def takes(self, topic: str, partition: int) -> bool:
        """Whether filters let records of this partition through."""
        row: _Row = {("topic",): topic, ("partition",): partition}
        return all(_is_true(each, row) for each in self._of_places)

    def push(self, filters: Sequence[Filter]) -> list[Filter]:
        """Take filters over, of which a record must pass each. Return those that Spark has to apply all the same."""
        return [each for each in filters if not self._takes_over(each)]

    def _takes_over(self, one: Filter) -> bool:
        if isinstance(one, IsNotNull):
            return one.attribute in _ALWAYS_THERE
        if _is_of_place(one):
            self._of_places.append(one)
            return True
        attribute, value = getattr(one, "attribute", ()), getattr(one, "value", None)
        if attribute == ("offset",):
            return self._bound_offsets(one, value)
        if attribute == ("timestamp",):
            self._bound_time(one, value)
        elif attribute == ("routing_key",):
            return self._narrow(one, value)
        return False

    def _bound_offsets(self, one: Filter, value: Any) -> bool:
        if not isinstance(value, int):
            return False
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            self.offset_min = max(self.offset_min, value + isinstance(one, GreaterThan))
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            self.offset_end = min(self.offset_end, value + (not isinstance(one, LessThan)))
        return isinstance(one, EqualTo | LessThan | LessThanOrEqual | GreaterThan | GreaterThanOrEqual)

    def _bound_time(self, one: Filter, value: Any) -> None:
        """Start later. Times need not rise with offsets, so that no filter says where to end."""
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual) and isinstance(value, datetime) and value.tzinfo:
            since_ms = (value - _EPOCH) // timedelta(milliseconds=1)
            if since_ms >= 0:
                self.timestamp_ms_min = max(self.timestamp_ms_min or 0, since_ms)

    def _narrow(self, one: Filter, value: Any) -> bool:
        """Have the broker look at the routing key, if the predicate is not too large for it."""
        if isinstance(one, EqualTo | StringStartsWith) and isinstance(value, str):
            test = f"{'=' if isinstance(one, EqualTo) else 'starts_with'} {_literal(value)}"
        elif isinstance(one, In) and all(isinstance(each, str) for each in value):
            test = f"in ({', '.join(map(_literal, value))})"
        else:
            return False
        where = f"routing_key {test}" if self.where is None else f"({self.where}) and routing_key {test}"
        try:
            RecordFilter.parse(where)
        except PredicateInvalid:
            return False
        self.where = where
        return True


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_of_place(one: Filter) -> bool:
    """Whether topic and partition decide a filter."""
    if isinstance(one, Not):
        return _is_of_place(one.child)
    if type(one) not in _TESTS or one.attribute not in (("topic",), ("partition",)):  # type: ignore[attr-defined]
        return False
    value: Any = one.value  # type: ignore[attr-defined]
    return None not in value if isinstance(one, In) else value is not None


def _is_true(one: Filter, row: _Row) -> bool:
    if isinstance(one, Not):
        return not _is_true(one.child, row)
    return bool(_TESTS[type(one)](row[one.attribute], one.value))  # type: ignore[attr-defined]
