"""What administration needs of a broker: the parts that it shows and changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from linn.core.config.config import Config
from linn.core.config.kinds import Kinds
from linn.core.config.topic_settings import TopicSettings
from linn.core.connections.connections import Connections
from linn.core.env.env import Env
from linn.core.errors.tree import SyncFailed
from linn.core.log.metadata import MetadataStore
from linn.core.log.storage import StorageEngine
from linn.core.loop.long_work import LongWork
from linn.core.metrics.registry import MetricRegistry
from linn.core.ports.interceptor import BoundInterceptor
from linn.core.ports.observer import Observers
from linn.core.queue.semantics import DeliverySemantics
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.router import Router
from linn.core.topics.topic import Topic


class PluginMaker(Kinds, Protocol):
    """Plugins by kind, and what makes something of one."""

    def make(self, kind: Any, *args: Any) -> Any:
        """What a kind's factory makes. Raises PluginError."""

    def owner_of(self, kind: Any) -> str | None:
        """The plugin that brings a kind, for people; None: linn itself does."""


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
    def exchanges(self) -> ExchangeGraph[Router]: ...

    def topic(self, name: str) -> Topic:
        """The topic of that name. Raises TopicUnknown."""

    def router(self, name: str) -> Router:
        """The exchange of that name, also the default one. Raises ExchangeUnknown."""

    def new_topic(self, name: str, settings: TopicSettings) -> Topic:
        """A topic that is not open, and has no interceptors yet."""

    async def open_topic(self, name: str, settings: TopicSettings) -> Topic:
        """Open a topic with checked settings, and begin it. Raises LogCorrupt, StorageError, BindingInvalid."""

    async def begin_topic(self, topic: Topic) -> None:
        """Let clients see a topic that is open, and bind it. Raises BindingInvalid."""

    async def drop_topic(self, name: str) -> None:
        """Let nothing lead to a topic any more."""

    def interceptors(self, topic: str, settings: TopicSettings) -> tuple[BoundInterceptor, ...]:
        """What a topic's settings ask for, in their order. Raises PluginError."""

    def semantics(self, settings: TopicSettings) -> DeliverySemantics:
        """The semantics that a topic's settings ask for."""

    def engine_of(self, settings: TopicSettings) -> StorageEngine | None:
        """The engine of a topic with these settings; None where the configuration has it no more."""

    def fail(self, error: SyncFailed) -> None:
        """End the broker, because what is on the disk is not known any more."""
