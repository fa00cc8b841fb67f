"""The house stays in order: what house rules can be checked by a machine are checked here, not remembered."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import statistics
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import linn
from linn.core.errors.codes import all_errors

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "linn").rglob("*.py"))
FUNCTION_LINES_MAX = 60
FUNCTION_LINES_MEDIAN = 12
FILE_LINES_MAX = 600
NO_NOUNS = ("utils", "util", "helpers", "common", "base", "misc")
DOCUMENTED = ("core", "client", "testing", "bench", "cli")

Function = ast.FunctionDef | ast.AsyncFunctionDef
SET_CALLS = ("set", "frozenset")


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def name_of(module: Path) -> str:
    return str(module.relative_to(ROOT))


def functions() -> dict[str, int]:
    """Lines of every function, by where it stands."""
    return {
        f"{name_of(module)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in MODULES
        if module.parent.name != "generated"  # These repeat the arguments of functions that are measured.
        for node in ast.walk(tree(module))
        if isinstance(node, Function)
    }


def repository_files() -> list[Path]:
    """The files in the repository, committed or not; in an unpacked archive, all text files."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:
        return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]
    folders = ("linn", "tests", "docs", "schema", "benchmarks", "examples", "deploy")
    return [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.is_file())]


# --- shape -----------------------------------------------------------------------------------------------------------


def test_functions_are_short() -> None:
    lengths = functions()
    assert statistics.median(lengths.values()) < FUNCTION_LINES_MEDIAN
    assert [where for where, lines in lengths.items() if lines > FUNCTION_LINES_MAX] == []


def test_files_are_short() -> None:
    lines = {name_of(module): module.read_text(encoding="utf-8").count("\n") for module in MODULES}
    assert {module: count for module, count in lines.items() if count > FILE_LINES_MAX} == {}


def test_every_file_is_named_for_a_noun() -> None:
    assert [name_of(module) for module in MODULES if module.stem in NO_NOUNS or module.parent.name in NO_NOUNS] == []


# --- words -----------------------------------------------------------------------------------------------------------


def test_every_module_says_what_it_is() -> None:
    silent = [module for module in MODULES if tree(module).body and ast.get_docstring(tree(module)) is None]
    assert [name_of(module) for module in silent] == []


def test_public_classes_and_functions_say_what_they_promise() -> None:
    silent = [
        f"{name_of(module)}:{node.lineno} {node.name}"
        for module in MODULES
        if module.relative_to(ROOT / "linn").parts[0] in DOCUMENTED
        for node in tree(module).body
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
        if ast.get_docstring(node) is None
    ]
    assert silent == []


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
    found = [
        f"{name_of(module)}:{number}"
        for module in MODULES
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1)
        if later.search(line)
    ]
    assert found == []


def test_no_file_names_a_place_of_somebodys_machine() -> None:
    # Written in pieces, so that this file does not name them either.
    places = re.compile(rb"(?<![\w.])/(?:work|home|root|Users|tmp)" + rb"/[\w.]")
    found = []
    for path in repository_files():
        content = path.read_bytes()
        found += [f"{path.relative_to(ROOT)}: {match.group().decode()}" for match in places.finditer(content)]
    assert found == []


# --- errors ----------------------------------------------------------------------------------------------------------


def codes_on_the_page() -> tuple[set[str], set[str]]:
    """(codes in use, codes that were given up) as docs/reference/errors.md has them."""
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    used, _, retired = page.partition("\n## Codes that are no longer used\n")
    found = re.compile(r"^### `([a-z_.]+)`$", re.MULTILINE)
    return set(found.findall(used)), set(re.findall(r"^- `([a-z_.]+)`", retired, re.MULTILINE))


