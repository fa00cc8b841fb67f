"""The processes of the group `cluster`: one broker, and three brokers beside an etcd.

Laws: a process is ended by the code that started it, by its id, on every way out. None is bound to a processor: there
are more of them than processors, and the kernel moves them.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import linn.sync
from benchmarks.load import LoadFailed, cpu_s
from linn.descriptions import TopicSettings
from linn.testing.process import BrokerProcess

READY_S_MAX = 60.0
POLL_S = 0.02
COUNT = 3
STORAGE = """
[storage.always]
engine = "segmented-log"
fsync = "always"
[storage.os]
engine = "segmented-log"
fsync = "os"
"""
CLUSTER = """
[listeners.peers]
protocol = "peers"
address = "127.0.0.1:0"
[cluster]
name = "bench"
node = {node}
store = "etcd"
endpoints = ["{etcd}"]
listener = "peers"
secret = {{ file = "{secret}" }}
"""


@dataclass(frozen=True)
class Place:
    """The brokers that hold a topic, by process ids, and the URLs of its leader and of a broker that is not."""

    url: str
    leader: int
    followers: tuple[int, ...] = ()
    elsewhere: str = ""
    etcd: int | None = None

    def cpu_s(self) -> dict[str, float]:
        """The processor time of each role so far; of followers, the mean."""
        found = {"leader": cpu_s(self.leader), "client": time.process_time()}
        if self.followers:
            found["follower"] = sum(map(cpu_s, self.followers)) / len(self.followers)
        if self.etcd is not None:
            found["etcd"] = cpu_s(self.etcd)
        return found


@dataclass
class Brokers:
    """Brokers that share topics, by the number of the node. One broker without a cluster has the number 0."""

    processes: dict[int, BrokerProcess]
    etcd: int | None = None
    places: dict[str, Place] = field(default_factory=dict)

    def make(self, topics: dict[str, TopicSettings]) -> None:
        """Make topics, and wait until all replicas are in sync. Raises LoadFailed."""
        with linn.sync.connect(next(iter(self.processes.values())).url) as client:
            for name, settings in topics.items():
                client.admin.create_topic(name, **settings)
        for name, settings in topics.items():
            until(lambda: self._find(name, settings.get("replicas", 1)), f"topic {name} in sync")  # noqa: B023

    def _find(self, topic: str, replicas: int) -> bool:
        if 0 in self.processes:
            self.places[topic] = Place(self.processes[0].url, self.processes[0].pid)
            return True
        try:
            with linn.sync.connect(next(iter(self.processes.values())).url) as client:
                found = client.admin.topic(topic).get("replicas")
        except linn.errors.LinnError:
            return False  # Its leader has not opened it yet.
        if found is None or len(found["in_sync"]) < replicas or found["leader"] not in self.processes:
            return False
        leader = self.processes[found["leader"]]
        others = [process for process in self.processes.values() if process is not leader]
        followers = tuple(self.processes[node].pid for node in found["in_sync"] if node != found["leader"])
        self.places[topic] = Place(leader.url, leader.pid, followers, others[0].url, self.etcd)
        return True


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds. Raises LoadFailed."""
    end_s = time.monotonic() + READY_S_MAX
    while not holds():
        if time.monotonic() > end_s:
            raise LoadFailed(f"not within {READY_S_MAX:g} s: {what}")
        time.sleep(POLL_S)


@contextmanager
def one_broker(folder: Path) -> Iterator[Brokers]:
    """Run one broker without a cluster. Raises BrokerNotReady."""
    folder.mkdir()
    with BrokerProcess(folder, STORAGE) as process:
        yield Brokers({0: process})


@contextmanager
def three_brokers(folder: Path) -> Iterator[Brokers]:
    """Run three brokers of one cluster, and its etcd. Raises BrokerNotReady, LoadFailed."""
    secret = folder / "cluster.secret"
    secret.touch(0o600)
    secret.write_text("5f" * 32)
    with ExitStack() as stack:
        url, pid = stack.enter_context(etcd(folder))
        brokers = Brokers({}, pid)
        for node in range(1, COUNT + 1):
            (folder / f"broker-{node}").mkdir()
            config = STORAGE + CLUSTER.format(node=node, etcd=url, secret=secret)
            brokers.processes[node] = stack.enter_context(BrokerProcess(folder / f"broker-{node}", config))
        yield brokers


@contextmanager
def etcd(folder: Path) -> Iterator[tuple[str, int]]:
    """Run an etcd of one member; yields its URL and process id. Raises LoadFailed."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        url, peers = (f"http://127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
    command = ["etcd", "--name", "bench", "--data-dir", str(folder / "etcd"), "--initial-cluster", f"bench={peers}"]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url, "--log-level", "error", "--logger", "zap"]
    command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
    with (folder / "etcd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or _answers(url), "an answer of etcd")
        if process.poll() is not None:
            raise LoadFailed(f"etcd ended: {(folder / 'etcd.log').read_text()[-500:]}")
        yield url, process.pid
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v3/kv/range", json.dumps({"key": "AA=="}).encode(), timeout=2):
            return True
    except OSError:
        return False


def cluster_missing() -> str | None:
    """The reason why three brokers can't be run here; None: they can."""
    return None if shutil.which("etcd") is not None else "etcd is not installed: apt install etcd-server"
