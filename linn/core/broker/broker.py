"""The broker: what is in the house, and who does what.

Read in this order: `batch` (the unit of work), `storage` (the port under a partition), `partition` (one writer, the
high watermark, group commit), `topic` (partitions and what its kind makes of them), `subscription` and
`shared_dispatch` (a queue decides, and acts), `group` and `group_consumer` (a stream's groups), `exchange` and `router`
(where a batch goes), then this file, `administration` (changes while it runs) and `listening` (who comes in). `env` is
the door to the world, `hookspecs` the door for plugins.

Laws: publishing is synchronous up to the log; what must be waited for is given back as (partition, offset). A request
that fails half-way through its checks has stored nothing. The broker serves until its nursery is cancelled, a sync
fails, or `stop` is called; then it drains in bounded time.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Literal

import trio

from linn.core.admin.administration import Administration
from linn.core.admin.binding_changes import bind, unbind
from linn.core.batch.batch import BatchLimits, RecordBatch
from linn.core.broker.listening import Listening
from linn.core.config.checks import Configured
from linn.core.config.config import Config
from linn.core.config.topic_settings import TopicSettings, delivery_settings_of
from linn.core.env.env import Env
from linn.core.env.log_fields import log_fields
from linn.core.errors.group import raise_once
from linn.core.errors.nearest import did_you_mean
from linn.core.errors.tree import (
    BrokerStopping,
    ExchangeUnknown,
    InternalError,
    LinnError,
    LogClosed,
    StorageError,
    SubscriptionWrongKind,
    SyncFailed,
    TopicUnknown,
)
from linn.core.groups.consumer import OnAssigned
from linn.core.log.delivery import Consumer
from linn.core.log.metadata import EmbeddedMetadata, MetadataStore
from linn.core.log.partition import Partition
from linn.core.log.storage import StorageEngine
from linn.core.loop.fair_turns import FairTurns
from linn.core.loop.long_work import in_turns
from linn.core.loop.memory_budget import PART_OF_MACHINE, MemoryBudget
from linn.core.metrics.registry import MetricRegistry
from linn.core.plugins.manager import PluginManager, installed
from linn.core.ports.interceptor import BoundInterceptor
from linn.core.publish.destination import Destination, Placed
from linn.core.queue.dead_letter_copy import copy_dead_letters
from linn.core.queue.semantics import Acks, ConfirmWhen, DeliverySemantics
from linn.core.queue.shared_dispatch import SharedDispatch
from linn.core.routing.budget import PublishBudget
from linn.core.routing.default_exchange import DEFAULT_EXCHANGE, DefaultExchange
from linn.core.routing.exchange import Target
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.partition_choice import PartitionChoice
from linn.core.routing.router import Router
from linn.core.topics.topic import Topic

logger = logging.getLogger("linn.broker")

RETENTION_INTERVAL_S = 10.0
"""How often streams are asked what they no longer keep: much finer than any retention."""
START_EARLIEST = -2
START_LATEST = -1


class Broker:
    """Made and started by `running_broker`."""

    def __init__(self, config: Config, env: Env, plugins: PluginManager, nursery: trio.Nursery) -> None:
        self.config = config
        self.env: Env = env
        self.plugins: PluginManager = plugins
        self.topics: dict[str, Topic] = {}
        self.exchanges = ExchangeGraph(env.clock.monotonic)
        self.routers: dict[str, Router] = self.exchanges.routers
        self._default = Router(DEFAULT_EXCHANGE, "default", lambda: DefaultExchange(self.topics), self.exchanges)
        self.limits = BatchLimits(batch_bytes_max=config.broker.batch_bytes_max)
        self.metadata: MetadataStore = EmbeddedMetadata(env.disk, config.broker.data_dir, env.clock)
        memory_bytes = config.broker.memory_bytes_max or env.process.memory_bytes_max() // PART_OF_MACHINE
        self.memory: MemoryBudget = MemoryBudget(memory_bytes)
        self.listening = Listening(self, nursery)
        self.metrics: MetricRegistry = MetricRegistry(self)
        self.administration = Administration(self)
        self.parts_turn = trio.Lock()
        """Who makes parts of a large publish while the share `received` is over, see `linn.core.routing.budget`."""
        self.long_turn = trio.Lock()
        """Who of those that do long work is the next to go on, see `linn.core.loop.long_work`."""
        self.turns: FairTurns = FairTurns(env.clock.monotonic, env.process.thread_processor_s)
        """Which connections go on, where many have something to do."""
        self.stopping = False
        self._started = False
        self._engines: dict[str, StorageEngine] = {}
        self._nursery = nursery
        self._stop_requested = trio.Event()
        self._recovered = trio.Event()
        self._unlock: Callable[[], None] | None = None

    # --- life ---

    @property
    def name(self) -> str:
        """What the broker calls itself."""
        return self.config.broker.name

    @property
    def addresses(self) -> Mapping[str, str]:
        """Bound address by listener."""
        return self.listening.addresses

    @property
    def state(self) -> Literal["starting", "ready", "stopping"]:
        """Whether clients can connect: not yet, now, or not any more."""
        if self.stopping:
            return "stopping"
        return "ready" if self._started else "starting"

    async def start(self) -> None:
        """Lock the data folder, recover every topic, listen. Raises LinnError."""
        disk, data_dir = self.env.disk, self.config.broker.data_dir
        await self._make_folder(data_dir)
        self._unlock = disk.lock(f"{data_dir}/lock")
        self.spawn(self.turns.run)
        self.spawn(self.metrics.watch_loop)
        await self.listening.start(watching=True)
        await self._recover()
        self._recovered.set()
        await self.listening.start(watching=False)
        self._started = True
        self.spawn(self._keep)
        self.plugins.observers.broker_started(self.name, list(self.addresses.values()))

    async def _recover(self) -> None:
        try:
            await self.administration.recover()
        except LinnError:
            raise
        except Exception as error:
            logger.error("can't start: recovery failed in %(blamed)s", {"blamed": self.plugins.blamed(error)})
            raise

    async def _make_folder(self, path: str) -> None:
        """Make a folder and what is missing above it, so that no power failure takes it away again."""
        disk, folder = self.env.disk, PurePosixPath(path)
        missing = [place for place in (folder, *folder.parents) if not disk.exists(str(place))]
        disk.make_dir(path)
        for place in missing:
            await disk.sync_dir(str(place.parent))

    def stop(self) -> None:
        """Ask for an orderly stop. Idempotent; does not wait."""
        self._stop_requested.set()

    async def wait_stopped(self) -> None:
        """Wait until somebody has called `stop`."""
        await self._stop_requested.wait()

    async def drain(self) -> None:
        """Refuse new work, let what is under way be answered, close all connections; at most `drain_timeout`."""
        self.stopping = True
        self.plugins.observers.broker_stopping(self.name)
        for topic in self.topics.values():
            topic.tell_room()  # Publishes that wait for room are refused now.
        await self.listening.drain(self.config.broker.drain_timeout_s)

    async def close(self) -> None:
        """Sync and close everything. What fails is logged: the next start recovers."""
        self.stopping = True
        await self.administration.wait_idle()
        for topic in self.topics.values():
            try:
                await topic.close()
            except Exception as error:
                about = {"topic": topic.name, "error": str(error), "code": getattr(error, "code", InternalError.code)}
                logger.error("topic %(topic)s could not be closed in order: %(error)s", about)
        for engine in self._engines.values():
            await engine.close()
        if self._unlock is not None:
            self._unlock()

    def fail(self, error: SyncFailed) -> None:
        """End the broker, because what is on the disk is not known any more."""

        async def end() -> None:
            raise error

        self._nursery.start_soon(end)

    def spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a chore in the broker's nursery.

        A sync that fails, or a bug, ends the broker. What a full disk or a topic's end hinders is logged: chores are
        begun again with the next occasion, and nothing that was confirmed depends on them.
        """
        self._nursery.start_soon(self._run_chore, task)

    async def _run_chore(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except SyncFailed:
            raise
        except LogClosed as error:
            logger.debug("a chore ended with its topic: %(error)s", log_fields(error))
        except StorageError as error:
            logger.error("a chore could not be done: %(error)s", log_fields(error))
        except Exception as error:
            logger.error("the broker ends: a chore failed in %(blamed)s", {"blamed": self.plugins.blamed(error)})
            raise

    async def _keep(self) -> None:
        while True:
            await self.env.clock.sleep(RETENTION_INTERVAL_S)
            for topic in list(self.topics.values()):
                await self._run_chore(topic.enforce_retention)

    # --- topics ---

    def topic(self, name: str) -> Topic:
        """Raises TopicUnknown."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicUnknown(f'there is no topic "{name[:80]}"{did_you_mean(name, self.topics)}')
        return topic

    def router(self, name: str) -> Router:
        """Raises ExchangeUnknown."""
        router = self.routers.get(name) if name != DEFAULT_EXCHANGE else self._default
        if router is None:
            raise ExchangeUnknown(f'there is no exchange "{name[:80]}"{did_you_mean(name, self.routers)}')
        return router

    async def drop_topic(self, name: str) -> None:
        """Let nothing lead to a topic any more."""
        topic = self.topics[name]
        bindings = (*topic.settings.bindings, *topic.live_bindings)
        await in_turns(self, unbind(self, Target(name), bindings), at_once=True)
        del self.topics[name]
        self.exchanges.changed()

    async def open_topic(self, name: str, settings: TopicSettings) -> Topic:
        """Open a topic with checked settings, and begin it. Raises LogCorrupt, StorageError, BindingInvalid."""
        topic = self.new_topic(name, settings)
        topic.interceptors = self.interceptors(name, settings)
        await topic.open()
        await self.begin_topic(topic)
        return topic

    async def begin_topic(self, topic: Topic) -> None:
        """Let clients see a topic that is open, and bind it. Raises BindingInvalid."""
        name, settings = topic.name, topic.settings
        self.topics[name] = topic
        self.exchanges.changed()
        await in_turns(self, bind(self, Target(name), settings.bindings), at_once=True)
        self.plugins.observers.topic_created(name, settings)

    def new_topic(self, name: str, settings: TopicSettings) -> Topic:
        """A topic that is not open, and has no interceptors yet."""
        storage = settings.storage or self.config.broker.default_storage
        engine, traffic, semantics = self._engine(storage), self.metrics.storage(storage), self.semantics(settings)
        partitioner = self.plugins.make(self.plugins.partitioners[settings.partitioner])
        choice, clock = PartitionChoice(name, settings.partitioner, partitioner), self.env.clock
        return Topic(name, settings, engine, traffic, semantics, choice, clock, self.spawn, self._copy_dead_letters)

    def interceptors(self, topic: str, settings: TopicSettings) -> tuple[BoundInterceptor, ...]:
        """What a topic's settings ask for, in their order. Raises PluginError."""
        bound = []
        for name in settings.interceptors:
            configured = self.config.interceptors[name]
            kind = self.plugins.interceptors[configured.kind]
            made = self.plugins.make(kind, topic, settings, configured.settings)
            bound.append(BoundInterceptor(name, self.plugins.owner_of(kind), made, self.limits))
        return tuple(bound)

    def semantics(self, settings: TopicSettings) -> DeliverySemantics:
        """The semantics that a topic's settings ask for."""
        configured = self.config.delivery[settings.delivery or self.config.broker.default_delivery]
        kind = self.plugins.semantics[configured.kind]
        own = configured.settings and delivery_settings_of(settings, configured.settings)
        made: DeliverySemantics = self.plugins.make(kind, own)
        return made

    def _engine(self, name: str) -> StorageEngine:
        engine = self._engines.get(name)
        if engine is None:
            configured: Configured = self.config.storage[name]
            kind = self.plugins.engines[configured.kind]
            engine = self.plugins.make(kind, f"{self.config.broker.data_dir}/{name}", configured.settings, self.env)
            self.memory.lend(engine)
            self._engines[name] = engine
        return engine

    def engine_of(self, settings: TopicSettings) -> StorageEngine | None:
        """The engine of a topic with these settings; None where the configuration has it no more."""
        storage = settings.storage or self.config.broker.default_storage
        return self._engine(storage) if storage in self.config.storage else None

    async def _copy_dead_letters(self, topic: Topic, dispatch: SharedDispatch) -> None:
        await self._recovered.wait()  # Its target may be opened after it.
        name = topic.settings.dead_letter
        await copy_dead_letters(dispatch, self.topic(name).partitions if name is not None else {}, self.env)

    # --- publishing ---

    def destinations(
        self, target: str, to_exchange: bool, partition: int, batch: RecordBatch, budget: PublishBudget | None = None
    ) -> list[Destination]:
        """Where a verified batch goes. Nothing is stored yet. `budget` None: one of its own.

        Raises:
            BrokerStopping, TopicUnknown, ExchangeUnknown, PartitionUnknown, BatchError, InterceptorFailed.
            LimitExceeded, TakesLong: it is over the budget.
        """
        if self.stopping:
            raise BrokerStopping("the broker is stopping")
        budget = budget or PublishBudget()
        try:
            if to_exchange:
                return self._routed(target, batch, budget)
            topic = self.topics.get(target) or self.topic(target)
            if partition < 0:
                found = _placed(topic, batch, budget)
                if len(found) > 1:
                    budget.store(found)
                return found
            topic.partition(partition)
            admitted = topic.admit(batch, budget)
            return [Destination(topic, partition, admitted)] if admitted is not None else []
        finally:
            batch.forget_body()

    def _routed(self, exchange: str, batch: RecordBatch, budget: PublishBudget) -> list[Destination]:
        found: list[Destination] = []
        for name, part in self.router(exchange).route(batch, budget):
            those = _placed(self.topic(name), part, budget)
            budget.store(those)
            found += those
        return found

    def unroutable(self, exchange: str, batch: RecordBatch, budget: PublishBudget) -> list[int]:
        """Which records of a verified batch no topic takes: ranges of indexes, as first, end, first, end and so on.

        Raises ExchangeUnknown, BatchMalformed, TopicError, LimitExceeded, TakesLong.
        """
        try:
            return self.router(exchange).unroutable(batch, budget)
        finally:
            batch.forget_body()

    def append(self, destinations: list[Destination], batch: RecordBatch, acks: Acks) -> Placed:
        """Store a batch where it goes. The bytes of `batch` belong to the log from here on.

        What confirms it is up to each topic's semantics.

        Raises StorageError: a destination could not store it; earlier ones have.
        """
        awaits: list[tuple[Partition, int]] = []
        copies = 0
        taken: set[int] = set()
        base_offset = -1
        for topic, index, part in destinations:
            if len(destinations) > 1:
                # Each log stamps its own copy; the first takes the bytes as they are.
                if id(part) in taken:
                    part = RecordBatch(bytearray(part.message))
                taken.add(id(part))
            partition = topic.partitions[index]
            base_offset = topic.append(partition, part)
            copies += part.count
            end = base_offset + part.count
            # Few wait: with fsync = "os" a batch is committed when it is appended.
            if partition.high_watermark < end and topic.semantics.confirm_when(acks) is not ConfirmWhen.ACCEPTED:
                awaits.append((partition, end))
        if len(destinations) == 1 and copies == batch.count:
            return Placed(destinations[0].partition, base_offset, copies, awaits)
        return Placed(-1, -1, copies, awaits)

    # --- subscribing ---

    def subscribe(
        self,
        name: str,
        group: str,
        start: int,
        partitions: list[int],
        on_assigned: OnAssigned,
        starts: Sequence[int] = (),
    ) -> tuple[int, Consumer]:
        """(kind, consumer): 0 of a queue, 1 of a group on a stream, 2 a reader of its own.

        `starts` has a place for each partition; where it is empty `start` holds for all.

        Raises TopicUnknown, PartitionUnknown, SubscriptionWrongKind, DeliveryError.
        """
        topic = self.topic(name)
        if group:
            if topic.groups is None:
                raise SubscriptionWrongKind(f"topic {name} is a queue: consumers compete without naming a group")
            return 1, topic.groups.join(group, _start_of(topic, start, starts), on_assigned)
        if topic.queue is not None:
            lease_ms = 0 if topic.semantics.settles_on_delivery else topic.settings.lease_ms or 0
            return 0, topic.queue.join(lease_ms)
        for index in partitions:
            topic.partition(index)
        reader, place = topic.read(), _start_of(topic, start, starts)
        reader.read_all_from({index: place(index) for index in partitions or topic.partitions})
        return 2, reader


def _start_of(topic: Topic, start: int, starts: Sequence[int]) -> Callable[[int], int]:
    # Now, not when a partition is gained: what is confirmed from here on is to be read.
    ends = [] if start == START_EARLIEST and not starts else [log.high_watermark for log in topic.partitions.values()]
    wanted = zip(starts or [start] * len(ends), ends, strict=False)
    places = array("q", [end if at == START_LATEST or at > end else at if at > 0 else 0 for at, end in wanted])
    # A partition that came later is read from its start; readers pass over what retention has dropped.
    return lambda index: places[index] if index < len(places) else 0


@asynccontextmanager
async def running_broker(config: Config, env: Env, plugins: PluginManager | None = None) -> AsyncIterator[Broker]:
    """A broker that is recovered and listening; leaving the block drains and closes it.

    Raises:
        LinnError: it can't start; or, from the block, SyncFailed and what else ends a broker.
    Cancellation: connections are dropped; logs are closed in order where the disk allows it.
    """
    manager = plugins if plugins is not None else PluginManager(config.plugins, installed())
    try:
        async with trio.open_nursery() as nursery:
            broker = Broker(config, env, manager, nursery)
            try:
                await broker.start()
                yield broker
                await broker.drain()
            finally:
                with trio.CancelScope(shield=True):
                    await broker.close()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_once(group)


def _placed(topic: Topic, batch: RecordBatch, budget: PublishBudget) -> list[Destination]:
    admitted = topic.admit(batch, budget)
    if admitted is None:
        return []
    return [Destination(topic, *piece) for piece in topic.choice.split(admitted, len(topic.partitions), budget)]
