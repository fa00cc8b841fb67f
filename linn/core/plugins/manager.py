"""Finds, loads and checks plugins: a typed interface to pluggy. Made once at start-up and passed on, never a global.

Laws: any problem with a plugin is one `PluginError` of one line that names the plugin and its origin; once a manager is
made, nothing calls pluggy any more: the registries are plain dicts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import Distribution, EntryPoint, entry_points
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from linn.core.batch.format import FORMATS_MAX, BoundFormat, FormatKind
from linn.core.config.decoder import check_shape, known_keys
from linn.core.config.kinds import Kind
from linn.core.config.tables import TABLES, PluginSettings
from linn.core.config.topic_settings import TopicSettings
from linn.core.env.code_owner import CodeOwners
from linn.core.errors.names import name_problem
from linn.core.errors.texts import did_you_mean, one_line
from linn.core.errors.tree import LinnError, PluginError
from linn.core.gateway.protocol import ProtocolKind
from linn.core.groups.assignor import AssignorKind
from linn.core.log.storage import EngineKind
from linn.core.metadata.store import MetadataStoreKind
from linn.core.plugins import hookspecs
from linn.core.ports.authenticator import AuthenticatorKind
from linn.core.ports.authorizer import AuthorizerKind
from linn.core.ports.interceptor import InterceptorKind
from linn.core.ports.observer import Observer, Observers
from linn.core.ports.service import ServiceKind
from linn.core.queue.dispatch_order import FIFO, OrderKind
from linn.core.queue.semantics import SemanticsKind
from linn.core.routing.exchange import ExchangeKind
from linn.core.routing.partitioner import PartitionerKind
from linn.core.security.authenticators import MECHANISMS
from linn.core.security.logins import LOGIN_METHODS

ENTRY_POINT_GROUP = "linn"

K = TypeVar("K", bound=Kind)

_OBSERVER_METHODS = [name for name in vars(Observer) if not name.startswith("_")]


def installed() -> list[EntryPoint]:
    """The plugins of all installed distributions, linn's own included, by name."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)


