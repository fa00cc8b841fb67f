"""The verbs about topics, and the recovery of topics at a start.

`Administration` calls the verbs: changes one at a time, queries at any time. Each verb raises LinnErrors.

Laws: the remains of a deleted topic are deleted before another topic of that name is created, even after a crash; a
topic whose creation was interrupted by a crash does not exist afterwards. At a start, the TOML file wins for the topics
that it names; topics made live stay, and so do live settings of a topic that the file does not name
(`linn.core.topics.live_settings`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from linn import rights, verbs
from linn.core.admin.binding_changes import bind, binding_to, check_kept, checks, rebind, unbind
from linn.core.admin.elsewhere import Elsewhere
from linn.core.admin.entry_store import NO_CONDITIONS, EntryStore, stored_topic
from linn.core.admin.log_examination import examine_logs
from linn.core.admin.stored_entries import TOPIC
from linn.core.admin.subscriptions import SubscriptionAdministration
from linn.core.admin.topic_description import JsonText, topic_as_json
from linn.core.config.config import Config
from linn.core.config.decoder import encode_settings
from linn.core.config.dotted_keys import without_dots
from linn.core.config.kinds import kind_named
from linn.core.config.problem import FirstProblem
from linn.core.config.service_tables import check_live_tables, check_services
from linn.core.config.topic_checks import decode_topic
from linn.core.config.topic_settings import (
    TRANSIENT_STORAGE,
    BindingSettings,
    TopicSettings,
    changed_keys,
    encode_without_bindings,
)
from linn.core.env.env import Rng
from linn.core.env.log_fields import log_fields
from linn.core.errors.lifetimes import LifetimeUnsupported
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.tree import (
    BindingInvalid,
    ConfigError,
    ConfigNotLive,
    ExchangeUnknown,
    LinnError,
    StorageError,
    SyncFailed,
    TopicError,
    TopicExists,
)
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.groups.topic_positions import groups_log
from linn.core.loop.long_work import LongWork
from linn.core.ports.observer import Observers
from linn.core.ports.principal import Principal
from linn.core.routing.exchange import Target
from linn.core.services.services import Services
from linn.core.topics.catalog import Catalog
from linn.core.topics.holder import Holder, holder_of
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
from linn.core.topics.timing_logs import timing_topic
from linn.core.topics.topic import Topic
from linn.core.topics.topic_maker import PluginMaker, TopicMaker
from linn.rights import Need

logger = logging.getLogger("linn.administration")


class StoredTopics(NamedTuple):
    """The topics in the metadata store."""

    topics: Mapping[str, Mapping[str, Any]]
    """Their entries."""
    settings: Mapping[str, TopicSettings]
    entries: Mapping[str, Mapping[str, SharedEntry]]
    """Their named subscriptions."""
    internal: Collection[str]
    """Internal topics that there are, or may be; see `examine_logs`."""


class TopicAdministration:
    """Topics, shown and changed while the broker runs."""

    def __init__(
        self,
        config: Config,
        rng: Rng,
        plugins: PluginMaker,
        observers: Observers,
        catalog: Catalog,
        maker: TopicMaker,
        groups: GroupCoordinator,
        services: Services,
        entries: EntryStore,
        subscriptions: SubscriptionAdministration,
        long_work: LongWork,
    ) -> None:
        self._config = config
        self._rng = rng
        self._plugins = plugins
        self._observers = observers
        self._catalog = catalog
        self._maker = maker
        self._groups = groups
        self._services = services
        self._entries = entries
        self._subscriptions = subscriptions
        self._long_work = long_work
        self.elsewhere: Elsewhere | None = None
        """The cluster; None: this broker is alone."""
        self.owned: dict[int, list[Topic]] = {}
        """Topics that end with a session, by the `id` of its principal: of two sessions these may be equal."""
        self._half_deleted: dict[str, Topic] = {}
        """Deleted topics whose files are not all removed yet."""

    # --- start ---

    async def load(
        self, stored: Mapping[str, Any], checked: Mapping[str, TopicSettings], here: Collection[str]
    ) -> StoredTopics:
        """Find the topics among the store's entries, finish deletions and examine all logs. Raises LinnError.

        `checked`: the settings of topics, by name. `here`: the names of topics with logs at this broker.
        """
        settings = dict(checked)
        topics = {key.removeprefix(TOPIC): entry for key, entry in stored.items() if key.startswith(TOPIC)}
        entries = {name: decode_entries(entry.get("subscriptions", {})) for name, entry in topics.items()}
        for name, entry in list(topics.items()):
            if entry.get("deleted"):
                known = self._known(name, settings[name])
                self._half_deleted[name] = self._maker.make(name, known, UUID(entry["id"]), entries[name])
                await self._try_to_finish_deleting(name)
                del topics[name], settings[name], entries[name]  # The file defines another topic of that name.
            elif entry.get("unfinished"):
                logger.warning("topic %(topic)s was not made to its end, and is not there", {"topic": name})
                await self._entries.remove(TOPIC + name)
                del topics[name], settings[name], entries[name]
            elif self.elsewhere is not None and (it := holder_of(entry)) and it.node == self.elsewhere.number:
                del topics[name], settings[name], entries[name]  # Its last process had it; the entry ends in a moment.
        # A replica with a damaged log is copied anew, when the cluster's metadata says that it may be.
        led = {name: of for name, of in settings.items() if name in here and (of.replicas or 1) == 1}
        return StoredTopics(topics, settings, entries, await examine_logs(self._config, self._maker, led, entries))

    async def open_all(self, stored: StoredTopics) -> dict[str, object]:
        """Open the topics of the configuration and the store. Returns entries for `save_opened`. Raises LinnError."""
        opened: dict[str, object] = {}
        for name in dict.fromkeys([*self._config.topics, *stored.topics]):
            entry, entries = stored.topics.get(name, {}), stored.entries.get(name, {})
            value = await self._recover_topic(name, entry, stored.settings.get(name), entries)
            if value is not None:
                opened[TOPIC + name] = value
            topic = self._catalog.topics[name]
            if groups_log(name).topic in stored.internal and topic.led_by is None:
                await topic.open_positions(self._groups)
            if timing_topic(name) in stored.internal and topic.led_by is None and topic.keeps_records:
                await topic.timing.open()
        return opened

    async def _try_to_finish_deleting(self, name: str) -> None:
        """Delete the rest of a topic, or leave it for later, unless the file now defines another topic of that name."""
        try:
            await self._finish_deleting(name)
        except StorageError as error:
            if isinstance(error, SyncFailed) or name in self._config.topics:
                raise
            text = "topic %(topic)s was deleted, and some of it is left until it is deleted again: %(error)s"
            logger.warning(text, {"topic": name} | log_fields(error))

    async def _recover_topic(
        self, name: str, entry: Mapping[str, Any], before: TopicSettings | None, entries: Mapping[str, SharedEntry]
    ) -> Any:
        """Open a topic. Returns its new entry in the store, or None if the stored one is up to date."""
        configured = self._config.topics.get(name)
        stored_keys = live_keys = tuple(entry.get("live_keys", ()))
        settings = configured or before
        assert settings is not None
        if configured is not None and before is not None:
            settings, live_keys = merged(configured, before, stored_keys, self._config.topic_lines[name])
            self._check_change(name, before, settings)
            check_entries(name, settings, entries)
            for line in replaced(name, self._config, before, stored_keys):
                logger.warning("%(change)s", {"topic": name, "change": line})
        if before is not None:
            if self.elsewhere is None:  # Otherwise each broker checks what its own services do.
                settings, live_keys = permitted(name, settings, live_keys, self._config, self._plugins)
            if configured is None or "bindings" in live_keys:
                settings = msgspec.structs.replace(settings, bindings=tuple(self._fitting(name, settings.bindings)))
            settings = self._known(name, settings)
            before = settings if configured is None else before
        id = UUID(entry["id"]) if entry else self._new_id()
        topic = await self._open_topic(name, settings, id, entries, holder_of(entry))
        if before is None:
            await topic.make_durable()
        topic.live_keys = live_keys
        live = [msgspec.convert(binding, BindingSettings) for binding in entry.get("live_bindings", ())]
        topic.live_bindings = self._fitting(name, live)
        for binding in self._known_of(topic.live_bindings):
            self._catalog.router(binding.exchange).bind(binding_to(Target(name), binding))
        await self._subscriptions.finish_dropping(topic)
        if (before, stored_keys, entries) == (settings, live_keys, topic.entries):
            return None
        return stored_topic(topic, encode_settings(settings), topic.live_bindings, live_keys)

    def _new_id(self) -> UUID:
        """The id of a new topic."""
        return UUID(bytes=self._rng.bytes(16), version=4)

    def _known(self, name: str, settings: TopicSettings) -> TopicSettings:
        """Check that everything that the settings name still exists; returns the settings.

        Raises ConfigError for its storage, delivery or interceptors, PluginUnknown for its partitioner.
        """
        config = self._config
        named = [(settings.storage, config.storage), (settings.delivery, config.delivery)]
        named += [(interceptor, config.interceptors) for interceptor in settings.interceptors]
        for key, known in named:
            if key is not None and key not in known:
                raise ConfigError(f'topic {name} was made with "{key}", which the configuration no longer has')
        kind_named(self._plugins.partitioners, settings.partitioner, f"partitioner of topic {name},")
        return settings

    def _fitting(self, name: str, bindings: Sequence[BindingSettings]) -> list[BindingSettings]:
        """The bindings of a topic that the present exchanges accept; other bindings are left out with a warning.

        In a cluster bindings of unknown exchanges stay, as they do at the brokers that run: see `_known_of`.
        """
        kept = []
        for binding in bindings:
            try:
                self._catalog.router(binding.exchange).check(binding_to(Target(name), binding))
            except (ExchangeUnknown, BindingInvalid) as error:
                if isinstance(error, ExchangeUnknown) and self.elsewhere is not None:
                    kept.append(binding)
                    continue
                about = {"topic": name, "exchange": binding.exchange} | log_fields(error)
                logger.warning("a binding of topic %(topic)s to %(exchange)s is left out: %(error)s", about)
            else:
                kept.append(binding)
        return kept

    def _check_change(self, name: str, before: TopicSettings, settings: TopicSettings) -> tuple[str, ...]:
        """Return the keys that differ. Raises ConfigNotLive."""
        is_kept = settings.storage is None or self._maker.engine(settings.storage).capabilities.survives_restart
        if before.is_replicated != settings.is_replicated and not is_kept:
            raise ConfigNotLive(f"topic {name} is in memory: its replicas can't change between one and several")
        try:
            return changed_keys(before, settings)
        except ConfigNotLive as error:
            raise ConfigNotLive(f"topic {name}: {error.text}") from error

    async def _decode(
        self, name: str, table: Mapping[str, Any], topics: set[str], caller: Principal, *, of_file: bool
    ) -> TopicSettings:
        around = self._config.surroundings(dict.fromkeys(topics - {AUDIT_TOPIC}), self._catalog.routers, self._plugins)
        settings = await self._long_work.run(decode_topic(name, table, around), immediate=True)
        known = {topic.name: topic.settings for topic in self._catalog.topics.values()}
        if settings.services or name in known:
            check_services(around.services, self._config.services, {**known, name: settings}, FirstProblem())
            tables = around.services, self._config.services
            if not of_file:
                check_live_tables(name, settings, known.get(name), *tables, caller.access)
        self._check_lifetime(name, settings)
        return settings

    def _check_lifetime(self, name: str, settings: TopicSettings) -> None:
        """Check what a topic that is not kept needs, and that none that is kept needs it.

        Raises LifetimeUnsupported, ConfigError.
        """
        if not settings.is_transient:
            target = self._catalog.topics.get(settings.dead_letter or "")
            router = self._catalog.routers.get(settings.dead_letter_exchange or "")
            if target is not None and target.settings.is_transient:
                raise ConfigError(f"topics.{name}.dead_letter: {target.name} is not kept over a restart, as {name} is")
            if router is not None and router.is_transient:
                text = f"{router.name} is not kept over a restart, as {name} is"
                raise ConfigError(f"topics.{name}.dead_letter_exchange: {text}")
            return
        if self._maker.engine(settings.storage or TRANSIENT_STORAGE).capabilities.survives_restart:
            raise LifetimeUnsupported(f'topics.{name}: lifetime = "{settings.lifetime}" is for topics in memory')

    # --- what other brokers of a cluster have changed ---

    async def follow(self, name: str, settings: TopicSettings, entry: Mapping[str, Any]) -> None:
        """Put another broker's change into effect; `settings` come from the topic's checked entry.

        Raises ConfigError, PluginUnknown, PluginError: this broker can't have the topic. StorageError.
        """
        topic, entries = self._catalog.topics.get(name), decode_entries(entry.get("subscriptions", {}))
        live = [msgspec.convert(binding, BindingSettings) for binding in entry["live_bindings"]]
        settings = self._known(name, settings)
        if topic is None:
            topic = await self._open_topic(name, settings, UUID(entry["id"]), entries, holder_of(entry))
            topic.live_keys, topic.live_bindings = tuple(entry.get("live_keys", ())), live
            await self._long_work.run(bind(self._catalog, Target(name), self._known_of(live)), immediate=True)
            return
        changed = self._check_change(name, topic.settings, settings)
        before = (*topic.settings.bindings, *topic.live_bindings)
        interceptors = self._maker.interceptors(name, settings)
        topic.entries.update(entries)
        await topic.switch(await topic.prepare(settings, self._maker.semantics(settings)))
        for gone in [gone for gone in topic.entries if gone not in entries]:
            if topic.led_by is None:
                await topic.drop_shared(gone)
            del topic.entries[gone]
        topic.interceptors, topic.live_keys = interceptors, tuple(entry.get("live_keys", ()))
        topic.live_bindings = live
        self._tell_of_change(topic, changed)
        now = self._known_of((*settings.bindings, *live))
        await self._long_work.run(rebind(self._catalog, Target(name), now, before), immediate=True)

    def _known_of(self, bindings: Iterable[BindingSettings]) -> list[BindingSettings]:
        """The bindings whose exchanges are there; the others take effect when these are made."""
        return [binding for binding in bindings if binding.exchange in self._catalog.routers]

    async def drop(self, topic: Topic) -> None:
        """Remove a topic, but not its logs."""
        await self._drop_topic(topic)
        self._groups.release(topic.name)
        self._observers.topic_deleted(topic.name)

    async def entry_of(self, topic: Topic) -> Mapping[str, Any]:
        """The topic's entry in the metadata store."""
        table = await self._entries.table(topic.name, topic.settings)
        return stored_topic(topic, table, topic.live_bindings, topic.live_keys)

    def held_elsewhere(self, verb: verbs.Verb[Any, Any], asked: Any) -> Topic | None:
        """The transient topic that a verb changes and another broker holds, which alone writes its entry."""
        name = {verbs.ALTER_TOPIC: "name", verbs.BIND: "topic", verbs.UNBIND: "topic"}.get(verb)
        topic = self._catalog.topics.get(getattr(asked, name)) if name is not None else None
        return topic if topic is not None and topic.holder is not None else None

    def leadership_changed(self, topic: Topic) -> None:
        """Tell services that this broker leads a topic from now on, or no longer."""
        if self._catalog.topics.get(topic.name) is topic:
            self._services.topic_changed(topic.name, topic)

    # --- verbs ---

    async def create(self, asked: verbs.SettingsChange, caller: Principal, *, of_file: bool = False) -> verbs.Created:
        """`of_file`: a file asks for it, which may be there before the brokers that are to hold the topic."""
        name = asked.name
        table = without_dots(asked.settings, {})
        settings = await self._decode(name, table, {*self._catalog.topics, name}, caller, of_file=of_file)
        existing = self._catalog.topics.get(name)
        if existing is not None:
            if existing.settings == settings:
                existing.use.check_owner(caller)
                existing.use.renew()
                return {"created": False}
            raise TopicExists(f"topic {name} exists with other settings: {differences(existing.settings, settings)}")
        await self._check_bindings(name, settings)
        if not of_file:
            await self._check_nodes(name, settings, {"min_in_sync", *table})
        if asked.validate_only:
            self._maker.interceptors(name, settings)
            return {"created": True}
        if name in self._half_deleted:
            await self._finish_deleting(name)
        live_keys = live_keys_after((), table)
        topic = self._maker.make(name, settings, self._new_id())
        if self.elsewhere is not None and not settings.is_transient:
            return await self._create_closed(topic, live_keys, self.elsewhere)
        if self.elsewhere is not None:
            topic.holder = self.elsewhere.holder(topic.leader_epoch)
        entry = stored_topic(topic, await self._entries.table(name, settings), (), live_keys)
        if not settings.is_transient:
            # A start drops the topic until the entry is complete: creation may fail before a client is answered.
            await self._entries.put(TOPIC + name, {**entry, "unfinished": True})
        try:
            topic.interceptors = self._maker.interceptors(name, settings)
            await topic.open()
            await self._finish_making(topic, live_keys)
        except LinnError:
            await self._entries.remove(TOPIC + name)
            raise
        if settings.lifetime == "connection":
            topic.use.owner = caller
            self.owned.setdefault(id(caller), []).append(topic)
        await self._begin_topic(topic)
        return {"created": True}

    async def create_own(self, name: str, storage: str) -> None:
        """Create a stream of the cluster itself, of one partition, which keeps everything. Raises StorageError,
        MetadataError.
        """
        assert self.elsewhere is not None, "the broker is one of a cluster"
        around = self._config.surroundings({}, self._catalog.routers, self._plugins)
        table = {"kind": "stream", "partitions": 1, "storage": storage}
        decoded = decode_topic(name.strip("_"), table, around)  # The names of clients' topics have no "__" in front.
        settings = await self._long_work.run(decoded, immediate=True)
        await self._create_closed(self._maker.make(name, settings, self._new_id()), (), self.elsewhere)

    async def lacks_nodes(self, settings: TopicSettings) -> str:
        """The reason why the cluster has too few nodes for a topic; "": it has enough."""
        for key in ("replicas", "min_in_sync"):
            if found := await self._lacking(settings, key):
                return found
        return ""

    async def _check_nodes(self, name: str, settings: TopicSettings, keys: Collection[str]) -> None:
        """Check that the cluster has enough nodes for what these keys ask for. Raises ConfigError."""
        for key in ("replicas", "min_in_sync"):
            if key in keys and (found := await self._lacking(settings, key)):
                raise ConfigError(f"topics.{name}.{found}")

    async def _lacking(self, settings: TopicSettings, key: str) -> str:
        needed = getattr(settings, key) or 1
        known = await self.elsewhere.count_nodes(needed) if self.elsewhere is not None else needed
        return f"{key}: {needed} is more than the brokers that the cluster knows, {known}" if known < needed else ""

    async def _create_closed(self, topic: Topic, live_keys: tuple[str, ...], elsewhere: Elsewhere) -> verbs.Created:
        """Create a topic of a cluster, whose leader makes its logs. Raises StorageError, MetadataError."""
        topic.interceptors, topic.live_keys = self._maker.interceptors(topic.name, topic.settings), live_keys
        await self._entries.save_topic(topic, topic.settings, (), live_keys)
        elsewhere.close(topic)
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

    async def alter(self, asked: verbs.SettingsChange, caller: Principal, *, of_file: bool = False) -> verbs.Altered:
        """`of_file`: a file asks for it."""
        topic = self._catalog.topic(asked.name)
        bindings = topic.settings.bindings  # Decoded already.
        table = {**encode_without_bindings(topic.settings), "bindings": bindings}
        changes = without_dots(asked.settings, table)
        decoded = self._decode(topic.name, table | changes, set(self._catalog.topics), caller, of_file=of_file)
        settings = await decoded
        changed = self._check_change(topic.name, topic.settings, settings)
        await self._check_nodes(topic.name, settings, changed)
        check_entries(topic.name, settings, topic.entries)
        if "bindings" in changed:
            caller.access.check_all(Need(rights.BIND, rights.EXCHANGE, binding.exchange) for binding in bindings)
            await self._check_bindings(topic.name, settings)
        before, live_keys = topic.settings, live_keys_after(topic.live_keys, changes)
        interceptors = self._maker.interceptors(topic.name, settings)
        warnings = warnings_of(topic.name, self._config, settings, changes)
        if asked.validate_only:
            return {"changed": list(changed), "warnings": warnings}
        change = await topic.prepare(settings, self._maker.semantics(settings))
        try:
            await self._entries.save_topic(topic, settings, topic.live_bindings, live_keys)
        except LinnError:
            await change.abandon()
            raise
        topic.interceptors, topic.live_keys = interceptors, live_keys
        await topic.switch(change)
        self._tell_of_change(topic, changed)
        if "bindings" in changed:
            now = (*settings.bindings, *topic.live_bindings)
            await self._long_work.run(rebind(self._catalog, Target(topic.name), now, before.bindings), immediate=True)
        return {"changed": list(changed), "warnings": warnings}

    def _tell_of_change(self, topic: Topic, changed: Collection[str]) -> None:
        """Tell services and groups that settings have changed."""
        settings = topic.settings
        self._services.topic_changed(topic.name, topic)
        if "kind" in changed and settings.kind == "queue":
            self._groups.end_topic(topic.name)
        elif "partitions" in changed:
            self._groups.grow(topic.name, settings.partitions)

    async def _open_topic(
        self,
        name: str,
        settings: TopicSettings,
        id: UUID,
        entries: Mapping[str, SharedEntry],
        holder: Holder | None = None,
    ) -> Topic:
        """Open a topic with checked settings and begin to serve it. Raises LogCorrupt, StorageError, BindingInvalid."""
        topic = self._maker.make(name, settings, id, entries)
        topic.holder = holder
        if settings.lifetime == "connection":
            topic.use.owner = Principal("")  # The connection is another broker's, and so none of this one's.
        topic.interceptors = self._maker.interceptors(name, settings)
        if self.elsewhere is not None and name != AUDIT_TOPIC:
            self.elsewhere.close(topic)
        else:
            await topic.open()
        await self._begin_topic(topic)
        return topic

    async def _begin_topic(self, topic: Topic) -> None:
        """Make a topic visible to clients, and bind it. Raises BindingInvalid."""
        name, settings = topic.name, topic.settings
        self._catalog.topics[name] = topic
        self._catalog.exchanges.changed()
        await self._long_work.run(bind(self._catalog, Target(name), self._known_of(settings.bindings)), immediate=True)
        self._services.topic_changed(name, topic)
        self._observers.topic_created(name, settings)

    async def _drop_topic(self, topic: Topic) -> None:
        """Remove a topic from the catalogue and from every exchange."""
        bindings = (*topic.settings.bindings, *topic.live_bindings)
        await self._long_work.run(unbind(self._catalog, Target(topic.name), bindings), immediate=True)
        del self._catalog.topics[topic.name]
        self._services.topic_changed(topic.name, None)
        self._catalog.exchanges.changed()

    async def _check_bindings(self, name: str, settings: TopicSettings) -> None:

        def check(binding: BindingSettings) -> None:
            router = self._catalog.router(binding.exchange)
            router.check(made := binding_to(Target(name), binding))
            check_kept(router, made.target, is_kept=not settings.is_transient)

        await self._long_work.run(checks(check, settings.bindings), immediate=True)

    async def delete(self, asked: verbs.NamedChange, caller: Principal) -> verbs.TopicDeleted:
        name = asked.name
        topic = None if name in self._half_deleted else self._catalog.topic(name)
        if topic is not None:
            self._check_unused(topic, caller)
        if not asked.validate_only:
            await self._delete(name, topic)
        return {"warnings": warnings_of_deletion(name, self._config)}

    async def end(self, topic: Topic) -> None:
        """Delete a topic with the session that owned it, even if it takes the dead letters of others."""
        if self._catalog.topics.get(topic.name) is topic:
            await self._delete(topic.name, topic)

    async def end_unused(self, topic: Topic) -> None:
        """Delete a topic unless it is in use. Raises TopicError, StorageError, MetadataError."""
        if self._catalog.topics.get(topic.name) is topic and not topic.use.is_used:
            self._check_unused(topic, Principal(""))
            await self._delete(topic.name, topic, self.elsewhere.conditions_of(topic) if self.elsewhere else {})
            logger.info("topic %(topic)s was deleted, because nobody used it", {"topic": topic.name})

    async def _delete(self, name: str, topic: Topic | None, conditions: Mapping[str, int] = NO_CONDITIONS) -> None:
        """Delete a topic; None: the rest of one that was deleted. Raises StorageError, MetadataError."""
        if self.elsewhere is not None and topic is not None:
            await self._entries.remove(TOPIC + name, conditions)
            await self.drop(topic)
            await self.elsewhere.forget(topic)
            return
        if topic is not None:
            await self._begin_deleting(topic)
        await self._finish_deleting(name)
        self._observers.topic_deleted(name)

    def _check_unused(self, topic: Topic, caller: Principal) -> None:
        users = [other.name for other in self._catalog.topics.values() if other.settings.dead_letter == topic.name]
        if users:
            raise TopicError(f"topic {topic.name} takes the dead letters of {caller.access.shown(rights.TOPIC, users)}")

    async def _begin_deleting(self, topic: Topic) -> None:
        if not topic.settings.is_transient:
            settings = await self._entries.table(topic.name, topic.settings)
            await self._entries.put(TOPIC + topic.name, {**stored_topic(topic, settings, (), ()), "deleted": True})
        await self._drop_topic(topic)
        self._groups.release(topic.name)
        self._half_deleted[topic.name] = topic

    async def _finish_deleting(self, name: str) -> None:
        """Delete a topic's files. Raises StorageError: some are left, and the name stays in use."""
        await self._half_deleted[name].delete()
        await self._entries.remove(TOPIC + name)
        del self._half_deleted[name]

    async def show(self, asked: verbs.Named) -> JsonText:
        shown = None
        while shown is None:
            topic = self._catalog.topic(asked.name)
            shown = await self._long_work.run(topic_as_json(self._catalog.topics, topic.name), immediate=True)
        return shown
