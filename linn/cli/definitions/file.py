"""File to import, and its problems, by itself and together with the broker's definitions.

Laws: every problem that can be found without a request for each topic or exchange is found here, all at once and with
its line; the broker checks what depends on its storage, its limits and its plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

from linn.cli.definitions.export import Definitions
from linn.cli.installed_plugins import loadable
from linn.core.config.config import Config, examine_config
from linn.core.config.problem import Problem, Problems
from linn.core.config.service_tables import topic_tables
from linn.core.config.tables import TABLES, PluginSettings
from linn.core.config.toml_source import Path, TomlSource
from linn.core.errors.tree import BindingInvalid, PluginUnknown
from linn.core.routing.graph import circle_text, way_between

TOPS = ("exchanges", "topics")
_NOT_KNOWN = {"message_bytes_max": "that of another broker"}
"""Not a size, so that no check compares it with the sizes of topics."""


class DefinitionFile:
    """The `[exchanges]` and `[topics]` of a file."""

    def __init__(self, source: TomlSource, there: Definitions) -> None:
        """`there`: the broker's definitions."""
        self.tables: dict[str, dict[str, Any]] = {top: _named(source.data, top) for top in TOPS}
        plugins, _ = loadable(PluginSettings())
        others = [*TABLES, *plugins.services]
        self.passed_over = [top for top in others if top in source.data and top not in TOPS]
        beside = copy(source)  # With the lines of the file.
        # The broker's own tables of services have no secrets in them, and are no affair of the file's.
        beside.data = _beside(source.data, there, others, topic_tables(plugins.services.values()))
        self.config: Config
        self.config, found = examine_config(beside, plugins)
        self.problems = Problems(source)
        for problem in found.found:
            if problem.severity == "error" and _is_of_the_file(problem):
                self.problems.found.append(problem)
        self._check_circles(there, found)

    def _check_circles(self, there: Definitions, found: Problems) -> None:
        """Add an error for each link of the file that closes a circle with links of the broker."""
        exits: dict[str, list[str]] = {}
        for source, target, _ in _links(there["exchanges"]):
            exits.setdefault(source, []).append(target)
        for source, target, path in _links(self.tables["exchanges"]):
            way = way_between(target, source, lambda name: exits.get(name, ()))
            if way is None:
                exits.setdefault(source, []).append(target)
            elif not found.any_wrong(path[:-1], str(path[-1])):
                self.problems.add(path, circle_text([source, *way]), error=BindingInvalid)


def _is_of_the_file(problem: Problem) -> bool:
    """Tell whether a problem is reported here. The broker checks its own kinds and limits, which are not known here."""
    return problem.error is not PluginUnknown and not problem.key.startswith("broker.")


def bindings_of(table: object) -> list[Any]:
    """Return the `bindings` of a table; the list is valid if `DefinitionFile` found no problem in the table."""
    bindings = table.get("bindings", ()) if isinstance(table, dict) else ()
    return list(bindings) if isinstance(bindings, list | tuple) else []


def _named(data: Mapping[str, Any], top: str) -> dict[str, Any]:
    tables = data.get(top, {})
    return tables if isinstance(tables, dict) else {}


def _beside(
    data: Mapping[str, Any], there: Definitions, others: Sequence[str], services: Iterable[str]
) -> dict[str, Any]:
    """Merge the file's tables into the broker's, without the broker's own links, bindings and tables of services, which
    are valid."""
    left_out = ("bindings", "alternate", *services)
    beside = {top: value for top, value in data.items() if top not in others}
    for top in TOPS:
        tables = data.get(top, {})
        if isinstance(tables, dict):
            known = {name: _without(table, *left_out) for name, table in there[top].items()}
            tables = known | {name: _over(known.get(name, {}), table) for name, table in tables.items()}
        beside[top] = tables
    return {**beside, "broker": _NOT_KNOWN}


def _without(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


def _over(known: Mapping[str, Any], table: object) -> object:
    """Override the broker's table with the file's; the table of an exchange of another type replaces it."""
    if not isinstance(table, dict) or table.get("type", known.get("type")) != known.get("type"):
        return table
    return {**known, **table}


def _links(exchanges: Mapping[str, Any]) -> Iterator[tuple[str, str, Path]]:
    """Yield the source, the target and the key path of each link; values of a wrong type are skipped."""
    for name, table in exchanges.items():
        alternate = table.get("alternate") if isinstance(table, dict) else None
        if isinstance(alternate, str):
            yield name, alternate, ("exchanges", name, "alternate")
        for index, binding in enumerate(bindings_of(table)):
            if isinstance(binding, dict) and isinstance(binding.get("exchange"), str):
                yield binding["exchange"], name, ("exchanges", name, "bindings", index, "exchange")
