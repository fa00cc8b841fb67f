"""Every test is in one tier, and a test that its tier does not fit fails and is told where it belongs."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiers
import trio
from stopwatch import at_most

from linn.core.env.real.env import RealEnv

LINN = [sys.executable, "-m", "linn", "--help"]


def test_every_test_is_in_one_tier(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        assert [marker.name for marker in item.iter_markers() if marker.name in tiers.TIERS] == [tiers.tier_of(item)]


def test_a_test_that_is_marked_twice_is_refused(request: pytest.FixtureRequest) -> None:
    request.node.add_marker("soak")
    try:
        with pytest.raises(pytest.UsageError, match="is marked quick and soak: a test is in one tier"):
            tiers.tier_of(request.node)
    finally:
        request.node.own_markers.pop()


@pytest.mark.parametrize(
    ("file", "place"),
    [("hostile/test_new.py", "hostile"), ("cli/test_lint.py", "cli/test_lint.py"), ("test_x.py", ".")],
)
def test_a_file_has_a_line_of_its_own_or_its_folders(file: str, place: str) -> None:
    names = tiers.places_of(tiers.TESTS / file)
    assert next((name for name in names if name in tiers.WHERE), ".") == place


@pytest.mark.parametrize(
    ("file", "has"),
    [
        ("batch/test_stamp.py", {"quick"}),
        ("simulation/test_crashes.py", {"quick", "test", "soak"}),
        ("exchanges/test_exchange_conformance.py", {"test", "perf"}),
        ("broker/test_fairness.py", {"perf", "soak"}),
    ],
)
def test_a_file_without_tests_of_the_requested_tiers_is_left_out(file: str, has: set[str]) -> None:
    left_out = {tier for tier in tiers.TIERS if tiers.has_none_of(tiers.TESTS / file, {tier})}
    assert left_out == {*tiers.TIERS} - has
    assert not tiers.has_none_of(tiers.TESTS / file, {"perf", "measured"})


def test_every_tier_is_a_make_target_and_is_documented() -> None:
    root = tiers.TESTS.parent
    makefile, page = (root / "Makefile").read_text(), (root / "CONTRIBUTING.md").read_text()
    for tier in tiers.TIERS:
        assert f"\n{tier}: $(STAMP)" in makefile
        assert f"| `make {tier}` |" in page


# --- what the strict tiers don't do ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", tiers.CLOCKS)
def test_a_test_that_reads_a_clock_is_told_to_go_to_perf(clock: str) -> None:
    with pytest.raises(tiers.WrongTier, match=r"@pytest\.mark\.perf"):
        getattr(time, clock)()


def test_virtual_time_may_be_read_and_real_time_may_not(mock_clock: trio.testing.MockClock) -> None:
    async def read() -> float:
        return trio.current_time()

    trio.run(read, clock=mock_clock)
    with pytest.raises(tiers.WrongTier, match=r"@pytest\.mark\.perf"):
        trio.run(read)


async def test_linn_itself_reads_clocks() -> None:
    assert RealEnv().clock.monotonic() > 0


def test_no_test_imports_a_clock_by_name_which_the_check_could_not_see() -> None:
    found = [
        f"{path.relative_to(tiers.TESTS)}:{node.lineno}"
        for path in tiers.TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        if node.module == "time" or (node.module == "trio" and "current_time" in [name.name for name in node.names])
    ]
    assert found == []


@pytest.mark.parametrize("command", [LINN, [str(Path(sys.executable).parent / "linn")], "cd /; linn serve"])
def test_a_test_that_starts_linn_is_told_to_go_to_system(command: str | list[str]) -> None:
    with pytest.raises(tiers.WrongTier, match=r"@pytest\.mark\.system"):
        subprocess.run(command, shell=isinstance(command, str), check=True)


async def test_so_is_a_test_that_starts_it_from_trio() -> None:
    with pytest.raises(tiers.WrongTier, match=r"@pytest\.mark\.system"):
        await trio.run_process(LINN)


def test_other_processes_may_be_started() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_a_bound_on_time_is_for_tests_that_are_measured() -> None:
    with pytest.raises(AssertionError, match="mark the test `measured`"), at_most(cpu_s=1):
        pass
