"""Consistency checks between exchanges: every name refers to an existing exchange, and there are no cycles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from linn.core.config.problem import Problems
from linn.core.config.tables import ExchangeTable
from linn.core.config.toml_source import Path
from linn.core.config.topic_checks import must_exist
from linn.core.errors.tree import BindingInvalid
from linn.core.routing.graph import circle_text, way_between


def check_links(tables: Mapping[str, ExchangeTable], known: Collection[str], problems: Problems) -> None:
    """Add an error for each alternate or binding that names no exchange, or that closes a cycle.

    `known` are the names of all exchanges, including those with invalid settings.
    """
    exits: dict[str, list[str]] = {}
    for source, target, path in _links(tables):
        must_exist(source, known, "exchange", path, problems)
        must_exist(target, known, "exchange", path, problems)
        way = way_between(target, source, lambda name: exits.get(name, ()))
        if way is not None:
            problems.add(path, circle_text([source, *way]), error=BindingInvalid)
        else:
            exits.setdefault(source, []).append(target)


def _links(tables: Mapping[str, ExchangeTable]) -> Iterator[tuple[str, str, Path]]:
    """(source, target, place of the setting), in the order of the file."""
    for name, table in tables.items():
        if table.alternate is not None:
            yield name, table.alternate, ("exchanges", name, "alternate")
        for index, binding in enumerate(table.bindings):
            yield binding.exchange, name, ("exchanges", name, "bindings", index, "exchange")
