"""The kinds of things that plugins bring, by name: what the configuration is checked against."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from linn.core.errors.nearest import did_you_mean
from linn.core.errors.tree import PluginUnknown

if TYPE_CHECKING:
    from linn.core.log.storage import EngineKind
    from linn.core.ports.interceptor import InterceptorKind
    from linn.core.ports.protocol import ProtocolKind
    from linn.core.queue.semantics import SemanticsKind
    from linn.core.routing.exchange import ExchangeKind
    from linn.core.routing.partitioner import PartitionerKind

K = TypeVar("K")


class Kind(Protocol):
    """What all kinds have in common."""

    @property
    def name(self) -> str:
        """The name that TOML uses."""

    @property
    def settings(self) -> type[Any] | None:
        """A frozen msgspec.Struct with a default and a help text for each field; None for a kind without settings."""

    @property
    def make(self) -> Callable[..., Any]:
        """The factory; each kind's own class says what it takes."""


class Kinds(Protocol):
    """All that plugins brought. `plugins.PluginManager` is one."""

    @property
    def engines(self) -> Mapping[str, EngineKind]: ...
    @property
    def semantics(self) -> Mapping[str, SemanticsKind]: ...
    @property
    def exchanges(self) -> Mapping[str, ExchangeKind]: ...
    @property
    def protocols(self) -> Mapping[str, ProtocolKind]: ...
    @property
    def interceptors(self) -> Mapping[str, InterceptorKind]: ...
    @property
    def partitioners(self) -> Mapping[str, PartitionerKind]: ...
    @property
    def plugin_names(self) -> Collection[str]:
        """The names of all plugins that were found, blocked ones included."""


def kind_named(kinds: Mapping[str, K], name: str, noun: str) -> K:
    """The kind of that name; `noun` is what a person calls it ("storage engine").

    Raises:
        PluginUnknown: no plugin brings it; the text names the nearest one.
    """
    kind = kinds.get(name)
    if kind is None:
        raise PluginUnknown(f'no plugin brings the {noun} "{name[:80]}"{did_you_mean(name, kinds)}')
    return kind