class PluginManager:
    """The registered kinds: one dict per sort of kind, by name."""

    def __init__(self, settings: PluginSettings, installed: Iterable[EntryPoint]) -> None:
        """Load the installed plugins and the modules listed in `settings`, except blocked ones.

        Raises:
            PluginError: a plugin can't be imported, has a hook that does not exist or takes the wrong arguments,
        returns
                a wrong type, or a name that is taken.
        """
        self.engines: dict[str, EngineKind] = {}
        self.semantics: dict[str, SemanticsKind] = {}
        self.exchanges: dict[str, ExchangeKind] = {}
        self.protocols: dict[str, ProtocolKind] = {}
        self.interceptors: dict[str, InterceptorKind] = {}
        self.authenticators: dict[str, AuthenticatorKind] = {}
        self.authorizers: dict[str, AuthorizerKind] = {}
        self.metadata_stores: dict[str, MetadataStoreKind] = {}
        self.partitioners: dict[str, PartitionerKind] = {}
        self.orders: dict[str, OrderKind] = {}
        self.assignors: dict[str, AssignorKind] = {}
        self.formats: dict[str, FormatKind] = {}
        self.services: dict[str, ServiceKind] = {}
        self.plugin_names: list[str] = []
        """All plugins found, in order, including blocked ones."""
        self._pluggy = pluggy.PluginManager("linn")
        self._pluggy.add_hookspecs(hookspecs)
        self._origins: dict[str, str] = {}
        self._owners: dict[tuple[type[Kind], str], str] = {}
        self._modules: dict[str, list[str]] = {}
        self._load(settings, installed)
        self._check_hooks()
        self._bring("linn_register_engine", EngineKind, self.engines, "storage", "storage engine")
        self._bring("linn_register_semantics", SemanticsKind, self.semantics, "delivery", "delivery semantics")
        self._bring("linn_register_exchange", ExchangeKind, self.exchanges, "exchanges", "exchange type")
        self._bring("linn_register_protocol", ProtocolKind, self.protocols, "listeners", "protocol")
        self._bring("linn_register_interceptor", InterceptorKind, self.interceptors, "interceptors", "interceptor")
        self._bring(
            "linn_register_authenticator", AuthenticatorKind, self.authenticators, "authenticators", "authenticator"
        )
        self._check_mechanisms()
        self._bring("linn_register_authorizer", AuthorizerKind, self.authorizers, "authorizers", "authorizer")
        self._bring(
            "linn_register_metadata_store", MetadataStoreKind, self.metadata_stores, "cluster", "metadata store"
        )
        self._bring("linn_register_partitioner", PartitionerKind, self.partitioners, "topics", "partitioner")
        self._bring("linn_register_order", OrderKind, self.orders, "topics", "order")
        self._check_orders()
        self._bring("linn_register_assignor", AssignorKind, self.assignors, "groups", "assignor")
        self._bring("linn_register_format", FormatKind, self.formats, "topics", "format")
        self._check_format_numbers()
        self._bring("linn_register_service", ServiceKind, self.services, None, "service")
        self._check_services()
        self.observers: Observers = Observers(self._observers())
        self.code_owners = CodeOwners({self._described(name): names for name, names in self._modules.items()})

    def owner_of(self, kind: Kind) -> str:
        """Describe the plugin that registered a kind: `plugin "tape" (linn-paper-tape 1.2)`."""
        return self._described(self._owners[type(kind), kind.name])

    def blamed(self, error: BaseException, otherwise: str = "linn itself") -> str:
        """Describe the code that raised an error: `plugin "tape" (linn-paper-tape 1.2) in read (tape.py:7)`."""
        return str(self.code_owners.behind(error) or otherwise)

    def make(self, kind: Kind, *arguments: Any) -> Any:
        """Call the factory of a kind.

        Raises:
            LinnError: raised by the factory. PluginError: the factory raised another exception.
        """
        try:
            return kind.make(*arguments)
        except LinnError:
            raise
        except Exception as error:
            text = f'{self.owner_of(kind)}: the factory of "{kind.name}" failed: {_error_text(error)}'
            raise PluginError(one_line(text)) from error

    def made_formats(self) -> Iterator[BoundFormat]:
        """Make the codec of each format. Raises PluginError, and the factories' LinnErrors."""
        for kind in self.formats.values():
            yield BoundFormat(kind.number, kind.name, self.owner_of(kind), self.make(kind))

    # --- finding and loading ---------------------------------------------------------------------------------------

    def _load(self, settings: PluginSettings, installed: Iterable[EntryPoint]) -> None:
        blocked = set(settings.block)
        origins: dict[Distribution, str] = {}
        for entry in installed:
            self._found(entry.name, _origin(entry, origins))
            if entry.name not in blocked:
                self._register(entry.name, self._imported(entry.name, entry.value, entry.load))
        for module in settings.load:
            self._found(module, "listed in [plugins]")
            if module not in blocked:
                self._register(module, self._imported(module, module, partial(importlib.import_module, module)))

    def _found(self, name: str, origin: str) -> None:
        if name in self._origins:
            raise PluginError(f'two plugins have the name "{name}": {self._origins[name]}, and {origin}')
        self._origins[name] = origin
        self.plugin_names.append(name)

    def _imported(self, name: str, module: str, load: Callable[[], Any]) -> Any:
        """Import a plugin; any exception of its module becomes a PluginError."""
        try:
            return load()
        except (Exception, SystemExit) as error:
            what = "" if module == name else f"its module {module} "
            raise self._failure(name, f"{what}can't be imported: {_error_text(error)}") from error

    def _register(self, name: str, plugin: Any) -> None:
        if self._pluggy.is_registered(plugin):
            raise self._failure(name, f'is the plugin "{self._pluggy.get_name(plugin)}" a second time')
        try:
            self._pluggy.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError, TypeError) as error:
            raise self._failure(name, f"does not fit its hooks: {_error_text(error)}") from error
        if not self._pluggy.get_hookcallers(plugin):
            raise self._failure(name, "has no function marked with linn.core.plugins.hookspecs.hookimpl")
        self._modules[name] = [plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__]

    def _check_hooks(self) -> None:
        """Refuse hooks that do not exist, mostly misspelt ones."""
        try:
            self._pluggy.check_pending()
        except pluggy.PluginValidationError as error:
            hooks = vars(self._pluggy.hook)
            known = [name for name, hook in hooks.items() if not name.startswith("_") and hook.has_spec()]
            unknown = sorted({hook.name for hook in self._pluggy.get_hookcallers(error.plugin) or ()} - set(known))
            name = self._pluggy.get_name(error.plugin) or ""
            raise self._failure(name, f"there is no hook {unknown[0]}{did_you_mean(unknown[0], known)}") from error

    # --- what plugins register ---------------------------------------------------------------------------------------

    def _bring(self, hook: str, kind_type: type[K], registry: dict[str, K], table: str | None, noun: str) -> None:
        """Fill one registry. `table`: the kind's table in TOML, None if it has its own; `noun`: its name in errors."""
        reserved = known_keys(TABLES[table]) if table is not None else ()
        for plugin_name, brought in self._results(hook):
            for kind in brought:
                wrong = _wrong_with(kind, kind_type, reserved)
                if wrong is not None:
                    raise self._failure(plugin_name, f"{hook} did not return a valid {noun}: {wrong}")
                assert isinstance(kind, kind_type), "checked just now"
                if kind.name in registry:
                    owner = self._owners[kind_type, kind.name]
                    text = f'provides the {noun} "{kind.name}", which plugin "{owner}" provides already'
                    raise self._failure(plugin_name, text)
                registry[kind.name] = kind
                self._owners[kind_type, kind.name] = plugin_name
                self._owns(plugin_name, kind.make)

    def _check_format_numbers(self) -> None:
        taken: dict[int, FormatKind] = {}
        for kind in self.formats.values():
            owner = self._owners[FormatKind, kind.name]
            number: object = kind.number
            if type(number) is not int or not 0 < number <= FORMATS_MAX:
                text = f'the format "{kind.name}" has the number {number!r:.40}, which is not from 1 to {FORMATS_MAX}'
                raise self._failure(owner, text)
            if number in taken:
                other = taken[number].name
                brought = f'which plugin "{self._owners[FormatKind, other]}" uses for the format "{other}"'
                raise self._failure(owner, f'the format "{kind.name}" has the number {number}, {brought}')
            taken[number] = kind

    def _check_orders(self) -> None:
        if FIFO in self.orders:
            owner = self._owners[OrderKind, FIFO]
            raise self._failure(owner, f'the order "{FIFO}" has the name that means none')

    def _check_mechanisms(self) -> None:
        for kind in self.authenticators.values():
            owner, mechanisms = self._owners[AuthenticatorKind, kind.name], kind.mechanisms
            if kind.name in LOGIN_METHODS:
                raise self._failure(owner, f'the authenticator "{kind.name}" has the name of another way to log in')
            if not isinstance(mechanisms, tuple) or not mechanisms or not {*mechanisms} <= {*MECHANISMS}:
                text = f'the authenticator "{kind.name}" checks {mechanisms!r:.80}, and not some of {MECHANISMS}'
                raise self._failure(owner, text)

    def _check_services(self) -> None:
        """Refuse services whose tables or metrics belong to linn itself or to another service."""
        tables, metrics = dict.fromkeys(known_keys(TopicSettings), "linn itself"), dict[str, str]()
        for kind in self.services.values():
            owner = self._owners[ServiceKind, kind.name]
            if kind.name in TABLES:
                raise self._failure(owner, f'the service "{kind.name}" has the name of a table of linn itself')
            wrong = None if kind.topic_settings is None else check_shape(kind.topic_settings)
            if (kind.topic_table is None) != (kind.topic_settings is None):
                wrong = "has a table in topics without settings, or settings without a table"
            elif kind.topic_table is not None and kind.topic_table in tables:
                wrong = f'has the table "{kind.topic_table}" in topics, which belongs to {tables[kind.topic_table]}'
            for metric in kind.metrics:
                if metric.name in metrics:
                    wrong = f'has the metric {metric.name}, which "{metrics[metric.name]}" has already'
                metrics[metric.name] = kind.name
            if wrong is not None:
                raise self._failure(owner, f'the service "{kind.name}": {wrong}')
            if kind.topic_table is not None:
                tables[kind.topic_table] = f'the service "{kind.name}"'

    def _observers(self) -> dict[str, Observer]:
        found: dict[str, Observer] = {}
        for plugin_name, brought in self._results("linn_register_observer"):
            for number, observer in enumerate(brought):
                missing = [name for name in _OBSERVER_METHODS if not callable(getattr(observer, name, None))]
                if missing:
                    text = f"linn_register_observer returned a {type(observer).__name__} without {missing[0]}()"
                    raise self._failure(plugin_name, text)
                found[plugin_name if number == 0 else f"{plugin_name}#{number + 1}"] = observer
                self._owns(plugin_name, type(observer))
        return found

    def _owns(self, plugin_name: str, brought: object) -> None:
        """Record the module of a registered object as the plugin's, unless it was imported from elsewhere."""
        module = getattr(brought, "__module__", None)
        names = self._modules[plugin_name]
        if isinstance(module, str) and module.partition(".")[0] == names[0].partition(".")[0]:
            names.append(module)

    def _results(self, hook: str) -> Iterator[tuple[str, Sequence[Any]]]:
        """The results of a hook, one plugin at a time, so that failures can be attributed.

        Looking for them in one list is quick; a caller of pluggy for each plugin and hook takes a third of a start.
        """
        found = getattr(self._pluggy.hook, hook).get_hookimpls()
        for implementation in sorted(found, key=lambda it: self.plugin_names.index(it.plugin_name)):
            name = implementation.plugin_name
            try:
                result = implementation.function()
            except Exception as error:
                raise self._failure(name, f"{hook} failed: {_error_text(error)}") from error
            if result is not None:
                yield name, result if isinstance(result, list | tuple) else (result,)

    def _failure(self, name: str, text: str) -> PluginError:
        return PluginError(one_line(f"{self._described(name)}: {text}"))

    def _described(self, name: str) -> str:
        return f'plugin "{name}" ({self._origins.get(name, "unknown")})'


