"""Transforms of the pipelines in tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def of_one(frame: Any) -> Any:
    """Keep every third flight."""
    return frame.where("to = 'A1'").select("number", "to", "partition")


def of_both(frames: Mapping[str, Any]) -> Any:
    """Union the topics."""
    return frames["flights"].union(frames["airports"]).select("topic", "partition", "offset")


def failing(frame: Any) -> Any:
    """Fail while planning, as something that is out of reach does."""
    raise ConnectionError("out of reach")


def failing_once(frame: Any) -> Any:
    """Fail at the first call in a process, in the same way."""
    if not _calls:
        _calls.append(frame)
        failing(frame)
    return frame


_calls: list[Any] = []


def wrong(frame: Any) -> Any:
    """Do what code that is wrong may do."""
    raise SystemExit("boom")
