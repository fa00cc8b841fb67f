"""Drivers are optional: participants are there without them, and say what to install when one is made."""

from __future__ import annotations

import subprocess
import sys

import pytest

import linn.participants


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("PostgresParticipant", "psycopg", "postgres"),
        ("AsyncPostgresParticipant", "psycopg", "postgres"),
        ("RedisParticipant", "redis", "redis"),
    ],
)
def test_a_driver_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    participant = getattr(linn.participants, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{name} needs {module}: pip install 'linn\[{extra}\]'") as caught:
        participant("")
    assert caught.value.name == module


def test_no_driver_is_loaded_before_a_participant_is_made() -> None:
    script = (
        "import sys, linn.participants as p; before = {*sys.modules}; [getattr(p, name) for name in p.__all__]; "
        "print(sorted({'sqlite3', 'linn.client.participants.sqlite'} & before), "
        "sorted({'psycopg', 'redis'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[] []\n"


def test_the_public_names_are_shown() -> None:
    assert dir(linn.participants) == sorted(linn.participants.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        linn.participants.nothing  # noqa: B018
