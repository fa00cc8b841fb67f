"""Changes while the broker runs: topics, exchanges, bindings, groups. Whatever TOML can say can be said here.

Laws: a change is checked completely before any of it happens, and is in the metadata store before it has any effect.
Changes run one at a time, and a change that has begun runs to its end even if its caller is cancelled. Verbs that only
read wait for no change: a topic that is being made is not visible yet, and one that is altered changes all at once,
except for its bindings, which follow one by one (`binding_changes`). The remains of a deleted topic are deleted before
another topic of that name is made, also after a crash; a topic whose creation was interrupted by a crash does not exist
afterwards. At a start, the TOML file wins for the topics and exchanges that it names; those made live stay, and so do
live settings of a topic that the file does not name (`linn.core.topics.live_settings`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import trio

from linn import verbs
from linn.core.admin.administered import Administered
from linn.core.admin.binding_changes import binding_to, rebind
from linn.core.admin.deliveries import DeliveryAdministration
from linn.core.admin.exchanges import ExchangeAdministration
from linn.core.admin.groups import GroupAdministration
from linn.core.admin.log_examination import examine_logs
from linn.core.admin.stored_entries import TOPIC as _TOPIC
from linn.core.admin.stored_entries import settings_of_topics
from linn.core.admin.subscriptions import SubscriptionAdministration
from linn.core.admin.topic_description import JsonText, topic_as_json, topics_as_json
from linn.core.admin.transactions import TransactionAdministration
from linn.core.admin.verb import check_size, decode_arguments
from linn.core.batch.steps import Steps
from linn.core.config.decoder import encode_each, encode_settings
from linn.core.config.dotted_keys import without_dots
from linn.core.config.kinds import kind_named
from linn.core.config.problem import FirstProblem
from linn.core.config.service_tables import check_services
from linn.core.config.topic_checks import decode_topic
from linn.core.config.topic_settings import BindingSettings, TopicSettings, encode_without_bindings, what_changed
from linn.core.env.log_fields import log_fields
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import (
    BindingInvalid,
    BrokerStopping,
    ConfigError,
    ConfigNotLive,
    ExchangeUnknown,
    LimitExceeded,
    LinnError,
    RequestUnknown,
    StorageError,
    SubscriptionWrongKind,
    SyncFailed,
    TopicError,
    TopicExists,
)
from linn.core.metrics.report import metric_report
from linn.core.routing.exchange import Target
from linn.core.topics.folders import foreign_topic_folders
from linn.core.topics.live_settings import (
    differences,
    live_keys_after,
    merged,
    replaced,
    warnings_of,
    warnings_of_deletion,
)
from linn.core.topics.shared_entry import SharedEntry, check_entries, decode_entries
from linn.core.topics.topic import Topic
from linn.descriptions import BrokerDescription, ConnectionDescription, MetricDescription, ServiceDescription
from linn.verbs import VERBS, A, R, Verb

logger = logging.getLogger("linn.administration")

REASON_CHARACTERS_MAX = 1_000
"""Limit of the reason that a client is given when its connection is closed by an operator."""
T = TypeVar("T")
Handler = Callable[[Any, str], Awaitable[Any]]
"""A function that performs a verb, given its arguments and the caller's name."""


def _on(verb: Verb[A, R], perform: Callable[[A], Awaitable[R | JsonText]]) -> tuple[str, Handler]:
    return verb.name, lambda asked, _: perform(asked)


def _on_behalf(verb: Verb[A, R], perform: Callable[[A, str], Awaitable[R]]) -> tuple[str, Handler]:
    return verb.name, perform


