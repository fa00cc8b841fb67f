"""Every docstring begins with a verb, or with a noun phrase that names the thing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REFUSED = ("Of", "Who", "Whom", "Whose", "What", "As", "Where", "How", "That", "Which", "If")
"""First words of a docstring that is a fragment: only a reader of the code knows its subject."""
RIDDLES = {
    "a person for a thing": r"\b(nobody|everybody|somebody|anybody|whoever|whom)\b",
    "a pronoun for a noun": r"\bthose (of|that|which|who|with|behind)\b|\bthat which\b",
    "a clause for a noun": r"\bwhat (is|was|has|it|they) ",
    "an idiom for a verb": r"\b(let|lets) go\b|\b(handed|passed|passes) over\b|\blook(s|ed)? at\b",
}
"""Patterns in docstrings of linn that a reader has to solve, by their fault."""
Body = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> list[Path]:
    found = [path for folder in ("linn", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    return sorted(found)


def name_of(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring, and of each text directly after an assignment."""
    for node in ast.walk(tree):
        if not isinstance(node, Body):
            continue
        for before, statement in zip([None, *node.body], node.body, strict=False):
            if before is None or isinstance(before, ast.Assign | ast.AnnAssign):
                match statement:
                    case ast.Expr(ast.Constant(str(text))):
                        yield statement.lineno, text


def fragments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings that begin with one of the refused words."""
    for line, text in docstrings(tree):
        words = re.findall(r"\w+", text[:80])
        if words and words[0] in REFUSED:
            yield line, text


def riddles(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """The docstrings with a riddle: line, fault and the words."""
    for line, text in docstrings(tree):
        for fault, pattern in RIDDLES.items():
            for match in re.finditer(pattern, re.sub(r"`[^`]*`", "", " ".join(text.split())), re.IGNORECASE):
                yield line, fault, match[0].strip()


def test_docstrings_have_no_riddles() -> None:
    found = [
        f"{name_of(module)}:{line}: {fault}: {words}"
        for module in modules()
        if name_of(module).startswith("linn/")
        for line, fault, words in riddles(ast.parse(module.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("A reader whose place nobody keeps.", ["a person for a thing"]),
        ("Those of some batches, and those that are for readers.", ["a pronoun for a noun", "a pronoun for a noun"]),
        ("Keep what is left.", ["a clause for a noun"]),
        ("Partitions that a member lets go of.", ["an idiom for a verb"]),
        ("Calls `nobody`, and lists what changed.", []),
    ],
)
def test_riddles_are_found(text: str, faults: list[str]) -> None:
    assert [fault for _, fault, _ in riddles(ast.parse(f'"""{text}"""'))] == faults


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{name_of(module)}:{line}: {text.splitlines()[0]}"
        for module in modules()
        for line, text in fragments(ast.parse(module.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('"""What this is."""', 1),
        ('"""The parts of a broker."""', 0),
        ('def f():\n    """As `g`, in steps."""', 1),
        ('class A:\n    size: int = 0\n    """Of the head."""', 1),
        ('SIZE = 1\n"""`if` is a keyword."""', 0),
        ('SIZE = 1\n"""Assigned by the broker."""', 0),
        ('print()\n"""Of no thing: a text that stands alone."""', 0),
    ],
)
def test_fragments_are_found(code: str, count: int) -> None:
    assert len(list(fragments(ast.parse(code)))) == count
