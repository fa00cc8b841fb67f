"""`linn serve --workers` with real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from tls_world import tls_table

from linn.sync import connect
from linn.testing.process import BrokerNotReady, BrokerProcess

pytestmark = pytest.mark.system

TWO = ("--workers", "2")
END_S = 30.0
TOPICS = ("one", "two", "three", "four")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, which the sockets of workers need."""
    with TemporaryDirectory(prefix="linn-", dir="/tmp") as path:
        yield Path(path)


def workers_of(broker: BrokerProcess) -> list[psutil.Process]:
    """The processes of the workers, by their numbers."""
    found = []
    for child in psutil.Process(broker.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # A zombie is one too.
            if "linn.cli.workers.worker" in (command := child.cmdline()):
                found.append((command[-1], child))
    return [child for _, child in sorted(found)]


def ended(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=END_S)
    return not alive


def make_topics(broker: BrokerProcess) -> None:
    with connect(broker.url) as client:
        for name in TOPICS:
            client.admin.create_topic(name, kind="queue")


def publish(broker: BrokerProcess, connections: int) -> int:
    """Publish one message to each topic over each of some connections; return their number for a topic."""
    for number in range(connections):
        with connect(broker.url) as client:
            for name in TOPICS:
                with client.producer(topic=name) as producer:
                    producer.publish(f"{number}".encode())
    return connections


def counts(broker: BrokerProcess) -> dict[str, int]:
    """The records of each topic."""
    with connect(broker.url) as client:
        return {topic["name"]: sum(part["end"] for part in topic["partitions"]) for topic in client.admin.topics()}


def refused(folder: Path, config: str = "", *options: str, **more: object) -> BrokerNotReady:
    with pytest.raises(BrokerNotReady) as caught, BrokerProcess(folder, config, options=options, **more):  # type: ignore[arg-type]
        pass
    assert "Traceback" not in caught.value.text
    return caught.value


def test_all_topics_are_served_at_one_port_by_two_processes(folder: Path) -> None:
    with BrokerProcess(folder, options=TWO) as broker:
        make_topics(broker)
        published = publish(broker, 12)
        assert counts(broker) == dict.fromkeys(TOPICS, published)
        with connect(broker.url) as client:
            found = client.admin.cluster()
        assert [(node["node"], node["state"]) for node in found["nodes"]] == [(1, "alive"), (2, "alive")]
        assert broker.stop() == 0
        log = broker.log_text()
        assert '"worker": 1' in log
        assert '"worker": 2' in log
        assert "Traceback" not in log
        broker.start()
        assert counts(broker) == dict.fromkeys(TOPICS, published)


def test_a_worker_that_is_killed_comes_back_with_its_records(folder: Path) -> None:
    with BrokerProcess(folder, options=TWO) as broker:
        make_topics(broker)
        confirmed = publish(broker, 3)
        for index in (0, 1):
            before = workers_of(broker)
            before[index].kill()
            until_text(broker, "is started again", index + 1)
            until_text(broker, " is ready", index + 3)
        assert counts(broker) == dict.fromkeys(TOPICS, confirmed)
        publish(broker, 3)
        assert counts(broker) == dict.fromkeys(TOPICS, confirmed + 3)
        assert broker.log_text().count("was ended by SIGKILL; it is started again") == 2
        assert broker.stop() == 0


def until_text(broker: BrokerProcess, text: str, count: int) -> None:
    """Wait until the log has a text so many times."""
    end_s = time.monotonic() + END_S
    while broker.log_text().count(text) < count:
        assert time.monotonic() < end_s, text


def test_workers_end_when_their_supervisor_is_killed_and_the_next_one_goes_on(folder: Path) -> None:
    with BrokerProcess(folder, options=TWO) as broker:
        make_topics(broker)
        confirmed = publish(broker, 2)
        workers = workers_of(broker)
        broker.kill()
        assert ended(workers)
        broker.start()
        assert counts(broker) == dict.fromkeys(TOPICS, confirmed)


def test_a_second_signal_ends_all_at_once(folder: Path) -> None:
    with BrokerProcess(folder, '[broker]\ndrain_timeout = "1h"\n', options=TWO) as broker:
        workers = workers_of(broker)
        host, port = broker.address.split(":")
        with socket.create_connection((host, int(port))):
            broker.signal(signal.SIGINT)
            while broker.log_text().count("once more") < 3:
                pass
            broker.signal(signal.SIGINT)
            assert broker.wait() == 130
        assert ended(workers)


def test_a_silent_client_holds_up_a_stop_only_for_the_drain(folder: Path) -> None:
    with BrokerProcess(folder, '[broker]\ndrain_timeout = "300ms"\n', options=TWO) as broker:
        host, port = broker.address.split(":")
        with socket.create_connection((host, int(port))):
            assert broker.stop() == 0


def test_the_folder_of_one_broker_becomes_that_of_workers_and_back(folder: Path) -> None:
    with BrokerProcess(folder) as broker:
        make_topics(broker)
        confirmed = publish(broker, 2)
        assert broker.stop() == 0
    with BrokerProcess(folder, options=TWO) as broker:
        publish(broker, 2)
        assert counts(broker) == dict.fromkeys(TOPICS, confirmed + 2)
        with connect(broker.url) as client:
            client.admin.create_topic("later", kind="queue")
        assert broker.stop() == 0
    assert "topic later would not be served without workers" in refused(folder).text
    with BrokerProcess(folder, options=TWO) as broker:
        with connect(broker.url) as client:
            client.admin.delete_topic("later")
        assert broker.stop() == 0
    with BrokerProcess(folder) as broker:
        assert counts(broker) == dict.fromkeys(TOPICS, confirmed + 2)
        publish(broker, 1)
        assert broker.stop() == 0
    with BrokerProcess(folder, options=TWO) as broker:
        assert counts(broker) == dict.fromkeys(TOPICS, confirmed + 3)


def read_in_group(broker: BrokerProcess, count: int) -> list[str]:
    """Read some messages of the stream "log" in a group, and commit them."""
    found = []
    with connect(broker.url) as client, client.consumer("log", group="readers", start="earliest", prefetch=1) as reader:
        while len(found) < count:
            message = reader.get(END_S)
            assert message is not None
            found.append(message.value.decode())
            message.ack()
    return found


def test_a_group_goes_on_at_its_positions_with_workers_and_without(folder: Path) -> None:
    with BrokerProcess(folder) as broker:
        with connect(broker.url) as client:
            client.admin.create_topic("log", kind="stream")
            with client.producer(topic="log") as producer:
                for number in range(6):
                    producer.publish(f"{number}".encode())
        assert read_in_group(broker, 2) == ["0", "1"]
        assert broker.stop() == 0
    with BrokerProcess(folder, options=TWO) as broker:
        assert read_in_group(broker, 2) == ["2", "3"]
        assert broker.stop() == 0
    with BrokerProcess(folder) as broker:
        assert read_in_group(broker, 2) == ["4", "5"]
        assert broker.stop() == 0


def test_wrong_numbers_and_configurations_are_refused_in_a_line(folder: Path) -> None:
    assert refused(folder, "", "--workers", "0").returncode == 2
    assert refused(folder, "", "--workers", "many").returncode == 2
    assert refused(folder, "[broker]\nworkers = 0\n").returncode == 3
    cluster = '[cluster]\nname = "a"\nnode = 1\nstore = "etcd"\nendpoints = ["http://127.0.0.1:1"]\n'
    assert "leave out either" in refused(folder, cluster, *TWO).text
    assert "leave out either" in refused(folder, f"[broker]\nworkers = 2\n{cluster}").text
    deep = folder / ("a" * 100)
    deep.mkdir()
    error = refused(deep, "", *TWO)
    assert "too long for the sockets of its workers" in error.text
    assert error.returncode == 6


def test_a_port_that_is_taken_is_refused_also_by_other_workers(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    with BrokerProcess(folder, options=TWO) as broker:
        error = refused(other, "", *TWO, listen=[broker.address])
        assert "already in use" in error.text
        assert error.returncode == 6
        error = refused(folder, "", *TWO)
        assert error.returncode == 5, "the folder is another supervisor's"


def test_topics_in_memory_are_served_until_their_worker_ends(folder: Path) -> None:
    with BrokerProcess(folder, '[broker]\ndefault_storage = "dram"\nworkers = "auto"\n') as broker:
        make_topics(broker)
        published = publish(broker, 2)
        assert counts(broker) == dict.fromkeys(TOPICS, published)
        assert len(workers_of(broker)) == len(os.sched_getaffinity(0))


def test_metrics_of_each_worker_have_a_port_of_their_own(folder: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    config = f"""
        [listeners.native]
        address = "127.0.0.1:0"
        [listeners.metrics]
        protocol = "metrics"
        address = "127.0.0.1:{port}"
    """
    with BrokerProcess(folder, config, options=TWO, listen=()) as broker:
        assert [url for url in broker.urls if url.startswith("http")] == [
            f"http://127.0.0.1:{port}",
            f"http://127.0.0.1:{port + 1}",
        ]
        assert len(broker.urls) == 3


def test_people_get_lines_with_the_worker_in_front(folder: Path) -> None:
    with BrokerProcess(folder, options=(*TWO, "--log-format", "human")) as broker:
        assert broker.stop() == 0
        lines = broker.log_text().splitlines()
    assert any(line.startswith("worker 1: ") for line in lines)
    assert any(line.startswith("worker 2: ") for line in lines)
    assert all("Traceback" not in line for line in lines)


def test_the_secret_of_a_run_is_for_the_user_alone(folder: Path) -> None:
    path = folder / "data" / "__workers" / "secret"
    with BrokerProcess(folder, options=TWO) as broker:
        secret = path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
        for process in (psutil.Process(broker.pid), *workers_of(broker)):
            assert secret not in f"{process.cmdline()} {process.environ()}"
        assert secret not in broker.log_text()
        for socket_path in path.parent.glob("*.socket"):
            assert socket_path.stat().st_mode & 0o777 == 0o600
        assert broker.stop() == 0
        assert not path.exists()
        broker.start()
        assert path.read_text() != secret


def test_sighup_has_every_worker_read_its_certificates_again(folder: Path) -> None:
    config = f"""
        {tls_table(folder)}
        [listeners.native]
        address = "127.0.0.1:0"
        tls = "edge"
    """
    with BrokerProcess(folder, config, options=TWO, listen=()) as broker:
        before = workers_of(broker)
        (folder / "cert.pem").write_bytes(b"half of it")
        broker.signal(signal.SIGHUP)
        until_text(broker, "the certificate in use stays", 2)
        assert workers_of(broker) == before
        assert broker.stop() == 0
