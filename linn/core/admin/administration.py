"""Changes while the broker runs: topics, exchanges, bindings, groups. Anything that TOML can configure can be changed
here.

Laws: a change is checked completely before any of it happens, and is in the metadata store before it takes effect.
Changes run one at a time, and a change that has begun runs to its end even if its caller is cancelled. Verbs that only
read wait for no change: a topic that is being made is not visible yet, and one that is altered changes all at once,
except for its bindings, which follow one by one (`binding_changes`). The remains of a deleted topic are deleted before
another topic of that name is created, even after a crash; a topic whose creation was interrupted by a crash does not
exist afterwards. At a start, the TOML file wins for the topics and exchanges that it names; topics and exchanges made
live stay, and so do live settings of a topic that the file does not name (`linn.core.topics.live_settings`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import trio

from linn import rights, verbs
from linn.core.admin.audit import AuditTrail
from linn.core.admin.binding_changes import bind, binding_to, checks, rebind, unbind
from linn.core.admin.connections import ConnectionAdministration
from linn.core.admin.definitions import DefinitionsAdministration
from linn.core.admin.deliveries import DeliveryAdministration
from linn.core.admin.entry_store import EntryStore, stored_topic
from linn.core.admin.exchanges import ExchangeAdministration
from linn.core.admin.groups import GroupAdministration
from linn.core.admin.log_examination import examine_logs
from linn.core.admin.stored_entries import TOPIC, settings_of_topics
from linn.core.admin.subscriptions import SubscriptionAdministration
from linn.core.admin.topic_description import JsonText, topic_as_json
from linn.core.admin.transactions import TransactionAdministration
from linn.core.admin.users import UserAdministration
from linn.core.admin.verb import check_size, decode_arguments
from linn.core.cluster.node import ALONE, ClusterNode
from linn.core.config.config import Config
from linn.core.config.decoder import encode_settings
from linn.core.config.dotted_keys import without_dots
from linn.core.config.kinds import kind_named
from linn.core.config.problem import FirstProblem
from linn.core.config.service_tables import check_live_tables, check_services
from linn.core.config.topic_checks import decode_topic
from linn.core.config.topic_settings import BindingSettings, TopicSettings, changed_keys, encode_without_bindings
from linn.core.connections.connections import Connections
from linn.core.env.env import Env
from linn.core.env.log_fields import log_fields
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import (
    BindingInvalid,
    BrokerStopping,
    ConfigError,
    ConfigNotLive,
    ExchangeUnknown,
    LinnError,
    RequestUnknown,
    StorageError,
    SyncFailed,
    TopicError,
    TopicExists,
)
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.loop.long_work import LongWork
from linn.core.metadata.store import MetadataStore
from linn.core.metrics.registry import MetricRegistry
from linn.core.metrics.report import metric_report
from linn.core.ports.observer import Observers
from linn.core.ports.principal import Principal
from linn.core.routing.exchange import Target
from linn.core.security.policy import Policy
from linn.core.services.services import Services
from linn.core.topics.catalog import Catalog
from linn.core.topics.live_settings import (
    differences,
    live_keys_after,
    merged,
    permitted,
    replaced,
    warnings_of,
    warnings_of_deletion,
)
from linn.core.topics.shared_entry import SharedEntry, check_entries, decode_entries
from linn.core.topics.topic import Topic
from linn.core.topics.topic_maker import PluginMaker, TopicMaker
from linn.core.transactions.coordinator import TransactionCoordinator
from linn.descriptions import BrokerDescription, ClusterDescription, MetricDescription, ServiceDescription
from linn.rights import Need
from linn.verbs import VERBS, A, R, Verb

logger = logging.getLogger("linn.administration")

T = TypeVar("T")
Handler = Callable[[Any, Principal], Awaitable[Any]]
"""A function that performs a verb, given its arguments and its caller."""


def _on(verb: Verb[A, R], perform: Callable[[A], Awaitable[R | JsonText]]) -> tuple[str, Handler]:
    return verb.name, lambda asked, _: perform(asked)


def _on_behalf(verb: Verb[A, R], perform: Callable[[A, Principal], Awaitable[R | JsonText]]) -> tuple[str, Handler]:
    return verb.name, perform


class StoredTopics(NamedTuple):
    """The topics in the metadata store: their entries, their settings, and their named subscriptions."""

    topics: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, TopicSettings]
    entries: Mapping[str, Mapping[str, SharedEntry]]


@dataclass(kw_only=True, eq=False)
class Administration:
    """The broker's catalogue of verbs. Each verb returns a JSON value, or its text, and raises LinnErrors."""

    config: Config
    env: Env
    plugins: PluginMaker
    observers: Observers
    metadata: MetadataStore
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
    fail: Callable[[SyncFailed], None]
    """Ends the broker after a failed sync, because the contents of the disk are unknown."""

    def __post_init__(self) -> None:
        self._entries = EntryStore(self.metadata, self.long_work)
        self._groups = GroupAdministration(self.catalog, self.groups, self.config)
        self._subscriptions = SubscriptionAdministration(self.catalog, self._entries)
        self._deliveries = DeliveryAdministration(self.catalog, self.transactions, self.long_work)
        topics, clock = self.catalog.topics, self.env.clock
        self._transactions = TransactionAdministration(topics, self.transactions, clock, self.long_work)
        self._exchanges = ExchangeAdministration(self.config, self.plugins, self.catalog, self.long_work, self._entries)
        self._users = UserAdministration(self.config, self.policy, self.connections, self._entries, self.long_work)
        self._lock = trio.Lock()
        self.change_scope = trio.CancelScope()
        """The scope of the change in progress, which is shielded until the broker fails."""
        self._half_deleted: dict[str, Topic] = {}
        """Deleted topics whose files are not all removed yet."""
        self._handlers = self._verb_handlers()

    def _verb_handlers(self) -> dict[str, Handler]:
        groups, subscriptions, exchanges, users = self._groups, self._subscriptions, self._exchanges, self._users
        connections = ConnectionAdministration(self.connections, self.long_work)
        definitions = DefinitionsAdministration(self.catalog, exchanges, self.long_work, self.audit)
        return dict(
            [
                _on_behalf(verbs.CREATE_TOPIC, self._create_topic),
                _on_behalf(verbs.ALTER_TOPIC, self._alter_topic),
                _on_behalf(verbs.DELETE_TOPIC, self._delete_topic),
                _on(verbs.SHOW_TOPIC, self._show_topic),
                _on_behalf(verbs.LIST_TOPICS, definitions.list_topics),
                _on(verbs.PURGE_TOPIC, subscriptions.purge),
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

    async def perform(self, verb: str, arguments: str, caller: Principal) -> str:
        """Carry out a verb; arguments and result are JSON. A waiting request keeps only its text.

        Raises:
            Errors of `check`. Forbidden: the caller lacks a right that the verb needs. ConfigError: the arguments
                do not fit the verb; ConfigUnknownKey: an argument is unknown.
                LinnError: documented by the verb.
        Cancellation: a change that has begun is completed; otherwise nothing happened.
        """
        known = self.check(verb, arguments)

        async def do() -> str:
            asked = decode_arguments(known, arguments)
            caller.access.check_all(known.needs(asked))
            perform = self._on_record if known.acts else self._perform
            result = await perform(known, asked, caller)
            return result if isinstance(result, JsonText) else json.dumps(result)

        if known.changes:
            return await self._run_change(do)
        self._check_serving()
        return await do()

    async def _perform(self, verb: Verb[Any, Any], asked: Any, caller: Principal) -> Any:
        return await self._handlers[verb.name](asked, caller)

    async def _on_record(self, verb: Verb[Any, Any], asked: Any, caller: Principal) -> Any:
        """Carry out a verb that is written to the audit trail first. Raises the verb's LinnErrors, StorageError."""
        if getattr(asked, "validate_only", False):
            return await self._perform(verb, asked, caller)
        await self.audit.asked(verb, asked, caller)
        try:
            return await self._perform(verb, asked, caller)
        except LinnError as error:
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
        """Make one change. Raises BrokerStopping, or what the change raises; a failed sync also ends the broker."""
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
        topics = {key.removeprefix(TOPIC): entry for key, entry in stored.items() if key.startswith(TOPIC)}
        entries = {name: decode_entries(entry.get("subscriptions", {})) for name, entry in topics.items()}
        for name, entry in list(topics.items()):
            if entry.get("deleted"):
                known = self._known(name, settings[name])
                self._half_deleted[name] = self.topic_maker.make(name, known, UUID(entry["id"]), entries[name])
                await self._try_to_finish_deleting(name)
                del topics[name], settings[name], entries[name]  # The file defines another topic of that name.
            elif entry.get("unfinished"):
                logger.warning("topic %(topic)s was not made to its end, and is not there", {"topic": name})
                await self._entries.remove(TOPIC + name)
                del topics[name], settings[name], entries[name]
        await examine_logs(self.config, self.topic_maker, settings, entries)
        return StoredTopics(topics, settings, entries)

    async def open_topics(self, stored: StoredTopics) -> Mapping[str, object]:
        """Open the topics of the configuration and the store. Returns entries for `save_opened`. Raises LinnError."""
        opened: dict[str, object] = {}
        for name in dict.fromkeys([*self.config.topics, *stored.topics]):
            entry, entries = stored.topics.get(name, {}), stored.entries.get(name, {})
            value = await self._recover_topic(name, entry, stored.settings.get(name), entries)
            if value is not None:
                opened[TOPIC + name] = value
        return opened

    def secret(self, name: str) -> tuple[bytes, Mapping[str, object]]:
        """Return a secret that only this broker knows, the same at each start; the first draws it.

        With it comes an entry for `save_opened` if it was drawn: it must be stored before it is used.
        """
        return self._entries.secret(name, self.env.rng)

    async def save_opened(self, opened: Mapping[str, object]) -> None:
        """Write the entries of new and of changed topics. Raises StorageError."""
        await self._entries.put_all(opened)

    async def _try_to_finish_deleting(self, name: str) -> None:
        """Delete the rest of a topic, or leave it for later, unless the file now defines another topic of that name."""
        try:
            await self._finish_deleting(name)
        except StorageError as error:
            if isinstance(error, SyncFailed) or name in self.config.topics:
                raise
            text = "topic %(topic)s was deleted, and some of it is left until it is deleted again: %(error)s"
            logger.warning(text, {"topic": name} | log_fields(error))

    async def _recover_topic(
        self, name: str, entry: Mapping[str, Any], before: TopicSettings | None, entries: Mapping[str, SharedEntry]
    ) -> Any:
        """Open a topic. Returns its new entry in the store, or None if the stored one is up to date."""
        configured = self.config.topics.get(name)
        stored_keys = live_keys = tuple(entry.get("live_keys", ()))
        settings = configured or before
        assert settings is not None
        if configured is not None and before is not None:
            settings, live_keys = merged(configured, before, stored_keys, self.config.topic_lines[name])
            self._check_change(name, before, settings)
            check_entries(name, settings, entries)
            for line in replaced(name, self.config, before, stored_keys):
                logger.warning("%(change)s", {"topic": name, "change": line})
        if before is not None:
            settings, live_keys = permitted(name, settings, live_keys, self.config, self.plugins)
            if configured is None or "bindings" in live_keys:
                settings = msgspec.structs.replace(settings, bindings=tuple(self._fitting(name, settings.bindings)))
            settings = self._known(name, settings)
            before = settings if configured is None else before
        id = UUID(entry["id"]) if entry else self._new_id()
        topic = await self._open_topic(name, settings, id, entries)
        if before is None:
            await topic.make_durable()
        topic.live_keys = live_keys
        live = [msgspec.convert(binding, BindingSettings) for binding in entry.get("live_bindings", ())]
        topic.live_bindings = self._fitting(name, live)
        for binding in topic.live_bindings:
            self.catalog.router(binding.exchange).bind(binding_to(Target(name), binding))
        await self._subscriptions.finish_dropping(topic)
        if (before, stored_keys, entries) == (settings, live_keys, topic.entries):
            return None
        return stored_topic(topic, encode_settings(settings), topic.live_bindings, live_keys)

    def _new_id(self) -> UUID:
        """The id of a new topic."""
        return UUID(bytes=self.env.rng.bytes(16), version=4)

    def _known(self, name: str, settings: TopicSettings) -> TopicSettings:
        """Check that everything that the settings name still exists; returns the settings.

        Raises ConfigError for its storage, delivery or interceptors, PluginUnknown for its partitioner.
        """
        config = self.config
        named = [(settings.storage, config.storage), (settings.delivery, config.delivery)]
        named += [(interceptor, config.interceptors) for interceptor in settings.interceptors]
        for key, known in named:
            if key is not None and key not in known:
                raise ConfigError(f'topic {name} was made with "{key}", which the configuration no longer has')
        kind_named(self.plugins.partitioners, settings.partitioner, f"partitioner of topic {name},")
        return settings

    def _fitting(self, name: str, bindings: Sequence[BindingSettings]) -> list[BindingSettings]:
        """The bindings of a topic that the present exchanges accept; other bindings are left out with a warning."""
        kept = []
        for binding in bindings:
            try:
                self.catalog.router(binding.exchange).check(binding_to(Target(name), binding))
            except (ExchangeUnknown, BindingInvalid) as error:
                about = {"topic": name, "exchange": binding.exchange} | log_fields(error)
                logger.warning("a binding of topic %(topic)s to %(exchange)s is left out: %(error)s", about)
            else:
                kept.append(binding)
        return kept

    def _check_change(self, name: str, before: TopicSettings, settings: TopicSettings) -> tuple[str, ...]:
        """Return the keys that differ. Raises ConfigNotLive."""
        try:
            return changed_keys(before, settings)
        except ConfigNotLive as error:
            raise ConfigNotLive(f"topic {name}: {error.text}") from error

    async def _decode(self, name: str, table: Mapping[str, Any], topics: set[str], caller: Principal) -> TopicSettings:
        around = self.config.surroundings(dict.fromkeys(topics - {AUDIT_TOPIC}), self.catalog.routers, self.plugins)
        settings = await self.long_work.run(decode_topic(name, table, around), immediate=True)
        known = {topic.name: topic.settings for topic in self.catalog.topics.values()}
        if settings.services or name in known:
            check_services(around.services, self.config.services, {**known, name: settings}, FirstProblem())
            tables = around.services, self.config.services
            check_live_tables(name, settings, known.get(name), *tables, caller.access)
        return settings

    # --- topics ---

    async def _create_topic(self, asked: verbs.SettingsChange, caller: Principal) -> verbs.Created:
        name = asked.name
        table = without_dots(asked.settings, {})
        settings = await self._decode(name, table, {*self.catalog.topics, name}, caller)
        existing = self.catalog.topics.get(name)
        if existing is not None:
            if existing.settings == settings:
                return {"created": False}
            raise TopicExists(f"topic {name} exists with other settings: {differences(existing.settings, settings)}")
        await self._check_bindings(name, settings.bindings)
        if asked.validate_only:
            self.topic_maker.interceptors(name, settings)
            return {"created": True}
        if name in self._half_deleted:
            await self._finish_deleting(name)
        await self.groups.make_forgotten()
        live_keys = live_keys_after((), table)
        topic = self.topic_maker.make(name, settings, self._new_id())
        entry = stored_topic(topic, await self._entries.table(name, settings), (), live_keys)
        # A start drops the topic until the entry is complete: creation may fail halfway, before a client is answered.
        await self._entries.put(TOPIC + name, {**entry, "unfinished": True})
        try:
            topic.interceptors = self.topic_maker.interceptors(name, settings)
            await topic.open()
            await self._finish_making(topic, live_keys)
        except LinnError:
            await self._entries.remove(TOPIC + name)
            raise
        await self._begin_topic(topic)
        return {"created": True}

    async def _finish_making(self, topic: Topic, live_keys: tuple[str, ...]) -> None:
        """Record an open topic as complete, so that it survives a restart. Raises StorageError and closes the topic."""
        topic.live_keys = live_keys
        try:
            await topic.make_durable()
            await self._entries.save_topic(topic, topic.settings, (), live_keys)
        except LinnError:
            await topic.close()
            raise

    async def create_default_topic(self, name: str) -> None:
        """Create a topic with default settings unless it exists. Raises ConfigError if the name is not valid."""

        async def create() -> None:
            if name not in self.catalog.topics:
                await self._create_topic(verbs.SettingsChange(name), Principal(""))

        await self._run_change(create)

    async def make_subscription(self, topic: str, name: str, starts: Sequence[int]) -> None:
        """Make a named subscription that begins at these offsets, by partition, unless it exists.

        Raises TopicUnknown, SubscriptionWrongKind, ConfigError, LimitExceeded, StorageError.
        """
        await self._run_change(lambda: self._subscriptions.make(self.catalog.topic(topic), name, starts))

    async def _alter_topic(self, asked: verbs.SettingsChange, caller: Principal) -> verbs.Altered:
        topic = self.catalog.topic(asked.name)
        bindings = topic.settings.bindings  # Decoded already.
        table = {**encode_without_bindings(topic.settings), "bindings": bindings}
        changes = without_dots(asked.settings, table)
        settings = await self._decode(topic.name, table | changes, set(self.catalog.topics), caller)
        changed = self._check_change(topic.name, topic.settings, settings)
        check_entries(topic.name, settings, topic.entries)
        if "bindings" in changed:
            caller.access.check_all(Need(rights.BIND, rights.EXCHANGE, binding.exchange) for binding in bindings)
            await self._check_bindings(topic.name, settings.bindings)
        before, live_keys = topic.settings, live_keys_after(topic.live_keys, changes)
        interceptors = self.topic_maker.interceptors(topic.name, settings)
        warnings = warnings_of(topic.name, self.config, settings, changes)
        if asked.validate_only:
            return {"changed": list(changed), "warnings": warnings}
        change = await topic.prepare(settings, self.topic_maker.semantics(settings))
        try:
            await self._entries.save_topic(topic, settings, topic.live_bindings, live_keys)
        except LinnError:
            await change.abandon()
            raise
        topic.interceptors, topic.live_keys = interceptors, live_keys
        await topic.switch(change)
        self.services.topic_changed(topic.name, settings)
        if "kind" in changed and settings.kind == "queue":
            self.groups.end_topic(topic.name)
        elif "partitions" in changed:
            self.groups.grow(topic.name, settings.partitions)
        if "bindings" in changed:
            now = (*settings.bindings, *topic.live_bindings)
            await self.long_work.run(rebind(self.catalog, Target(topic.name), now, before.bindings), immediate=True)
        return {"changed": list(changed), "warnings": warnings}

    async def _open_topic(
        self, name: str, settings: TopicSettings, id: UUID, entries: Mapping[str, SharedEntry]
    ) -> Topic:
        """Open a topic with checked settings and begin to serve it. Raises LogCorrupt, StorageError, BindingInvalid."""
        topic = self.topic_maker.make(name, settings, id, entries)
        topic.interceptors = self.topic_maker.interceptors(name, settings)
        await topic.open()
        await self._begin_topic(topic)
        return topic

    async def _begin_topic(self, topic: Topic) -> None:
        """Make an open topic visible to clients, and bind it. Raises BindingInvalid."""
        name, settings = topic.name, topic.settings
        self.catalog.topics[name] = topic
        self.catalog.exchanges.changed()
        await self.long_work.run(bind(self.catalog, Target(name), settings.bindings), immediate=True)
        self.services.topic_changed(name, settings)
        self.observers.topic_created(name, settings)

    async def _drop_topic(self, topic: Topic) -> None:
        """Remove a topic from the catalogue and from every exchange."""
        bindings = (*topic.settings.bindings, *topic.live_bindings)
        await self.long_work.run(unbind(self.catalog, Target(topic.name), bindings), immediate=True)
        del self.catalog.topics[topic.name]
        self.services.topic_changed(topic.name, None)
        self.catalog.exchanges.changed()

    async def _check_bindings(self, name: str, bindings: Iterable[BindingSettings]) -> None:

        def check(binding: BindingSettings) -> None:
            self.catalog.router(binding.exchange).check(binding_to(Target(name), binding))

        await self.long_work.run(checks(check, bindings), immediate=True)

    async def _delete_topic(self, asked: verbs.NamedChange, caller: Principal) -> verbs.TopicDeleted:
        name = asked.name
        topic = None if name in self._half_deleted else self.catalog.topic(name)
        if topic is not None:
            self._check_unused(topic, caller)
        if not asked.validate_only:
            if topic is not None:
                await self._begin_deleting(topic)
            await self._finish_deleting(name)
            self.observers.topic_deleted(name)
        return {"warnings": warnings_of_deletion(name, self.config)}

    def _check_unused(self, topic: Topic, caller: Principal) -> None:
        users = [other.name for other in self.catalog.topics.values() if other.settings.dead_letter == topic.name]
        if users:
            raise TopicError(f"topic {topic.name} takes the dead letters of {caller.access.shown(rights.TOPIC, users)}")

    async def _begin_deleting(self, topic: Topic) -> None:
        settings = await self._entries.table(topic.name, topic.settings)
        await self._entries.put(TOPIC + topic.name, {**stored_topic(topic, settings, (), ()), "deleted": True})
        await self._drop_topic(topic)
        self.groups.end_topic(topic.name)
        self.groups.forget_topic(topic.name)
        self._half_deleted[topic.name] = topic

    async def _finish_deleting(self, name: str) -> None:
        """Delete a topic's files. Raises StorageError: some are left, and the name stays in use."""
        await self._half_deleted[name].delete()
        await self._entries.remove(TOPIC + name)
        del self._half_deleted[name]

    async def _show_topic(self, asked: verbs.Named) -> JsonText:
        shown = None
        while shown is None:
            topic = self.catalog.topic(asked.name)
            shown = await self.long_work.run(topic_as_json(self.catalog.topics, topic.name), immediate=True)
        return shown

    # --- broker ---

    async def _show_metrics(self, asked: verbs.MetricNames) -> list[MetricDescription]:
        return await metric_report(self.metrics, self.env.clock, asked.names)

    async def _cluster_status(self, _: verbs.NoArguments) -> ClusterDescription:
        return self.cluster.describe() if self.cluster is not None else ALONE

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
