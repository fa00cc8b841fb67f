"""The findings of `linn doctor` about a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from linn.cli.doctor.cluster import CLOCK_AHEAD_S_MAX, cluster_findings, configured_findings
from linn.cli.doctor.finding import Finding
from linn.cli.workers.store import NAME as OF_WORKERS
from linn.core.cluster.node import ALONE
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.plugins.manager import PluginManager, installed
from linn.descriptions import ClusterDescription, NodeDescription, TopicTrouble


def node(number: int, **others: Any) -> NodeDescription:
    found: NodeDescription = {
        "node": number,
        "state": "alive",
        "since_ms": 0,
        "session": "s",
        "host": f"host{number}",
        "rack": "",
        "addresses": {"native": f"10.0.0.{number}:5466"},
        "lost": "none",
        "is_draining": False,
        "leads": 1,
        "holds": 3,
        "out_of_sync": 0,
        "version": "0.1.0",
        "levels": [1, 1],
        "clock_ahead_s": 0.01 if number != 1 else None,
        "ends": [],
    }
    return {**found, **others}  # type: ignore[typeddict-item]


def cluster(*nodes: NodeDescription, **others: Any) -> ClusterDescription:
    found: ClusterDescription = {
        **ALONE,
        "name": "prod",
        "node": 1,
        "is_registered": True,
        "nodes": list(nodes) or [node(1), node(2), node(3)],
        "controller": 2,
        "store": "etcd",
        "store_latency_s": 0.003,
        "level": 1,
        "session_timeout_s": 6.0,
        "topics": {**ALONE["topics"], "topics": 3},
    }
    return {**found, **others}  # type: ignore[typeddict-item]


def topic(name: str, *troubles: str, nodes: tuple[int, ...] = (1, 2, 3), **others: Any) -> TopicTrouble:
    found: Any = {"topic": name, "troubles": list(troubles), "leader": 1, "epoch": 1, "nodes": list(nodes)}
    return {**found, "in_sync": [1], "unfit": [], "replicas": 3, "min_in_sync": 2, **others}  # type: ignore[no-any-return]


def in_trouble(key: str, *topics: TopicTrouble, nodes: tuple[NodeDescription, ...] = (), **others: Any) -> Any:
    count = {"topics": {**ALONE["topics"], "topics": 3, key: len(topics)}, "troubled": list(topics)}
    return cluster(*nodes, **{**count, **others})


GONE = node(3, state="given up", addresses={}, levels=[], clock_ahead_s=None)


def not_ok(found: ClusterDescription) -> list[Finding]:
    return [finding for finding in cluster_findings(found) if finding.state != "ok"]


def test_a_broker_that_is_alone_has_no_findings() -> None:
    assert list(cluster_findings(ALONE)) == []


def test_a_cluster_that_is_well_has_no_warnings() -> None:
    findings = {finding.name: finding for finding in cluster_findings(cluster())}
    assert {finding.state for finding in findings.values()} == {"ok"}
    assert findings["cluster"].found == "prod: 3 of 3 nodes alive, as node 1 knows it; node 2 is the controller"
    assert findings["replicas"].found == "3 topics, all led and in sync"


FINDINGS: list[tuple[ClusterDescription, str, str, str, str]] = [
    (cluster(problem="it is down", view_age_s=61.0), "cluster", "error", "61 s old: it is down", "endpoints"),
    (cluster(is_registered=False), "cluster", "error", "has no session", "log"),
    (cluster(controller=None), "cluster", "error", "there is no controller", "log"),
    (cluster(failing=2), "full disk", "error", "the disk of node 1 takes no records of 2 topics", "make room"),
    (cluster(store_latency_s=0.6), "session timeout", "warning", "in 600.0 ms", 'session_timeout = "7s"'),
    (
        cluster(node(1), node(2), GONE),
        "nodes",
        "error",
        "node 3 on host3 is given up; it is a replica of 3",
        "start it",
    ),
    (cluster(node(1), node(2, state="left")), "nodes", "warning", "node 2 on host2 was stopped", "start it"),
    (cluster(node(1), node(2, lost="all")), "nodes", "warning", "node 2 came back without all of its data", "copies"),
    (
        cluster(node(1, version="0.0.9"), node(2, levels=[1, 2])),
        "versions",
        "warning",
        "the cluster has level 1; node 2: 0.1.0 (level 2); node 1: 0.0.9 (level 1)",
        "restart all of them in the newest version",
    ),
    (
        cluster(node(1), node(2, version="0.2.0"), node(3)),
        "versions",
        "warning",
        "node 2: 0.2.0 (level 1); nodes 1, 3: 0.1.0 (level 1)",
        "restart all of them",
    ),
    (cluster(node(1), node(2, clock_ahead_s=-90.0)), "clocks", "warning", "node 2 is 90.0 s behind that of", "NTP"),
    (cluster(node(1), node(2, clock_ahead_s=1.5)), "clocks", "warning", "node 2 is 1.5 s ahead of that of", "NTP"),
    (cluster(node(1), node(2, host="host1")), "hosts", "warning", "all 2 nodes are on host1", "machines of their own"),
    (cluster(node(1), node(2, rack="b")), "racks", "warning", "node 1 without a rack", "rack in the [cluster]"),
    (
        cluster(node(1), node(2, addresses={"native": "127.0.0.1:1", "peers": "[::]:2", "tls": "b.example:3"})),
        "addresses",
        "warning",
        "node 2 tells others the address native 127.0.0.1:1, peers [::]:2, which",
        "advertise",
    ),
    (
        in_trouble("leaderless", topic("orders", "leaderless", nodes=(3,)), nodes=(node(1), node(2), GONE)),
        "leaderless",
        "error",
        "1 topic has no leader: orders",
        "start node 3: one that was in sync leads then; linn cluster elect if all are lost",
    ),
    (
        in_trouble("below_minimum", *[topic(f"t{number}", "below minimum") for number in range(7)]),
        "below minimum",
        "error",
        "7 topics are below min_in_sync, and refuse acks = all, such as t0, t1, t2, t3, t4",
        "start more nodes, or linn topics alter NAME min_in_sync=1",
    ),
    (in_trouble("unfit", topic("a", "unfit", unfit=[2])), "unfit", "error", "1 topic has an unfit", "disk of node 2;"),
    (
        in_trouble("out_of_sync", topic("a", "out of sync"), topic("b", "out of sync"), nodes=(node(1), node(2), GONE)),
        "out of sync",
        "warning",
        "2 topics have replicas out of sync: a, b",
        "start node 3; linn topics show NAME",
    ),
    (
        in_trouble("out_of_sync", topic("a", "out of sync")),
        "out of sync",
        "warning",
        "1 topic has a replica out of sync: a",
        "linn topics show NAME says how far",
    ),
    (
        in_trouble("too_few_replicas", topic("a", "too few replicas", replicas=5)),
        "too few replicas",
        "warning",
        "1 topic lacks replicas: a",
        "replicas = 5 with 3 nodes alive: start more, or linn topics alter NAME replicas=3",
    ),
]


@pytest.mark.parametrize(("found", "name", "state", "text", "advice"), FINDINGS, ids=[row[3] for row in FINDINGS])
def test_each_trouble_is_named_with_what_helps(
    found: ClusterDescription, name: str, state: str, text: str, advice: str
) -> None:
    findings = [finding for finding in not_ok(found) if finding.name == name]
    assert [finding.state for finding in findings] == [state]
    assert text in findings[0].found
    assert advice in findings[0].advice


def test_clocks_may_differ_by_a_little() -> None:
    found = cluster(node(1), node(2, clock_ahead_s=CLOCK_AHEAD_S_MAX))
    assert [finding.name for finding in not_ok(found)] == []


def test_a_draining_node_is_no_trouble_and_is_named() -> None:
    found = cluster(node(1), node(2, is_draining=True))
    (finding,) = [finding for finding in cluster_findings(found) if finding.name == "nodes"]
    assert (finding.state, finding.found) == ("ok", "node 2 on host2 is being drained: it leads 1 topic")


def test_a_level_that_all_nodes_know_and_the_cluster_has_not_is_named() -> None:
    found = cluster(node(1, levels=[1, 2]), node(2, levels=[1, 2]))
    (finding,) = [finding for finding in cluster_findings(found) if finding.name == "versions"]
    assert (finding.state, finding.found) == ("ok", "the cluster has level 1, and all nodes know level 2")
    assert "linn cluster upgrade" in finding.advice
    assert not [finding for finding in cluster_findings(cluster()) if finding.name == "versions"]


def test_topics_that_move_or_are_away_are_no_trouble_and_are_named() -> None:
    found = cluster(topics={**ALONE["topics"], "topics": 3, "moving": 1, "away": 2})
    assert not_ok(found) == []
    texts = {finding.name: (finding.found, finding.advice) for finding in cluster_findings(found)}
    assert texts["moves"][0] == "1 topic on the way to other nodes"
    assert "linn cluster moves" in texts["moves"][1]
    assert texts["preferred leaders"][0].startswith("2 topics away from the preferred leader")


def test_workers_share_their_host() -> None:
    nodes = [node(number, host="north", addresses={"native": "127.0.0.1:1"}) for number in (1, 2)]
    assert not_ok(cluster(*nodes, store=OF_WORKERS)) == []


CONFIG = """
[listeners.native]
address = "127.0.0.1:0"
[listeners.peers]
protocol = "peers"
address = "127.0.0.1:0"
[cluster]
name = "prod"
node = 1
store = "etcd"
listener = "peers"
secret = { file = "secret" }
"""


def configured(tmp_path: Path, more: str) -> list[Finding]:
    source = TomlSource(CONFIG + more, str(tmp_path / "linn.toml"))
    plugins = PluginManager(plugin_settings(source), installed())
    return list(configured_findings(load_config(source, plugins)))


THREE = 'endpoints = ["http://10.0.0.1:2379", "http://10.0.0.2:2379", "http://10.0.0.3:2379"]\n'
ONE = 'endpoints = ["http://10.0.0.1:2379"]\n'


def test_a_store_of_one_member_and_replicas_that_no_node_may_leave_are_found_in_the_file(tmp_path: Path) -> None:
    assert configured(tmp_path, THREE) == []
    (one,) = configured(tmp_path, ONE)
    assert (one.name, one.state) == ("metadata store", "warning")
    assert "http://10.0.0.1:2379 alone" in one.found
    assert "three etcd members" in one.advice
    assert configured(tmp_path, ONE + "replicas = 1\n") == []
    (two,) = configured(tmp_path, THREE + "replicas = 2\nmin_in_sync = 2\n")
    assert (two.name, two.advice) == ("replicas", "replicas = 3, or min_in_sync = 1")
