"""The maps of the house name the rooms that there are: docstrings, the architecture page, and the import contracts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import linn.core
from linn.core.broker import broker

ROOT = Path(__file__).parent.parent
CORE = ROOT / "linn" / "core"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")


def floors() -> list[str]:
    """The rooms of core from the top down, as import-linter has them."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    (core,) = [contract for contract in contracts if contract.get("containers") == ["linn.core"]]
    layers: list[str] = core["layers"]
    return layers


def test_the_contract_names_every_room_of_core() -> None:
    assert sorted(floors()) == sorted(room.parent.name for room in CORE.glob("*/__init__.py"))


def test_the_docstring_of_core_lists_its_rooms_from_the_top_down() -> None:
    listed = re.search(r"Imports go down only: (.*?)\.$", linn.core.__doc__ or "", re.DOTALL)
    assert listed
    assert re.split(r",\s+", listed[1]) == floors()


def test_the_architecture_page_describes_every_room_of_core() -> None:
    table = PAGE.partition("The packages of core are layers as well")[2].partition("The rooms of the Python client")[0]
    described = [
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(described) == sorted(floors())


def test_the_order_of_reading_names_modules_that_exist() -> None:
    named = re.findall(r"`(\w+/\w+)`", broker.__doc__ or "")
    assert len(named) > 10
    assert [name for name in named if not (CORE / f"{name}.py").exists()] == []


def test_the_page_says_which_built_in_plugins_there_are() -> None:
    for folder in ("protocols", "storage_engines"):
        rooms = sorted(place.parent.name for place in (ROOT / "linn" / folder).glob("*/__init__.py"))
        assert [room for room in rooms if room not in PAGE] == []
