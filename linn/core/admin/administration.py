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
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import trio

from linn.core.admin.administered import Administered
from linn.core.admin.binding_changes import binding_to, rebind
from linn.core.admin.deliveries import DeliveryAdministration
from linn.core.admin.exchanges import ExchangeAdministration, text_of
from linn.core.admin.groups import GroupAdministration
from linn.core.admin.log_examination import examine_logs
from linn.core.admin.services import ServiceAdministration
from linn.core.admin.stored_entries import TOPIC as _TOPIC
from linn.core.admin.stored_entries import settings_of_topics
from linn.core.admin.subscriptions import SubscriptionAdministration
from linn.core.admin.topic_description import JsonText, topic_as_json, topics_as_json
from linn.core.admin.transactions import TransactionAdministration
from linn.core.admin.verb import Arguments, Verb, check_size, decode_arguments, only_validates
from linn.core.batch.steps import Steps
from linn.core.config.decoder import encode_each, encode_settings
from linn.core.config.dotted_keys import without_dots
from linn.core.config.kinds import kind_named
from linn.core.config.problem import FirstProblem
from linn.core.config.service_tables import check_services
from linn.core.config.topic_checks import decode_topic
from linn.core.config.topic_settings import BindingSettings, TopicSettings, changed_keys, encode_without_bindings
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

logger = logging.getLogger("linn.administration")

REASON_CHARACTERS_MAX = 1_000
"""Limit of the reason that a client is given when its connection is closed by an operator."""
METRIC_NAMES_MAX = 256
"""Names that one `metrics.show` takes: each is compared with the name of every metric, and there are not that many."""
T = TypeVar("T")
_BINDING = ("exchange", "topic", "target_exchange", "key", "arguments")
_SETTINGS = ("name", "settings", "validate_only")
_BEGIN = ("topic", "subscription", "to", "offset", "timestamp_ms", "validate_only")
_END = ("topic", "subscription", "force", "validate_only")
_DECIDED = ("topic", "subscription", "consumer", "partition", "delivery_id")
_RESOLVE = (*_DECIDED, "outcome", "first", "end", "validate_only")
_RESET = ("topic", "group", "to", "offset", "timestamp_ms", "partitions", "validate_only")


