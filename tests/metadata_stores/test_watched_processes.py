"""`linn doctor`, `linn cluster status` and `linn topics show` on three brokers beside a real etcd: what is wrong, and
that it is over."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import TIMEOUT_S, RealCluster, real_cluster, until

from linn.descriptions import ClusterDescription

pytestmark = pytest.mark.system

TABLES = """
[topics.jobs]
kind = "stream"
[topics.single]
kind = "stream"
replicas = 1
"""
NOTICED_S = TIMEOUT_S + 20.0


def said(cluster: RealCluster, number: int, *arguments: str) -> str:
    """Run a command at a broker."""
    url = cluster.brokers[number].url
    done = subprocess.run(
        [sys.executable, "-m", "linn", *arguments, "--url", url], capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr
    return done.stdout


def doctor(cluster: RealCluster, number: int, tmp_path: Path) -> dict[str, tuple[str, str, str]]:
    """Findings of `linn doctor` with a broker's file, without the good ones: (state, text, advice) by name."""
    file = tmp_path / "examined.toml"
    file.write_text(cluster.config(number) + f'[broker]\ndata_dir = "{tmp_path}/examined"\n')
    url = cluster.brokers[number].url
    done = subprocess.run(
        [sys.executable, "-m", "linn", "doctor", str(file), "--json", "--url", url],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return {it["name"]: (it["state"], it["found"], it["advice"]) for it in found["findings"] if it["state"] != "ok"}


def topics(status: ClusterDescription) -> dict[str, list[str]]:
    return {topic["topic"]: list(topic["troubles"]) for topic in status["troubled"]}


def is_well(cluster: RealCluster) -> bool:
    """Whether every broker says that all topics are led and in sync."""
    return all(
        cluster.status(number)["topics"]["topics"] == 2 and topics(cluster.status(number)) == {}
        for number in cluster.brokers
    )


def test_the_doctor_names_dead_brokers_and_the_topics_that_they_leave_in_trouble(tmp_path: Path) -> None:
    with real_cluster(tmp_path, tables=TABLES) as cluster:
        cluster.until_whole("jobs")
        until(lambda: is_well(cluster), NOTICED_S)
        found = doctor(cluster, 1, tmp_path)
        assert not found.keys() & {"cluster", "nodes", "leaderless", "below minimum", "out of sync", "session timeout"}
        assert found["hosts"][0] == "warning", "they are all on this machine"
        assert "endpoints has" in found["metadata store"][1]

        lost = cluster.leader("single")
        cluster.lose(lost, signal.SIGKILL)
        others = [number for number in cluster.brokers if number != lost]
        until(lambda: topics(cluster.status(others[0])).get("single", [])[:1] == ["leaderless"], NOTICED_S)
        until(lambda: topics(cluster.status(others[0])).get("jobs") == ["out of sync"], NOTICED_S)
        until(lambda: cluster.states(others[0])[lost] == "given up", NOTICED_S)
        found = doctor(cluster, others[0], tmp_path)
        assert found["nodes"][0] == "error"
        assert f"node {lost} on " in found["nodes"][1]
        assert found["leaderless"][:2] == ("error", "1 topic has no leader: single")
        assert found["leaderless"][2].startswith(f"start node {lost}")
        assert found["out of sync"][0] == "warning"
        status = said(cluster, others[0], "cluster", "status")
        assert "2 topics: 1 without a leader, 1 below min_in_sync, 2 with a replica out of sync" in status

        cluster.lose(others[1], signal.SIGKILL)
        until(lambda: "below minimum" in topics(cluster.status(others[0])).get("jobs", []), NOTICED_S)
        found = doctor(cluster, others[0], tmp_path)
        assert found["below minimum"][0] == "error"
        assert "jobs" in found["below minimum"][1]

        for number in (lost, others[1]):
            cluster.recover(number)
        until(lambda: is_well(cluster), 2 * NOTICED_S)
        assert not doctor(cluster, 1, tmp_path).keys() & {
            "cluster",
            "nodes",
            "leaderless",
            "below minimum",
            "out of sync",
        }
        leader = cluster.leader("jobs")
        shown = said(cluster, leader, "topics", "show", "jobs")
        assert shown.count("has everything") == 2
        clocks = {node["node"]: node["clock_ahead_s"] for node in cluster.status(leader)["nodes"]}
        assert clocks[leader] is None
        assert all(ahead_s is not None and abs(ahead_s) < 1 for node, ahead_s in clocks.items() if node != leader)
