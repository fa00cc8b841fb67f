from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.config.units import (
    UNITS_MAX,
    format_duration_ms,
    format_size_bytes,
    parse_duration_ms,
    parse_size_bytes,
)

SECOND = 1_000
DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250ms", 250),
        ("30s", 30 * SECOND),
        ("10 seconds", 10 * SECOND),
        ("1 minute", 60 * SECOND),
        ("1.5h", 5_400 * SECOND),
        ("14d", 14 * DAY),
        ("2w", 14 * DAY),
        ("0.001s", 1),
        ("0s", 0),
    ],
)
def test_durations_are_read_exactly(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("512B", 512), ("64KiB", 65_536), ("1.5 GiB", 3 << 29), ("10MB", 10_000_000), ("8 MiB", 8 << 20)],
)
def test_sizes_are_read_exactly(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "14", "d", "-1s", "1e3s", "14 d ", "1h30m", "0.0001s", "9999999999999w", "١s", "1\ns", "1S", "5 KiB"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "1", "1.5B", "1kib", "9000000TiB", "14d", "1K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size_bytes(text)


@given(st.integers(0, UNITS_MAX - 1))
def test_what_is_written_is_read_back(value: int) -> None:
    assert parse_duration_ms(format_duration_ms(value)) == value
    assert parse_size_bytes(format_size_bytes(value)) == value
