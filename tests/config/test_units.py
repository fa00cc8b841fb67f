from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.config.units import UNITS_MAX, format_duration_ms, format_size_bytes, parse_duration_ms, parse_size_bytes
from linn.core.errors.texts import counted

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
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "1", "1.5B", "1kib", "9000000TiB", "14d", "1K"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size_bytes(text)


@given(st.integers(0, UNITS_MAX - 1))
def test_written_bytes_are_read_back(value: int) -> None:
    assert parse_duration_ms(format_duration_ms(value)) == value
    assert parse_size_bytes(format_size_bytes(value)) == value


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "message", "0 messages"),
        (1, "message", "1 message"),
        (2_000, "message", "2,000 messages"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (2, "copy", "2 copies"),
        (2, "key", "2 keys"),
        (2, "process", "2 processes"),
    ],
)
def test_a_count_and_its_noun_agree(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said
