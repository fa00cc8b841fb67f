"""Three `linn serve` beside a real etcd: who is alive, who is the controller, and who was given up when."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from cluster_processes import TIMEOUT_S, RealCluster, real_cluster, until
from etcd_process import running_etcd

import linn.sync
from linn.testing.process import BrokerNotReady, BrokerProcess

pytestmark = pytest.mark.system

NOTICED_S = TIMEOUT_S + 2.0
"""Time in which a node that is gone is given up, and another one is the controller if it was that."""
JOBS = """
[topics.jobs]
kind = "queue"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    """Three brokers that know one another."""
    with real_cluster(tmp_path, tables=JOBS) as cluster:
        yield cluster


def test_status_of_each_of_three_brokers_agrees(cluster: RealCluster) -> None:
    until(lambda: all(node["lost"] == "none" for node in cluster.status(1)["nodes"]))
    until(lambda: len({cluster.status(number)["revision"] for number in (1, 2, 3)}) == 1)
    seen = [cluster.status(number) for number in (1, 2, 3)]
    for node in [node for status in seen for node in status["nodes"]]:
        node["clock_ahead_s"] = None  # It depends on who tells it.
    assert seen[0]["nodes"] == seen[1]["nodes"] == seen[2]["nodes"]
    assert len({(status["id"], status["controller"], status["controller_epoch"]) for status in seen}) == 1
    assert [node["state"] for node in seen[0]["nodes"]] == ["alive"] * 3
    assert [node["addresses"]["native"] for node in seen[0]["nodes"]] == [
        cluster.brokers[number].address for number in (1, 2, 3)
    ]


def test_a_killed_broker_is_given_up_in_time_and_comes_back(cluster: RealCluster) -> None:
    killed = next(number for number in (1, 2, 3) if number != cluster.controller(1))
    other = next(number for number in (1, 2, 3) if number != killed)
    before_ms = time.time() * 1000
    cluster.brokers[killed].kill()
    until(lambda: cluster.states(other)[killed] == "given up", NOTICED_S)
    at_ms = cluster.node(other, killed)["since_ms"] or 0
    assert before_ms < at_ms < before_ms + NOTICED_S * 1000
    cluster.brokers[killed].start()
    until(lambda: cluster.states(other)[killed] == "alive")
    assert [end["at_ms"] for end in cluster.node(other, killed)["ends"]] == [at_ms]


def test_a_frozen_broker_is_given_up_in_time_and_registers_again(cluster: RealCluster) -> None:
    frozen = next(number for number in (1, 2, 3) if number != cluster.controller(1))
    other = next(number for number in (1, 2, 3) if number != frozen)
    session = cluster.node(other, frozen)["session"]
    cluster.brokers[frozen].signal(signal.SIGSTOP)
    try:
        until(lambda: cluster.states(other)[frozen] == "given up", NOTICED_S)
    finally:
        cluster.brokers[frozen].signal(signal.SIGCONT)
    until(lambda: cluster.states(other)[frozen] == "alive")
    assert cluster.node(other, frozen)["session"] != session
    until(lambda: cluster.status(frozen)["is_registered"])


def test_when_the_controller_is_killed_another_one_takes_over(cluster: RealCluster) -> None:
    killed = cluster.controller(1)
    assert killed is not None
    others = [number for number in (1, 2, 3) if number != killed]
    epoch = cluster.status(others[0])["controller_epoch"] or 0
    cluster.brokers[killed].kill()
    until(lambda: all(cluster.controller(number) in others for number in others), NOTICED_S)
    assert (cluster.status(others[0])["controller_epoch"] or 0) > epoch
    until(lambda: cluster.states(others[0])[killed] == "given up")


def test_a_stopped_broker_has_left_at_once(cluster: RealCluster) -> None:
    assert cluster.brokers[3].stop() == 0
    assert cluster.states(1)[3] == "left" or until(lambda: cluster.states(1)[3] == "left", 1.0) < 1
    assert cluster.node(1, 3)["ends"][-1]["reason"] == "left"


