"""Changes while the broker runs: topics, exchanges, bindings, groups. What TOML can say can be said here.

Laws: a change is checked whole before anything happens; it is in the metadata store before it has any effect; one
change runs at a time, and goes on to its end whoever stops waiting for it. What a topic that is deleted leaves behind
is deleted before another topic of that name is made, also after a crash. At a start, what the TOML file says of a
topic or exchange counts; what was made live stays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import trio

from linn.core.errors import (
    BindingInvalid,
    BrokerStopping,
    ConfigError,
    ConfigNotLive,
    ConfigUnknownKey,
    ExchangeUnknown,
    LinnError,
    RequestUnknown,
    SubscriptionWrongKind,
    SyncFailed,
    TopicError,
    TopicExists,
)
from linn.core.exchange import Binding, Target
from linn.core.exchange_administration import ExchangeAdministration, text_of
from linn.core.kinds import kind_named
from linn.core.log_fields import log_fields
from linn.core.metric_report import metric_report
from linn.core.nearest import did_you_mean
from linn.core.problem import Problems
from linn.core.settings_decoder import decode_settings, encode_settings
from linn.core.subscription_administration import SubscriptionAdministration
from linn.core.topic import Topic
from linn.core.topic_checks import decode_topic
from linn.core.topic_settings import BindingSettings, TopicSettings, what_changed

if TYPE_CHECKING:
    from linn.core.broker import Broker

logger = logging.getLogger("linn.administration")

_TOPIC = "topics/"
NESTING_MAX = 32
"""Of a verb's arguments: more than any plugin's settings need, and far from where the interpreter's recursion ends."""
Arguments = Mapping[str, Any]
T = TypeVar("T")
_BINDING = ("exchange", "topic", "target_exchange", "key", "arguments")
_RESET = ("topic", "group", "to", "offset", "timestamp_ms", "partitions")


class Verb(NamedTuple):
    """What the broker does when it is asked to."""

    perform: Callable[[Arguments], Awaitable[Any]]
    takes: tuple[str, ...]
    """The names of its arguments; one that is misspelt must not be taken for one that was left out."""


