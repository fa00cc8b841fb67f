"""Every log line of linn has its fields by name: what `linn.core.env.log_fields` promises to who reads the log as JSON."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import linn

LEVELS = ("debug", "info", "warning", "error", "exception", "critical")


def log_calls(module: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            named = node.func.value
            if isinstance(named, ast.Name) and named.id == "logger":
                yield node


def is_positional(call: ast.Call) -> bool:
    """Whether it hands over values instead of one mapping, as far as its source shows."""
    values = call.args[1:]
    plain = (ast.Constant, ast.Attribute, ast.Subscript, ast.JoinedStr)
    return len(values) > 1 or any(isinstance(value, plain) for value in values)


def test_every_log_call_has_its_fields_in_one_mapping() -> None:
    modules = sorted(Path(str(linn.__file__)).parent.rglob("*.py"))
    calls = [(path, call) for path in modules for call in log_calls(ast.parse(path.read_text(encoding="utf-8")))]
    assert [f"{path.name}:{call.lineno}" for path, call in calls if is_positional(call)] == []
    assert len(calls) > 20


@pytest.mark.parametrize(
    ("code", "positional"),
    [
        ('logger.info("%s: %s", peer, error)', True),
        ('logger.info("%s", self.peer)', True),
        ('logger.info("stopped")', False),
        ('logger.info("%(peer)s", {"peer": peer})', False),
        ("logger.error(text, self._about(error) | {'count': 1})", False),
    ],
)
def test_a_positional_log_call_is_seen(code: str, positional: bool) -> None:
    (call,) = log_calls(ast.parse(code))
    assert is_positional(call) is positional
