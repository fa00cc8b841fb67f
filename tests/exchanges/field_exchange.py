"""An exchange for tests whose bindings look into messages: `key`, `size` and headers."""

from __future__ import annotations

from collections.abc import Sequence

from linn.core.errors.tree import BindingInvalid
from linn.core.routing.binding_table import BindingTable
from linn.core.routing.exchange import Binding, Subject


def field_matches(rule: str, subject: Subject) -> bool:
    """Rules: "key=K", "size>N", "header:NAME=V", and "label:NAME=V" for what needs no body."""
    if rule.startswith("size>"):
        return subject.size > int(rule[5:])
    name, _, value = rule.partition("=")
    if name == "key":
        return subject.key == value.encode()
    if name.startswith("header:"):
        return subject.headers.get(name[7:]) == value.encode()
    return subject.labels.get(name[6:]) == value


def field_of(rule: str) -> set[str]:
    """The `fields` that a rule needs."""
    name = rule.replace(">", "=").partition("=")[0]
    return set() if name.startswith("label:") else {name}


class FieldExchange:
    """Goes through all its bindings; its bindings' keys are rules."""

    def __init__(self) -> None:
        self._table = BindingTable()
        self.asked: list[Subject] = []

    def bind(self, binding: Binding) -> None:
        if "=" not in binding.key and not binding.key.startswith("size>"):
            raise BindingInvalid(f"{binding.key!r} is no rule")
        self._table.add(binding)

    def unbind(self, binding: Binding) -> None:
        self._table.remove(binding)

    def bindings(self) -> Sequence[Binding]:
        return self._table.all()

    def fields(self) -> frozenset[str]:
        return frozenset().union(*[field_of(binding.key) for binding in self._table.all()])

    def match(self, subject: Subject) -> Sequence[Binding]:
        self.asked.append(subject)
        return [binding for binding in self._table.all() if field_matches(binding.key, subject)]
