"""Makes topics by their settings: storage engines, delivery semantics, interceptors and partitioners."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

from linn.core.batch.batch import BatchLimits
from linn.core.batch.format import Formats
from linn.core.config.config import Config
from linn.core.config.kinds import Kinds
from linn.core.config.topic_settings import TopicSettings, delivery_settings_of
from linn.core.env.env import Env, Spawn
from linn.core.log.storage import StorageEngine
from linn.core.log.storage_stats import StorageStats
from linn.core.loop.memory_budget import MemoryBudget
from linn.core.ports.interceptor import BoundInterceptor
from linn.core.queue.dispatch_order import FIFO, LEVELS_DEFAULT, OrderOptions, TopicOrder
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.semantics import DeliverySemantics
from linn.core.routing.partition_choice import PartitionChoice
from linn.core.topics.shared_entry import SharedEntry
from linn.core.topics.topic import Topic, TopicHost


class PluginMaker(Kinds, Protocol):
    """Plugins by kind, and the factory call of each kind."""

    def make(self, kind: Any, *args: Any) -> Any:
        """Call a kind's factory. Raises PluginError."""

    def owner_of(self, kind: Any) -> str:
        """The plugin that registered a kind, in a form for people."""


@dataclass(kw_only=True, eq=False)
class TopicMaker:
    """A maker of topics and of their parts."""

    config: Config
    env: Env
    plugins: PluginMaker
    limits: BatchLimits
    formats: Formats
    memory: MemoryBudget
    storage_stats: Callable[[str], StorageStats]
    spawn: Spawn
    move_dead_letters: Callable[[Topic, PartitionQueue], Awaitable[None]]
    leader_epoch: Callable[[], int]
    delete_unused: Callable[[Topic], Awaitable[None]] | None = None
    """Deletes a topic unless it is in use; set before any topic is opened."""
    engines: dict[str, StorageEngine] = field(default_factory=dict)
    """Storage engines that were made, by the name of the storage."""

    def make(
        self, name: str, settings: TopicSettings, id: UUID, entries: Mapping[str, SharedEntry] = MappingProxyType({})
    ) -> Topic:
        """Make a topic that is not open yet and has no interceptors; `entries`: its named subscriptions."""
        storage = settings.storage or self.config.broker.default_storage
        engine, traffic, semantics = self.engine(storage), self.storage_stats(storage), self.semantics(settings)
        partitioner = self.plugins.make(self.plugins.partitioners[settings.partitioner])
        choice = PartitionChoice(name, settings.partitioner, partitioner)
        assert self.delete_unused is not None
        callbacks = self.move_dead_letters, self.delete_unused
        means = self.formats, self.env.clock, self.spawn, *callbacks, self.leader_epoch(), self.order
        topic = Topic(name, id, settings, semantics, choice, TopicHost(engine, traffic, *means))
        topic.entries.update(entries)
        return topic

    def interceptors(self, topic: str, settings: TopicSettings) -> tuple[BoundInterceptor, ...]:
        """Make the interceptors that a topic's settings name, in the order of the settings. Raises PluginError."""
        bound = []
        for name in settings.interceptors:
            configured = self.config.interceptors[name]
            kind = self.plugins.interceptors[configured.kind]
            made = self.plugins.make(kind, topic, settings, configured.settings)
            bound.append(BoundInterceptor(name, self.plugins.owner_of(kind), made, self.limits))
        return tuple(bound)

    def semantics(self, settings: TopicSettings) -> DeliverySemantics:
        """The delivery semantics that a topic's settings name."""
        configured = self.config.delivery[settings.delivery or self.config.broker.default_delivery]
        kind = self.plugins.semantics[configured.kind]
        own = configured.settings and delivery_settings_of(settings, configured.settings)
        made: DeliverySemantics = self.plugins.make(kind, own)
        return made

    def order(self, settings: TopicSettings) -> TopicOrder | None:
        """The order of a topic; None: the oldest record is next."""
        if settings.order == FIFO:
            return None
        kind = self.plugins.orders[settings.order]
        options = OrderOptions(settings.order_by or "", settings.levels or LEVELS_DEFAULT, settings.weights or {})
        make = partial(self.plugins.make, kind, options)
        return TopicOrder(kind.name, options, settings.order_window, make, kind.needs_key_hashes, self.memory.indexed)

    def engine(self, name: str) -> StorageEngine:
        """The storage engine of a storage, which is made at its first use. Raises PluginError."""
        engine = self.engines.get(name)
        if engine is None:
            configured = self.config.storage[name]
            kind = self.plugins.engines[configured.kind]
            folder = f"{self.config.broker.data_dir}/{name}"
            engine = self.plugins.make(kind, folder, configured.settings, self.env)
            engine.count_in(self.memory.stored)
            self.engines[name] = engine
        return engine

    @property
    def transaction_storage(self) -> str:
        """The name of the storage of the log of transactions."""
        return self.config.broker.transaction_storage or self.config.broker.default_storage

    def engine_of(self, settings: TopicSettings | None) -> StorageEngine | None:
        """The storage engine that a topic's settings name, or that of transactions; None if the configuration no longer
        has it.
        """
        storage = self.transaction_storage
        if settings is not None:
            storage = settings.storage or self.config.broker.default_storage
        return self.engine(storage) if storage in self.config.storage else None