class Administration:
    """The broker's catalogue of verbs. Each returns a JSON value, or its text, and raises LinnErrors."""

    def __init__(self, broker: Administered) -> None:
        self._broker = broker
        self._groups = GroupAdministration(broker)
        self._subscriptions = SubscriptionAdministration(broker, self)
        self._deliveries = DeliveryAdministration(broker)
        self._transactions = TransactionAdministration(broker)
        self._exchanges = ExchangeAdministration(broker, self)
        self._lock = trio.Lock()
        self._revisions: dict[str, int] = {}
        self._half_deleted: dict[str, Topic] = {}
        """Deleted topics whose files are not yet all removed."""
        self._encoded: dict[str, tuple[Sequence[BindingSettings], Sequence[Mapping[str, Any]]]] = {}
        """Bindings of topics, and the same as the store has them: encoding ten thousand takes 40 ms."""
        self._handlers = self._verb_handlers()

    def _verb_handlers(self) -> dict[str, Handler]:
        groups, subscriptions, exchanges = self._groups, self._subscriptions, self._exchanges
        return dict(
            [
                _on(verbs.CREATE_TOPIC, self._create_topic),
                _on(verbs.ALTER_TOPIC, self._alter_topic),
                _on(verbs.DELETE_TOPIC, self._delete_topic),
                _on(verbs.SHOW_TOPIC, self._show_topic),
                _on(verbs.LIST_TOPICS, self._list_topics),
                _on(verbs.PURGE_TOPIC, self._purge_topic),
                _on(verbs.CREATE_EXCHANGE, exchanges.create),
                _on(verbs.DELETE_EXCHANGE, exchanges.delete),
                _on(verbs.SHOW_EXCHANGE, exchanges.show),
                _on(verbs.LIST_EXCHANGES, exchanges.list_all),
                _on(verbs.BIND, exchanges.bind),
                _on(verbs.UNBIND, exchanges.unbind),
                _on(verbs.LIST_GROUPS, groups.list_all),
                _on(verbs.SHOW_GROUP, groups.show),
                _on(verbs.RESET_GROUP, groups.reset),
                _on(verbs.DELETE_GROUP, groups.delete),
                _on(verbs.LIST_SUBSCRIPTIONS, subscriptions.list_all),
                _on(verbs.SHOW_SUBSCRIPTION, subscriptions.show),
                _on(verbs.CREATE_SUBSCRIPTION, subscriptions.create),
                _on(verbs.DELETE_SUBSCRIPTION, subscriptions.delete),
                _on(verbs.LIST_DELIVERIES, self._deliveries.list_all),
                _on_behalf(verbs.RESOLVE_DELIVERY, self._deliveries.resolve),
                _on(verbs.LIST_TRANSACTIONS, self._transactions.list_all),
                _on(verbs.SHOW_TRANSACTION, self._transactions.show),
                _on_behalf(verbs.ABORT_TRANSACTION, self._transactions.abort),
                _on(verbs.LIST_CONNECTIONS, self._list_connections),
                _on(verbs.CLOSE_CONNECTION, self._close_connection),
                _on(verbs.LIST_SERVICES, self._list_services),
                _on_behalf(verbs.PERFORM_ACTION, self._perform_action),
                _on(verbs.SHOW_BROKER, self._show_broker),
                _on(verbs.SHOW_METRICS, self._show_metrics),
            ]
        )

    async def perform(self, verb: str, arguments: str, caller: str = "anonymous") -> str:
        """Carry out a verb; arguments and result are JSON. A request that waits for another change keeps only its text.

        Raises:
            As `check`. ConfigError: the arguments are not what the verb takes; ConfigUnknownKey: one of their names is
                unknown. LinnError: as the verb says.
        Cancellation: a change that has begun is completed; otherwise nothing happened.
        """
        known = self.check(verb, arguments)

        async def do() -> str:
            result = await self._handlers[verb](decode_arguments(known, arguments), caller)
            return result if isinstance(result, JsonText) else json.dumps(result)

        if known.changes:
            return await self._alone(do)
        self._check_serving()
        return await do()

    def check(self, verb: str, arguments: str) -> Verb[Any, Any]:
        """Check a request as far as possible before its turn. Raises RequestUnknown, LimitExceeded, ConfigError."""
        known = VERBS.get(verb)
        if known is None:
            raise RequestUnknown(f'there is no verb "{verb[:80]}"{did_you_mean(verb, VERBS)}')
        check_size(verb, arguments)
        return known

    def _check_serving(self) -> None:
        if self._broker.stopping:
            raise BrokerStopping("the broker is stopping")

    async def _alone(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make one change. Raises BrokerStopping, or what the change raises; a failed sync also ends the broker."""
        async with self._lock:
            self._check_serving()
            # A client that goes away half-way must not leave half a change behind.
            with trio.CancelScope(shield=True):
                try:
                    result = await change()
                except SyncFailed as error:
                    self._broker.fail(error)
                    raise
            return result

    async def wait_idle(self) -> None:
        """Wait for the change in progress, if any."""
        async with self._lock:
            return

    # --- start ---

    async def recover(self) -> None:
        """Open everything that the configuration and the metadata store name. Raises LinnError."""
        broker = self._broker
        folders = foreign_topic_folders(broker.env.disk, broker.config)
        stored = await broker.metadata.load(folders)
        settings = settings_of_topics({key: entry for key, (_, entry) in stored.items()})
        self._revisions = {key: revision for key, (revision, _) in stored.items()}
        self._exchanges.recover({key: entry for key, (_, entry) in stored.items()})
        topics = {key.removeprefix(_TOPIC): entry for key, (_, entry) in stored.items() if key.startswith(_TOPIC)}
        entries = {name: decode_entries(entry.get("subscriptions", {})) for name, entry in topics.items()}
        for name, entry in list(topics.items()):
            if entry.get("deleted"):
                known = self._known(name, settings[name])
                self._half_deleted[name] = broker.new_topic(name, known, UUID(entry["id"]), entries[name])
                await self._try_to_finish_deleting(name)
                del topics[name], settings[name]  # What the file makes of that name is another topic.
            elif entry.get("unfinished"):
                logger.warning("topic %(topic)s was not made to its end, and is not there", {"topic": name})
                await self.remove(_TOPIC + name)
                del topics[name], settings[name]
        await examine_logs(broker, settings, entries)
        await broker.count_start()
        new: dict[str, tuple[Any, int]] = {}
        for name in dict.fromkeys([*broker.config.topics, *topics]):
            value = await self._recover_topic(name, topics.get(name, {}), settings.get(name), entries.get(name, {}))
            if value is not None:
                new[_TOPIC + name] = (value, self._revisions.get(_TOPIC + name, 0))
        await broker.open_groups()
        await broker.open_transactions()
        if new:  # At once: the store writes everything with each change.
            self._revisions.update(await broker.metadata.put_all(new))

    async def _try_to_finish_deleting(self, name: str) -> None:
        """Delete the rest of a topic, or leave it for later, unless the file names another topic of that name now."""
        try:
            await self._finish_deleting(name)
        except StorageError as error:
            if isinstance(error, SyncFailed) or name in self._broker.config.topics:
                raise
            text = "topic %(topic)s was deleted, and some of it is left until it is deleted again: %(error)s"
            logger.warning(text, {"topic": name} | log_fields(error))

    async def _recover_topic(
        self, name: str, entry: Mapping[str, Any], before: TopicSettings | None, entries: Mapping[str, SharedEntry]
    ) -> Any:
        """Open a topic. Returns its new entry in the store, or None where the stored one is up to date."""
        broker = self._broker
        configured = broker.config.topics.get(name)
        stored_keys = live_keys = tuple(entry.get("live_keys", ()))
        settings = configured or before
        assert settings is not None
        if configured is not None and before is not None:
            settings, live_keys = merged(configured, before, stored_keys, broker.config.topic_lines[name])
            self._check_change(name, before, settings)
            check_entries(name, settings, entries)
            for line in replaced(name, broker.config, before, stored_keys):
                logger.warning("%(change)s", {"topic": name, "change": line})
        if before is not None:
            if configured is None or "bindings" in live_keys:
                settings = msgspec.structs.replace(settings, bindings=tuple(self._fitting(name, settings.bindings)))
            settings = self._known(name, settings)
            before = settings if configured is None else before
        id = UUID(entry["id"]) if entry else self._new_id()
        topic = await broker.open_topic(name, settings, id, entries)
        if before is None:
            await topic.make_durable()
        topic.live_keys = live_keys
        live = [msgspec.convert(binding, BindingSettings) for binding in entry.get("live_bindings", ())]
        topic.live_bindings = self._fitting(name, live)
        for binding in topic.live_bindings:
            broker.router(binding.exchange).bind(binding_to(Target(name), binding))
        await self._subscriptions.finish_dropping(topic)
        if (before, stored_keys, entries) == (settings, live_keys, topic.entries):
            return None
        return _stored_topic(topic, encode_settings(settings), topic.live_bindings, live_keys)

    def _new_id(self) -> UUID:
        """The id of a new topic."""
        return UUID(bytes=self._broker.env.rng.bytes(16), version=4)

    def _known(self, name: str, settings: TopicSettings) -> TopicSettings:
        """The same settings, where all that they name is still there.

        Raises ConfigError for its storage, delivery or interceptors, PluginUnknown for its partitioner.
        """
        config = self._broker.config
        named = [(settings.storage, config.storage), (settings.delivery, config.delivery)]
        named += [(interceptor, config.interceptors) for interceptor in settings.interceptors]
        for key, known in named:
            if key is not None and key not in known:
                raise ConfigError(f'topic {name} was made with "{key}", which the configuration no longer has')
        kind_named(self._broker.plugins.partitioners, settings.partitioner, f"partitioner of topic {name},")
        return settings

    def _fitting(self, name: str, bindings: Sequence[BindingSettings]) -> list[BindingSettings]:
        """The bindings of a topic that today's exchanges accept; others are left out with a warning."""
        kept = []
        for binding in bindings:
            try:
                self._broker.router(binding.exchange).check(binding_to(Target(name), binding))
            except (ExchangeUnknown, BindingInvalid) as error:
                about = {"topic": name, "exchange": binding.exchange} | log_fields(error)
                logger.warning("a binding of topic %(topic)s to %(exchange)s is left out: %(error)s", about)
            else:
                kept.append(binding)
        return kept

    def _check_change(self, name: str, before: TopicSettings, settings: TopicSettings) -> tuple[str, ...]:
        """The keys that differ. Raises ConfigNotLive."""
        try:
            return what_changed(before, settings)
        except ConfigNotLive as error:
            raise ConfigNotLive(f"topic {name}: {error.text}") from error

    async def _decode(self, name: str, table: Mapping[str, Any], topics: set[str]) -> TopicSettings:
        broker = self._broker
        around = broker.config.surroundings(dict.fromkeys(topics), broker.routers, broker.plugins)
        settings = await broker.long_work.run(decode_topic(name, table, around), immediate=True)
        known = {topic.name: topic.settings for topic in broker.topics.values()}
        if settings.services or name in known:
            check_services(around.services, broker.config.services, {**known, name: settings}, FirstProblem())
        return settings

    async def put(self, key: str, value: object) -> None:
        """Keep an entry in the metadata store. Raises StorageError."""
        self._revisions[key] = await self._broker.metadata.put(key, value, self._revisions.get(key, 0))

    async def remove(self, key: str) -> None:
        """Remove an entry, if it is there. Raises StorageError."""
        if key in self._revisions:
            await self._broker.metadata.delete(key, self._revisions[key])
            del self._revisions[key]
            self._encoded.pop(key.removeprefix(_TOPIC), None)

    async def check_all(self, check: Callable[[T], None], things: Iterable[T]) -> None:
        """Check everything that a change brings along before any of it is done, in turns: ten thousand bindings take
        0.1 s.
        """

        def checks() -> Steps[None]:
            for thing in things:
                check(thing)
                yield

        await self._broker.long_work.run(checks(), immediate=True)

    async def save_topic(
        self, topic: Topic, settings: TopicSettings, live: Sequence[BindingSettings], live_keys: Sequence[str]
    ) -> None:
        """Keep a topic's settings, which of them were set live, and its live bindings. Raises StorageError."""
        table = await self._table(topic.name, settings)
        await self.put(_TOPIC + topic.name, _stored_topic(topic, table, live, live_keys))
        self._encoded[topic.name] = settings.bindings, table["bindings"]

    async def _table(self, name: str, settings: TopicSettings) -> Mapping[str, Any]:
        """The settings in their stored form; bindings that were saved in that form are not encoded again."""
        before, encoded = self._encoded.get(name, ((), ()))
        if before != settings.bindings:
            encoded = await self._broker.long_work.run(encode_each(settings.bindings), immediate=True)
        return {**encode_without_bindings(settings), "bindings": encoded}

    # --- topics ---

    async def _create_topic(self, asked: verbs.SettingsChange) -> verbs.Created:
        broker, name = self._broker, asked.name
        table = without_dots(asked.settings, {})
        settings = await self._decode(name, table, {*broker.topics, name})
        existing = broker.topics.get(name)
        if existing is not None:
            if existing.settings == settings:
                return {"created": False}
            raise TopicExists(f"topic {name} exists with other settings: {differences(existing.settings, settings)}")
        await self._check_bindings(name, settings.bindings)
        if asked.validate_only:
            broker.interceptors(name, settings)
            return {"created": True}
        if name in self._half_deleted:
            await self._finish_deleting(name)
        await broker.groups.make_forgotten()
        live_keys = live_keys_after((), table)
        topic = broker.new_topic(name, settings, self._new_id())
        entry = _stored_topic(topic, await self._table(name, settings), (), live_keys)
        # A start forgets the topic until the entry is complete: creation may fail halfway, and no client was answered.
        await self.put(_TOPIC + name, {**entry, "unfinished": True})
        try:
            topic.interceptors = broker.interceptors(name, settings)
            await topic.open()
            await self._finish_making(topic, live_keys)
        except LinnError:
            await self.remove(_TOPIC + name)
            raise
        await broker.begin_topic(topic)
        return {"created": True}

    async def _finish_making(self, topic: Topic, live_keys: tuple[str, ...]) -> None:
        """Record an open topic as complete, so that it survives the next start. Raises StorageError: it is closed
        again.
        """
        topic.live_keys = live_keys
        try:
            await topic.make_durable()
            await self.save_topic(topic, topic.settings, (), live_keys)
        except LinnError:
            await topic.close()
            raise

    async def create_default_topic(self, name: str) -> None:
        """Make a topic with default settings unless it exists. Raises ConfigError if the name is not valid."""

        async def create() -> None:
            if name not in self._broker.topics:
                await self._create_topic(verbs.SettingsChange(name))

        await self._alone(create)

    async def make_subscription(self, topic: str, name: str, starts: Sequence[int]) -> None:
        """Make a named subscription that begins at these offsets, by partition, unless it exists.

        Raises TopicUnknown, SubscriptionWrongKind, ConfigError, LimitExceeded, StorageError.
        """
        await self._alone(lambda: self._subscriptions.make(self._broker.topic(topic), name, starts))

    async def _alter_topic(self, asked: verbs.SettingsChange) -> verbs.Altered:
        broker = self._broker
        topic = broker.topic(asked.name)
        bindings = topic.settings.bindings  # Decoded as they are.
        table = {**encode_without_bindings(topic.settings), "bindings": bindings}
        changes = without_dots(asked.settings, table)
        settings = await self._decode(topic.name, table | changes, set(broker.topics))
        changed = self._check_change(topic.name, topic.settings, settings)
        check_entries(topic.name, settings, topic.entries)
        if "bindings" in changed:
            await self._check_bindings(topic.name, settings.bindings)
        before, live_keys = topic.settings, live_keys_after(topic.live_keys, changes)
        interceptors = broker.interceptors(topic.name, settings)
        warnings = warnings_of(topic.name, broker.config, settings, changes)
        if asked.validate_only:
            return {"changed": list(changed), "warnings": warnings}
        change = await topic.prepare(settings, broker.semantics(settings))
        try:
            await self.save_topic(topic, settings, topic.live_bindings, live_keys)
        except LinnError:
            await change.abandon()
            raise
        topic.interceptors, topic.live_keys = interceptors, live_keys
        await topic.switch(change)
        broker.services.topic_changed(topic.name, settings)
        if "kind" in changed and settings.kind == "queue":
            broker.groups.end_topic(topic.name)
        elif "partitions" in changed:
            broker.groups.grow(topic.name, settings.partitions)
        if "bindings" in changed:
            now = (*settings.bindings, *topic.live_bindings)
            await broker.long_work.run(rebind(broker, Target(topic.name), now, before.bindings), immediate=True)
        return {"changed": list(changed), "warnings": warnings}

    async def _check_bindings(self, name: str, bindings: Iterable[BindingSettings]) -> None:
        broker = self._broker

        def check(binding: BindingSettings) -> None:
            broker.router(binding.exchange).check(binding_to(Target(name), binding))

        await self.check_all(check, bindings)

    async def _delete_topic(self, asked: verbs.NamedChange) -> verbs.TopicDeleted:
        broker, name = self._broker, asked.name
        topic = None if name in self._half_deleted else broker.topic(name)
        if topic is not None:
            self._check_unused(topic)
        if not asked.validate_only:
            if topic is not None:
                await self._begin_deleting(topic)
            await self._finish_deleting(name)
            broker.observers.topic_deleted(name)
        return {"warnings": warnings_of_deletion(name, broker.config)}

    def _check_unused(self, topic: Topic) -> None:
        users = [other.name for other in self._broker.topics.values() if other.settings.dead_letter == topic.name]
        if users:
            raise TopicError(f"topic {topic.name} takes the dead letters of {', '.join(sorted(users))}")

    async def _begin_deleting(self, topic: Topic) -> None:
        broker = self._broker
        settings = await self._table(topic.name, topic.settings)
        await self.put(_TOPIC + topic.name, {**_stored_topic(topic, settings, (), ()), "deleted": True})
        await broker.drop_topic(topic.name)
        broker.groups.end_topic(topic.name)
        broker.groups.forget_topic(topic.name)
        self._half_deleted[topic.name] = topic

    async def _finish_deleting(self, name: str) -> None:
        """Delete a topic's files. Raises StorageError: some are left, and the name is not free."""
        await self._half_deleted[name].delete()
        await self.remove(_TOPIC + name)
        del self._half_deleted[name]

    async def _show_topic(self, asked: verbs.Named) -> JsonText:
        broker, shown = self._broker, None
        while shown is None:
            topic = broker.topic(asked.name)
            shown = await broker.long_work.run(topic_as_json(broker, topic.name), immediate=True)
        return shown

    async def _list_topics(self, _: verbs.NoArguments) -> JsonText:
        return await self._broker.long_work.run(
            topics_as_json(self._broker, sorted(self._broker.topics)), immediate=True
        )

    async def _purge_topic(self, asked: verbs.NamedChange) -> verbs.Purged:
        topic = self._broker.topic(asked.name)
        if topic.queue is None:
            raise SubscriptionWrongKind(f"topic {topic.name} is a stream: only retention deletes its records")
        if asked.validate_only:
            return {"purged": 0}
        dispatches = topic.queue.dispatches
        purged = sum(dispatch.purge() for dispatch in dispatches)
        for dispatch in dispatches:
            if dispatch.state is not None:
                await dispatch.state.partition.commit_all()
        return {"purged": purged}

    # --- broker ---

    async def _show_metrics(self, asked: verbs.MetricNames) -> list[MetricDescription]:
        return await metric_report(self._broker.metrics, self._broker.env.clock, asked.names)

    async def _list_connections(self, _: verbs.NoArguments) -> list[ConnectionDescription]:
        return await self._broker.long_work.run(self._broker.connections.as_json(), immediate=True)

    async def _close_connection(self, asked: verbs.ConnectionClose) -> verbs.Nothing:
        if len(asked.reason) > REASON_CHARACTERS_MAX:
            raise LimitExceeded(f"a reason of more than {REASON_CHARACTERS_MAX} characters")
        self._broker.connections.check(asked.number)
        if not asked.validate_only:
            self._broker.connections.close(asked.number, asked.reason)
        return {}

    async def _list_services(self, _: verbs.NoArguments) -> list[ServiceDescription]:
        return self._broker.services.describe()

    async def _perform_action(self, asked: verbs.ServiceAction, caller: str) -> Any:
        return await self._broker.services.perform(asked.service, asked.action, asked.arguments, caller)

    async def _show_broker(self, _: verbs.NoArguments) -> BrokerDescription:
        broker = self._broker
        return {
            "name": broker.name,
            "version": version("linn"),
            "listeners": dict(broker.addresses),
            "connections": broker.client_count,
            "topics": len(broker.topics),
            "exchanges": len(broker.routers),
        }


def _stored_topic(
    topic: Topic, settings: Mapping[str, Any], live: Sequence[BindingSettings], live_keys: Sequence[str]
) -> dict[str, Any]:
    """The entry of a topic in the metadata store."""
    entry = {"id": str(topic.id), "settings": settings, "live_bindings": live, "live_keys": list(live_keys)}
    return {**entry, "subscriptions": dict(topic.entries)} if topic.entries else entry
