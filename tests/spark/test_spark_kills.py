"""Kills in the middle of micro-batches: workers, JVM, driver and broker, and every record once in lake and topic."""

from __future__ import annotations

import contextlib
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

import duckdb
import psutil
import pytest
from spark_session import needs_spark
from topic_reading import committed
from two_pipelines import config, pipelines, until

import linn.sync
from linn.cli.demo.lake import committed_files
from linn.testing.process import BrokerProcess

needs_spark()

BURST = 3_000
LIMIT = 'source_options = { maxOffsetsPerTrigger = "400" }'
VICTIMS = ("worker", "jvm", "driver", "broker")


def are_in_the_middle(client: linn.sync.Client) -> bool:
    """Whether both pipelines run, have reported a micro-batch of this process, and have more to do."""
    found = pipelines(client).values()
    return all(each["state"] == "running" and (each["progress"]["lag"] or 0) > 0 for each in found)


def is_running(process: psutil.Process, what: str) -> bool:
    """Whether a process runs this, and has not just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return what in " ".join(process.cmdline())
    return False


def victims(broker: BrokerProcess, victim: str) -> list[psutil.Process]:
    """The processes to kill."""
    assert broker.pid is not None
    (driver,) = [each for each in psutil.Process(broker.pid).children() if is_running(each, "linn.spark_plugin.driver")]
    if victim == "driver":
        return [driver]
    (jvm,) = [each for each in driver.children() if is_running(each, "java")]
    if victim == "jvm":
        return [jvm]
    daemons = [each for each in jvm.children() if is_running(each, "pyspark.daemon")]
    return [worker for daemon in daemons for worker in daemon.children()]


def have_died(processes: list[psutil.Process]) -> bool:
    """Kill processes. Returns whether at least one of them still ran."""
    killed = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            killed += 1
    return killed > 0


def kill(broker: BrokerProcess, client: linn.sync.Client, victim: str) -> None:
    """Kill, and wait until the broker has noticed that a driver is gone."""
    if victim == "broker":
        broker.kill()
        broker.start()
        return
    until(lambda: have_died(victims(broker, victim)), f"there is no {victim} to kill")
    if victim != "worker":
        until(
            lambda: any(each["state"] != "running" for each in pipelines(client).values()),
            f"the broker does not notice that the {victim} is gone",
        )


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_every_record_is_in_lake_and_topic_once_whatever_is_killed(tmp_path: Path, kills: int) -> None:
    data = tmp_path / "broker"
    data.mkdir()
    published = 0
    with BrokerProcess(data, config(tmp_path, of_pipelines=LIMIT)) as broker, linn.sync.connect(broker.url) as client:
        with client.producer("orders") as producer:
            for victim in islice(cycle(VICTIMS), kills):
                producer.publish_many([b"%d" % number for number in range(published, published + BURST)])
                published += BURST
                until(lambda: are_in_the_middle(client), f"no pipeline is in the middle before the {victim} is killed")
                kill(broker, client, victim)

        def has_all() -> bool:
            return all(
                each["state"] == "running" and sum(each["progress"]["offsets"].get("orders", {}).values()) == published
                for each in pipelines(client).values()
            )

        until(has_all, "the pipelines do not come to the end")
        copied = Counter(int(message.value or b"") for message in committed(client, "copies"))
        files = [*map(str, committed_files(tmp_path / "lake"))]
    assert copied == Counter(range(published))
    count, distinct, least, most = duckdb.execute(
        "SELECT count(*), count(DISTINCT n), min(n), max(n) FROM (SELECT decode(value)::INT AS n FROM read_parquet(?))",
        [files],
    ).fetchall()[0]
    assert (count, distinct, least, most) == (published, published, 0, published - 1)