def _origin(entry: EntryPoint, known: dict[Distribution, str]) -> str:
    """Describe the origin of an installed plugin: "linn-paper-tape 1.2".

    A distribution rereads its metadata, including its README, on each access to its name or version; the cache reads
    linn, which registers many plugins, only once.
    """
    if entry.dist is None:
        return entry.value
    if entry.dist not in known:
        known[entry.dist] = f"{entry.dist.name} {entry.dist.version}"
    return known[entry.dist]


def built_in() -> PluginManager:
    """Load only linn's own plugins."""
    return PluginManager(PluginSettings(), [entry for entry in installed() if entry.dist and entry.dist.name == "linn"])


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _wrong_with(kind: object, kind_type: type[Kind], reserved: Sequence[str]) -> str | None:
    """The reason why an object is not a valid kind; None if it is valid."""
    if not isinstance(kind, kind_type):
        return f"a {type(kind).__name__}, not a {kind_type.__name__}"
    wrong = name_problem(kind.name) if isinstance(kind.name, str) else "its name is not text"
    if wrong is not None:
        return wrong
    factory: object = kind.make
    if not callable(factory):
        return f'the factory of "{kind.name}" can\'t be called'
    if kind.settings is None:
        return None
    wrong = check_shape(kind.settings)
    taken = [] if wrong else [key for key in known_keys(kind.settings) if key in reserved]
    return f'{kind.settings.__name__} has the key "{taken[0]}", which linn itself uses' if taken else wrong
