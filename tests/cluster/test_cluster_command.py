"""The text of `linn cluster status`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from linn.cli.commands.cluster import _print
from linn.cli.render.console import console
from linn.descriptions import ClusterDescription, NodeState, TopicTrouble

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
            "leads": 1_200 * number,
            "holds": 3_400,
            "out_of_sync": number - 1,
            "version": f"0.{number}.0",
            "levels": [1, number],
            "clock_ahead_s": None if number == 1 else 12.34,
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
    "level": 1,
    "session_timeout_s": 6.0,
    "failing": 0,
    "topics": {
        "topics": 3_400,
        "leaderless": 0,
        "below_minimum": 0,
        "unfit": 0,
        "out_of_sync": 0,
        "too_few_replicas": 0,
        "moving": 0,
        "away": 0,
    },
    "troubled": [],
    "troubled_more": 0,
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
    assert lines[:4] == [
        "Cluster prod, as node 1 knows it.",
        "Node 2 is the controller, in epoch 1,234.",
        "The metadata store etcd is at revision 5,678; the last renewal of the session took 2.1 ms.",
        "The cluster has level 1.",
    ]
    table = [line for line in lines[4:] if line]
    text = "\n".join(table)
    assert "alive, draining" in " ".join(text.split()) or columns == 80
    assert text.count("given up") == 2, "the head, and the state"
    assert ("2001:db8" in text) == (columns == 200)


def test_it_says_that_all_nodes_know_a_greater_level(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [{**node, "levels": levels} for node, levels in zip(STATUS["nodes"], ([1, 3], [1, 2], []), strict=True)]
    text = shown(capsys, nodes=nodes)
    assert "The cluster has level 1, and all nodes know level 2: linn cluster upgrade raises it." in text
    assert [f"0.{number}.0" in text for number in (1, 2, 3)] == [True] * 3


def test_it_says_when_what_it_knows_is_old(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, view_age_s=61.2, problem="it is down", controller=None, is_registered=False)
    assert "Cluster prod, as node 1 knows it, which is 61 s old: it is down." in text
    assert "It has no controller now." in text
    assert "Node 1 has no session, or one that may have ended." in text


def test_it_says_that_all_topics_are_well(capsys: pytest.CaptureFixture[str], columns: int) -> None:
    text = shown(capsys)
    assert text.splitlines()[-1] == "3,400 topics, all led and in sync."
    assert "1,200" in text
    assert ("┃ level ┃" in text) == ("+12.3 s" in text) == (columns == 200)


def test_it_says_that_a_disk_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert "The disk of node 1 takes no records of 2 topics: make room." in shown(capsys, failing=2)
    assert "disk" not in shown(capsys)


def test_it_counts_topics_in_trouble_and_lists_the_worst(capsys: pytest.CaptureFixture[str], columns: int) -> None:
    troubled: TopicTrouble = {
        "topic": "orders",
        "troubles": ["leaderless", "below minimum", "unfit", "too few replicas"],
        "leader": 0,
        "epoch": 7,
        "nodes": [1, 2],
        "in_sync": [],
        "unfit": [2],
        "replicas": 3,
        "min_in_sync": 2,
    }
    topics = {**STATUS["topics"], "leaderless": 1, "below_minimum": 1, "unfit": 12, "too_few_replicas": 1, "away": 2}
    text = shown(capsys, topics=topics, troubled=[troubled], troubled_more=11)
    assert (
        "3,400 topics: 1 without a leader, 1 below min_in_sync, 12 with an unfit replica, 1 with too few replicas, "
        "2 away from their preferred leader." in text
    )
    assert "orders" in text
    assert ("leaderless, below minimum, unfit: 2, 2 of 3 replicas" in text) == (columns == 200)
    assert text.splitlines()[-1] == "11 more are in trouble: linn cluster status --topics lists them."
