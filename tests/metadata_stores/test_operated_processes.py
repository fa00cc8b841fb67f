"""Real brokers beside a real etcd under load, operated by the commands of docs/how-to/operate-a-cluster.md."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_load import QUEUE, STREAM, TABLES, Load
from cluster_processes import RealCluster, real_cluster, until

pytestmark = pytest.mark.system

COMMAND_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    """Three brokers that are in sync."""
    with real_cluster(tmp_path, tables=TABLES) as cluster:
        cluster.until_whole(QUEUE, STREAM)
        yield cluster


def run(cluster: RealCluster, *arguments: str, at: int) -> str:
    """Run a command of `linn cluster` at a broker; returns what it prints. Fails where the command does."""
    command = [sys.executable, "-m", "linn", "cluster", *arguments, "--url", cluster.brokers[at].url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def described(cluster: RealCluster, *arguments: str, at: int) -> Any:
    return json.loads(run(cluster, *arguments, "--json", at=at))


def other_than(cluster: RealCluster, *nodes: int) -> int:
    return next(number for number in sorted(cluster.brokers) if number not in nodes)


def loaded(cluster: RealCluster) -> Load:
    """A load whose clients know the addresses of all brokers, each with another one first."""
    addresses = [broker.address for broker in cluster.brokers.values()]
    urls = [",".join([*addresses[at:], *addresses[:at]]) for at in range(len(addresses))]
    return Load(cluster, [f"linn://{url}" for url in urls])


def none_failed(load: Load, since_s: float, *, copies: bool = True) -> None:
    """Check what the load has seen, and say how long a client waited at most."""
    assert load.failures() == []
    load.check(copies=copies)
    count = sum(len(outcomes) for outcomes in load.sent.values())
    print(f"{count} confirmations, the longest wait was {load.longest_gap_until_now(since_s):.2f} s")


def test_a_node_is_drained_stopped_started_and_undrained_under_load(cluster: RealCluster) -> None:
    drained = cluster.leader(QUEUE)
    other = other_than(cluster, drained)
    with loaded(cluster) as load:
        at_s = time.monotonic()
        run(cluster, "drain", str(drained), "--wait", "30", at=other)
        assert cluster.node(other, drained)["leads"] == 0
        assert cluster.brokers[drained].stop() == 0
        load.longest_gap(time.monotonic())
        cluster.brokers[drained].start()
        cluster.until_whole(QUEUE, STREAM)
        assert cluster.node(other, drained)["is_draining"]
        run(cluster, "undrain", str(drained), at=other)
        run(cluster, "elect", QUEUE, "--leader", str(drained), at=other)
        until(lambda: cluster.leader(QUEUE, other) == drained)
        load.longest_gap(time.monotonic())
    none_failed(load, at_s)


def test_a_killed_node_is_replaced_with_an_empty_folder_under_load(cluster: RealCluster) -> None:
    killed = cluster.leader(QUEUE)
    other = other_than(cluster, killed)
    with loaded(cluster) as load:
        at_s = time.monotonic()
        cluster.brokers[killed].kill()
        shutil.rmtree(cluster.brokers[killed].data_dir)
        cluster.brokers[killed].start()  # Before the former process is given up.
        cluster.until_whole(QUEUE, STREAM)
        assert cluster.node(other, killed)["lost"] == "none", "the controller has handled it"
        load.longest_gap(time.monotonic())
    none_failed(load, at_s)


def test_all_nodes_are_restarted_one_after_the_other_under_load(cluster: RealCluster) -> None:
    with loaded(cluster) as load:
        at_s = time.monotonic()
        for number in sorted(cluster.brokers):
            other = other_than(cluster, number)
            run(cluster, "drain", str(number), "--wait", "30", at=other)
            cluster.lose(number, signal.SIGTERM)
            cluster.recover(number)
            cluster.until_whole(QUEUE, STREAM)
            assert described(cluster, "status", at=other)["topics"]["out_of_sync"] == 0
            run(cluster, "undrain", str(number), at=other)
            load.longest_gap(time.monotonic())
        run(cluster, "upgrade", at=1)
    none_failed(load, at_s)


def test_of_three_operators_who_each_drain_a_node_at_once_two_are_refused_under_load(cluster: RealCluster) -> None:
    with loaded(cluster) as load:
        at_s = time.monotonic()
        commands = [
            [sys.executable, "-m", "linn", "cluster", "drain", str(number), "--url", cluster.brokers[number].url]
            for number in sorted(cluster.brokers)
        ]
        operators = [subprocess.Popen(it, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for it in commands]
        said = [operator.communicate(timeout=COMMAND_S)[1] for operator in operators]
        refused = [text for operator, text in zip(operators, said, strict=True) if operator.returncode]
        assert len(refused) == 2, said
        assert all("fewer replicas in sync than they need" in text for text in refused)
        (draining,) = [number for number in cluster.brokers if cluster.node(1, number)["is_draining"]]
        other = other_than(cluster, draining)
        until(lambda: draining not in (cluster.leader(QUEUE, other), cluster.leader(STREAM, other)))
        run(cluster, "undrain", str(draining), at=other)
        load.longest_gap(time.monotonic())
    none_failed(load, at_s)


def test_a_new_node_gets_its_share_under_load(cluster: RealCluster) -> None:
    with loaded(cluster) as load:
        at_s = time.monotonic()
        new = cluster.broker(4)
        with new:
            cluster.brokers[4] = new
            assert "1 topic would go to other nodes or leaders" in run(cluster, "balance", "--dry-run", at=4)
            (move,) = described(cluster, "balance", at=4)["moves"]
            assert 4 in move["target"]
            until(lambda: "no topic moves" in run(cluster, "moves", at=1))
            assert "nothing to do: the nodes are even" in run(cluster, "balance", at=1)
            assert sorted(node["holds"] for node in cluster.status(1)["nodes"]) == [1, 1, 2, 2]
            load.longest_gap(time.monotonic())
            run(cluster, "remove", "4", "--yes", at=1)
            until(lambda: cluster.node(1, 4)["holds"] == 0)
            load.longest_gap(time.monotonic())
            del cluster.brokers[4]
            assert new.stop() == 0
            until(lambda: 4 not in cluster.states(1))
    none_failed(load, at_s)
