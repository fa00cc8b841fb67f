"""A topic of some size moves to another broker at `catch_up_rate`, while others publish to it with `acks = all`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_processes import RealCluster, real_cluster, until

import linn.sync

pytestmark = pytest.mark.perf

TOPIC_MB = int(os.environ.get("TOPIC_MB", "200"))
RATE_MB = 20
"""The `catch_up_rate` of all brokers."""
RECORD_BYTES = 10_000
SINGLES = 500


def published_s(client: linn.sync.Client, goes_on: Callable[[int], bool]) -> list[float]:
    """Publish one record after the other while something holds of their number; the time of each, sorted."""
    taken = []
    with client.producer("moved", acks="all") as producer:
        while goes_on(len(taken)):
            began_s = time.perf_counter()
            producer.publish(b"x")
            taken.append(time.perf_counter() - began_s)
    return sorted(taken)


def p99_ms(taken: list[float]) -> float:
    return 1000 * taken[len(taken) * 99 // 100]


def is_moved(cluster: RealCluster, target: list[int]) -> bool:
    replicas = cluster.replicas("moved")
    return replicas is not None and replicas["in_sync"] == sorted(target)


def test_a_move_keeps_to_its_rate_and_others_publish_as_before(tmp_path: Path) -> None:
    table = '[topics.moved]\nkind = "stream"\nreplicas = 3\n'
    with real_cluster(tmp_path, 4, tables=table, settings=f'catch_up_rate = "{RATE_MB}MB"') as cluster:
        until(lambda: len((cluster.replicas("moved") or {"in_sync": []})["in_sync"]) == 3)
        replicas = cluster.replicas("moved")
        assert replicas is not None
        leader, former = replicas["leader"], replicas["in_sync"]
        target = [leader, *({1, 2, 3, 4} - {*former}), *(node for node in former if node != leader)][:3]
        with linn.sync.connect(cluster.brokers[leader].url) as client:
            with client.producer("moved", acks="all") as producer:
                values = [os.urandom(RECORD_BYTES)] * (1_000_000 // RECORD_BYTES)
                for _ in range(TOPIC_MB):
                    producer.publish_many(values)
            usual = published_s(client, lambda count: count < SINGLES)
            began_s = time.monotonic()
            command = [sys.executable, "-m", "linn", "cluster", "reassign", "moved", *map(str, target)]
            subprocess.run([*command, "--url", cluster.brokers[leader].url], check=True, timeout=60)
            asked_s = time.monotonic() - began_s
            meanwhile = published_s(client, lambda count: bool(count % 50) or not is_moved(cluster, target))
        took_s = time.monotonic() - began_s
    said = f"{TOPIC_MB} MB in {took_s:.1f} s, the command {asked_s:.1f} s of it; p99 {p99_ms(usual):.1f} ms before"
    print(f"{said}, {p99_ms(meanwhile):.1f} ms meanwhile, of {len(meanwhile)}")
    assert took_s - asked_s < 1.1 * TOPIC_MB / RATE_MB + 1
    assert took_s > 0.9 * TOPIC_MB / RATE_MB
    assert p99_ms(meanwhile) < 2 * p99_ms(usual)
