"""The verbs about exchanges and bindings, and the recovery of live ones at a start.

`Administration` calls the verbs: changes one at a time, queries at any time. Each verb raises LinnErrors.

Laws: a binding belongs to its target, a topic or an exchange, and is removed with it; an exchange can be removed only
when it has no bindings and is not the alternate of another. A live exchange or binding that no longer fits the TOML
file is left out with a warning: it must not prevent a start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from linn import rights, verbs
from linn.core.admin.binding_changes import bind, binding_to, check_kept, checks, rebind, unbind
from linn.core.admin.elsewhere import Elsewhere
from linn.core.admin.entry_store import EntryStore
from linn.core.admin.stored_entries import EXCHANGE
from linn.core.config.checks import NoSettings
from linn.core.config.config import Config
from linn.core.config.decoder import decode_items, decode_settings, encode_settings, known_keys
from linn.core.config.kinds import kind_named
from linn.core.config.problem import FirstProblem, dotted
from linn.core.config.service_tables import FILE_ONLY
from linn.core.config.tables import ExchangeTable
from linn.core.config.toml_source import Path
from linn.core.config.topic_settings import BindingSettings
from linn.core.env.log_fields import log_fields
from linn.core.env.secret import secrets_in
from linn.core.errors.names import name_problem
from linn.core.errors.tree import (
    BindingInvalid,
    ConfigError,
    ConfigNotLive,
    ExchangeUnknown,
    LinnError,
    TopicError,
    TopicExists,
)
from linn.core.loop.long_work import LongWork
from linn.core.ports.principal import Principal
from linn.core.routing.exchange import Binding, Target
from linn.core.routing.router import Router
from linn.core.security.access import Access
from linn.core.topics.catalog import Catalog
from linn.core.topics.holder import HOLDER, Holder, holder_of
from linn.core.topics.topic_maker import PluginMaker
from linn.descriptions import BindingDescription, ExchangeDescription

logger = logging.getLogger("linn.administration")


class BindingsTo(NamedTuple):
    """The bindings from other exchanges to an exchange."""

    declared: tuple[BindingSettings, ...] = ()
    """Bindings given when the exchange was created."""
    live: Sequence[BindingSettings] = ()
    """Bindings added later."""

    def all(self) -> tuple[BindingSettings, ...]:
        """Both."""
        return (*self.declared, *self.live)


class ExchangeAdministration:
    """Exchanges and bindings, shown and changed while the broker runs."""

    def __init__(
        self, config: Config, plugins: PluginMaker, catalog: Catalog, long_work: LongWork, entries: EntryStore
    ) -> None:
        self._config = config
        self._plugins = plugins
        self._catalog = catalog
        self._long_work = long_work
        self._entries = entries
        self._routers = catalog.routers
        self._bindings_to_exchange: dict[str, BindingsTo] = {}
        self._tables: dict[str, ExchangeTable] = {}
        """The keys that exchanges of all types have, of exchanges that are not in the TOML file; they are stored."""
        self._holders: dict[str, Holder] = {}
        """The nodes with which transient exchanges end, in a cluster."""
        self.elsewhere: Elsewhere | None = None
        """The cluster; None: this broker is alone."""
        self.on_unused: Callable[[Router], None] = lambda router: None
        """Called when the last binding of an exchange was removed that is to end with it."""

    # --- start ---

    def recover(self, stored: Mapping[str, Any]) -> None:
        """Make all exchanges, by the configuration and by the store's entries, and link them. Raises LinnError."""
        entries = {key.removeprefix(EXCHANGE): entry for key, entry in stored.items() if key.startswith(EXCHANGE)}
        heads: dict[str, ExchangeTable] = {}
        for name, configured in self._config.exchanges.items():
            self._routers[name] = self._new_router(name, configured.table, configured.settings)
            heads[name] = configured.table
        for name, entry in entries.items():
            holder = holder_of(entry)
            if holder is not None and self.elsewhere is not None and holder.node == self.elsewhere.number:
                continue  # The last process of this broker had it; the entry ends in a moment.
            if name not in heads and entry.get("settings") is not None:
                heads[name], self._routers[name] = self._decode(name, entry["settings"])
                self._note(name, heads[name], holder)
        for name, head in heads.items():
            if head.alternate is not None:
                self._recover_alternate(self._routers[name], head.alternate)
        for name, head in heads.items():
            self._bindings_to_exchange[name] = BindingsTo(self._recover_bindings(name, head.bindings))
        for name in heads:
            live = entries.get(name, {}).get("live_bindings", ())
            bindings = [msgspec.convert(binding, BindingSettings) for binding in live]
            declared = self._bindings_to_exchange[name].declared
            self._bindings_to_exchange[name] = BindingsTo(declared, self._recover_bindings(name, bindings))

    def _recover_alternate(self, router: Router, alternate: str) -> None:
        try:
            self._check_alternate(router.name, alternate)
        except (ExchangeUnknown, BindingInvalid) as error:
            about = {"exchange": router.name, "alternate": alternate} | log_fields(error)
            logger.warning("exchange %(exchange)s goes without its alternate %(alternate)s: %(error)s", about)
        else:
            router.alternate = alternate

    def _recover_bindings(self, name: str, bindings: Sequence[BindingSettings]) -> tuple[BindingSettings, ...]:
        made = []
        for binding in bindings:
            try:
                self.router(binding.exchange).bind(binding_to(Target(name, is_exchange=True), binding))
            except (ExchangeUnknown, BindingInvalid) as error:
                if isinstance(error, ExchangeUnknown) and self.elsewhere is not None:
                    made.append(binding)  # It takes effect when the exchange is made, as at the brokers that run.
                    continue
                about = {"exchange": name, "source": binding.exchange} | log_fields(error)
                logger.warning("a binding of exchange %(exchange)s to %(source)s is left out: %(error)s", about)
            else:
                made.append(binding)
        return tuple(made)

    async def follow(self, name: str, entry: Mapping[str, Any] | None) -> None:
        """Put another broker's change of an exchange into effect; None: it was removed.

        Raises ConfigError, PluginUnknown: this broker can't make the exchange.
        """
        router = self._routers.get(name)
        if entry is None:
            if router is not None:
                await self._drop(router)
            return
        head, made = self._decode(name, entry["settings"])
        self._note(name, head, holder_of(entry))
        if router is None or (router.kind, router.settings) != (made.kind, made.settings):
            self._routers[name] = router = made
            if head.alternate is not None:
                self._recover_alternate(made, head.alternate)
            await self._bind_again(name)
        live = [msgspec.convert(binding, BindingSettings) for binding in entry["live_bindings"]]
        before = self._bindings_to_exchange.get(name, BindingsTo())
        self._bindings_to_exchange[name] = now = BindingsTo(head.bindings, live)
        there = [binding for binding in now.all() if binding.exchange in self._routers]
        change = rebind(self._catalog, Target(name, is_exchange=True), there, before.all())
        await self._long_work.run(change, immediate=True)
        self._catalog.exchanges.changed()

    async def _bind_again(self, name: str) -> None:
        """Bind to a new exchange all that is bound to its name, and that it takes."""
        for topic in self._catalog.topics.values():
            await self._bind_to(Target(topic.name), name, (*topic.settings.bindings, *topic.live_bindings))
        for other, bound in list(self._bindings_to_exchange.items()):
            await self._bind_to(Target(other, is_exchange=True), name, bound.all())

    async def _bind_to(self, target: Target, name: str, bindings: Iterable[BindingSettings]) -> None:
        for binding in [it for it in bindings if it.exchange == name]:
            try:
                await self._long_work.run(bind(self._catalog, target, [binding]), immediate=True)
            except BindingInvalid as error:
                about = {"target": target.name, "exchange": name} | log_fields(error)
                logger.warning("a binding of %(target)s to %(exchange)s is left out: %(error)s", about)

    # --- exchanges ---

    def router(self, name: str) -> Router:
        """An exchange that can be changed; the default exchange can't. Raises ExchangeUnknown."""
        router = self._routers.get(name)
        if router is None:
            raise ExchangeUnknown(f'there is no exchange "{name[:80]}"')
        return router

    def _new_router(self, name: str, table: ExchangeTable, settings: Any) -> Router:
        plugins, graph = self._plugins, self._catalog.exchanges
        kind = plugins.exchanges[table.type]
        shown = table.further | (encode_settings(settings) if settings is not None else {})
        make = partial(plugins.make, kind, name, settings)
        router = Router(name, table.type, make, graph, settings=shown, owner=plugins.owner_of(kind))
        router.is_internal, router.is_transient = table.internal, table.is_transient
        if table.delete_when == "unused":
            router.on_unused = lambda: self.on_unused(router)
        return router

    def _note(self, name: str, table: ExchangeTable, holder: Holder | None) -> None:
        """Note the keys of an exchange that is stored, and its holder."""
        self._forget(name)
        self._tables[name] = table
        if holder is not None:
            self._holders[name] = holder

    def _decode(self, name: str, table: Mapping[str, Any]) -> tuple[ExchangeTable, Router]:
        """The exchange that an `[exchanges.NAME]` table describes. Raises ConfigError, PluginUnknown."""
        problems, path, keys = FirstProblem(), ("exchanges", name), known_keys(ExchangeTable)
        head = decode_settings(ExchangeTable, {key: table[key] for key in keys if key in table}, path, problems)
        assert head is not None, "a table without problems decodes"
        kind = kind_named(self._plugins.exchanges, head.type, "exchange type")
        own = {key: value for key, value in table.items() if key not in keys}
        settings = decode_settings(kind.settings or NoSettings, own, path, problems, also_known=keys)
        if any(secrets_in(settings)):
            raise ConfigNotLive(f"{dotted(path)}: has a secret, which {FILE_ONLY}")
        return head, self._new_router(name, head, settings if kind.settings else None)

    def _check_alternate(self, name: str, alternate: str, *, is_transient: bool = True) -> None:
        if alternate != name and self.router(alternate).is_transient and not is_transient:
            raise ConfigError(f"exchanges.{name}.alternate: {alternate} is not kept over a restart, as {name} is")
        self._catalog.exchanges.check_link(name, alternate)

    async def create(self, asked: verbs.SettingsChange) -> verbs.Created:
        """Make an exchange."""
        name = asked.name
        if (wrong := name_problem(name)) is not None:
            raise ConfigError(f"{dotted(('exchanges', name))}: {wrong}")
        path: Path = ("exchanges", name)
        table = await self._long_work.run(
            decode_items(ExchangeTable, asked.settings, path, FirstProblem()), immediate=True
        )
        head, router = self._decode(name, table)
        existing = self._routers.get(name)
        if existing is not None:
            different = _differences(existing, self._bindings_to_exchange[name].declared, router, head)
            if not different:
                return {"created": False}
            raise TopicExists(f"exchange {name} exists with other settings: {different}")
        if head.alternate is not None:
            self._check_alternate(name, head.alternate, is_transient=head.is_transient)
            router.alternate = head.alternate
        holder = None
        if self.elsewhere is not None and head.further:
            self.elsewhere.check_level("such exchanges")
            holder = self.elsewhere.holder(0) if head.is_transient else None
        target = Target(name, is_exchange=True)
        bindings = [binding_to(target, binding) for binding in head.bindings]

        def check(pair: tuple[BindingSettings, Binding]) -> None:
            self._check_source(pair[0].exchange, router, pair[1])

        pairs = zip(head.bindings, bindings, strict=True)
        await self._long_work.run(checks(check, pairs), immediate=True)
        if asked.validate_only:
            return {"created": True}
        self._note(name, head, holder)
        try:
            await self._save(router, head.bindings, ())
        except LinnError:
            self._forget(name)
            raise
        self._bindings_to_exchange[name] = BindingsTo(head.bindings)
        self._routers[name] = router
        await self._long_work.run(bind(self._catalog, target, head.bindings), immediate=True)
        await self._bind_again(name)
        self._catalog.exchanges.changed()
        return {"created": True}

    def _check_source(self, source: str, router: Router, binding: Binding) -> None:
        """Check that `source` may send to an exchange that does not exist yet; its alternate is checked elsewhere."""
        if source != router.name:
            self.router(source).check(binding)
            check_kept(self.router(source), binding.target, is_kept=not router.is_transient)
        self._catalog.exchanges.check_link(source, router.name)
        if router.alternate is not None:
            self._catalog.exchanges.check_link(source, router.alternate)

    async def delete(self, asked: verbs.NamedChange, caller: Principal) -> verbs.Nothing:
        """Remove an exchange that nothing leads away from and no setting names, and the bindings that lead to it."""
        router = self.router(asked.name)
        bound = {binding.target for binding in router.bindings()}
        if bound:
            targets = {target.name for target in bound if caller.access.may(rights.SEE, *_resource(target))}
            shown = ", ".join(sorted(targets)[:10]) or "others"
            raise TopicError(f"exchange {router.name} still has bindings: {shown}")
        self._check_unnamed(router, caller)
        if not asked.validate_only:
            await self._delete(router)
        return {}

    def _check_unnamed(self, router: Router, caller: Principal) -> None:
        """Check that no setting names an exchange. Raises TopicError."""
        users = self._catalog.exchanges.alternate_of(router.name)
        if users:
            shown = caller.access.shown(rights.EXCHANGE, users)
            raise TopicError(f"exchange {router.name} is the alternate of {shown}")
        topics = self._catalog.topics.values()
        users = [topic.name for topic in topics if topic.settings.dead_letter_exchange == router.name]
        if users:
            shown = caller.access.shown(rights.TOPIC, users)
            raise TopicError(f"exchange {router.name} takes the dead letters of {shown}")

    async def end_unused(self, router: Router) -> None:
        """Delete an exchange unless it has a binding again, or another broker has deleted it.

        Raises TopicError: a setting names it. StorageError, MetadataError.
        """
        if self._routers.get(router.name) is router and not router.bindings():
            self._check_unnamed(router, Principal(""))
            await self._delete(router)
            logger.info("exchange %(exchange)s was deleted with its last binding", {"exchange": router.name})

    async def _delete(self, router: Router) -> None:
        await self._entries.remove(EXCHANGE + router.name)
        await self._drop(router)

    async def _drop(self, router: Router) -> None:
        target = Target(router.name, is_exchange=True)
        bindings = self._bindings_to_exchange.pop(router.name).all()
        await self._long_work.run(unbind(self._catalog, target, bindings), immediate=True)
        del self._routers[router.name]
        self._forget(router.name)
        self._catalog.exchanges.changed()

    def _forget(self, name: str) -> None:
        self._tables.pop(name, None)
        self._holders.pop(name, None)

    async def show(self, asked: verbs.Named, caller: Principal) -> ExchangeDescription:
        """One exchange."""
        return describe_exchange(self.router(asked.name), caller.access)

    async def list_all(self, _: verbs.NoArguments, caller: Principal) -> list[ExchangeDescription]:
        """The exchanges that the caller may see, by name."""
        names = caller.access.visible(rights.EXCHANGE, sorted(self._routers))
        return [describe_exchange(self._routers[name], caller.access) for name in names]

    async def _save(
        self, router: Router, declared: tuple[BindingSettings, ...], live: Sequence[BindingSettings]
    ) -> None:
        entry: dict[str, Any] = {"live_bindings": live}
        if (table := self._tables.get(router.name)) is not None:
            table = msgspec.structs.replace(table, alternate=router.alternate, bindings=declared)
            entry["settings"] = table.encoded(router.settings)
        if (holder := self._holders.get(router.name)) is not None:
            entry[HOLDER] = holder
        await self._entries.put(EXCHANGE + router.name, entry, is_transient=router.is_transient)

    def held_elsewhere(self, verb: verbs.Verb[Any, Any], asked: Any) -> int | None:
        """The node that alone writes the entry of the exchange that a verb changes; None: any broker does."""
        name = asked.target_exchange if verb in (verbs.BIND, verbs.UNBIND) else None
        holder = self._holders.get(name) if name is not None else None
        return None if holder is None or self.elsewhere is None or holder.node == self.elsewhere.number else holder.node

    # --- bindings ---

    async def bind(self, asked: verbs.BindingChange) -> verbs.Created:
        """Bind a topic or another exchange to an exchange."""
        target, settings = self._decode_binding(asked)
        source, binding = self.router(settings.exchange), binding_to(target, settings)
        source.check(binding)
        check_kept(source, target, is_kept=self._is_kept(target))
        declared, live = self._bindings_to(target)
        created = settings not in declared and settings not in live
        if asked.validate_only:
            return {"created": created}
        if created:
            await self._keep(target, declared, [*live, settings])
        source.bind(binding)
        return {"created": created}

    async def unbind(self, asked: verbs.BindingChange) -> verbs.Unbound:
        """Remove a binding."""
        target, settings = self._decode_binding(asked)
        declared, live = self._bindings_to(target)
        deleted = settings in declared or settings in live
        if asked.validate_only:
            return {"deleted": deleted}
        if deleted:
            kept = [binding for binding in live if binding != settings]
            await self._keep(target, tuple(binding for binding in declared if binding != settings), kept)
        self.router(settings.exchange).unbind(binding_to(target, settings))
        return {"deleted": deleted}

    def _is_kept(self, target: Target) -> bool:
        if target.is_exchange:
            return not self.router(target.name).is_transient
        return not self._catalog.topic(target.name).settings.is_transient

    def _bindings_to(self, target: Target) -> tuple[tuple[BindingSettings, ...], Sequence[BindingSettings]]:
        """The bindings to a target: the bindings in its settings, and the live bindings."""
        if target.is_exchange:
            return self._bindings_to_exchange[self.router(target.name).name]
        topic = self._catalog.topic(target.name)
        return topic.settings.bindings, topic.live_bindings

    async def _keep(self, target: Target, declared: tuple[BindingSettings, ...], live: list[BindingSettings]) -> None:
        """Save the bindings to a target, then put them into effect. Raises StorageError: nothing has changed."""
        if target.is_exchange:
            router = self.router(target.name)
            await self._save(router, declared, live)
            self._bindings_to_exchange[router.name] = BindingsTo(declared, live)
        else:
            topic = self._catalog.topic(target.name)
            changed = topic.settings
            if declared != changed.bindings:
                changed = msgspec.structs.replace(changed, bindings=declared)
            await self._entries.save_topic(topic, changed, live, topic.live_keys)
            topic.live_bindings, topic.settings = live, changed

    def _decode_binding(self, asked: verbs.BindingChange) -> tuple[Target, BindingSettings]:
        """The binding that a request names. Raises TopicUnknown, ExchangeUnknown, ConfigError."""
        match asked.topic, asked.target_exchange:
            case str(topic), None:
                target = Target(self._catalog.topic(topic).name)
            case None, str(exchange):
                target = Target(self.router(exchange).name, is_exchange=True)
            case _:
                raise ConfigError('a binding leads to either a "topic" or a "target_exchange"')
        return target, BindingSettings(self.router(asked.exchange).name, asked.key, dict(asked.arguments))


