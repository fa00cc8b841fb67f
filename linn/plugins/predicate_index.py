"""An index of predicates: finds the predicates that are true for a message without evaluating all.

A predicate that requires one of several (field, value) pairs is stored under each of them, and evaluated only if a
message has one. Predicates that require no pair are evaluated for every message.

Law: the result is the same as evaluating every predicate.
"""

from __future__ import annotations

from collections.abc import Iterator

from linn.api import FieldValue, Predicate, Steps, Subject, SubjectField

Numbered = dict[int, Predicate]
"""Predicates by the number of their bindings."""
Values = dict[object, Numbered]

PREDICATES_A_STEP = 64
"""Predicates evaluated in one step: 0.1 ms, or 2 ms if each is as large as allowed."""

_LABEL, _HEADER = "label", "header"


class PredicateIndex:
    """Predicates by number. Adding and removing take constant time."""

    def __init__(self) -> None:
        self._labels: dict[str, Values] = {}
        self._headers: dict[str, Values] = {}
        self._others: dict[str, Values] = {}
        """Predicates by required value of key, routing_key or size."""
        self._everywhere: Numbered = {}
        """Predicates that require no pair."""
        self._asks: dict[str, int] = {}
        self._fields: frozenset[str] = frozenset()

    def add(self, number: int, predicate: Predicate) -> None:
        """Add a predicate under an unused number."""
        demands = predicate.demands()
        if demands is None:
            self._everywhere[number] = predicate
        for field, value in demands or ():
            values = self._table(field).setdefault(field.name or field.kind, {})
            values.setdefault(_place(field.as_read(value)), {})[number] = predicate
        self._count(predicate, 1)

    def remove(self, number: int, predicate: Predicate) -> None:
        """Remove a predicate by its number."""
        self._everywhere.pop(number, None)
        for field, value in predicate.demands() or ():
            table, name, place = self._table(field), field.name or field.kind, _place(field.as_read(value))
            values = table.get(name, {})
            numbered = values.get(place, {})
            numbered.pop(number, None)
            if not numbered:
                values.pop(place, None)
            if not values:
                table.pop(name, None)
        self._count(predicate, -1)

    def fields(self) -> frozenset[str]:
        """The fields that the predicates read beyond routing key and labels."""
        return self._fields

    def matching(self, subject: Subject) -> Steps[list[int]]:
        """The numbers of the matching predicates; a predicate under several pairs may be repeated.

        Predicates may be added or removed between the steps.
        """
        found: list[int] = []
        asked = 0
        for numbered in [self._everywhere, *self._reached(subject)]:
            if asked + len(numbered) <= PREDICATES_A_STEP:
                found += [number for number, predicate in numbered.items() if predicate.matches(subject)]
                asked += len(numbered)
                continue
            those = tuple(numbered.items())
            for first in range(0, len(those), PREDICATES_A_STEP):
                yield
                some = those[first : first + PREDICATES_A_STEP]
                found += [number for number, predicate in some if predicate.matches(subject)]
            asked = PREDICATES_A_STEP
        return found

    def _reached(self, subject: Subject) -> Iterator[Numbered]:
        """The predicates under each pair that the message has."""
        if self._labels:
            for name, value in subject.labels.items():
                values = self._labels.get(name)
                if values is not None and (numbered := values.get(_place(value))) is not None:
                    yield numbered
        if self._headers:
            for name, content in subject.headers.items():
                values = self._headers.get(name)
                if values is not None and (numbered := values.get(content)) is not None:
                    yield numbered
        for name, values in self._others.items():
            numbered = values.get(getattr(subject, name))
            if numbered is not None:
                yield numbered

    def _table(self, field: SubjectField) -> dict[str, Values]:
        if field.kind == _LABEL:
            return self._labels
        return self._headers if field.kind == _HEADER else self._others

    def _count(self, predicate: Predicate, change: int) -> None:
        asked = predicate.fields()
        if not asked:
            return
        for name in sorted(asked):
            self._asks[name] = self._asks.get(name, 0) + change
            if not self._asks[name]:
                del self._asks[name]
        self._fields = frozenset(self._asks)


def _place(value: FieldValue) -> object:
    """The dict key of a value: in Python True equals 1, but not in a predicate."""
    return (value,) if type(value) is bool else value
