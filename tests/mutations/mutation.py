"""A planted bug: a few whole lines of one module of linn, replaced by others, and the seed that finds it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import dedent, indent


class MutationOutdated(Exception):
    """The lines that a mutation replaces are not in their module, or not only once: the code has moved on."""


@dataclass(frozen=True)
class Mutation:
    """One bug. Lines are given without the indentation that they share."""

    name: str
    breaks: str
    """The promise that no longer holds, in one sentence."""
    guarantee: str
    """The section of docs/explanation/guarantees.md that makes it."""
    module: str
    original: str
    planted: str
    simulation: str
    """A key of `SIMULATIONS`."""
    seed: int
    says: str
    """A text in the failure: the name of an invariant, or words of the assertion that stands for it."""

    def plant(self, source: str) -> str:
        """The module's source with the bug. Raises MutationOutdated."""
        lines = [re.escape(line) for line in dedent(self.original).strip("\n").split("\n")]
        places = list(re.finditer("^( *)" + "\n\\1".join(lines) + "$", source, re.MULTILINE))
        if len(places) != 1:
            raise MutationOutdated(
                f"{self.name}: {self.module} holds these lines {len(places)} times and not once; "
                f"plant the bug in the code as it is now:\n{dedent(self.original).strip()}"
            )
        place = places[0]
        planted = indent(dedent(self.planted).strip("\n"), place[1])
        assert planted != place[0], f"{self.name} changes nothing"
        return source[: place.start()] + planted + source[place.end() :]
