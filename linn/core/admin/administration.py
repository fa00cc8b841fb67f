"""Changes while the broker runs: topics, exchanges, bindings, groups. Anything that TOML can configure can be changed
here.

Laws: a change is checked completely before any of it happens, and is in the metadata store before it takes effect.
Changes run one at a time, and a change that has begun runs to its end even if its caller is cancelled. Verbs that only
read wait for no change: a topic that is being made is not visible yet, and one that is altered changes all at once,
except for its bindings, which follow one by one (`binding_changes`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec
import trio

from linn import verbs
from linn.core.admin.audit import AuditTrail
from linn.core.admin.cluster_catalog import LEADER_WAIT_S, ClusterCatalog
from linn.core.admin.cluster_operations import ClusterOperations
from linn.core.admin.connections import ConnectionAdministration
from linn.core.admin.definitions import DefinitionsAdministration
from linn.core.admin.deliveries import DeliveryAdministration
from linn.core.admin.endings import Endings
from linn.core.admin.entry_store import EntryStore
from linn.core.admin.everywhere import everywhere, wait_known
from linn.core.admin.exchanges import ExchangeAdministration
from linn.core.admin.groups import GroupAdministration
from linn.core.admin.led_logs import LedLogs
from linn.core.admin.messages import ScheduledAdministration, find_messages
from linn.core.admin.stored_entries import TOPIC, settings_of_topics
from linn.core.admin.subscriptions import SubscriptionAdministration
from linn.core.admin.topic_description import JsonText
from linn.core.admin.topics import StoredTopics, TopicAdministration
from linn.core.admin.transactions import TransactionAdministration
from linn.core.admin.users import UserAdministration
from linn.core.admin.verb import check_size, decode_arguments
from linn.core.cluster.node import ALONE, ClusterNode
from linn.core.cluster.peers import PeerLinks
from linn.core.cluster.plan import PartPolicy
from linn.core.config.config import Config
from linn.core.config.configured import ConfiguredExchange
from linn.core.config.decoder import encode_settings
from linn.core.connections.connections import Connections
from linn.core.env.env import Env, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.metadata import MetadataUnavailable, MetadataUnknown, RevisionConflict
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.replication import NotLeader
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import (
    BrokerStopping,
    LinnError,
    RequestUnknown,
    SyncFailed,
)
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.loop.long_work import LongWork
from linn.core.metadata.store import MetadataEntries
from linn.core.metrics.registry import MetricRegistry
from linn.core.metrics.report import metric_report
from linn.core.ports.observer import Observers
from linn.core.ports.principal import Principal
from linn.core.replicas.replication import Replication
from linn.core.security.policy import Policy
from linn.core.services.services import Services
from linn.core.topics.catalog import Catalog
from linn.core.topics.live_settings import differences
from linn.core.topics.topic_maker import PluginMaker, TopicMaker
from linn.core.transactions.cluster_coordinator import ClusterCoordinator
from linn.core.transactions.coordinator import TransactionCoordinator
from linn.descriptions import BrokerDescription, ClusterDescription, MetricDescription, ServiceDescription
from linn.verbs import TRANSACTIONS_TOPIC, VERBS, A, R, Verb

logger = logging.getLogger("linn.administration")

CONFLICTS_MAX = 10
"""Times that a change is checked again because others have changed the catalog of the cluster meanwhile."""
CONFLICT_WAIT_S = 2.0
"""Limit of the wait for their changes, which come within milliseconds unless the store is down."""

T = TypeVar("T")
Handler = Callable[[Any, Principal], Awaitable[Any]]
"""A function that performs a verb, given its arguments and its caller."""


def _on(verb: Verb[A, R], perform: Callable[[A], Awaitable[R | JsonText]]) -> tuple[str, Handler]:
    return verb.name, lambda asked, _: perform(asked)


def _on_behalf(verb: Verb[A, R], perform: Callable[[A, Principal], Awaitable[R | JsonText]]) -> tuple[str, Handler]:
    return verb.name, perform


def _targets_of(exchange: ConfiguredExchange) -> list[str | None]:
    """The exchanges that must exist before this one."""
    return [exchange.alternate, *[binding.exchange for binding in exchange.bindings]]


def _targets_first(targets: Mapping[str, Sequence[str | None]]) -> list[str]:
    """Order names so that each comes after its targets, as far as these have no cycle."""
    found: dict[str, None] = {}
    seen: set[str | None] = set()
    left = list(targets)[::-1]
    while left:
        name = left[-1]
        seen.add(name)
        missing = [each for each in targets[name] if each is not None and each in targets and each not in seen]
        if missing:
            left += missing
        else:
            found.setdefault(left.pop())
    return list(found)


@dataclass(kw_only=True, eq=False)
class Administration:
    """The broker's catalogue of verbs. Each verb returns a JSON value, or its text, and raises LinnErrors."""

    config: Config
    env: Env
    plugins: PluginMaker
    observers: Observers
    metadata: MetadataEntries
    catalog: Catalog
    topic_maker: TopicMaker
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    services: Services
    connections: Connections
    metrics: MetricRegistry
    policy: Policy
    audit: AuditTrail
    long_work: LongWork
    cluster: ClusterNode | None
    """None: the broker is alone."""
    read_addresses: Callable[[], Mapping[str, str]]
    read_client_count: Callable[[], int]
    spawn: Spawn
    """Runs a background task of the broker."""
    fail: Callable[[SyncFailed], None]
    """Ends the broker after a failed sync, because the contents of the disk are unknown."""

    local: MetadataEntries | None = None
    """The store in the broker's own folder, if `metadata` is a cluster's."""

    def __post_init__(self) -> None:
        if self.cluster is not None:
            # The cluster's store decides about topics and exchanges; `make_configured` adds what is only in the file.
            own = {name: topic for name, topic in self.config.topics.items() if name == AUDIT_TOPIC}
            self.config = replace(self.config, topics=own, exchanges={}, topic_lines={name: {} for name in own})
        self._entries = EntryStore(self.metadata, self.long_work)
        self._groups = GroupAdministration(self.catalog, self.groups, self.config)
        self._subscriptions = SubscriptionAdministration(self.catalog, self._entries)
        self._deliveries = DeliveryAdministration(self.catalog, self.transactions, self.long_work)
        topics, clock = self.catalog.topics, self.env.clock
        self._transactions = TransactionAdministration(topics, self.transactions, clock, self.long_work)
        self._exchanges = ExchangeAdministration(self.config, self.plugins, self.catalog, self.long_work, self._entries)
        self._users = UserAdministration(self.config, self.policy, self.connections, self._entries, self.long_work)
        self._topics = TopicAdministration(
            self.config,
            self.env.rng,
            self.plugins,
            self.observers,
            self.catalog,
            self.topic_maker,
            self.groups,
            self.services,
            self._entries,
            self._subscriptions,
            self.long_work,
        )
        self.endings = Endings(self._topics, self._exchanges, self._run_change, self.env.clock, self.spawn)
        self._exchanges.on_unused = self.endings.exchange_unused
        self.topic_maker.delete_unused = self.endings.delete_unused
        self._logs: LedLogs | None = None
        self._follower: ClusterCatalog | None = None
        if self.cluster is not None:
            assert self.local is not None, "a node of a cluster has a folder of its own"
            self._logs = LedLogs(self.local, self.topic_maker)
            assert isinstance(self.transactions, ClusterCoordinator), "the broker is one of a cluster"
            rooms = self._topics, self._exchanges, self._users, self.groups, self.transactions
            links = self.cluster, lambda: self.links, self.env, self.spawn
            make = partial(Replication, *links)
            self._follower = ClusterCatalog(self.cluster, self.catalog, self._entries, *rooms, self._logs, make)
            self._topics.elsewhere = self._exchanges.elsewhere = self._follower
            self._entries.lease = self.cluster.session_lease
            self.cluster.policy_of_storage = self._part_policy
            self.cluster.failing_count = self._follower.replication.failing_count
        self.links: PeerLinks | None = None
        """The links to the other brokers of the cluster, set by the composition root; None: there are none."""
        self._lock = trio.Lock()
        self.change_scope = trio.CancelScope()
        """The scope of the change in progress, which is shielded until the broker fails."""
        self._handlers = self._verb_handlers()

    @property
    def replication(self) -> Replication | None:
        """The replicas of this broker, which others may follow; None: it is alone."""
        return self._follower.replication if self._follower is not None else None

    def _part_policy(self, storage: str | None) -> PartPolicy:
        name = storage or self.config.broker.default_storage
        if name not in self.config.storage:
            return PartPolicy()
        promises = self.topic_maker.engine(name).capabilities
        return PartPolicy(is_synced=promises.confirm_after_sync, is_in_memory=not promises.survives_restart)

    def _message_handlers(self) -> list[tuple[str, Handler]]:
        scheduled = ScheduledAdministration(self.catalog, self.long_work)
        return [
            _on(verbs.FIND_MESSAGES, partial(find_messages, self.catalog)),
            _on(verbs.LIST_SCHEDULED, scheduled.list_first),
            _on(verbs.CANCEL_SCHEDULED, scheduled.cancel),
            _on(verbs.MOVE_SCHEDULED, scheduled.move),
        ]

    def _verb_handlers(self) -> dict[str, Handler]:
        topics, groups, subscriptions = self._topics, self._groups, self._subscriptions
        exchanges, users = self._exchanges, self._users
        connections = ConnectionAdministration(self.connections, self.long_work)
        operations = ClusterOperations(self.cluster, self.env.clock)
        definitions = DefinitionsAdministration(self.catalog, exchanges, self.long_work, self.audit)
        return dict(
            [
                _on_behalf(verbs.CREATE_TOPIC, topics.create),
                _on_behalf(verbs.ALTER_TOPIC, topics.alter),
                _on_behalf(verbs.DELETE_TOPIC, topics.delete),
                _on(verbs.SHOW_TOPIC, topics.show),
                _on_behalf(verbs.LIST_TOPICS, definitions.list_topics),
                _on(verbs.PURGE_TOPIC, subscriptions.purge),
                *self._message_handlers(),
                _on(verbs.CREATE_EXCHANGE, exchanges.create),
                _on_behalf(verbs.DELETE_EXCHANGE, exchanges.delete),
                _on_behalf(verbs.SHOW_EXCHANGE, exchanges.show),
                _on_behalf(verbs.LIST_EXCHANGES, exchanges.list_all),
                _on_behalf(verbs.EXPORT_DEFINITIONS, definitions.export),
                _on(verbs.BIND, exchanges.bind),
                _on(verbs.UNBIND, exchanges.unbind),
                _on_behalf(verbs.LIST_GROUPS, groups.list_all),
                _on_behalf(verbs.SHOW_GROUP, groups.show),
                _on_behalf(verbs.RESET_GROUP, groups.reset),
                _on(verbs.DELETE_GROUP, groups.delete),
                _on_behalf(verbs.LIST_SUBSCRIPTIONS, subscriptions.list_all),
                _on(verbs.SHOW_SUBSCRIPTION, subscriptions.show),
                _on(verbs.CREATE_SUBSCRIPTION, subscriptions.create),
                _on(verbs.DELETE_SUBSCRIPTION, subscriptions.delete),
                _on_behalf(verbs.LIST_DELIVERIES, self._deliveries.list_all),
                _on_behalf(verbs.RESOLVE_DELIVERY, self._deliveries.resolve),
                _on_behalf(verbs.LIST_TRANSACTIONS, self._transactions.list_all),
                _on_behalf(verbs.SHOW_TRANSACTION, self._transactions.show),
                _on_behalf(verbs.ABORT_TRANSACTION, self._transactions.abort),
                _on(verbs.LIST_CONNECTIONS, connections.list_all),
                _on(verbs.CLOSE_CONNECTION, connections.close),
                _on(verbs.LIST_SERVICES, self._list_services),
                _on_behalf(verbs.PERFORM_ACTION, self._perform_action),
                _on(verbs.SHOW_BROKER, self._show_broker),
                _on(verbs.CLUSTER_STATUS, self._cluster_status),
                *(_on(verb, perform) for verb, perform in operations.performs.items()),
                _on(verbs.SHOW_METRICS, self._show_metrics),
                _on_behalf(verbs.CREATE_USER, users.create_user),
                _on_behalf(verbs.ALTER_USER, users.alter_user),
                _on_behalf(verbs.DELETE_USER, users.delete_user),
                _on(verbs.SHOW_USER, users.show_user),
                _on(verbs.LIST_USERS, users.list_users),
                _on_behalf(verbs.CAN_USER, users.can),
                _on_behalf(verbs.SHOW_CALLER, users.whoami),
                _on_behalf(verbs.CREATE_ROLE, users.create_role),
                _on_behalf(verbs.ALTER_ROLE, users.alter_role),
                _on_behalf(verbs.DELETE_ROLE, users.delete_role),
                _on(verbs.SHOW_ROLE, users.show_role),
                _on(verbs.LIST_ROLES, users.list_roles),
            ]
        )

    async def perform(self, verb: str, arguments: str, caller: Principal, *, forwards: bool = True) -> str:
        """Carry out a verb; arguments and result are JSON. A waiting request keeps only its text.

        `forwards`: whether another broker of the cluster may be asked, which leads the topic that the verb is about.

        Raises:
            Errors of `check`. Forbidden: the caller lacks a right that the verb needs. ConfigError: the arguments
                do not fit the verb; ConfigUnknownKey: an argument is unknown.
                LinnError: documented by the verb. PeerError: the other broker could not be asked.
        Cancellation: a change that has begun is completed; otherwise nothing happened.
        """
        if not forwards or self.links is None:
            return await self._perform_here(verb, arguments, caller, passes_on=False)
        known = self.check(verb, arguments)
        here = partial(self._perform_here, verb, arguments, caller, passes_on=True)
        try:
            if known in (verbs.CREATE_TOPIC, verbs.ALTER_TOPIC):
                done = await here()
                if (name := decode_arguments(verbs.CREATE_TOPIC, arguments).name) in self.catalog.topics:
                    settings = json.loads(await self._topics.show(verbs.Named(name)))["settings"]
                    await wait_known(name, settings, caller, self._other_nodes(), self.links, self.env.clock)
                return done
            if known.merge is None or known.topic_of(decode_arguments(known, arguments)) is not None:
                return await here()
        except NotLeader as error:
            if error.leader in (0, self._own_number):
                raise
            # Not under the lock of this broker's changes: the other one may ask this one.
            return await self.links.perform(error.leader, verb, arguments, caller)
        return await everywhere(known, arguments, caller, self._other_nodes(), self.links, here)

    def _other_nodes(self) -> list[int]:
        sessions = self.cluster.view.state.sessions if self.cluster is not None else ()
        return [node for node in sorted(sessions) if node != self._own_number]

    @property
    def _own_number(self) -> int:
        return self.cluster.number if self.cluster is not None else 0

    async def _perform_here(self, verb: str, arguments: str, caller: Principal, *, passes_on: bool) -> str:
        known, is_recorded = self.check(verb, arguments), False

        async def do() -> str:
            nonlocal is_recorded
            asked = decode_arguments(known, arguments)
            caller.access.check_all(known.needs(asked))
            if self.links is not None:
                self._check_is_here(known, asked, passes_on)
            if known.acts and not getattr(asked, "validate_only", False):
                if not is_recorded:
                    await self.audit.asked(known, asked, caller)
                is_recorded = True  # It is not recorded again if the change has to be made again.
                result = await self._on_record(known, asked, caller)
            else:
                result = await self._perform(known, asked, caller)
            return result if isinstance(result, JsonText) else json.dumps(result)

        if not known.changes:
            self._check_serving()
            return await do()
        done = await self._run_change(do)
        if self._follower is not None and known is verbs.CREATE_TOPIC:
            await self._follower.wait_led(decode_arguments(verbs.CREATE_TOPIC, arguments).name)
        return done

    def _check_is_here(self, verb: Verb[Any, Any], asked: Any, passes_on: bool) -> None:
        """Check, before anything is on the audit trail, that a verb is not for other brokers alone.

        Raises NotLeader, GroupUnknown.
        """
        name = verb.topic_of(asked)
        topic = self.catalog.topics.get(name) if name is not None else self._topics.held_elsewhere(verb, asked)
        if topic is not None and topic.led_by is not None:
            error = topic.led_by()
            # Who is asked as the leader, and is not, or not yet, has no answer.
            if error.leader if passes_on else verb.runs in ("leader", "coordinator") or name is None:
                raise error
        if (node := self._exchanges.held_elsewhere(verb, asked)) is not None:
            raise NotLeader(f"node {node} holds the exchange {asked.target_exchange}", leader=node)
        if verb.merge is not None and name is None and (group := getattr(asked, "group", None)) is not None:
            self.groups.known(group)

    async def _perform(self, verb: Verb[Any, Any], asked: Any, caller: Principal) -> Any:
        return await self._handlers[verb.name](asked, caller)

    async def _on_record(self, verb: Verb[Any, Any], asked: Any, caller: Principal) -> Any:
        """Carry out a verb that was written to the audit trail. Raises the verb's LinnErrors."""
        try:
            return await self._perform(verb, asked, caller)
        except LinnError as error:
            if self.cluster is None or not isinstance(error, RevisionConflict):
                self.audit.failed(verb, asked, caller, error)
            raise

    def check(self, verb: str, arguments: str) -> Verb[Any, Any]:
        """Check a request as far as possible before its turn. Raises RequestUnknown, LimitExceeded, ConfigError."""
        known = VERBS.get(verb)
        if known is None:
            raise RequestUnknown(f'there is no verb "{verb[:80]}"{did_you_mean(verb, VERBS)}')
        check_size(verb, arguments)
        return known

    def _check_serving(self) -> None:
        if self.long_work.is_stopping:
            raise BrokerStopping("the broker is stopping")

    async def _run_change(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make one change. Raises BrokerStopping, or what the change raises; a failed sync also ends the broker.

        In a cluster it is made again after another broker's change, which must be known here first.
        """
        for _ in range(CONFLICTS_MAX):
            before = self.cluster.catalog.revision if self.cluster is not None else 0
            try:
                return await self._run_once(change)
            except RevisionConflict:
                if self.cluster is None:
                    raise
                with trio.move_on_after(CONFLICT_WAIT_S):
                    await self.cluster.catalog.wait_newer(before)
        return await self._run_once(change)

    async def _run_once(self, change: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            self._check_serving()
            # A client that disconnects must not leave half a change behind.
            with trio.CancelScope(shield=True) as self.change_scope:
                try:
                    result = await change()
                except SyncFailed as error:
                    self.fail(error)
                    raise
            return result

    async def wait_idle(self) -> None:
        """Wait for the change in progress, if any."""
        async with self._lock:
            return

    # --- start ---

    async def load(self) -> StoredTopics:
        """Read the metadata store, make the exchanges, finish deletions and examine all logs. Raises LinnError."""
        stored = await self._entries.load()
        settings = settings_of_topics(stored)
        self._exchanges.recover(stored)
        await self._users.recover(stored)
        if self._logs is None:
            return await self._topics.load(stored, settings, settings)
        logs = await self._logs.load()
        stored |= {TOPIC + name: logs[name] for name in logs if name == AUDIT_TOPIC}
        settings = settings_of_topics(stored)
        await self._logs.delete_old({name: stored[TOPIC + name]["id"] for name in settings})
        return await self._topics.load(stored, settings, logs)

    async def open_topics(self, stored: StoredTopics) -> dict[str, object]:
        """Open the topics of the configuration and the store. Returns entries for `save_opened`. Raises LinnError."""
        opened = await self._topics.open_all(stored)
        if self._logs is not None:
            audit = opened.pop(TOPIC + AUDIT_TOPIC, None)
            if audit is not None:
                await self._logs.record(AUDIT_TOPIC, msgspec.to_builtins(audit))
        return opened

    async def follow(self) -> None:
        """Follow the catalog of the cluster until the broker stops. Raises SyncFailed."""
        assert self._follower is not None, "this broker is one of a cluster"
        with suppress(BrokerStopping):
            await self._follower.run(self._run_change)

    async def wait_led(self) -> None:
        """Wait until this broker has opened all topics that it leads, for at most as long as for a new topic."""
        if self._follower is not None:
            with trio.move_on_after(LEADER_WAIT_S):
                for name in list(self.catalog.topics):
                    await self._follower.wait_led(name, is_alive=False)

    async def wait_topic_led(self, name: str) -> None:
        """Wait until a topic is open here, or another broker is known to lead it; at most LEADER_WAIT_S."""
        if self._follower is not None:
            await self._follower.wait_led(name)

    async def make_configured(self, config: Config) -> None:
        """Make the exchanges and topics of a file that the cluster does not have yet, and give topics the tables of
        services in it, which no request may give them; warn where others differ.

        Raises LinnError. Cancellation: some are made.
        """
        nobody = Principal("")
        for name in _targets_first({name: _targets_of(exchange) for name, exchange in config.exchanges.items()}):
            exchange = config.exchanges[name]
            if name not in self.catalog.routers:
                asked = verbs.SettingsChange(name, exchange.encoded())
                await self._run_change(partial(self._exchanges.create, asked))
        for name in _targets_first({name: [topic.dead_letter] for name, topic in config.topics.items()}):
            topic = config.topics[name]
            existing = self.catalog.topics.get(name)
            if existing is None:
                asked = verbs.SettingsChange(name, encode_settings(topic))
                await self._run_change(partial(self._topics.create, asked, nobody, of_file=True))
                if reason := await self._topics.lacks_nodes(topic):
                    logger.warning("topic %(topic)s waits for brokers: %(reason)s", {"topic": name, "reason": reason})
                continue
            given = {
                key: table for key, table in topic.services.items() if existing.settings.services.get(key) != table
            }
            if given:
                asked = verbs.SettingsChange(name, given)
                await self._run_change(partial(self._topics.alter, asked, nobody, of_file=True))
            if existing.settings != topic and name != AUDIT_TOPIC:
                about = {"topic": name, "differences": differences(existing.settings, topic)}
                logger.warning("topic %(topic)s is in the cluster with other settings: %(differences)s", about)

    async def draw_secrets(self, names: Sequence[str]) -> None:
        """Store secrets that a cluster does not have yet, before its catalog is read. Raises LogCorrupt, MetadataError.

        Waits as long as the store can't be reached.
        """
        while self.cluster is not None:
            try:
                await self._entries.load()
                drawn = [self._entries.secret(name, self.env.rng)[1] for name in names]
                await self._entries.put_all({key: value for entries in drawn for key, value in entries.items()})
            except (MetadataUnavailable, MetadataUnknown, RevisionConflict) as error:
                logger.debug("secrets are drawn again: %(error)s", log_fields(error))
                await self.env.clock.sleep(CONFLICT_WAIT_S)
            else:
                return

    def secret(self, name: str) -> tuple[bytes, Mapping[str, object]]:
        """Return a secret that only this broker knows, the same at each start; the first draws it.

        With it comes an entry for `save_opened` if it was drawn: it must be stored before it is used.
        """
        return self._entries.secret(name, self.env.rng)

    async def save_opened(self, opened: Mapping[str, object]) -> None:
        """Write the entries of new and of changed topics. Raises StorageError."""
        await self._entries.put_all(opened)

    # --- topics ---

    async def create_default_topic(self, name: str) -> None:
        """Create a topic with default settings unless it exists. Raises ConfigError if the name is not valid."""

        async def create() -> None:
            if name not in self.catalog.topics:
                await self._topics.create(verbs.SettingsChange(name), Principal(""))

        await self._run_change(create)
        if self._follower is not None:
            await self._follower.wait_led(name)

    async def create_transactions_topic(self) -> None:
        """Create the topic of the log of transactions, unless it exists.

        Raises StorageError, MetadataError.
        """

        async def create() -> None:
            if TRANSACTIONS_TOPIC not in self.catalog.topics:
                await self._topics.create_own(TRANSACTIONS_TOPIC, self.topic_maker.transaction_storage)

        await self._run_change(create)
        if self._follower is not None:
            await self._follower.wait_led(TRANSACTIONS_TOPIC)

    async def make_subscription(self, topic: str, name: str, starts: Sequence[int]) -> None:
        """Make a named subscription that begins at these offsets, by partition, unless it exists.

        Raises TopicUnknown, SubscriptionWrongKind, ConfigError, LimitExceeded, StorageError.
        """
        await self._run_change(lambda: self._subscriptions.make(self.catalog.led_topic(topic), name, starts))

    async def open_positions(self, topic: str) -> None:
        """Make and open the log of the positions of groups in a stream, unless it is open.

        Raises TopicUnknown, NotLeader, BrokerStopping, LogCorrupt, StorageError.
        """
        await self._run_change(lambda: self.catalog.led_topic(topic).open_positions(self.groups))

    async def open_timing(self, topic: str) -> None:
        """Make and open the timing logs of a topic, unless they are open. Raises as `open_positions`."""
        await self._run_change(lambda: self.catalog.led_topic(topic).timing.open())

    # --- broker ---

    async def _show_metrics(self, asked: verbs.MetricNames) -> list[MetricDescription]:
        return await metric_report(self.metrics, self.env.clock, asked.names)

    async def _cluster_status(self, asked: verbs.ClusterAsked) -> ClusterDescription:
        return self.cluster.describe(asked.troubled_max) if self.cluster is not None else ALONE

    async def _list_services(self, _: verbs.NoArguments) -> list[ServiceDescription]:
        return self.services.describe()

    async def _perform_action(self, asked: verbs.ServiceAction, caller: Principal) -> Any:
        return await self.services.perform(asked.service, asked.action, asked.arguments, caller)

    async def _show_broker(self, _: verbs.NoArguments) -> BrokerDescription:
        return {
            "name": self.config.broker.name,
            "version": version("linn"),
            "listeners": dict(self.read_addresses()),
            "connections": self.read_client_count(),
            "topics": len(self.catalog.topics),
            "exchanges": len(self.catalog.routers),
        }