def import_everything() -> None:
    for module in pkgutil.walk_packages(linn.__path__, "linn."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_every_code_of_an_error_is_its_own_and_was_never_anothers() -> None:
    import_everything()
    errors = all_errors()  # Asserts that no two share a code.
    used, retired = codes_on_the_page()
    assert sorted(errors) == sorted(used)
    assert used & retired == set()


def test_every_error_has_a_code_of_its_own() -> None:
    import_everything()
    own = [error for error in all_errors().values() if "code" in vars(error)]
    assert len(own) == len(all_errors())
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", error.code) for error in own)


# --- order -----------------------------------------------------------------------------------------------------------


def set_names(module: ast.Module) -> set[str]:
    """Names and attributes that a module annotates as sets, or makes sets of."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign) and re.match(r"(frozen)?set\b", ast.unparse(node.annotation)):
            found.add(ast.unparse(node.target))
        elif isinstance(node, ast.arg) and node.annotation is not None:
            if re.match(r"(frozen)?set\b", ast.unparse(node.annotation)):
                found.add(node.arg)
        elif isinstance(node, ast.Assign) and is_set(node.value, set()):
            found.update(ast.unparse(target) for target in node.targets)
    return found


def is_set(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return is_set(node.left, names) or is_set(node.right, names)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in SET_CALLS
    return isinstance(node, ast.Set | ast.SetComp) or ast.unparse(node) in names


def loops(module: ast.Module) -> Iterator[ast.expr]:
    """The iterables of loops, except those whose result has no order either, or is sorted."""
    harmless: list[int] = []
    for node in ast.walk(module):
        if isinstance(node, ast.SetComp):
            harmless += [id(generator) for generator in node.generators]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("sorted", "sum", "any"):
            for argument in node.args:
                harmless += [id(generator) for generator in getattr(argument, "generators", ())]
    for node in ast.walk(module):
        if isinstance(node, ast.For | ast.AsyncFor) or (
            isinstance(node, ast.comprehension) and id(node) not in harmless
        ):
            yield node.iter


def test_nothing_runs_over_a_set_which_has_another_order_in_every_process() -> None:
    found = [
        f"{name_of(module)}:{expression.lineno}"
        for module in MODULES
        for names in [set_names(tree(module))]
        for expression in loops(tree(module))
        if is_set(expression, names)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "runs"),
    [
        ("for a in {1, 2}: pass", True),
        ("b = set(); [a for a in b]", True),
        ("def f(b: frozenset[int]): return [a for a in b | {3}]", True),
        ("for a in sorted({1, 2}): pass", False),
        ("b: set[int] = c; d = sorted(a for a in b)", False),
        ("for a in {1: 2}: pass", False),
    ],
)
def test_a_run_over_a_set_is_seen(code: str, runs: bool) -> None:
    module = ast.parse(code)
    assert any(is_set(expression, set_names(module)) for expression in loops(module)) is runs


# --- layers ----------------------------------------------------------------------------------------------------------


def imported(module: Path) -> Iterator[str]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(module)}:{node.lineno}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


OPEN_TO_USERS = (
    "linn.api",
    "linn.client",
    "linn.errors",
    "linn.participants",
    "linn.plugins",
    "linn.semantics",
    "linn.spark_plugin",
    "linn.storage_engines",
    "linn.sync",
    "linn.testing",
)
"""The modules of linn that programs and plugins may import, besides `linn` itself; built-in plugins are there to derive
from.
"""
IMPORT_OF_LINN = re.compile(r"^[> ]*(?:>>> )?(?:from (linn\.[\w.]+) import|import (linn\.[\w.]+))", re.MULTILINE)


def shown_to_users() -> list[Path]:
    """Pages, examples and skeletons of plugins: what a user copies from."""
    skeletons = ROOT / "linn" / "cli" / "plugin_skeletons"
    examples = [path for path in (ROOT / "examples").rglob("*.py") if ".venv" not in path.parts]
    return [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *examples, *skeletons.glob("*.txt")]


def test_examples_skeletons_and_pages_import_only_what_is_open_to_users() -> None:
    closed = {
        f"{name_of(path)}: {name}"
        for path in shown_to_users()
        for found in IMPORT_OF_LINN.finditer(path.read_text(encoding="utf-8"))
        if not f"{(name := found[1] or found[2])}.".startswith(tuple(f"{each}." for each in OPEN_TO_USERS))
    }
    assert closed == set()


def test_imports_that_users_should_not_copy_are_seen() -> None:
    text = "from linn.core.batch import batch\n    import linn.core.env\n>>> import linn\nfrom linn_geo import x\n"
    assert [found[1] or found[2] for found in IMPORT_OF_LINN.finditer(text)] == ["linn.core.batch", "linn.core.env"]


def test_a_protocol_takes_at_most_250_lines() -> None:
    (skeleton,) = (path for path in shown_to_users() if path.name == "protocol.py.txt")
    assert skeleton.read_text(encoding="utf-8").count("\n") <= 250


def test_tables_are_made_in_one_place() -> None:
    """Only these modules make tables, because they keep the rules for them: nothing is cropped. The demo draws a live
    grid beside them.
    """
    makers = {
        name_of(module) for module in MODULES for name in imported(module) if f"{name}.".startswith("rich.table.")
    }
    assert makers == {"linn/cli/render/table.py", "linn/cli/demo/view.py"}


def module_names() -> dict[str, Path]:
    paths = {module.relative_to(ROOT).with_suffix(""): module for module in MODULES}
    return {".".join(path.parts).removesuffix(".__init__"): module for path, module in paths.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that all reach each other: Tarjan's strongly connected components, but for single ones."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            circle = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def test_imports_have_no_cycles_even_for_types() -> None:
    names = module_names()
    graph: dict[str, set[str]] = {
        name: {
            other
            for each in imported(module)
            for other in [each if each in names else each.rpartition(".")[0]]
            if other in names and other != name
        }
        for name, module in names.items()
    }
    assert circles(graph) == []


def test_cycles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "d"}}) == [["a", "b", "c"]]