def _differences(existing: Router, declared: tuple[BindingSettings, ...], asked: Router, head: ExchangeTable) -> str:
    """The settings in which an exchange differs from the requested one, worded as the end of an error message."""
    has = {"type": existing.kind, **existing.settings}
    wanted = {"type": asked.kind, **asked.settings}
    pairs = {key: (has.get(key), wanted.get(key)) for key in dict.fromkeys([*has, *wanted])}
    different = [
        f"{key} is {_as_toml(one)}, not {_as_toml(other)}" for key, (one, other) in pairs.items() if one != other
    ]
    if existing.alternate != head.alternate:
        different.append("it has another alternate")
    if declared != head.bindings:
        different.append("it has other bindings")
    return "; ".join(different)


def _as_toml(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def describe_exchange(router: Router, access: Access) -> ExchangeDescription:
    """An exchange as JSON, with the bindings to what the caller may see."""
    bindings = [binding for binding in router.bindings() if access.may(rights.SEE, *_resource(binding.target))]
    return {
        "name": router.name,
        "type": router.kind,
        "alternate": router.alternate,
        "settings": dict(router.settings),
        "bindings": [_describe_binding(binding) for binding in bindings],
    }


def _resource(target: Target) -> tuple[str, str]:
    return rights.EXCHANGE if target.is_exchange else rights.TOPIC, target.name


def _describe_binding(binding: Binding) -> BindingDescription:
    shown: BindingDescription = {"key": binding.key, "arguments": dict(binding.arguments)}
    shown["exchange" if binding.target.is_exchange else "topic"] = binding.target.name
    return shown
