"""docs/reference/predicates.md is true: its examples parse, its truths hold, its limits are the limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from linn.core.routing.exchange import Subject
from linn.core.routing.predicate import parser as predicate_parser
from linn.core.routing.predicate.parser import CHARACTERS_MAX, DEPTH_MAX, LIST_ITEMS_MAX, NODES_MAX, parse_tree
from linn.core.routing.predicate.truth import truth_of

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "predicates.md").read_text(encoding="utf-8")
EXAMPLES = re.search(r"^```predicate\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TRUTHS = re.findall(r"^\| `([^`]+)` \| (true|false|unknown) \|$", PAGE, re.MULTILINE)
TRANSLATIONS = [
    text
    for row in re.findall(r"^\| `.*$", PAGE.split("## Coming from")[1], re.MULTILINE)
    for text in re.findall(r"`([^`]+)`", row.split("|")[2])
]


@pytest.mark.parametrize("text", [*(EXAMPLES[1].splitlines() if EXAMPLES else ()), *TRANSLATIONS])
def test_examples_are_predicates(text: str) -> None:
    parse_tree(text)


def test_examples_exist() -> None:
    assert EXAMPLES is not None
    assert len(TRANSLATIONS) == 7
    assert len(TRUTHS) == 8


@pytest.mark.parametrize(("text", "truth"), TRUTHS)
def test_the_pages_rules_about_unknown_hold(text: str, truth: str) -> None:
    found = truth_of(parse_tree(text))(Subject("", {"pages": 3}))
    assert {True: "true", False: "false", None: "unknown"}[found] == truth


def test_the_limits_are_the_limits() -> None:
    said = [int(number.replace(",", "")) for number in re.findall(r"^\| [^|]+ \| ([\d,]+) \|$", PAGE, re.MULTILINE)]
    assert said == [CHARACTERS_MAX, DEPTH_MAX, NODES_MAX, LIST_ITEMS_MAX]


def test_the_grammar_is_that_of_the_parser() -> None:
    def squeezed(text: str) -> str:
        return re.sub(r"\s+", "", text)

    grammar = re.search(r"^```text\n(predicate .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert grammar is not None
    assert squeezed(grammar[1]) in squeezed(predicate_parser.__doc__ or "")
