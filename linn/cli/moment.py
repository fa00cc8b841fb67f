"""Positions and times on the command line (earliest, latest, an offset, a time, a duration ago), and in output."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import Literal

import typer

Place = Literal["earliest", "latest"] | int | datetime
OFFSET_MAX = (1 << 63) - 1
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d|w)")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def place_of(text: str, option: str) -> Place:
    """Parse a position: "10m" is ten minutes ago, "2026-01-31T12:00" is in local time unless it has a zone.

    Raises BadParameter.
    """
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    if text.isascii() and text.isdigit() and int(text) <= OFFSET_MAX:
        return int(text)
    try:
        if _DURATION.fullmatch(text):
            return datetime.now().astimezone() - timedelta(seconds=seconds_of(text, option))
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        pass
    raise typer.BadParameter(
        f'{text!r} is not earliest, latest, an offset, a time like 2026-01-31T12:00, or a duration ago like "10m"',
        param_hint=option,
    )


def seconds_of(text: str, option: str) -> float:
    """Parse a duration such as "90s", "10m" or "8h". Raises BadParameter."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration like 90s, 10m or 8h", param_hint=option)
    return float(found[1]) * _UNITS_S[found[2]]


def moment_text(timestamp_ms: int, zone: tzinfo | None = None, precision: str = "seconds") -> str:
    """Format the time of a message, by default in local time; as a number where it is outside the calendar."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, zone).isoformat(timespec=precision)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
