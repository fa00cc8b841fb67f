"""Durations and sizes, as people write them in TOML: "14d", "10 seconds", "256MiB".

The one rule of the configuration: **the unit is in the value or in the key.** A key that ends in a unit (`_ms`, `_s`,
`bytes`, `bytes_max`) takes a plain number in that unit, or text with a unit of its own; any other duration is text with
a unit. Values are exact: a value that is not a whole number of milliseconds or bytes is refused, and writing and
reading a value gives the same number.

`counted` writes a count for a sentence: "1 message", "2,000 messages".
"""

from __future__ import annotations

import re
from fractions import Fraction

UNITS_MAX = 1 << 53
"""Every duration in milliseconds and every size in bytes stays below this: exact in a double, so in any JSON reader."""

_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([A-Za-z]+)", re.ASCII)

_DURATION_NAMES = {
    1: ("ms", "millisecond", "milliseconds"),
    1_000: ("s", "second", "seconds"),
    60_000: ("m", "min", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
    604_800_000: ("w", "week", "weeks"),
}
_SIZE_NAMES = {
    1: ("B", "byte", "bytes"),
    1 << 10: ("KiB",),
    1 << 20: ("MiB",),
    1 << 30: ("GiB",),
    1 << 40: ("TiB",),
    10**3: ("kB", "KB"),
    10**6: ("MB",),
    10**9: ("GB",),
    10**12: ("TB",),
}
_DURATIONS = {name: factor for factor, names in _DURATION_NAMES.items() for name in names}
_SIZES = {name: factor for factor, names in _SIZE_NAMES.items() for name in names}

_DURATIONS_WRITTEN = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))
_SIZES_WRITTEN = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def parse_duration_ms(text: str) -> int:
    """Milliseconds of a duration such as "250ms", "30s", "10 seconds", "1.5h" or "14d".

    Raises:
        ValueError: one line for a person: no unit, an unknown unit, or not a whole number of milliseconds.
    """
    return _parse(text, _DURATIONS, "duration", 'a number and ms, s, m, h, d or w, such as "30s"')


def parse_size_bytes(text: str) -> int:
    """Bytes of a size such as "512B", "64KiB", "1.5GiB" (steps of 1,024) or "10MB" (steps of 1,000).

    Raises:
        ValueError: one line for a person: no unit, an unknown unit, or not a whole number of bytes.
    """
    return _parse(text, _SIZES, "size", 'a number and B, KiB, MiB, GiB, TiB (or kB, MB, GB, TB), such as "256MiB"')


def format_duration_ms(duration_ms: int) -> str:
    """The shortest exact text of a duration: 1,209,600,000 is "14d", 1,500 is "1500ms"."""
    return _format(duration_ms, _DURATIONS_WRITTEN, "ms")


def format_size_bytes(size_bytes: int) -> str:
    """The shortest exact text of a size: 1,048,576 is "1MiB", 1,000 is "1000B"."""
    return _format(size_bytes, _SIZES_WRITTEN, "B")


def _parse(text: str, units: dict[str, int], noun: str, expected: str) -> int:
    match = _QUANTITY.fullmatch(text)
    factor = units.get(match[2]) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text[:40]!r} is not a {noun}: write {expected}")
    value = Fraction(match[1]) * factor
    if value.denominator != 1:
        raise ValueError(f"{text!r} is finer than this {noun} can be")
    if value >= UNITS_MAX:
        raise ValueError(f"{text!r} is too large a {noun}")
    return int(value)


def _format(value: int, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    for factor, name in units:
        if value and value % factor == 0:
            return f"{value // factor}{name}"
    return f"{value}{smallest}"