class Administration:
    """The broker's catalogue of verbs. Each returns a JSON value and raises LinnErrors."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._subscriptions = SubscriptionAdministration(broker)
        self._exchanges = ExchangeAdministration(broker, self)
        self._lock = trio.Lock()
        self._revisions: dict[str, int] = {}
        self._half_deleted: dict[str, TopicSettings] = {}
        """Topics that are gone, of which something is left on the disk."""
        self.verbs: dict[str, Verb] = {
            "topic.create": Verb(self._create_topic, ("name", "settings")),
            "topic.alter": Verb(self._alter_topic, ("name", "settings")),
            "topic.delete": Verb(self._delete_topic, ("name",)),
            "topic.show": Verb(self._show_topic, ("name",)),
            "topic.list": Verb(self._list_topics, ()),
            "topic.purge": Verb(self._purge_topic, ("name",)),
            "exchange.create": Verb(self._exchanges.create, ("name", "settings")),
            "exchange.delete": Verb(self._exchanges.delete, ("name",)),
            "exchange.show": Verb(self._exchanges.show, ("name",)),
            "exchange.list": Verb(self._exchanges.list_all, ()),
            "exchange.bind": Verb(self._exchanges.bind, _BINDING),
            "exchange.unbind": Verb(self._exchanges.unbind, _BINDING),
            "group.list": Verb(self._subscriptions.list_groups, ("topic",)),
            "group.show": Verb(self._subscriptions.show_group, ("topic", "group")),
            "group.reset": Verb(self._subscriptions.reset_group, _RESET),
            "group.delete": Verb(self._subscriptions.delete_group, ("topic", "group")),
            "subscription.list": Verb(self._subscriptions.list_subscriptions, ()),
            "subscription.show": Verb(self._subscriptions.show_subscription, ("topic",)),
            "broker.show": Verb(self._show_broker, ()),
            "metrics.show": Verb(self._show_metrics, ("names",)),
        }

    async def perform(self, verb: str, arguments: str) -> str:
        """Carry out a verb; arguments and result are JSON.

        Raises:
            RequestUnknown: no such verb. ConfigError: the arguments are not what it takes; ConfigUnknownKey: nor is one
                of their names. LinnError: as the verb says.
        Cancellation: once the change has begun it is made whole; else nothing happened.
        """
        known = self.verbs.get(verb)
        if known is None:
            raise RequestUnknown(f'there is no verb "{verb[:80]}"{did_you_mean(verb, self.verbs)}')
        try:
            decoded = json.loads(arguments)
            json.dumps(decoded, ensure_ascii=False).encode()  # Half a character, "\\udcff", is in no answer.
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the arguments of {verb} are not JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise ConfigError(f"the arguments of {verb} are a JSON object")
        if _is_deeper(decoded, NESTING_MAX):
            raise ConfigError(f"the arguments of {verb} are nested deeper than {NESTING_MAX} levels")
        for name in sorted(decoded.keys() - known.takes):
            raise ConfigUnknownKey(f'{verb} takes no argument "{name[:80]}"{did_you_mean(name, known.takes)}')
        return json.dumps(await self._alone(lambda: known.perform(decoded)))

    async def _alone(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make one change. Raises BrokerStopping, and what the change raises; a failed sync also ends the broker."""
        async with self._lock:
            if self._broker.stopping:
                raise BrokerStopping("the broker is stopping")
            # A client that goes away half-way must not leave half a change behind.
            with trio.CancelScope(shield=True):
                try:
                    result = await change()
                except SyncFailed as error:
                    self._broker.fail(error)
                    raise
            return result

    async def wait_idle(self) -> None:
        """Wait for the end of the change that is being made."""
        async with self._lock:
            return

    # --- start ---

    async def recover(self) -> None:
        """Open everything that the configuration and the metadata store name. Raises LinnError."""
        broker = self._broker
        stored = await broker.metadata.load()
        self._revisions = {key: revision for key, (revision, _) in stored.items()}
        self._exchanges.recover({key: entry for key, (_, entry) in stored.items()})
        topics = {key.removeprefix(_TOPIC): entry for key, (_, entry) in stored.items() if key.startswith(_TOPIC)}
        for name, entry in list(topics.items()):
            if entry.get("deleted"):
                self._half_deleted[name] = self._known(name, self._stored_settings(name, entry))
                await self._finish_deleting(name)
                del topics[name]
        new: dict[str, tuple[Any, int]] = {}
        for name in dict.fromkeys([*broker.config.topics, *topics]):
            value = await self._recover_topic(name, topics.get(name, {}))
            if value is not None:
                new[_TOPIC + name] = (value, self._revisions.get(_TOPIC + name, 0))
        if new:  # At once: the store writes everything with each change.
            self._revisions.update(await broker.metadata.put_all(new))

    async def _recover_topic(self, name: str, entry: Arguments) -> Any:
        """Open a topic; what the store is to say of it, None where it says so already."""
        broker = self._broker
        configured = broker.config.topics.get(name)
        before = self._stored_settings(name, entry) if entry else None
        settings = configured or before
        assert settings is not None
        if configured is None:
            kept = tuple(self._fitting(name, settings.bindings))
            settings = before = msgspec.structs.replace(self._known(name, settings), bindings=kept)
        elif before is not None:
            self._check_change(name, before, configured)
        topic = await broker.open_topic(name, settings)
        live = [msgspec.convert(binding, BindingSettings) for binding in entry.get("live_bindings", ())]
        topic.live_bindings = self._fitting(name, live)
        for binding in topic.live_bindings:
            broker.router(binding.exchange).bind(Binding(Target(name), binding.key, binding.arguments))
        return _stored_topic(settings, topic.live_bindings) if before != settings else None

    def _stored_settings(self, name: str, entry: Arguments) -> TopicSettings:
        """A topic's settings as they were when it was made or changed last; the limits of now are not held against it.

        Raises ConfigError.
        """
        problems = Problems()
        settings = decode_settings(TopicSettings, entry["settings"], ("topics", name), problems)
        problems.raise_first()
        assert settings is not None
        return settings

    def _known(self, name: str, settings: TopicSettings) -> TopicSettings:
        """The same settings, where all that they name is still there.

        Raises ConfigError for its storage, delivery or interceptors, PluginUnknown for its partitioner.
        """
        config = self._broker.config
        named = [(settings.storage, config.storage), (settings.delivery, config.delivery)]
        named += [(interceptor, config.interceptors) for interceptor in settings.interceptors]
        for key, known in named:
            if key is not None and key not in known:
                raise ConfigError(f'topic {name} was made with "{key}", which the configuration has no more')
        kind_named(self._broker.plugins.partitioners, settings.partitioner, f"partitioner of topic {name},")
        return settings

    def _fitting(self, name: str, bindings: Sequence[BindingSettings]) -> list[BindingSettings]:
        """The bindings of a topic that the exchanges of now take; the others are left out, with a warning."""
        kept = []
        for binding in bindings:
            try:
                self._broker.router(binding.exchange).check(Binding(Target(name), binding.key, binding.arguments))
            except (ExchangeUnknown, BindingInvalid) as error:
                about = {"topic": name, "exchange": binding.exchange} | log_fields(error)
                logger.warning("a binding of topic %(topic)s to %(exchange)s is left out: %(error)s", about)
            else:
                kept.append(binding)
        return kept

    def _check_change(self, name: str, before: TopicSettings, settings: TopicSettings) -> None:
        try:
            what_changed(before, settings)
        except ConfigNotLive as error:
            raise ConfigNotLive(f"topic {name} exists with other settings: {error.text}") from error

    def _decode(self, name: str, table: object, topics: set[str]) -> TopicSettings:
        broker = self._broker
        around = broker.config.surroundings(dict.fromkeys(topics), broker.routers, broker.plugins.partitioners)
        return decode_topic(name, table, around)

    async def put(self, key: str, value: object) -> None:
        """Keep an entry in the metadata store. Raises StorageError."""
        self._revisions[key] = await self._broker.metadata.put(key, value, self._revisions.get(key, 0))

    async def remove(self, key: str) -> None:
        """Remove an entry, if it is there. Raises StorageError."""
        if key in self._revisions:
            await self._broker.metadata.delete(key, self._revisions[key])
            del self._revisions[key]

    async def save_topic(self, name: str, settings: TopicSettings, live: Sequence[BindingSettings]) -> None:
        """Keep a topic's settings, and its bindings that were made live. Raises StorageError."""
        await self.put(_TOPIC + name, _stored_topic(settings, live))

    # --- topics ---

    async def _create_topic(self, arguments: Arguments) -> Any:
        name = text_of(arguments, "name")
        broker = self._broker
        settings = self._decode(name, arguments.get("settings", {}), {*broker.topics, name})
        existing = broker.topics.get(name)
        if existing is not None:
            if existing.settings == settings:
                return {"created": False}
            raise TopicExists(f"topic {name} exists with other settings")
        for binding in settings.bindings:
            broker.router(binding.exchange).check(Binding(Target(name), binding.key, binding.arguments))
        if name in self._half_deleted:
            await self._finish_deleting(name)
        await self.save_topic(name, settings, ())
        try:
            await broker.open_topic(name, settings)
        except LinnError:
            await self.remove(_TOPIC + name)
            raise
        return {"created": True}

    async def create_default_topic(self, name: str) -> None:
        """Make a topic with all defaults, if it is not there. Raises ConfigError where the name is none."""

        async def create() -> None:
            if name not in self._broker.topics:
                await self._create_topic({"name": name})

        await self._alone(create)

    async def _alter_topic(self, arguments: Arguments) -> Any:
        broker = self._broker
        topic = broker.topic(text_of(arguments, "name"))
        changes = arguments.get("settings", {})
        if not isinstance(changes, dict):
            raise ConfigError("settings is a JSON object")
        table = encode_settings(topic.settings) | changes
        settings = self._decode(topic.name, table, set(broker.topics))
        changed = what_changed(topic.settings, settings)
        if "bindings" in changed:
            for binding in settings.bindings:
                broker.router(binding.exchange).check(Binding(Target(topic.name), binding.key, binding.arguments))
        before = topic.settings
        interceptors = broker.interceptors(topic.name, settings)
        await self.save_topic(topic.name, settings, topic.live_bindings)
        await topic.alter(settings, broker.semantics(settings))
        topic.interceptors = interceptors
        for gone in before.bindings:
            if gone not in settings.bindings and gone not in topic.live_bindings:
                broker.router(gone.exchange).unbind(Binding(Target(topic.name), gone.key, gone.arguments))
        for added in settings.bindings:
            broker.router(added.exchange).bind(Binding(Target(topic.name), added.key, added.arguments))
        return {"changed": list(changed)}

    async def _delete_topic(self, arguments: Arguments) -> Any:
        broker = self._broker
        topic = broker.topic(text_of(arguments, "name"))
        users = [other.name for other in broker.topics.values() if other.settings.dead_letter == topic.name]
        if users:
            raise TopicError(f"topic {topic.name} is the dead letter of {', '.join(sorted(users))}")
        settings = encode_settings(topic.settings)
        await self.put(_TOPIC + topic.name, {"settings": settings, "live_bindings": [], "deleted": True})
        broker.drop_topic(topic.name)
        self._half_deleted[topic.name] = topic.settings
        await topic.delete()
        await self._forget_deleted(topic.name)
        broker.plugins.observers.topic_deleted(topic.name)
        return {}

    async def _finish_deleting(self, name: str) -> None:
        await self._broker.new_topic(name, self._half_deleted[name]).delete()
        await self._forget_deleted(name)

    async def _forget_deleted(self, name: str) -> None:
        await self.remove(_TOPIC + name)
        del self._half_deleted[name]

    async def _show_topic(self, arguments: Arguments) -> Any:
        return describe_topic(self._broker.topic(text_of(arguments, "name")))

    async def _list_topics(self, arguments: Arguments) -> Any:
        topics = self._broker.topics
        return [describe_topic(topics[name]) for name in sorted(topics)]

    async def _purge_topic(self, arguments: Arguments) -> Any:
        topic = self._broker.topic(text_of(arguments, "name"))
        if topic.queue is None:
            raise SubscriptionWrongKind(f"topic {topic.name} is a stream: its records go by retention")
        dispatches = topic.queue.dispatches
        purged = sum(dispatch.purge() for dispatch in dispatches)
        for dispatch in dispatches:
            if dispatch.state is not None:
                await dispatch.state.partition.commit_all()
        return {"purged": purged}

    # --- broker ---

    async def _show_metrics(self, arguments: Arguments) -> Any:
        return await metric_report(self._broker, arguments)

    async def _show_broker(self, arguments: Arguments) -> Any:
        broker = self._broker
        return {
            "name": broker.name,
            "listeners": dict(broker.addresses),
            "connections": broker.listening.connections,
            "topics": len(broker.topics),
            "exchanges": len(broker.routers),
        }


