"""The parts of a broker that administration shows and changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from uuid import UUID

from linn.core.config.config import Config
from linn.core.config.kinds import Kinds
from linn.core.config.topic_settings import TopicSettings
from linn.core.connections.connections import Connections
from linn.core.env.env import Env
from linn.core.errors.tree import SyncFailed
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.log.metadata import MetadataStore
from linn.core.log.storage import StorageEngine
from linn.core.loop.long_work import LongWork
from linn.core.metrics.registry import MetricRegistry
from linn.core.ports.interceptor import BoundInterceptor
from linn.core.ports.observer import Observers
from linn.core.queue.semantics import DeliverySemantics
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.router import Router
from linn.core.services.services import Services
from linn.core.topics.shared_entry import SharedEntry
from linn.core.topics.topic import Topic
from linn.core.transactions.coordinator import TransactionCoordinator


class PluginMaker(Kinds, Protocol):
    """Plugins by kind, and the factory call of each kind."""

    def make(self, kind: Any, *args: Any) -> Any:
        """Call a kind's factory. Raises PluginError."""

    def owner_of(self, kind: Any) -> str | None:
        """The name of the plugin that registered a kind; None for a kind that linn itself brings."""


class Administered(Protocol):
    """A broker, as administration sees it."""

    stopping: bool

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Config: ...
    @property
    def env(self) -> Env: ...
    @property
    def plugins(self) -> PluginMaker: ...
    @property
    def observers(self) -> Observers: ...
    @property
    def metadata(self) -> MetadataStore: ...
    @property
    def metrics(self) -> MetricRegistry: ...
    @property
    def services(self) -> Services: ...
    @property
    def connections(self) -> Connections: ...
    @property
    def client_count(self) -> int: ...
    @property
    def long_work(self) -> LongWork: ...
    @property
    def addresses(self) -> Mapping[str, str]: ...
    @property
    def topics(self) -> dict[str, Topic]: ...
    @property
    def routers(self) -> dict[str, Router]: ...
    @property
    def groups(self) -> GroupCoordinator: ...
    @property
    def transactions(self) -> TransactionCoordinator: ...
    @property
    def exchanges(self) -> ExchangeGraph[Router]: ...

    async def count_start(self) -> None:
        """Count this start, once all logs were examined. Raises StorageError."""

    def topic(self, name: str) -> Topic:
        """The topic of that name. Raises TopicUnknown."""

    def router(self, name: str) -> Router:
        """The exchange of that name, also the default one. Raises ExchangeUnknown."""

    def new_topic(
        self, name: str, settings: TopicSettings, id: UUID, entries: Mapping[str, SharedEntry] = ...
    ) -> Topic:
        """Make a topic that is not open yet and has no interceptors; `entries`: its named subscriptions."""

    async def open_topic(
        self, name: str, settings: TopicSettings, id: UUID, entries: Mapping[str, SharedEntry]
    ) -> Topic:
        """Open a topic with checked settings and begin to serve it. Raises LogCorrupt, StorageError, BindingInvalid."""

    async def begin_topic(self, topic: Topic) -> None:
        """Make an open topic visible to clients, and bind it. Raises BindingInvalid."""

    async def drop_topic(self, name: str) -> None:
        """Remove a topic from the catalogue and from every exchange."""

    def interceptors(self, topic: str, settings: TopicSettings) -> tuple[BoundInterceptor, ...]:
        """Make the interceptors that a topic's settings name, in the order of the settings. Raises PluginError."""

    def semantics(self, settings: TopicSettings) -> DeliverySemantics:
        """The delivery semantics that a topic's settings name."""

    async def open_groups(self) -> None:
        """Open the groups' logs and rebuild the groups. All topics are open. Raises LogCorrupt, StorageError."""

    async def open_transactions(self) -> None:
        """Open the transactions' log, and end what was left open. Raises LogCorrupt, StorageError."""

    def engine_of(self, settings: TopicSettings | None) -> StorageEngine | None:
        """The storage engine that a topic's settings name, or that of the groups; None if the configuration no longer
        has it.
        """

    def fail(self, error: SyncFailed) -> None:
        """End the broker after a failed sync: the contents of the disk are unknown."""
