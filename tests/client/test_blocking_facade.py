"""The generated part of the blocking client is fresh."""

from __future__ import annotations

from blocking_facade import modules


def test_the_generated_classes_are_those_of_the_async_client() -> None:
    for path, code in modules():
        assert path.read_text(encoding="utf-8") == code, "run: python tests/client/blocking_facade.py"
