"""The parts of a broker that metrics are read from, and measurements that belong to no other part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from linn.core.cluster.node import ClusterNode
from linn.core.cluster.peers import PeerLinks
from linn.core.connections.certificates import Certificates
from linn.core.connections.connections import Connections
from linn.core.env.env import Env
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.log.storage_stats import StorageStats
from linn.core.loop.fair_turns import FairTurns
from linn.core.loop.lag import LoopLag
from linn.core.loop.memory_budget import MemoryBudget
from linn.core.ports.observer import Observers
from linn.core.publish.publisher import Publisher
from linn.core.replicas.replication import Replication
from linn.core.routing.router import Router
from linn.core.topics.topic import Topic
from linn.core.transactions.coordinator import TransactionCoordinator


class Measurements:
    """Measurements of the loop and the storages, for the metrics."""

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.loop_lag = LoopLag()
        self.loop_held: Mapping[str, int] = {}
        """Steps that blocked the loop, by plugin; written by the watchdog's thread if there is one."""
        self.storages: dict[str, StorageStats] = {}
        """Counters of all storages used since the start, by name."""

    def storage(self, name: str) -> StorageStats:
        """The counters of a storage's logs."""
        return self.storages.setdefault(name, StorageStats(name))


@dataclass(frozen=True, kw_only=True)
class MetricSource:
    """The parts of a broker that metrics are read from."""

    name: str
    read_state: Callable[[], str]
    env: Env
    topics: Mapping[str, Topic]
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    routers: Mapping[str, Router]
    publisher: Publisher
    connections: Connections
    certificates: Certificates
    memory: MemoryBudget
    turns: FairTurns
    observers: Observers
    measurements: Measurements
    cluster: ClusterNode | None
    """None: the broker is alone."""
    replication: Callable[[], Replication | None]
    """Returns the replicas of this broker; None: it is alone."""
    links: Callable[[], PeerLinks | None]
    """Returns the links to other brokers; None: there are none."""
