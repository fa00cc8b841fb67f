"""Values on the command line: rates, durations, and NAME=VALUE with TOML's types (4, 2.5, true; the rest is text)."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import typer

from linn.core.batch.record import LabelValue
from linn.core.config.units import parse_duration_ms

_INT64 = range(-(1 << 63), 1 << 63)
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(?:/(s|m|h))?")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def named_values(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """Parse NAME=VALUE pairs. Raises BadParameter where a name is missing or given twice."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        found[name] = typed(text)
    return found


def labels(pairs: Iterable[str]) -> dict[str, LabelValue]:
    """Parse labels. Raises BadParameter where a value is an array or a table."""
    found = named_values(pairs, "--label")
    for name, value in found.items():
        if not isinstance(value, str | int | float | bool):
            raise typer.BadParameter(f"{name!r}: a label must be text, a number, true or false", param_hint="--label")
    return found


def headers(pairs: Iterable[str]) -> list[tuple[str, bytes]]:
    """Parse headers: names may repeat, values are not typed. Raises BadParameter."""
    found: list[tuple[str, bytes]] = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--header")
        found.append((name, text.encode(errors="surrogateescape")))
    return found


def typed(text: str) -> Any:
    """Parse a TOML value; "14d", "nan" and dates, among others, are text."""
    if "\n" in text:
        return text
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    if isinstance(value, float) and not math.isfinite(value):
        return text
    if isinstance(value, int) and value not in _INT64:
        return text
    return value if isinstance(value, str | int | float | bool | list | dict) else text


def rate_per_s(text: str, option: str = "--rate") -> float:
    """Parse a rate: "100", "100/s", "6000/m" or "5/h". Raises BadParameter."""
    found = _RATE.fullmatch(text)
    if found is None or not float(found[1]):
        raise typer.BadParameter(f"{text!r} is not a rate like 100/s, 6000/m or 5/h", param_hint=option)
    return float(found[1]) / _UNITS_S[found[2] or "s"]


def due_ms(text: str, option: str) -> int:
    """Parse a time of a message, such as "2026-01-31T12:00+01:00", in local time unless it has a zone. Raises
    BadParameter.
    """
    try:
        found = int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        found = 0
    if found <= 0:
        hint = f"{text!r} is not a time from 1970 on like 2026-01-31T12:00, or 2026-01-31T12:00+01:00 with a zone"
        raise typer.BadParameter(hint, param_hint=option)
    return found


def duration_ms(text: str, option: str) -> int:
    """Parse a duration of a message: "250ms", "30s" or "14d", from 1 ms to 2^32-1 ms. Raises BadParameter."""
    try:
        found = parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if not 0 < found < 1 << 32:
        raise typer.BadParameter(f"{text!r} is not between 1ms and 49 days", param_hint=option)
    return found
