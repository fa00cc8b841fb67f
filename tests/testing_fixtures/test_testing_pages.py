"""The pages about testing: every example runs as it stands, and every public name is told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from linn.testing import BrokerThread, CrashableBroker, VirtualWorld, broker_view, history
from linn.testing.invariants import INVARIANTS, InvariantBroken
from linn.testing.process import BrokerProcess

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "test-code-that-uses-linn.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "testing.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```(?:python|toml) (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
TIMEOUT_S = 100
FIXTURES = ["linn_broker", "linn_brokers", "linn_virtual", "linn_crash"]


@pytest.mark.system
def test_every_example_passes(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    tests = [name for name in FILES if name.startswith("test_")]
    assert len(tests) > 8
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-W", "error", "--strict-markers", "-p", "no:cacheprovider",
         f"--basetemp={tmp_path}/base"],
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = set(re.findall(r"^PASSED (\w+\.py)::", done.stdout, re.MULTILINE))
    assert passed == set(tests)
    assert "test_cafe_with_anyio.py::test_what_is_ordered_is_made[trio]" in done.stdout
    assert "test_cafe_with_anyio.py::test_what_is_ordered_is_made[asyncio]" in done.stdout


def test_every_python_block_of_the_page_is_a_file() -> None:
    assert len(FILES) == len(re.findall(r"^```(?:python|toml)", PAGE, re.MULTILINE))


@pytest.mark.parametrize("public", [BrokerThread, VirtualWorld, CrashableBroker, BrokerProcess])
def test_every_public_member_is_in_the_reference(public: type) -> None:
    members = [name for name in vars(public) if not name.startswith("_")]
    assert [name for name in members if f"`{name}" not in REFERENCE] == []


def test_every_fixture_and_every_look_is_in_the_reference() -> None:
    looks = [
        name for name, found in vars(broker_view).items() if getattr(found, "__module__", "") == broker_view.__name__
    ]
    assert looks
    names = [*FIXTURES, *(name for name in looks if not name.startswith("_"))]
    assert [name for name in names if f"`{name}" not in REFERENCE] == []


def test_every_invariant_and_every_event_is_in_the_reference() -> None:
    for name, says in INVARIANTS.items():
        assert f"| {name} | {says} |" in REFERENCE
    for event in history.Event.__subclasses__():
        assert f"`{event.__name__}`" in REFERENCE


def test_the_example_of_a_history_breaks_what_it_says() -> None:
    (example,) = re.findall(r"^```python\n(from linn\.testing\.history .*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL)
    with pytest.raises(InvariantBroken, match=r"^confirmed means readable: "):
        exec(compile(example, "testing.md", "exec"), {})
