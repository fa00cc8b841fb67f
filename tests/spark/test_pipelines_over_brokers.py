"""Pipelines of three brokers, whose leader is killed and changed: every record once in lake and topic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cluster_processes import RealCluster, real_cluster
from spark_session import needs_spark
from topic_reading import committed
from two_pipelines import config, pipelines, until

import linn.sync
from linn.cli.demo.lake import committed_files
from linn.errors import LinnError

needs_spark()

BURST = 2_000
LIMIT = 'source_options = { maxOffsetsPerTrigger = "200" }'


def url_of(cluster: RealCluster) -> str:
    """The URL of all brokers."""
    return f"linn://{','.join(url.removeprefix('linn://') for url in cluster.urls)}"


def at_leader(cluster: RealCluster, *lost: int) -> dict[str, Any]:
    """The pipelines at the leader of their topic; none while there is no leader."""
    seen_by = next(number for number in cluster.brokers if number not in lost)
    leader = cluster.leader("orders", seen_by)
    if leader in (0, *lost):
        return {}
    try:
        with linn.sync.connect(cluster.brokers[leader].url) as client:
            return pipelines(client)
    except LinnError:
        return {}


def go_on(cluster: RealCluster, *lost: int) -> bool:
    """Whether both pipelines run at the leader, and have reported a micro-batch."""
    found = at_leader(cluster, *lost).values()
    return len(found) == 2 and all(each["state"] == "running" and each["progress"]["batches"] for each in found)


def are_in_the_middle(cluster: RealCluster) -> bool:
    """Whether both pipelines go on, and have more to do."""
    return go_on(cluster) and all(each["progress"]["lag"] for each in at_leader(cluster).values())


def change(cluster: RealCluster, leader: int) -> None:
    """Let another broker lead, at once: the former driver may still be in its micro-batch."""
    other = next(number for number in cluster.brokers if number != leader)
    with linn.sync.connect(cluster.brokers[leader].url) as client:
        client.admin.perform("cluster.elect", topic="orders", leader=other)
    until(lambda: cluster.leader("orders", other) == other, "another broker does not lead")


def kill(cluster: RealCluster, leader: int) -> None:
    """Kill the leader; it is back and in sync at the end."""
    cluster.lose(leader)
    left = next(number for number in cluster.brokers if number != leader)
    until(lambda: cluster.leader("orders", left) not in (0, leader), "no other broker leads")
    until(lambda: go_on(cluster, leader), "the next leader does not go on")
    cluster.recover(leader)
    cluster.until_whole("orders", "copies")


@pytest.mark.timeout(1_800)
def test_every_record_is_in_lake_and_topic_once_while_leaders_change(tmp_path: Path) -> None:
    of_spark = f'[spark]\nstate_dir = "{tmp_path}/state"\nconf = {{ "spark.driver.memory" = "1g" }}\n'
    published = 0
    with real_cluster(tmp_path, tables=of_spark + config(tmp_path, of_pipelines=LIMIT)) as cluster:
        cluster.until_whole("orders", "copies")
        with linn.sync.connect(url_of(cluster)) as client:
            with client.producer("orders") as producer:
                for move in (kill, change):
                    producer.publish_many([b"%d" % number for number in range(published, published + BURST)])
                    published += BURST
                    until(lambda: are_in_the_middle(cluster), "the pipelines do not come into the middle")
                    move(cluster, cluster.leader("orders"))

            def has_all() -> bool:
                found = at_leader(cluster).values()
                return len(found) == 2 and all(
                    sum(each["progress"]["offsets"].get("orders", {}).values()) == published for each in found
                )

            until(has_all, "the pipelines do not come to the end")
        with linn.sync.connect(url_of(cluster)) as client:
            copied = Counter(int(message.value or b"") for message in committed(client, "copies"))
        files = [*map(str, committed_files(tmp_path / "lake"))]
    assert copied == Counter(range(published))
    count, distinct, least, most = duckdb.execute(
        "SELECT count(*), count(DISTINCT n), min(n), max(n) FROM (SELECT decode(value)::INT AS n FROM read_parquet(?))",
        [files],
    ).fetchall()[0]
    assert (count, distinct, least, most) == (published, published, 0, published - 1)
