"""The page about testing: every public name is told, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from linn.testing import BrokerThread, CrashableBroker, VirtualWorld, broker_view, history
from linn.testing.invariants import INVARIANTS, InvariantBroken
from linn.testing.process import BrokerProcess

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "testing.md").read_text(encoding="utf-8")
FIXTURES = ["linn_broker", "linn_brokers", "linn_virtual", "linn_crash"]


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
