"""The broker: the composition root. It builds every part; no lower room imports it.

Read in this order: `batch/batch` (the unit of work), `log/storage` (the port under a partition), `log/partition` (one
writer, the high watermark, group commit), `topics/topic` (partitions, with a queue or a stream on them),
`queue/subscription` (a queue's decisions) and `queue/partition_queue` (carrying them out), `groups/membership`,
`groups/group` and `groups/coordinator` (consumer groups), `transactions/coordinator`, `routing/exchange` and
`routing/router` (where a batch goes), `publish/plan` and `publish/publisher` (how it gets there), `delivery/consumer`
and `gateway/session` (the protocols' side), `admin/administration` (changes while it runs), then this file and
`listening`. `env/env` is the door to the world, `plugins/hookspecs` the door for plugins.

Laws: publishing is synchronous up to the log, and returns the marks to wait for. A request that fails its checks has
stored nothing. The broker serves until its nursery is cancelled, a sync fails, or `stop` is called; then it drains in
bounded time.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import msgspec
import trio

from linn.core.admin.administration import Administration
from linn.core.admin.audit import AuditTrail
from linn.core.batch.batch import BatchLimits
from linn.core.batch.format import Formats
from linn.core.batch.steps import run_steps
from linn.core.broker.data_folder import DataFolder
from linn.core.broker.dead_letters import DeadLetters
from linn.core.broker.deciders import made_authenticators, made_authority
from linn.core.broker.listening import Listening
from linn.core.broker.peer_links import link_peers
from linn.core.broker.start_counter import StartCounter
from linn.core.cluster.guarded_store import GuardedStore
from linn.core.cluster.node import ClusterNode
from linn.core.config.config import Config
from linn.core.config.problem import dotted
from linn.core.connections.certificates import RELOAD_INTERVAL_S, Certificates
from linn.core.connections.connections import Connections
from linn.core.connections.token_file import TokenFile
from linn.core.env.env import Env
from linn.core.env.log_fields import log_fields
from linn.core.errors.group import raise_once
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.tree import (
    BrokerStopping,
    ConfigError,
    InternalError,
    LinnError,
    LogClosed,
    SecretUnusable,
    StorageError,
    SyncFailed,
)
from linn.core.gateway.gateway import Gateway
from linn.core.gateway.rooms import Rooms
from linn.core.groups.assignor import CheckedAssignor
from linn.core.groups.coordinator import GroupCoordinator, Stream
from linn.core.log.partition import Partition
from linn.core.log.state_log import StateLog
from linn.core.log.storage import PartitionId
from linn.core.loop.clock_watch import ClockWatch
from linn.core.loop.fair_turns import FairTurns
from linn.core.loop.long_work import LongWork
from linn.core.loop.memory_budget import PART_OF_MACHINE, MemoryBudget
from linn.core.metadata.embedded import EmbeddedMetadata
from linn.core.metadata.store import MetadataEntries, MetadataStore
from linn.core.metrics.registry import MetricRegistry
from linn.core.metrics.source import Measurements, MetricSource
from linn.core.plugins.manager import PluginManager, installed
from linn.core.ports.observer import Observers
from linn.core.publish.producer_ids import ProducerIds
from linn.core.publish.publisher import Publisher
from linn.core.queue.decided import DecisionWatch
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.routing.router import Router
from linn.core.security.logins import Logins
from linn.core.security.policy import Policy
from linn.core.security.sasl.scram import Verifier
from linn.core.security.users import Users
from linn.core.services.services import Services
from linn.core.topics.catalog import Catalog
from linn.core.topics.folders import foreign_topic_folders
from linn.core.topics.topic import Topic
from linn.core.topics.topic_maker import TopicMaker
from linn.core.transactions.cluster_coordinator import ClusterCoordinator
from linn.core.transactions.cluster_transactions import ClusterTransactions
from linn.core.transactions.coordinator import TransactionCoordinator
from linn.verbs import TRANSACTIONS_TOPIC

logger = logging.getLogger("linn.broker")

RETRY_S = 5.0
"""Pause before what the cluster does not let happen yet is tried again."""
RETENTION_INTERVAL_S = 10.0
"""Interval of the check for records to drop from streams: much finer than any retention."""


def _policy(config: Config, monotonic: Callable[[], float]) -> Policy:
    """Make the policy of a configuration: open, unless it has roles, users, or a listener that requires a login."""
    return Policy(config.roles, Users(config.users.values()), is_open=config.is_open, monotonic=monotonic)


class Broker:
    """A broker. Use `running_broker` to make and start one."""

    def __init__(self, config: Config, env: Env, plugins: PluginManager, nursery: trio.Nursery) -> None:
        self.config = config
        self.env: Env = env
        self.plugins: PluginManager = plugins
        self.catalog = Catalog(env.clock.monotonic)
        self.topics: dict[str, Topic] = self.catalog.topics
        self.exchanges = self.catalog.exchanges
        self.routers: dict[str, Router] = self.catalog.routers
        self.limits = BatchLimits(batch_bytes_max=config.broker.batch_bytes_max)
        self.formats = Formats(plugins.made_formats(), self.limits.batch_bytes_max)
        self._local = self._embedded_metadata()
        memory_bytes = config.broker.memory_bytes_max or env.process.memory_bytes_max() // PART_OF_MACHINE
        self.memory: MemoryBudget = MemoryBudget(memory_bytes)
        self.policy = _policy(config, env.clock.monotonic)
        self.audit = AuditTrail(env, self.spawn)
        self.cluster: ClusterNode | None = self._cluster_node()
        self.measurements = Measurements(env.clock.monotonic())
        self.long_work = LongWork(env.clock.monotonic)
        self._assignors: dict[str, CheckedAssignor] = {}
        self.groups = GroupCoordinator(self._stream, self._assignor_of, env.clock, self.spawn)
        self.producer_ids = ProducerIds()
        self.transactions, self.cluster_transactions = self._new_transactions()
        parts = self.catalog, self.limits, self.formats, self.long_work, self.memory.received
        make_topic = self._create_default_topic if config.broker.auto_create_topics else None
        self.publisher: Publisher = Publisher(*parts, make_topic, self.transactions)
        if self.cluster_transactions is not None:
            self.publisher.joins = self.cluster_transactions.participant
        self.turns: FairTurns = FairTurns(env.clock.monotonic)
        """Turns of busy connections."""
        self.connections = Connections(env.clock.monotonic, config.broker.user_connections_max, env.rng)
        self.certificates = Certificates(config.tls, env.disk, env.clock)
        self.token_file = TokenFile(config.tokens, env.disk)
        threads = env.threads.run
        self.logins = Logins(self.policy.users, env.clock, env.rng.bytes, threads, env.process.user_id())
        self.logins.on_end = self.audit.login
        self.logins.authenticators = made_authenticators(config, plugins, env)
        self.policy.authority = made_authority(config, plugins, env, self.spawn)
        self.topic_maker = TopicMaker(
            config=config,
            env=env,
            plugins=plugins,
            limits=self.limits,
            formats=self.formats,
            memory=self.memory,
            storage_stats=self.measurements.storage,
            spawn=self.spawn,
            move_dead_letters=self._move_dead_letters,
            leader_epoch=lambda: self.leader_epoch,
        )
        self.metrics: MetricRegistry = self._new_metrics()
        self.services: Services = self._new_services()
        self.administration: Administration = self._new_administration()
        self.gateway: Gateway = self._new_gateway()
        self.listening = Listening(config, plugins, self.gateway, self.certificates, nursery)
        self._decision_watch = DecisionWatch()
        self.stopping = self._started = self._is_drained = self._is_synced = False
        self._nursery = nursery
        self._stop_requested = trio.Event()
        self._recovered = trio.Event()
        self._folder = DataFolder(env.disk, config.broker.data_dir)

    def _embedded_metadata(self) -> MetadataStore:
        env, proofs = self.env, partial(foreign_topic_folders, self.env.disk, self.config)
        return EmbeddedMetadata(env.disk, self.config.broker.data_dir, env.clock, self.spawn, proofs)

    def _cluster_node(self) -> ClusterNode | None:
        """Make this broker's part of its cluster; None: it is alone. Raises PluginError."""
        if (it := self.config.cluster) is None:
            return None
        made = self.plugins.make(self.plugins.metadata_stores[it.store], it.name, it.store_settings, self.env)
        return ClusterNode(it, GuardedStore(made, self.plugins.blamed, it.level), self.env, self.config.broker.data_dir)

    def _new_transactions(self) -> tuple[TransactionCoordinator, ClusterTransactions | None]:
        """Make the coordinator, and the broker's part in its cluster's transactions; None: it is alone."""
        about = self.topics, self.groups, self.producer_ids.take, self.env.clock, self.spawn
        if self.cluster is None:
            return TransactionCoordinator(*about), None
        coordinator = ClusterCoordinator(*about)
        shared = self.catalog, self.groups, self.env.clock, self._create_transactions_topic, self.cluster.has_topic
        return coordinator, ClusterTransactions(coordinator, *shared, lambda: self.stopping)

    def _new_metrics(self) -> MetricRegistry:
        source = MetricSource(
            name=self.name,
            read_state=lambda: self.state,
            env=self.env,
            topics=self.topics,
            groups=self.groups,
            transactions=self.transactions,
            routers=self.routers,
            publisher=self.publisher,
            connections=self.connections,
            certificates=self.certificates,
            memory=self.memory,
            turns=self.turns,
            observers=self.observers,
            measurements=self.measurements,
            cluster=self.cluster,
            replication=lambda: self.administration.replication,
            links=lambda: self.administration.links,
        )
        return MetricRegistry(source)

    def _new_services(self) -> Services:
        """Prepare the services without making them. Raises PluginError: a metric's name is taken."""
        kinds, plugins = self.plugins.services, self.plugins
        self.metrics.check_services(kinds.values())
        making = plugins.make, plugins.owner_of, self.spawn, self.metrics.add_service
        return Services(kinds, self.config, self.env, self.topics, lambda: self.addresses, self.policy, *making)

    def _new_administration(self) -> Administration:
        metadata: MetadataEntries = self.cluster.catalog if self.cluster is not None else self._local
        return Administration(
            config=self.config,
            env=self.env,
            plugins=self.plugins,
            observers=self.observers,
            metadata=metadata,
            local=self._local,
            catalog=self.catalog,
            topic_maker=self.topic_maker,
            groups=self.groups,
            transactions=self.transactions,
            services=self.services,
            connections=self.connections,
            metrics=self.metrics,
            policy=self.policy,
            audit=self.audit,
            long_work=self.long_work,
            cluster=self.cluster,
            read_addresses=lambda: self.addresses,
            read_client_count=lambda: self.client_count,
            spawn=self.spawn,
            fail=self.fail,
        )

    def _new_gateway(self) -> Gateway:
        rooms = Rooms(
            self.config.broker,
            self.long_work,
            self.catalog,
            self.groups,
            self.formats,
            self.publisher,
            self.transactions,
            self.producer_ids,
            self.administration,
            self.metrics,
            self.policy,
            self.audit,
            self.cluster_transactions,
        )
        return Gateway(
            self.name,
            self.env,
            rooms,
            self.connections,
            self.memory,
            self.turns,
            self.logins,
            spawn=self.spawn,
            blamed=self.plugins.blamed,
            read_state=lambda: self.state,
            read_addresses=lambda: self.addresses,
        )

    async def _create_default_topic(self, name: str) -> None:
        await self.administration.create_default_topic(name)

    async def _create_transactions_topic(self) -> None:
        await self.administration.create_transactions_topic()

    # --- life ---

    @property
    def name(self) -> str:
        """The broker's configured name."""
        return self.config.broker.name

    @property
    def client_count(self) -> int:
        """The number of connected clients."""
        return self.listening.connections

    @property
    def observers(self) -> Observers:
        """The observers of the broker's events."""
        return self.plugins.observers

    @property
    def addresses(self) -> Mapping[str, str]:
        """Bound address by listener."""
        return self.listening.addresses

    @property
    def state(self) -> Literal["starting", "ready", "stopping"]:
        """The broker's state: clients can connect while it is "ready"."""
        if self.stopping:
            return "stopping"
        return "ready" if self._started else "starting"

    async def start(self) -> None:
        """Lock the data folder, recover every topic, listen. Raises LinnError."""
        self._read_secrets()
        self.publisher.open_timing = self.administration.open_timing
        link_peers(self.gateway, self.publisher, self.administration, self.config, self.plugins)
        self._dead_letters = DeadLetters(self.gateway, self.publisher, self.env, self.producer_ids)
        self.certificates.load()
        self.token_file.load()
        self.logins.tokens = self.token_file.keys
        await self._folder.open(self._local, is_alone=self.config.cluster is None)
        self.spawn(self.turns.run)
        self.spawn(self.metrics.watch_loop)
        if self.policy.authority is not None:
            self.spawn(self.policy.authority.run)
        await self.listening.start(watching=True)
        if self.cluster is not None:
            await self.cluster.join()
        await self._recover()
        self._recovered.set()
        await self.listening.start(watching=False)
        if self.cluster is not None:
            self._nursery.start_soon(self.cluster.run, self.listening.advertised)
            self.spawn(self.administration.follow)
            if self.cluster_transactions is not None:
                self.spawn(self.cluster_transactions.participant.run)
            await self.cluster.wait_registered()
            self.spawn(self._make_configured)
        self._started = True
        self.services.start()
        self.spawn(self._keep)
        self.spawn(self._keep_certificates)
        self.plugins.observers.broker_started(self.name, list(self.addresses.values()))

    def _read_secrets(self) -> None:
        """Read every secret of the file once, and keep only verifiers. Raises SecretUnusable, with the setting."""
        for place, secret in self.config.secrets():
            try:
                secret.reveal(self.env)
            except SecretUnusable as error:
                raise SecretUnusable(f"{dotted(place)}: {error.text}") from error
        for name, secret in self.config.verifiers.items():
            text = secret.reveal(self.env)
            try:
                Verifier.parse(text)
            except ConfigError as error:
                raise SecretUnusable(f"{dotted(('users', name, 'scram'))}: {error.text}") from error
            found = self.policy.users.find(name)
            assert found is not None, "a verifier is a user's"
            self.policy.users.put(msgspec.structs.replace(found, scram=text))

    async def _recover(self) -> None:
        try:
            await self.administration.draw_secrets(("producers", "logins"))
            stored = await self.administration.load()
            await self._count_start()
            self._make_assignors()
            opened = await self.administration.open_topics(stored)
            await self._open_transactions()
            secret, drawn = self.administration.secret("producers")
            logins_secret, drawn_too = self.administration.secret("logins")
            await self.administration.save_opened({**opened, **drawn, **drawn_too})
            self.producer_ids.secret, self.logins.secret = secret, logins_secret
            if AUDIT_TOPIC in self.config.topics:
                await self.audit.open(self.topics[AUDIT_TOPIC])
        except LinnError:
            raise
        except Exception as error:
            logger.error("can't start: recovery failed in %(blamed)s", {"blamed": self.plugins.blamed(error)})
            raise

    async def _make_configured(self) -> None:
        """Make what the file has and the cluster has not; try again until it is done."""
        while True:
            try:
                await self.administration.make_configured(self.config)
            except BrokerStopping:
                return
            except SyncFailed:
                raise
            except LinnError as error:
                logger.warning("the file's topics are not in the cluster yet: %(error)s", log_fields(error))
                await self.env.clock.sleep(RETRY_S)
            else:
                return

    async def _count_start(self) -> None:
        """Count this start after all logs were examined, so that a refused start changes nothing.

        Raises LogCorrupt, DiskFull, StorageError, SyncFailed, MetadataError.
        """
        counter = StartCounter(self.env.disk, self.config.broker.data_dir)
        number = await counter.count(self.env.clock.now_ms())
        if self.cluster is not None:
            number = await self.cluster.count_start(number)
            await counter.raise_to(number)
        self.producer_ids.start = number

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this broker leads all partitions: the number of its start."""
        return self.producer_ids.start

    def stop(self) -> None:
        """Ask for an orderly stop. Idempotent; does not wait."""
        self._stop_requested.set()

    async def wait_stopped(self) -> None:
        """Wait until `stop` was called."""
        await self._stop_requested.wait()

    async def drain(self) -> None:
        """Drain the services, which are clients too, for at most `drain_timeout`; let other brokers lead. Then refuse
        new work, answer requests in progress, and close all connections, for at most `drain_timeout`."""
        await self.services.drain(self.config.broker.drain_timeout_s)
        if (replication := self.administration.replication) is not None:
            await replication.depart()
        self.stopping = self.long_work.is_stopping = True
        self.plugins.observers.broker_stopping(self.name)
        for topic in self.topics.values():
            topic.room.tell()  # Refuses publishes that wait for room.
        await self.listening.drain(self.config.broker.drain_timeout_s)
        self._is_drained = True

    async def close(self) -> None:
        """Sync and close everything. Failures are logged: the next start recovers."""
        self.stopping = self.long_work.is_stopping = True
        await self.administration.wait_idle()
        self._is_synced = self._is_drained
        if self.cluster is not None:
            await self._close_in_order("the session", self.cluster.leave)
        self.groups.end_members()
        self.transactions.stop()
        for topic in self.topics.values():
            await self._close_in_order(f"topic {topic.name}", topic.close)
        if self.cluster is None:
            close_log = partial(self.transactions.log.close, is_synced=self._is_synced)
            await self._close_in_order("the transactions", close_log)
        for engine in self.topic_maker.engines.values():
            await engine.close()
        if self.cluster is not None:
            await self._close_in_order("the cluster", partial(self.cluster.stopped, is_synced=self._is_synced))
        self._folder.release()

    async def _close_in_order(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        try:
            await close()
        except Exception as error:
            self._is_synced = False
            about = {"closed": name, "error": str(error), "code": getattr(error, "code", InternalError.code)}
            logger.error("%(closed)s could not be closed in order: %(error)s", about)

    def fail(self, error: SyncFailed) -> None:
        """End the broker after a failed sync: the contents of the disk are unknown."""

        async def end() -> None:
            raise error

        self._nursery.start_soon(end)

    def spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a background task in the broker's nursery.

        A failed sync or a bug in the task ends the broker. Failures from a full disk or a deleted topic are logged:
        such tasks are started again at the next occasion, and no confirmed record depends on them.
        """
        self._nursery.start_soon(self._run_chore, task)

    async def _run_chore(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except SyncFailed:
            self.administration.change_scope.shield = False  # A change may wait for what this chore has not synced.
            raise
        except LogClosed as error:
            logger.debug("a chore ended with its topic: %(error)s", log_fields(error))
        except StorageError as error:
            logger.error("a chore could not be done: %(error)s", log_fields(error))
        except Exception as error:
            logger.error("the broker ends: a chore failed in %(blamed)s", {"blamed": self.plugins.blamed(error)})
            raise

    async def _keep(self) -> None:
        clock_watch = ClockWatch(self.env.clock)
        while True:
            await self.env.clock.sleep(RETENTION_INTERVAL_S)
            if clock_watch.look():
                continue  # A clock that runs ahead for a moment must not drop whole streams.
            drops_old = self.cluster is None or not self.cluster.clocks.is_ahead()
            for topic in list(self.topics.values()):
                await self._run_chore(partial(topic.enforce_retention, drops_old=drops_old))
            if self.cluster is None:
                await self._run_chore(self.transactions.log.enforce_retention)
            await self._run_chore(self._watch_decisions)

    async def _keep_certificates(self) -> None:
        while self.config.tls or self.config.tokens.keys:
            await self.env.clock.sleep(RELOAD_INTERVAL_S)
            self.reload_files()

    def reload_files(self) -> None:
        """Read certificates and the keys of tokens again, for new connections. What can't be used replaces nothing."""
        self.certificates.reload()
        self.token_file.reload()
        self.logins.tokens = self.token_file.keys

    async def _watch_decisions(self) -> None:
        """Warn of decided records without an answer from their consumer."""
        queues = [queue for topic in self.topics.values() for queue in topic.subscriptions.values()]
        decided = [queue for queue in queues if any(it.subscription.decided_count for it in queue.partition_queues)]
        steps = self._decision_watch.look(decided, self.env.clock.now_ms())
        if decided:
            await self.long_work.run(steps)
        else:
            run_steps(steps)

    # --- topics ---

    def topic(self, name: str) -> Topic:
        """Return the topic of this name. Raises TopicUnknown."""
        return self.catalog.topic(name)

    def router(self, name: str) -> Router:
        """Return the exchange of this name, including the default exchange. Raises ExchangeUnknown."""
        return self.catalog.router(name)

    def _stream(self, name: str) -> Stream | None:
        topic = self.topics.get(name)
        return topic.stream if topic is not None else None

    def _make_assignors(self) -> None:
        """Make the assignors that groups may need, before any group. Raises PluginError."""
        default = self.config.broker.default_assignor
        for name in dict.fromkeys([default, *map(self.config.assignor_of, self.config.groups)]):
            kind = self.plugins.assignors[name]
            self._assignors[name] = CheckedAssignor(name, self.plugins.make(kind), self.plugins.owner_of(kind))

    def _assignor_of(self, group: str) -> CheckedAssignor:
        return self._assignors[self.config.assignor_of(group)]

    async def _open_transactions(self) -> None:
        """Open the transactions' log, and end or continue transactions that were left open. The topics are open.

        Raises LogCorrupt, StorageError.
        """
        if self.cluster is not None:
            return  # Their log is a topic, which the broker that leads it opens.
        storage, clock = self.topic_maker.transaction_storage, self.env.clock
        engine = self.topic_maker.engine(storage)
        if not engine.capabilities.survives_restart:
            await self.transactions.recover(None, None)
            return

        async def open_log() -> StateLog:
            id = PartitionId(TRANSACTIONS_TOPIC, 0)
            traffic = self.measurements.storage(storage)
            log = Partition(id, await engine.open(id), traffic, clock, self.spawn, self.leader_epoch)
            return StateLog(log, clock)

        there = await engine.examine_topic(TRANSACTIONS_TOPIC) != []
        state = await open_log() if there else None
        await self.transactions.recover(state, open_log, self.env.process.boot_id())

    async def _move_dead_letters(self, topic: Topic, partition_queue: PartitionQueue) -> None:
        await self._recovered.wait()  # Its target may be opened later.
        await self._dead_letters.move(topic, partition_queue)


@asynccontextmanager
async def running_broker(config: Config, env: Env, plugins: PluginManager | None = None) -> AsyncIterator[Broker]:
    """Run a broker, which is recovered and listening inside the block; leaving the block drains and closes it.

    Raises:
        LinnError: it can't start; or, from the block, SyncFailed and other errors that end a broker.
    Cancellation: connections are dropped; logs are closed in order as far as the disk allows it.
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
