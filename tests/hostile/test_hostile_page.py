"""docs/explanation/hostile-inputs.md and the tests are in step: what is tested, which codes, which bounds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "explanation" / "hostile-inputs.md"
OF_THE_HARNESS = ("test_hostile_page.py", "test_bystander.py")
TESTS = {
    node.name: (module, node)
    for module in sorted(HERE.glob("test_*.py"))
    if module.name not in OF_THE_HARNESS
    for node in ast.parse(module.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if re.match(r"\| [0-9, ]+ \|", line)
]
CODE = re.compile(r"`([a-z]+\.[a-z_]+)`")


def named(row: list[str]) -> list[str]:
    return re.findall(r"`(test_\w+)`", row[-1])


def bounds(test: ast.FunctionDef) -> str:
    """The arguments that the test gives to `attacked`, in the page's format."""
    (given,) = [
        {keyword.arg: eval(compile(ast.Expression(keyword.value), "", "eval"), {}) for keyword in node.keywords}
        for node in ast.walk(test)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "attacked"
    ] or [{}]
    cpu_s, memory_bytes = given.get("cpu_s", 0.15), given.get("memory_bytes", 8 << 20)
    parts = [f"{1000 * cpu_s:g} ms"] * (cpu_s != 0.15) + [f"{memory_bytes >> 20} MiB"] * (memory_bytes != 8 << 20)
    return ", ".join(parts)


def test_each_test_of_a_hostile_input_is_listed_in_one_row() -> None:
    assert sorted(name for row in ROWS for name in named(row)) == sorted(TESTS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_a_row_names_the_codes_and_bounds_that_its_tests_ask_for(row: list[str]) -> None:
    assert len(row) == 5
    assert named(row), "a row without a test"
    for name in named(row):
        module, test = TESTS[name]
        text = module.read_text()
        assert [code for code in CODE.findall(row[2]) if code not in text] == []
        assert re.sub(r" for \w+$", "", row[3]) == bounds(test)
