"""Finding: a broken invariant, with the events that show it; and the error raised for findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from linn.testing.history import Entry, History

SHOWN_MAX = 5
"""Maximum number of findings that an error shows; the first ones matter most."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken invariant."""

    name: str
    """Name of the invariant."""
    text: str
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return "\n    ".join([f"{self.name}: {self.text}", *map(str, self.entries)])


class Findings:
    """The findings so far, each (invariant, text) once."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, name: str, text: str, *indices: int) -> None:
        """Add a broken invariant, shown by the events with these indices."""
        entries = tuple(self._history.entries[index] for index in sorted({*indices}))
        self._found.setdefault((name, text), Finding(name, text, entries))

    @property
    def all(self) -> list[Finding]:
        """All findings, in the order in which they were made."""
        return list(self._found.values())


class InvariantBroken(AssertionError):
    """Raised for a history that breaks an invariant."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        told = [str(finding) for finding in findings[:SHOWN_MAX]]
        if len(findings) > SHOWN_MAX:
            told.append(f"and {len(findings) - SHOWN_MAX} more")
        super().__init__("\n".join(told))
        self.findings = tuple(findings)
        self.name = findings[0].name
        """Name of the invariant that was broken first."""
