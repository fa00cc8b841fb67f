"""A cluster of real processes: `linn serve` by number beside a real etcd, each in a folder of its own.

    with real_cluster(tmp_path, tables='[topics.jobs]\nkind = "queue"\n') as cluster:
        cluster.until_whole("jobs")
        lost = cluster.leader("jobs")
        cluster.lose(lost, signal.SIGKILL)
        ...  # clients are at cluster.urls_without(lost)
        cluster.recover(lost)

Laws: whatever was started is killed at the end of the block, frozen or not. Questions go to a broker that answers.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from etcd_process import Etcd, running_etcd
from peer_proxies import PeerProxies

import linn
import linn.sync
from linn.descriptions import ClusterDescription, NodeDescription, ReplicasDescription
from linn.testing.process import BrokerProcess

TIMEOUT_S = 3.0
"""The session timeout of all brokers, unless a test says otherwise."""
SLACK_S = 20.0
"""Time for what has no limit of its own, on a busy machine."""
POLL_S = 0.05


def until(holds: Callable[[], bool], within_s: float = SLACK_S) -> float:
    """Wait until something holds; returns how long it took."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < within_s, f"not within {within_s:g} s"
        time.sleep(POLL_S)
    return time.monotonic() - began_s


class RealCluster:
    """Brokers by their numbers, and their etcd."""

    def __init__(
        self,
        folder: Path,
        etcd: Etcd,
        *,
        tables: str = "",
        peers: str = "",
        settings: str = "",
        session_timeout_s: float = TIMEOUT_S,
        proxies: PeerProxies | None = None,
        environments: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            folder: takes a folder for each broker, and the cluster's secret.
            tables: more TOML for each broker, such as `[topics.x]`.
            peers: more lines of the listener for brokers.
            settings: more lines of the table `[cluster]`.
            proxies: between brokers, to cut them off from one another.
            environments: more variables of brokers, by number.
        """
        self.etcd = etcd
        self.brokers: dict[int, BrokerProcess] = {}
        self._folder = folder
        self._tables = tables
        self._peers = peers
        self._settings = settings
        self._session_timeout_s = session_timeout_s
        self._environments = environments
        self._proxies = proxies
        if proxies is not None:
            proxies.pids = lambda: {number: broker.pid for number, broker in self.brokers.items() if broker.is_running}
        self._frozen: set[int] = set()
        self._secret = folder / "secret"
        if not self._secret.exists():
            self._secret.touch(0o600)
            self._secret.write_text("5f" * 32)

    # --- brokers -----------------------------------------------------------------------------------------------------

    def broker(self, number: int, folder: str = "") -> BrokerProcess:
        """Prepare a broker in a folder of its own, without starting it."""
        place = self._folder / (folder or f"broker-{number}")
        place.mkdir(exist_ok=True)
        return BrokerProcess(place, self.config(number), environment=self._environments.get(number, {}))

    def config(self, number: int) -> str:
        """Return the TOML of a broker."""
        place = 'address = "127.0.0.1:0"' if self._proxies is None else self._proxies.lines(number)
        return f"""
[listeners.native]
address = "127.0.0.1:0"
[listeners.peers]
protocol = "peers"
{place}
{self._peers}
{self._tables}
[cluster]
name = "test"
node = {number}
store = "etcd"
endpoints = {list(self.etcd.urls)}
session_timeout = "{self._session_timeout_s:g}s"
listener = "peers"
secret = {{ file = "{self._secret}" }}
{self._settings}
"""

    def lose(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Take a broker away: SIGKILL, SIGTERM, or SIGSTOP, which freezes it. Waits for nothing."""
        self.brokers[number].signal(how)
        if how is signal.SIGSTOP:
            self._frozen.add(number)

    def recover(self, number: int) -> None:
        """Bring a broker back that was taken away; returns when it runs, in sync or not."""
        if number in self._frozen:
            self._frozen.remove(number)
            self.brokers[number].signal(signal.SIGCONT)
            return
        if self.brokers[number].is_running:
            self.brokers[number].wait()
        self.brokers[number].start()

    # --- clients -----------------------------------------------------------------------------------------------------

    @property
    def urls(self) -> list[str]:
        """A URL of each broker, by number."""
        return [self.brokers[number].url for number in sorted(self.brokers)]

    def urls_without(self, *lost: int) -> list[str]:
        """The URLs of all brokers but these."""
        return [self.brokers[number].url for number in sorted(self.brokers) if number not in lost]

    def status(self, seen_by: int) -> ClusterDescription:
        """The state of the cluster, as a broker knows it."""
        with linn.sync.connect(self.brokers[seen_by].url) as client:
            return client.admin.cluster()

    def node(self, seen_by: int, number: int) -> NodeDescription:
        """A node, as a broker knows it."""
        return next(node for node in self.status(seen_by)["nodes"] if node["node"] == number)

    def states(self, seen_by: int) -> dict[int, str]:
        """The state of each node, as a broker knows them."""
        return {node["node"]: node["state"] for node in self.status(seen_by)["nodes"]}

    def controller(self, seen_by: int) -> int | None:
        """The number of the controller, as a broker knows it."""
        return self.status(seen_by)["controller"]

    def replicas(self, topic: str, seen_by: int = 1) -> ReplicasDescription | None:
        """The replicas of a topic, as a broker knows them; None: it can't tell."""
        try:
            with linn.sync.connect(self.brokers[seen_by].url) as client:
                return client.admin.topic(topic).get("replicas")
        except linn.errors.LinnError:
            return None

    def unsettled(self, queue: str, seen_by: int = 1) -> int | None:
        """The number of unsettled records of a queue; None: a broker can't tell now."""
        try:
            with linn.sync.connect(self.brokers[seen_by].url) as client:
                return client.admin.topic(queue)["queue"]["unsettled"]
        except linn.errors.LinnError:
            return None

    def leader(self, topic: str, seen_by: int = 1) -> int:
        """The number of a topic's leader, as a broker knows it; 0: it knows of none."""
        replicas = self.replicas(topic, seen_by)
        return replicas["leader"] if replicas is not None else 0

    def is_whole(self, topic: str, seen_by: int = 1) -> bool:
        """Whether all brokers are in sync for a topic, as one of them knows it."""
        replicas = self.replicas(topic, seen_by)
        return replicas is not None and replicas["in_sync"] == sorted(self.brokers)

    def until_whole(self, *topics: str) -> None:
        """Wait until all brokers are in sync for topics, and know it."""
        until(lambda: all(self.is_whole(topic, number) for topic in topics for number in self.brokers))

    def until_joined(self) -> None:
        """Wait until all brokers know of each other and of a controller."""
        until(lambda: all(set(self.states(number)) == set(self.brokers) for number in self.brokers))
        until(lambda: all(self.controller(number) is not None for number in self.brokers))


@contextmanager
def real_cluster(
    folder: Path,
    count: int = 3,
    *,
    members: int = 1,
    tables: str = "",
    peers: str = "",
    settings: str = "",
    session_timeout_s: float = TIMEOUT_S,
    proxies: PeerProxies | None = None,
    environments: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
) -> Iterator[RealCluster]:
    """Run an etcd and brokers while the block runs; skips the test where etcd is not installed.

    Args:
        count: brokers, with the numbers from 1.
        members: of the etcd, one or three.
        tables, peers, settings, session_timeout_s, proxies, environments: see `RealCluster`.
    """
    with running_etcd(folder / "etcd", members) as etcd, ExitStack() as stack:
        cluster = RealCluster(
            folder,
            etcd,
            tables=tables,
            peers=peers,
            settings=settings,
            session_timeout_s=session_timeout_s,
            proxies=proxies,
            environments=environments,
        )
        for number in range(1, count + 1):
            cluster.brokers[number] = cluster.broker(number)
            stack.enter_context(cluster.brokers[number])
        cluster.until_joined()
        yield cluster
