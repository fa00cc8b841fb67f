"""The text of `linn cluster status`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from linn.cli.commands.cluster import _print
from linn.cli.render.console import console
from linn.descriptions import ClusterDescription, NodeState

SECOND_MS = 1_000
GIVEN_UP_MS = 1_764_274_500 * SECOND_MS
STATES: list[tuple[int, NodeState, Literal["given up", "left"]]] = [
    (1, "alive", "given up"),
    (2, "left", "left"),
    (3, "given up", "given up"),
]
STATUS: ClusterDescription = {
    "name": "prod",
    "id": "c",
    "node": 1,
    "is_registered": True,
    "nodes": [
        {
            "node": number,
            "state": state,
            "since_ms": GIVEN_UP_MS,
            "session": "0123456789abcdef",
            "host": "a-machine-with-a-long-name.of-the-warehouse.in-rotterdam.example",
            "rack": "rack",
            "addresses": {"native": "[2001:db8:85a3:8d3:1319:8a2e:370:7348]:15466"},
            "lost": "none",
            "is_draining": number == 1,
            "ends": [{"session": "s", "at_ms": GIVEN_UP_MS, "reason": reason}],
        }
        for number, state, reason in STATES
    ],
    "controller": 2,
    "controller_epoch": 1234,
    "store": "etcd",
    "store_latency_s": 0.0021,
    "revision": 5678,
    "view_age_s": 0.0,
    "problem": None,
}


@pytest.fixture(params=[80, 200])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("COLUMNS", str(request.param))
    console.cache_clear()
    yield request.param
    console.cache_clear()


def shown(capsys: pytest.CaptureFixture[str], **others: Any) -> str:
    _print({**STATUS, **others})  # type: ignore[typeddict-item]
    return capsys.readouterr().out


def test_it_shows_controller_store_nodes_and_who_was_given_up(capsys: pytest.CaptureFixture[str], columns: int) -> None:
    lines = shown(capsys).splitlines()
    assert lines[:3] == [
        "Cluster prod, as node 1 knows it.",
        "Node 2 is the controller, in epoch 1,234.",
        "The metadata store etcd is at revision 5,678; the last renewal of the session took 2.1 ms.",
    ]
    table = [line for line in lines[3:] if line]
    text = "\n".join(table)
    assert "alive, draining" in " ".join(text.split()) or columns == 80
    assert text.count("given up") == 2, "the head, and the state"
    assert ("2001:db8" in text) == (columns == 200)


def test_it_says_when_what_it_knows_is_old(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, view_age_s=61.2, problem="it is down", controller=None, is_registered=False)
    assert "Cluster prod, as node 1 knows it, which is 61 s old: it is down." in text
    assert "It has no controller now." in text
    assert "Node 1 has no session, or one that may have ended." in text
