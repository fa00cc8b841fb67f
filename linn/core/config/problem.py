"""Problems of a configuration, each with its file, line and key, so that one run shows them all."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from linn.core.config.toml_source import Path, TomlSource
from linn.core.errors.names import NAME_CHARACTERS_MAX
from linn.core.errors.texts import one_line
from linn.core.errors.tree import ConfigError, LinnError, PluginError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding: an "error", a "warning" (no effect, or a surprising one), or a "hint" (possibly intended)."""

    line: int
    """Line number from 1; 0 if the settings did not come from a file."""
    key: str
    """The full key in TOML's notation: `topics.delays.retention`."""
    text: str
    severity: Literal["error", "warning", "hint"]
    error: type[LinnError] = ConfigError


class Problems:
    """A collection of problems that knows the file and line of each."""

    names_others: ClassVar[bool] = True
    """Whether an error may suggest the names of other topics and exchanges."""

    def __init__(self, source: TomlSource | None = None) -> None:
        self._source = source
        self._wrong: set[str] = set()
        self.found: list[Problem] = []

    @property
    def error_count(self) -> int:
        """The number of errors so far; a configuration with errors can't be used."""
        return sum(problem.severity == "error" for problem in self.found)

    def add(self, path: Path, text: str, *, error: type[LinnError] = ConfigError) -> None:
        """Add an error at `path`."""
        key = dotted(path)
        self._wrong.add(key)
        self.found.append(Problem(self._line(path), key, one_line(text), "error", error))

    def any_wrong(self, path: Path, *keys: str) -> bool:
        """Whether one of these keys of the table at `path` has an error, so that its value must not be used."""
        return bool(self._wrong) and any(dotted((*path, key)) in self._wrong for key in keys)

    def warn(self, path: Path, text: str) -> None:
        """Add a warning: a setting that works, but perhaps not as intended."""
        self.found.append(Problem(self._line(path), dotted(path), one_line(text), "warning"))

    def hint(self, path: Path, text: str) -> None:
        """Add a hint: a setting worth checking that may well be intended."""
        self.found.append(Problem(self._line(path), dotted(path), one_line(text), "hint"))

    def in_order(self) -> list[Problem]:
        """All problems, by line."""
        return sorted(self.found, key=lambda problem: problem.line)

    def describe(self, problem: Problem) -> str:
        """The problem as one line: "linn.toml:12: topics.delays.retenton: unknown key; ..."."""
        place = f"{self._source.file}:{problem.line}: " if self._source is not None else ""
        return f"{place}{problem.key}: {problem.text}" if problem.key else f"{place}{problem.text}"

    def raise_first(self) -> None:
        """Raise the first error, by line; do nothing if there are only warnings.

        Raises:
            ConfigError, PluginError: a file has an error.
            LinnError: a request over the wire has an error, of the problem's type.
        """
        for problem in self.in_order():
            if problem.severity == "error":
                is_of_files = self._source is None or issubclass(problem.error, ConfigError | PluginError)
                raise (problem.error if is_of_files else ConfigError)(self.describe(problem))

    def _line(self, path: Path) -> int:
        return self._source.line_of(path) if self._source is not None else 0


class FirstProblem(Problems):
    """Problems of a request over the wire, which is answered with one error: the first problem is raised at once.

    Finding a hundred thousand problems, each with the nearest known word, takes seconds. The names of topics and
    exchanges are not for every client to see.
    """

    names_others = False

    def add(self, path: Path, text: str, *, error: type[LinnError] = ConfigError) -> None:
        """Raise the error."""
        super().add(path, text, error=error)
        self.raise_first()


def dotted(path: Path) -> str:
    """A path in TOML's notation: `topics."my topic".bindings[0].key`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part[: NAME_CHARACTERS_MAX + 1]
            text += ("." if text else "") + (bare if _BARE_KEY.fullmatch(bare) else json.dumps(part[:80]))
    return text