def test_while_etcd_is_stopped_publishing_works_and_afterwards_all_are_registered(cluster: RealCluster) -> None:
    with (
        linn.sync.connect(cluster.brokers[1].url) as client,
        client.producer("jobs") as producer,
        client.consumer("jobs") as consumer,
    ):
        for member in cluster.etcd.members:
            member.kill()
        until_s = time.monotonic() + 2 * TIMEOUT_S
        published = 0
        while time.monotonic() < until_s:
            producer.publish(b"job")
            next(consumer).ack().wait()
            published += 1
        assert published > 10
        status = client.admin.cluster()
        assert status["problem"] is not None
        assert status["view_age_s"] > TIMEOUT_S
        assert not status["is_registered"]
        cluster.etcd.start()
        until(lambda: client.admin.cluster()["is_registered"])
        until(lambda: client.admin.cluster()["problem"] is None)
    until(lambda: set(cluster.states(2).values()) == {"alive"})


def test_a_broker_that_starts_without_etcd_waits_for_it_and_says_so(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd") as etcd:
        cluster = RealCluster(tmp_path, etcd, tables=JOBS)
        for member in etcd.members:
            member.kill()
        broker = cluster.broker(1)
        starting = Thread(target=broker.start)
        starting.start()
        try:
            until(lambda: "the start waits for the metadata store" in broker.log_text())
            etcd.start()
            starting.join()
            cluster.brokers[1] = broker
            until(lambda: cluster.states(1) == {1: "alive"})
        finally:
            starting.join()
            broker.kill()


def refused(broker: BrokerProcess) -> str:
    """Start a broker that refuses to; return what it says."""
    with pytest.raises(BrokerNotReady) as caught:
        broker.start()
    assert caught.value.returncode not in (0, None)
    return caught.value.text


def test_two_brokers_with_one_number(cluster: RealCluster) -> None:
    assert "[cluster.node_taken]" in refused(cluster.broker(2, "another"))
    assert cluster.states(1)[2] == "alive"


def test_a_broker_with_another_secret(cluster: RealCluster, tmp_path: Path) -> None:
    another = tmp_path / "another-secret"
    another.touch(0o600)
    another.write_text("a5" * 32)
    broker = cluster.broker(4)
    broker.configure(cluster.config(4).replace(str(tmp_path / "secret"), str(another)))
    said = refused(broker)
    assert "[cluster.secret]" in said
    assert "Traceback" not in said
    assert 4 not in cluster.states(1)


def test_a_data_folder_of_another_node_and_of_another_cluster(cluster: RealCluster, tmp_path: Path) -> None:
    cluster.brokers[3].stop()
    cluster.brokers[3].configure(cluster.config(4))
    before = snapshot(cluster.brokers[3].data_dir)
    assert "[cluster.foreign]" in refused(cluster.brokers[3])
    with running_etcd(tmp_path / "other-etcd") as etcd:
        other = RealCluster(tmp_path, etcd, tables=JOBS)
        with other.broker(1, "other"):
            cluster.brokers[3].configure(other.config(3))
            assert "[cluster.foreign]" in refused(cluster.brokers[3])
    assert snapshot(cluster.brokers[3].data_dir) == before, "nothing was changed"


def test_an_emptied_store(cluster: RealCluster) -> None:
    cluster.brokers[3].stop()
    before = snapshot(cluster.brokers[3].data_dir)
    with linn.sync.connect(cluster.brokers[1].url) as client, client.producer("jobs") as producer:
        producer.publish(b"the next leader is ready")
    for member in cluster.etcd.members:
        member.kill()
        shutil.rmtree(member.folder / "data")
    cluster.etcd.start()
    assert "[cluster.emptied]" in refused(cluster.brokers[3])
    assert snapshot(cluster.brokers[3].data_dir) == before, "nothing was changed"
    with linn.sync.connect(cluster.brokers[1].url) as client, client.producer("jobs") as producer:
        producer.publish(b"served on")
        until(lambda: "it has lost data" in (client.admin.cluster()["problem"] or ""))


def snapshot(folder: Path) -> dict[str, bytes]:
    """The content of all files of a folder."""
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
