"""The exchange port: which bindings match a message. The router makes topics of them.

An exchange is asked once per distinct (routing key, labels) of a batch, and its answers are cached; only where `fields`
says that bindings look at more is the body of a batch opened, and then it is asked once per distinct tuple of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from linn.core.batch.record import Labels
from linn.core.batch.steps import Steps

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


class Target(NamedTuple):
    """Where a binding leads: a topic, or another exchange."""

    name: str
    is_exchange: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """One rule of an exchange: what matches goes to `target`."""

    target: Target
    key: str = ""
    """The routing key, or pattern, as the exchange's type reads it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What only this type of exchange knows."""


class Subject(NamedTuple):
    """What an exchange may look at in a message. Behind `labels`, only what `fields` asked for is filled in."""

    routing_key: str
    labels: Labels
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    """Of a name that repeats, the last, as with Kafka's `lastHeader`; a header without a value is left out."""
    size: int = 0
    """Bytes of the value; 0 for a tombstone."""


class Exchange(Protocol):
    """Matches subjects against bindings. Synchronous and pure: equal bindings and subjects give equal answers."""

    def bind(self, binding: Binding) -> None:
        """Add a binding; one that exists already is kept once. Raises BindingInvalid, and then nothing has changed."""

    def unbind(self, binding: Binding) -> None:
        """Remove a binding; no error where there is none."""

    def bindings(self) -> Sequence[Binding]:
        """All bindings in the order in which they were made."""

    def fields(self) -> frozenset[str]:
        """What the present bindings look at beyond routing key and labels: "key", "size", "header:NAME"."""

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The bindings that match, in the order in which they were made; empty where none does.

        An exception fails the publish with a LinnError that names the plugin.
        """


@runtime_checkable
class MatchesInSteps(Protocol):
    """An exchange that may take long over one subject, and lets others have their turn meanwhile."""

    def match_in_steps(self, subject: Subject) -> Steps[Sequence[Binding]]:
        """As `match`, in steps of at most a millisecond. Bindings may come and go between them."""


@dataclass(frozen=True, slots=True)
class ExchangeKind:
    """What a plugin registers."""

    name: str
    """The value of `type =` in an `[exchanges.*]` table."""
    settings: type[Any]
    """A frozen msgspec.Struct for the other keys of that table, each with a default and a help text."""
    make: Callable[[str, Any], Exchange]
    """(exchange's name, settings) -> exchange."""
