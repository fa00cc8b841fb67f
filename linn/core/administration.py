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
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import trio

from linn.core.errors import (
    BrokerStopping,
    ConfigError,
    ConfigNotLive,
    ExchangeUnknown,
    LinnError,
    RequestUnknown,
    SubscriptionWrongKind,
    SyncFailed,
    TopicError,
    TopicExists,
)
from linn.core.exchange import Binding
from linn.core.kinds import kind_named
from linn.core.names import name_problem
from linn.core.nearest import did_you_mean
from linn.core.problem import Problems
from linn.core.router import Router
from linn.core.settings_decoder import decode_settings, encode_settings
from linn.core.topic import Topic
from linn.core.topic_checks import decode_topic
from linn.core.topic_settings import BindingSettings, TopicSettings, what_changed

if TYPE_CHECKING:
    from linn.core.broker import Broker

logger = logging.getLogger("linn.administration")

_TOPIC = "topics/"
_EXCHANGE = "exchanges/"
Arguments = Mapping[str, Any]
T = TypeVar("T")


class Administration:
    """The broker's catalogue of verbs. Each returns a JSON value and raises LinnErrors."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = trio.Lock()
        self._revisions: dict[str, int] = {}
        self._half_deleted: dict[str, TopicSettings] = {}
        """Topics that are gone, of which something is left on the disk."""
        self.verbs: dict[str, Callable[[Arguments], Awaitable[Any]]] = {
            "topic.create": self._create_topic,
            "topic.alter": self._alter_topic,
            "topic.delete": self._delete_topic,
            "topic.show": self._show_topic,
            "topic.list": self._list_topics,
            "topic.purge": self._purge_topic,
            "exchange.create": self._create_exchange,
            "exchange.delete": self._delete_exchange,
            "exchange.list": self._list_exchanges,
            "exchange.bind": self._bind,
            "exchange.unbind": self._unbind,
            "group.list": self._list_groups,
            "group.show": self._show_group,
            "broker.show": self._show_broker,
        }

    async def perform(self, verb: str, arguments: str) -> str:
        """Carry out a verb; arguments and result are JSON.

        Raises:
            RequestUnknown: no such verb. ConfigError: the arguments are not what it takes. LinnError: as the verb says.
        Cancellation: once the change has begun it is made whole; else nothing happened.
        """
        perform = self.verbs.get(verb)
        if perform is None:
            raise RequestUnknown(f'there is no verb "{verb[:80]}"{did_you_mean(verb, self.verbs)}')
        try:
            decoded = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the arguments of {verb} are not JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise ConfigError(f"the arguments of {verb} are a JSON object")
        return json.dumps(await self._alone(lambda: perform(decoded)))

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
        broker, config = self._broker, self._broker.config
        stored = await broker.metadata.load()
        self._revisions = {key: revision for key, (revision, _) in stored.items()}
        for name, configured in config.exchanges.items():
            kind = broker.plugins.exchanges[configured.kind]
            make = _maker(kind.make, name, configured.settings)
            broker.routers[name] = Router(name, configured.kind, make)
        for key, (_, entry) in stored.items():
            if key.startswith(_EXCHANGE) and key.removeprefix(_EXCHANGE) not in broker.routers:
                name = key.removeprefix(_EXCHANGE)
                broker.routers[name] = self._make_router(name, entry["settings"])
        topics = {key.removeprefix(_TOPIC): entry for key, (_, entry) in stored.items() if key.startswith(_TOPIC)}
        for name, entry in list(topics.items()):
            if entry.get("deleted"):
                self._half_deleted[name] = self._stored_settings(name, entry)
                await self._finish_deleting(name)
                del topics[name]
        for name in dict.fromkeys([*broker.config.topics, *topics]):
            await self._recover_topic(name, topics.get(name, {}))

    async def _recover_topic(self, name: str, entry: Arguments) -> None:
        broker = self._broker
        configured = broker.config.topics.get(name)
        before = self._stored_settings(name, entry) if entry else None
        settings = configured or before
        assert settings is not None
        if before is not None and configured is not None:
            self._check_change(name, before, configured)
        topic = await broker.open_topic(name, settings)
        live = [msgspec.convert(binding, BindingSettings) for binding in entry.get("live_bindings", ())]
        topic.live_bindings = [binding for binding in live if binding.exchange in broker.routers]
        for binding in topic.live_bindings:
            broker.router(binding.exchange).bind(Binding(name, binding.key, binding.arguments))
        if before != settings:
            await self._save_topic(name, settings, topic.live_bindings)

    def _stored_settings(self, name: str, entry: Arguments) -> TopicSettings:
        """A topic's settings as they were when it was made or changed last.

        What is around it may be different by now: limits are not held against it, and bindings to exchanges that are
        gone are left out. Raises ConfigError where its storage or delivery is gone.
        """
        problems, config = Problems(), self._broker.config
        settings = decode_settings(TopicSettings, entry["settings"], ("topics", name), problems)
        problems.raise_first()
        assert settings is not None
        for key, known in ((settings.storage, config.storage), (settings.delivery, config.delivery)):
            if key is not None and key not in known:
                raise ConfigError(f'topic {name} was made with "{key}", which the configuration has no more')
        kept = tuple(binding for binding in settings.bindings if binding.exchange in self._broker.routers)
        return msgspec.structs.replace(settings, bindings=kept)

    def _check_change(self, name: str, before: TopicSettings, settings: TopicSettings) -> None:
        try:
            what_changed(before, settings)
        except ConfigNotLive as error:
            raise ConfigNotLive(f"topic {name} exists with other settings: {error.text}") from error

    def _decode(self, name: str, table: object, topics: set[str]) -> TopicSettings:
        return decode_topic(name, table, self._broker.config.surroundings(dict.fromkeys(topics), self._broker.routers))

    async def _put(self, key: str, value: object) -> None:
        self._revisions[key] = await self._broker.metadata.put(key, value, self._revisions.get(key, 0))

    async def _remove(self, key: str) -> None:
        if key in self._revisions:
            await self._broker.metadata.delete(key, self._revisions[key])
            del self._revisions[key]

    async def _save_topic(self, name: str, settings: TopicSettings, live: Sequence[BindingSettings]) -> None:
        bindings = [msgspec.to_builtins(binding) for binding in live]
        await self._put(_TOPIC + name, {"settings": encode_settings(settings), "live_bindings": bindings})

    # --- topics ---

    async def _create_topic(self, arguments: Arguments) -> Any:
        name = _text(arguments, "name")
        broker = self._broker
        settings = self._decode(name, arguments.get("settings", {}), {*broker.topics, name})
        existing = broker.topics.get(name)
        if existing is not None:
            if existing.settings == settings:
                return {"created": False}
            raise TopicExists(f"topic {name} exists with other settings")
        for binding in settings.bindings:
            broker.router(binding.exchange).check(Binding(name, binding.key, binding.arguments))
        if name in self._half_deleted:
            await self._finish_deleting(name)
        await self._save_topic(name, settings, ())
        try:
            await broker.open_topic(name, settings)
        except LinnError:
            await self._remove(_TOPIC + name)
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
        topic = broker.topic(_text(arguments, "name"))
        changes = arguments.get("settings", {})
        if not isinstance(changes, dict):
            raise ConfigError("settings is a JSON object")
        table = encode_settings(topic.settings) | changes
        settings = self._decode(topic.name, table, set(broker.topics))
        changed = what_changed(topic.settings, settings)
        if "bindings" in changed:
            for binding in settings.bindings:
                broker.router(binding.exchange).check(Binding(topic.name, binding.key, binding.arguments))
        before = topic.settings
        await self._save_topic(topic.name, settings, topic.live_bindings)
        await topic.alter(settings, broker.semantics(settings))
        for gone in before.bindings:
            if gone not in settings.bindings and gone not in topic.live_bindings:
                broker.router(gone.exchange).unbind(Binding(topic.name, gone.key, gone.arguments))
        for added in settings.bindings:
            broker.router(added.exchange).bind(Binding(topic.name, added.key, added.arguments))
        return {"changed": list(changed)}

    async def _delete_topic(self, arguments: Arguments) -> Any:
        broker = self._broker
        topic = broker.topic(_text(arguments, "name"))
        users = [other.name for other in broker.topics.values() if other.settings.dead_letter == topic.name]
        if users:
            raise TopicError(f"topic {topic.name} is the dead letter of {', '.join(sorted(users))}")
        settings = encode_settings(topic.settings)
        await self._put(_TOPIC + topic.name, {"settings": settings, "live_bindings": [], "deleted": True})
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
        await self._remove(_TOPIC + name)
        del self._half_deleted[name]

    async def _show_topic(self, arguments: Arguments) -> Any:
        return describe_topic(self._broker.topic(_text(arguments, "name")))

    async def _list_topics(self, arguments: Arguments) -> Any:
        topics = self._broker.topics
        return [describe_topic(topics[name]) for name in sorted(topics)]

    async def _purge_topic(self, arguments: Arguments) -> Any:
        topic = self._broker.topic(_text(arguments, "name"))
        if topic.queue is None:
            raise SubscriptionWrongKind(f"topic {topic.name} is a stream: its records go by retention")
        dispatches = topic.queue.dispatches
        purged = sum(dispatch.purge() for dispatch in dispatches)
        for dispatch in dispatches:
            if dispatch.state is not None:
                await dispatch.state.partition.commit_all()
        return {"purged": purged}

    # --- exchanges ---

    def _make_router(self, name: str, table: object) -> Router:
        if not isinstance(table, dict):
            raise ConfigError("an exchange's settings are a JSON object")
        rest = {key: value for key, value in table.items() if key != "type"}
        kind = kind_named(self._broker.plugins.exchanges, str(table.get("type", "direct")), "exchange type")
        problems = Problems()
        settings = decode_settings(kind.settings, rest, ("exchanges", name), problems)
        problems.raise_first()
        return Router(name, kind.name, _maker(kind.make, name, settings))

    async def _create_exchange(self, arguments: Arguments) -> Any:
        broker, name = self._broker, _text(arguments, "name")
        if (wrong := name_problem(name)) is not None:
            raise ConfigError(f"exchanges.{name[:80]}: {wrong}")
        table = arguments.get("settings", {})
        router = self._make_router(name, table)
        existing = broker.routers.get(name)
        if existing is not None:
            if existing.kind == router.kind:
                return {"created": False}
            raise TopicExists(f"exchange {name} exists with type {existing.kind}")
        await self._put(_EXCHANGE + name, {"settings": table})
        broker.routers[name] = router
        return {"created": True}

    async def _delete_exchange(self, arguments: Arguments) -> Any:
        broker = self._broker
        router = broker.router(_text(arguments, "name"))
        bound = sorted({binding.topic for binding in router.bindings()})
        if bound:
            raise TopicError(f"exchange {router.name} still has bindings: {', '.join(bound[:10])}")
        await self._remove(_EXCHANGE + router.name)
        del broker.routers[router.name]
        return {}

    async def _list_exchanges(self, arguments: Arguments) -> Any:
        routers = self._broker.routers
        return [describe_exchange(routers[name]) for name in sorted(routers)]

    async def _bind(self, arguments: Arguments) -> Any:
        topic, binding = self._binding(arguments)
        router = self._broker.router(binding.exchange)
        router.check(Binding(topic.name, binding.key, binding.arguments))
        if binding not in topic.live_bindings and binding not in topic.settings.bindings:
            live = [*topic.live_bindings, binding]
            await self._save_topic(topic.name, topic.settings, live)
            topic.live_bindings = live
        router.bind(Binding(topic.name, binding.key, binding.arguments))
        return {}

    async def _unbind(self, arguments: Arguments) -> Any:
        topic, binding = self._binding(arguments)
        live = [kept for kept in topic.live_bindings if kept != binding]
        kept = tuple(other for other in topic.settings.bindings if other != binding)
        settings = msgspec.structs.replace(topic.settings, bindings=kept)
        await self._save_topic(topic.name, settings, live)
        topic.live_bindings, topic.settings = live, settings
        self._broker.router(binding.exchange).unbind(Binding(topic.name, binding.key, binding.arguments))
        return {}

    def _binding(self, arguments: Arguments) -> tuple[Topic, BindingSettings]:
        topic = self._broker.topic(_text(arguments, "topic"))
        extra = arguments.get("arguments", {})
        if not isinstance(extra, dict):
            raise ConfigError("a binding's arguments are a JSON object")
        exchange = _text(arguments, "exchange")
        if exchange not in self._broker.routers:
            raise ExchangeUnknown(f'there is no exchange "{exchange[:80]}"')
        return topic, BindingSettings(exchange, _text(arguments, "key", ""), extra)

    # --- groups, broker ---

    async def _list_groups(self, arguments: Arguments) -> Any:
        groups = self._broker.topic(_text(arguments, "topic")).groups
        if groups is None:
            return []
        return [{"group": name, "members": groups.members(name)} for name in sorted(groups.groups)]

    async def _show_group(self, arguments: Arguments) -> Any:
        topic = self._broker.topic(_text(arguments, "topic"))
        if topic.groups is None:
            raise SubscriptionWrongKind(f"topic {topic.name} is a queue and has no groups")
        offsets = topic.groups.show(_text(arguments, "group"))
        return [
            {
                "partition": index,
                "offset": offset,
                "lag": topic.partitions[index].high_watermark - max(offset or 0, topic.partitions[index].start_offset),
            }
            for index, offset in offsets.items()
        ]

    async def _show_broker(self, arguments: Arguments) -> Any:
        broker = self._broker
        return {
            "name": broker.name,
            "listeners": dict(broker.addresses),
            "connections": broker.listening.connections,
            "topics": len(broker.topics),
            "exchanges": len(broker.routers),
        }


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


def describe_exchange(router: Router) -> dict[str, Any]:
    """An exchange as JSON."""
    bindings = [
        {"topic": binding.topic, "key": binding.key, "arguments": dict(binding.arguments)}
        for binding in router.bindings()
    ]
    return {"name": router.name, "type": router.kind, "bindings": bindings}


def _text(arguments: Arguments, name: str, default: str | None = None) -> str:
    value = arguments.get(name, default)
    if not isinstance(value, str):
        raise ConfigError(f'the argument "{name}" is missing, or not text')
    return value


def _maker(make: Callable[[str, Any], Any], name: str, settings: Any) -> Callable[[], Any]:
    return lambda: make(name, settings)
