"""The changes that bring a broker to a file's definitions. The broker validates all of them before the first is made.

Laws: dependencies come first, an alternate before the exchange that names it and a dead-letter topic before its
sources; nothing is deleted, and nothing that the file does not name is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from linn.cli.definitions.export import Definitions, identity
from linn.cli.definitions.file import DefinitionFile, bindings_of
from linn.client.client import Client
from linn.core.config.decoder import encode_settings
from linn.core.config.problem import dotted
from linn.core.config.toml_source import Path
from linn.core.errors.tree import ConfigError, ConfigNotLive, LimitExceeded, PluginError, TopicError

_NOUNS: Mapping[str, Literal["exchange", "topic"]] = {"exchanges": "exchange", "topics": "topic"}


@dataclass(slots=True)
class Change:
    """One request to the broker."""

    action: Literal["create", "alter", "bind"]
    noun: Literal["exchange", "topic"]
    name: str
    verb: str
    arguments: Mapping[str, Any]
    binding: Mapping[str, Any] | None = None
    """A binding that leads to `name`, as in the file."""
    done: bool = False

    @property
    def keys(self) -> list[str]:
        """The settings that an alteration changes."""
        return list(self.arguments["settings"]) if self.action == "alter" else []

    def words(self) -> str:
        """Describe the change, as in "altered ..." and "would alter ..." without its first word."""
        what = f"{self.noun} {self.name}"
        if self.action == "alter":
            return f"{what}: {', '.join(self.keys)}"
        if self.binding is None:
            return what
        asked = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in self.binding.items()]
        return f"{what}: {', '.join(asked)}"


class Plan:
    """The changes to make, and the number of definitions that need none."""

    def __init__(self, file: DefinitionFile, there: Definitions) -> None:
        self.changes: list[Change] = []
        self.unchanged = {"exchange": 0, "topic": 0, "binding": 0}
        self.warnings: list[str] = []
        self._file = file
        self._there = there
        self._wrong = {problem.key for problem in file.problems.found}

    async def make(self, client: Client) -> None:
        """Find all changes, and add refusals to the problems of the file. Raises LinnError."""
        exchanges, topics = self._file.tables["exchanges"], self._file.tables["topics"]
        for name in _needed_first(exchanges, _sources_of):
            await self._thing(client, "exchanges", name, exchanges[name], self._exchange)
        for name in _needed_first(topics, _dead_letter_of):
            await self._thing(client, "topics", name, topics[name], self._topic)
        self._late_dead_letters()

    async def _thing(self, client: Client, top: str, name: str, table: Any, alter: Callable[..., Any]) -> None:
        """Plan one exchange or topic with its bindings, without the parts in which problems are known."""
        path: Path = (top, name)
        if dotted(path) in self._wrong:
            return
        table = {key: value for key, value in table.items() if not self._is_wrong((*path, key))}
        if name not in self._there[top]:
            arguments = {"name": name, "settings": table}
            if await self._probe(client, path, f"{_NOUNS[top]}.create", self._known_part(top, arguments)) is not None:
                self.changes.append(Change("create", _NOUNS[top], name, f"{_NOUNS[top]}.create", arguments))
            return
        await alter(client, name, table)
        await self._bind(client, path, bindings_of(table))

    def _is_wrong(self, path: Path) -> bool:
        at = dotted(path)
        return any(key == at or key.startswith((f"{at}.", f"{at}[")) for key in self._wrong)

    async def _exchange(self, client: Client, name: str, table: Mapping[str, Any]) -> None:
        there, settings = self._there["exchanges"][name], self._file.config.exchanges[name].settings
        wanted = {**table, **(encode_settings(settings) if settings is not None else {})}
        different = [key for key in table if key != "bindings" and wanted.get(key) != there.get(key)]
        for key in different:
            said = f"is {json.dumps(there.get(key))} on the broker, and can't change while the exchange exists"
            self._file.problems.add(("exchanges", name, key), said, error=ConfigNotLive)
        self.unchanged["exchange"] += not different

    async def _topic(self, client: Client, name: str, table: Mapping[str, Any]) -> None:
        settings = {key: value for key, value in table.items() if key != "bindings"}
        asked = self._known_part("topics", {"name": name, "settings": settings})
        answer = await self._probe(client, ("topics", name), "topic.alter", asked)
        if answer is None:
            return
        stripped = settings.keys() - asked["settings"].keys()
        changed = {key: value for key, value in settings.items() if key in answer["changed"] or key in stripped}
        self.warnings += [warning["text"] for warning in answer["warnings"]]
        if changed:
            self.changes.append(Change("alter", "topic", name, "topic.alter", {"name": name, "settings": changed}))
        else:
            self.unchanged["topic"] += 1

    async def _bind(self, client: Client, path: Path, bindings: Iterable[Mapping[str, Any]]) -> None:
        """Plan the bindings of an exchange or topic that exists."""
        top, name = str(path[0]), str(path[1])
        there = {identity(binding) for binding in self._there[top][name].get("bindings", ())}
        for index, binding in enumerate(bindings):
            if identity(binding) in there:
                self.unchanged["binding"] += 1
                continue
            arguments = {key: value for key, value in binding.items() if key not in ("exchange", "key")}
            target = {"target_exchange" if top == "exchanges" else "topic": name}
            asked = {"exchange": binding["exchange"], **target, "key": binding.get("key", ""), "arguments": arguments}
            made = Change("bind", _NOUNS[top], name, "exchange.bind", asked, binding)
            if binding["exchange"] not in self._there["exchanges"] or (
                await self._probe(client, (*path, "bindings", index), "exchange.bind", asked) is not None
            ):
                self.changes.append(made)

    async def _probe(self, client: Client, path: Path, verb: str, arguments: Mapping[str, Any]) -> Any:
        """Validate a request on the broker. Returns its answer, or None after adding the refusal to the problems."""
        try:
            return await client.admin.perform(verb, **arguments, validate_only=True)
        except (ConfigError, PluginError, TopicError, LimitExceeded) as error:
            text, at = error.text.removeprefix(f"topic {path[1]}: "), path
            for key in arguments.get("settings", ()):
                if text.startswith(f"{dotted((*path, key))}: "):
                    at = (*path, key)
            self._file.problems.add(at, text.removeprefix(f"{dotted(at)}: "), error=type(error))
            return None

    def _known_part(self, top: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Drop arguments that name exchanges and topics yet to be created; the file's checks have covered them."""
        settings = dict(arguments["settings"])
        named = {"alternate": "exchanges"} if top == "exchanges" else _DEAD_LETTERS
        for key, there in named.items():
            if key in settings and settings[key] not in self._there[there]:
                del settings[key]
                settings.pop(f"{key.removesuffix('_exchange')}_key", None)
        if "bindings" in settings:
            known = self._there["exchanges"]
            settings["bindings"] = [binding for binding in settings["bindings"] if binding["exchange"] in known]
        return {**arguments, "settings": settings}

    def _late_dead_letters(self) -> None:
        """Break circles of dead-letter topics: the topic created first gets its dead-letter topic at the end."""
        there = set(self._there["topics"])
        late: list[Change] = []
        for change in self.changes:
            settings = change.arguments.get("settings", {})
            if change.noun == "topic" and change.binding is None:
                there.add(change.name)
                if (dead_letter := settings.get("dead_letter")) is not None and dead_letter not in there:
                    rest = {key: value for key, value in settings.items() if key != "dead_letter"}
                    change.arguments = {"name": change.name, "settings": rest}
                    asked = {"name": change.name, "settings": {"dead_letter": dead_letter}}
                    late.append(Change("alter", "topic", change.name, "topic.alter", asked))
        self.changes += late


_DEAD_LETTERS = {"dead_letter": "topics", "dead_letter_exchange": "exchanges"}
"""The kinds of the targets of dead letters, by the setting that names one."""


def _sources_of(table: object) -> Iterator[object]:
    """Return the exchanges that must exist before the exchange of a table."""
    if isinstance(table, dict):
        yield table.get("alternate")
        yield from (binding.get("exchange") for binding in bindings_of(table) if isinstance(binding, dict))


def _dead_letter_of(table: object) -> Iterator[object]:
    """Return the topic that must exist before the topic of a table."""
    if isinstance(table, dict):
        yield table.get("dead_letter")


def _needed_first(tables: Mapping[str, Any], needs: Callable[[object], Iterable[object]]) -> list[str]:
    """Sort names so that each follows the names that it needs, except in circles."""
    order: dict[str, None] = {}
    seen: set[str] = set()
    waiting = [(name, False) for name in reversed(list(tables))]
    while waiting:
        name, is_ready = waiting.pop()
        if is_ready:
            order[name] = None
        elif name not in seen:
            seen.add(name)
            waiting.append((name, True))
            waiting += [(need, False) for need in needs(tables[name]) if isinstance(need, str) and need in tables]
    return list(order)