class Administration:
    """The broker's catalogue of verbs. Each returns a JSON value, or its text, and raises LinnErrors."""

    def __init__(self, broker: Administered) -> None:
        self._broker = broker
        self._groups = GroupAdministration(broker)
        self._subscriptions = SubscriptionAdministration(broker, self)
        self._deliveries = DeliveryAdministration(broker)
        self._transactions = TransactionAdministration(broker)
        self._exchanges = ExchangeAdministration(broker, self)
        self._services = ServiceAdministration(broker)
        self._lock = trio.Lock()
        self._revisions: dict[str, int] = {}
        self._half_deleted: dict[str, Topic] = {}
        """Deleted topics whose files are not yet all removed."""
        self._encoded: dict[str, tuple[Sequence[BindingSettings], Sequence[Mapping[str, Any]]]] = {}
        """Bindings of topics, and the same as the store has them: encoding ten thousand takes 40 ms."""
        self.verbs: dict[str, Verb] = {
            "topic.create": Verb(self._create_topic, _SETTINGS),
            "topic.alter": Verb(self._alter_topic, _SETTINGS),
            "topic.delete": Verb(self._delete_topic, ("name", "validate_only")),
            "topic.show": Verb(self._show_topic, ("name",), changes=False),
            "topic.list": Verb(self._list_topics, (), changes=False),
            "topic.purge": Verb(self._purge_topic, ("name", "validate_only")),
            "exchange.create": Verb(self._exchanges.create, _SETTINGS),
            "exchange.delete": Verb(self._exchanges.delete, ("name", "validate_only")),
            "exchange.show": Verb(self._exchanges.show, ("name",), changes=False),
            "exchange.list": Verb(self._exchanges.list_all, (), changes=False),
            "exchange.bind": Verb(self._exchanges.bind, (*_BINDING, "validate_only")),
            "exchange.unbind": Verb(self._exchanges.unbind, _BINDING),
            "group.list": Verb(self._groups.list_all, ("topic",), changes=False),
            "group.show": Verb(self._groups.show, ("group",), changes=False),
            "group.reset": Verb(self._groups.reset, _RESET),
            "group.delete": Verb(self._groups.delete, ("topic", "group", "validate_only")),
            "subscription.list": Verb(self._subscriptions.list_subscriptions, ("topic",), changes=False),
            "subscription.show": Verb(self._subscriptions.show_subscription, ("topic", "subscription"), changes=False),
            "subscription.create": Verb(self._subscriptions.create_subscription, _BEGIN),
            "subscription.delete": Verb(self._subscriptions.delete_subscription, _END),
            "delivery.list": Verb(self._deliveries.list_decided, _DECIDED, changes=False),
            "delivery.resolve": Verb(self._deliveries.resolve, _RESOLVE, names_caller=True),
            "transaction.list": Verb(self._transactions.list_all, ("state", "limit"), changes=False),
            "transaction.show": Verb(self._transactions.show, ("name",), changes=False),
            "transaction.abort": Verb(self._transactions.abort, ("name", "number", "validate_only"), names_caller=True),
            "connection.list": Verb(self._list_connections, (), changes=False),
            "connection.close": Verb(self._close_connection, ("number", "reason", "validate_only")),
            "service.list": Verb(self._services.list_all, (), changes=False),
            "service.perform": Verb(
                self._services.perform, ("service", "action", "arguments"), changes=False, names_caller=True
            ),
            "broker.show": Verb(self._show_broker, (), changes=False),
            "metrics.show": Verb(self._show_metrics, ("names",), changes=False),
        }

    async def perform(self, verb: str, arguments: str, caller: str = "anonymous") -> str:
        """Carry out a verb; arguments and result are JSON. A request that waits for another change keeps only its text.

        Raises:
            As `check`. ConfigError: the arguments are not what the verb takes; ConfigUnknownKey: one of their names is
                unknown. LinnError: as the verb says.
        Cancellation: a change that has begun is completed; otherwise nothing happened.
        """
        known = self.check(verb, arguments)

        async def do() -> str:
            decoded = decode_arguments(verb, known.takes, arguments)
            result = await (known.perform(decoded, caller) if known.names_caller else known.perform(decoded))
            return result if isinstance(result, JsonText) else json.dumps(result)

        if known.changes:
            return await self._alone(do)
        self._check_serving()
        return await do()

    def check(self, verb: str, arguments: str) -> Verb:
        """Check a request as far as possible before its turn. Raises RequestUnknown, LimitExceeded, ConfigError."""
        known = self.verbs.get(verb)
        if known is None:
            raise RequestUnknown(f'there is no verb "{verb[:80]}"{did_you_mean(verb, self.verbs)}')
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
        self, name: str, entry: Arguments, before: TopicSettings | None, entries: Mapping[str, SharedEntry]
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
            return changed_keys(before, settings)
        except ConfigNotLive as error:
            raise ConfigNotLive(f"topic {name}: {error.text}") from error

    async def _decode(self, name: str, table: object, topics: set[str]) -> TopicSettings:
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

    async def _create_topic(self, arguments: Arguments) -> Any:
        name = text_of(arguments, "name")
        broker = self._broker
        asked = _whole_settings(arguments)
        settings = await self._decode(name, asked, {*broker.topics, name})
        existing = broker.topics.get(name)
        if existing is not None:
            if existing.settings == settings:
                return {"created": False}
            raise TopicExists(f"topic {name} exists with other settings: {differences(existing.settings, settings)}")
        await self._check_bindings(name, settings.bindings)
        if only_validates(arguments):
            broker.interceptors(name, settings)
            return {"created": True}
        if name in self._half_deleted:
            await self._finish_deleting(name)
        await broker.groups.make_forgotten()
        live_keys = live_keys_after((), asked)
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
                await self._create_topic({"name": name})

        await self._alone(create)

    async def make_subscription(self, topic: str, name: str, starts: Sequence[int]) -> None:
        """Make a named subscription that begins at these offsets, by partition, unless it exists.

        Raises TopicUnknown, SubscriptionWrongKind, ConfigError, LimitExceeded, StorageError.
        """
        await self._alone(lambda: self._subscriptions.make(self._broker.topic(topic), name, starts))

    async def _alter_topic(self, arguments: Arguments) -> Any:
        broker = self._broker
        topic = broker.topic(text_of(arguments, "name"))
        bindings = topic.settings.bindings  # Decoded as they are.
        table = {**encode_without_bindings(topic.settings), "bindings": bindings}
        changes = _whole_settings(arguments, table)
        settings = await self._decode(topic.name, table | changes, set(broker.topics))
        changed = self._check_change(topic.name, topic.settings, settings)
        check_entries(topic.name, settings, topic.entries)
        if "bindings" in changed:
            await self._check_bindings(topic.name, settings.bindings)
        before, live_keys = topic.settings, live_keys_after(topic.live_keys, changes)
        interceptors = broker.interceptors(topic.name, settings)
        warnings = warnings_of(topic.name, broker.config, settings, changes)
        if only_validates(arguments):
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

    async def _delete_topic(self, arguments: Arguments) -> Any:
        broker, name = self._broker, text_of(arguments, "name")
        topic = None if name in self._half_deleted else broker.topic(name)
        if topic is not None:
            self._check_unused(topic)
        if not only_validates(arguments):
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

    async def _show_topic(self, arguments: Arguments) -> Any:
        broker, shown = self._broker, None
        while shown is None:
            topic = broker.topic(text_of(arguments, "name"))
            shown = await broker.long_work.run(topic_as_json(broker, topic.name), immediate=True)
        return shown

    async def _list_topics(self, arguments: Arguments) -> Any:
        return await self._broker.long_work.run(
            topics_as_json(self._broker, sorted(self._broker.topics)), immediate=True
        )

    async def _purge_topic(self, arguments: Arguments) -> Any:
        topic = self._broker.topic(text_of(arguments, "name"))
        if topic.queue is None:
            raise SubscriptionWrongKind(f"topic {topic.name} is a stream: only retention deletes its records")
        if only_validates(arguments):
            return {"purged": 0}
        dispatches = topic.queue.dispatches
        purged = sum(dispatch.purge() for dispatch in dispatches)
        for dispatch in dispatches:
            if dispatch.state is not None:
                await dispatch.state.partition.commit_all()
        return {"purged": purged}

    # --- broker ---

    async def _show_metrics(self, arguments: Arguments) -> Any:
        names = arguments.get("names", ())
        if isinstance(names, list) and len(names) > METRIC_NAMES_MAX:
            raise LimitExceeded(f"{len(names)} names of metrics, more than {METRIC_NAMES_MAX}")
        return await metric_report(self._broker.metrics, self._broker.env.clock, arguments)

    async def _list_connections(self, arguments: Arguments) -> Any:
        return await self._broker.long_work.run(self._broker.connections.as_json(), immediate=True)

    async def _close_connection(self, arguments: Arguments) -> Any:
        number, reason = arguments.get("number"), text_of(arguments, "reason", "")
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigError('the argument "number" must be a whole number')
        if len(reason) > REASON_CHARACTERS_MAX:
            raise LimitExceeded(f"a reason of more than {REASON_CHARACTERS_MAX} characters")
        self._broker.connections.check(number)
        if not only_validates(arguments):
            self._broker.connections.close(number, reason)
        return {}

    async def _show_broker(self, arguments: Arguments) -> Any:
        broker = self._broker
        return {
            "name": broker.name,
            "version": version("linn"),
            "listeners": dict(broker.addresses),
            "connections": broker.client_count,
            "topics": len(broker.topics),
            "exchanges": len(broker.routers),
        }


def _whole_settings(arguments: Arguments, existing: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The settings of a request, in which dotted keys have become tables. Raises ConfigError: they are no object."""
    settings = arguments.get("settings", {})
    if not isinstance(settings, dict):
        raise ConfigError("settings must be a JSON object")
    return without_dots(settings, existing)


def _stored_topic(
    topic: Topic, settings: Mapping[str, Any], live: Sequence[BindingSettings], live_keys: Sequence[str]
) -> dict[str, Any]:
    """The entry of a topic in the metadata store."""
    entry = {"id": str(topic.id), "settings": settings, "live_bindings": live, "live_keys": list(live_keys)}
    return {**entry, "subscriptions": dict(topic.entries)} if topic.entries else entry
