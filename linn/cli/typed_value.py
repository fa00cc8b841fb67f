"""`name=value` on the command line, as TOML reads values: 4, 2.5, true and "text" have types; what is none is text."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from typing import Any

import typer

from linn.core.batch.record import LabelValue

_INT64 = range(-(1 << 63), 1 << 63)


def named_values(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """{name: typed value}. Raises BadParameter for what has no name, or a name twice."""
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
    """Labels. Raises BadParameter where a value is an array or a table."""
    found = named_values(pairs, "--label")
    for name, value in found.items():
        if not isinstance(value, str | int | float | bool):
            raise typer.BadParameter(f"{name!r}: a label is text, a number, true or false", param_hint="--label")
    return found


def headers(pairs: Iterable[str]) -> list[tuple[str, bytes]]:
    """Headers: names may repeat, values are taken as they are."""
    found: list[tuple[str, bytes]] = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--header")
        found.append((name, text.encode(errors="surrogateescape")))
    return found


def typed(text: str) -> Any:
    """The TOML value that `text` is, or `text` itself: "14d" and "nan" and dates are text."""
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
