"""One thing that `linn doctor` has looked at."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """What was looked at, what was found, and what to do."""

    name: str
    state: Literal["ok", "warning", "error"]
    found: str
    advice: str = ""
    """Empty where there is nothing to do."""