def _is_deeper(value: list[Any] | dict[str, Any], levels: int) -> bool:
    """Whether an array or object of JSON has others inside it in more levels than these."""
    parts: list[Any] = [value]
    for _ in range(levels):
        items = (part.values() if isinstance(part, dict) else part for part in parts)
        parts = [item for item in chain.from_iterable(items) if isinstance(item, dict | list)]
    return bool(parts)


def _stored_topic(settings: TopicSettings, live: Sequence[BindingSettings]) -> dict[str, Any]:
    """What the metadata store keeps of a topic."""
    bindings = [msgspec.to_builtins(binding) for binding in live]
    return {"settings": encode_settings(settings), "live_bindings": bindings}


def describe_topic(topic: Topic) -> dict[str, Any]:
    """A topic as JSON: settings, partitions and, for a queue, what waits in it."""
    partitions = [
        {"start": partition.start_offset, "end": partition.high_watermark, "bytes": partition.log.size_bytes()}
        for _, partition in sorted(topic.partitions.items())
    ]
    shown: dict[str, Any] = {"name": topic.name, "settings": encode_settings(topic.settings), "partitions": partitions}
    shown["settings"]["bindings"] = [
        msgspec.to_builtins(binding) for binding in (*topic.settings.bindings, *topic.live_bindings)
    ]
    if topic.queue is not None:
        shown["queue"] = {
            "unsettled": topic.queue.unsettled_count(),
            "leased": sum(dispatch.subscription.leased_count for dispatch in topic.queue.dispatches),
            "consumers": len(topic.queue.consumers),
        }
    return shown
