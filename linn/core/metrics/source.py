"""The parts of a running broker that metrics are read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from linn.core.connections.connections import Connections
from linn.core.env.env import Env
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.log.storage_stats import StorageStats
from linn.core.loop.fair_turns import FairTurns
from linn.core.loop.lag import LoopLag
from linn.core.loop.memory_budget import MemoryBudget
from linn.core.ports.observer import Observers
from linn.core.publish.publisher import Publisher
from linn.core.routing.router import Router
from linn.core.topics.topic import Topic
from linn.core.transactions.coordinator import TransactionCoordinator


class LoopReport(Protocol):
    """Measurements of the loop and the storages, held by the metric registry."""

    started_at: float
    loop_lag: LoopLag
    loop_held: Mapping[str, int]
    storages: dict[str, StorageStats]


class MetricSource(Protocol):
    """A broker, as metrics see it."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def env(self) -> Env: ...
    @property
    def topics(self) -> Mapping[str, Topic]: ...
    @property
    def groups(self) -> GroupCoordinator: ...
    @property
    def transactions(self) -> TransactionCoordinator: ...
    @property
    def group_storage(self) -> str: ...
    @property
    def routers(self) -> Mapping[str, Router]: ...
    @property
    def publisher(self) -> Publisher: ...
    @property
    def connections(self) -> Connections: ...
    @property
    def memory(self) -> MemoryBudget: ...
    @property
    def turns(self) -> FairTurns: ...
    @property
    def observers(self) -> Observers: ...
    @property
    def metrics(self) -> LoopReport: ...
