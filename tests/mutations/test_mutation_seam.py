"""The seam itself: what is outdated, survives or fails for another reason is no success."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from catalogue import ALL
from mutated_run import check_caught, observed
from mutation import Mutation, MutationOutdated
from replication_mutations import REPLICATION_MUTATIONS

ROOT = Path(__file__).parents[2]
BUG = Mutation(
    name="two is three",
    breaks="Two is two.",
    guarantee="Order",
    module="arithmetic",
    original="return 2",
    planted="return 3",
    simulation="log lives",
    seed=7,
    says="two is two",
)


def test_each_law_has_one_bug() -> None:
    """A law is a promise to users, and the check of one simulation that holds it. Of replication each rule has one."""
    others = [mutation for mutation in ALL if mutation not in REPLICATION_MUTATIONS]
    laws = Counter((mutation.guarantee, mutation.simulation, mutation.says) for mutation in others)
    assert [law for law, bugs in laws.items() if bugs > 1] == []
    assert len({mutation.name for mutation in ALL}) == len(ALL)
    assert all(mutation.says for mutation in ALL)


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_the_lines_are_in_the_module_once(mutation: Mutation) -> None:
    source = (ROOT / f"{mutation.module.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert mutation.plant(source) != source


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_the_promise_is_one_that_users_are_given(mutation: Mutation) -> None:
    page = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
    assert f"\n## {mutation.guarantee}\n" in page


def test_lines_take_the_indentation_of_their_place() -> None:
    bug = replace(BUG, original="\n    if two:\n        return 2\n", planted="\n    if not two:\n        return 2\n")
    source = "def f(two):\n    if two:\n        return 2\n    return 0\n"
    assert bug.plant(source) == "def f(two):\n    if not two:\n        return 2\n    return 0\n"


@pytest.mark.parametrize("source", ["def f():\n    return 1\n", "def f():\n    return 2\n\ndef g():\n    return 2\n"])
def test_lines_that_do_not_occur_exactly_once_are_refused(source: str) -> None:
    with pytest.raises(MutationOutdated, match="two is three: arithmetic holds these lines"):
        BUG.plant(source)


def test_a_bug_that_survives_is_a_failure() -> None:
    with pytest.raises(AssertionError, match='"two is three" survives seed 7'):
        check_caught(BUG, [])


def test_a_failure_for_another_reason_is_no_catch() -> None:
    with pytest.raises(AssertionError, match="fails with: ImportError: no module"):
        check_caught(BUG, ["ImportError: no module"])
    check_caught(BUG, ["ValueError: elsewhere", "AssertionError: two is two"])


def test_an_assertion_without_words_is_named_for_its_check() -> None:
    def two_is_two(seed: int) -> None:
        left, right = 2, 3
        if seed:
            raise ExceptionGroup("both", [AssertionError("words"), ValueError("more")])
        assert left == right

    assert observed(two_is_two, 1) == ["AssertionError: words", "ValueError: more"]
    [symptom] = observed(two_is_two, 0)
    assert symptom.startswith("AssertionError: ")


def test_a_module_without_its_bug_is_noticed() -> None:
    program = "import linn.core.queue.lease, planting, catalogue; planting.plant(catalogue.ALL[0])"
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300
    )
    assert "too late to plant" in process.stderr
