"""Finding of a check of `linn doctor`."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """Result of a check, and advice."""

    name: str
    state: Literal["ok", "warning", "error"]
    found: str
    advice: str = ""
    """Advice; empty where nothing is to be done."""
