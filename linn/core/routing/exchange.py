"""The exchange port: finds the bindings that match a message. The router turns them into topics.

An exchange is asked once per distinct (routing key, labels) of a batch, and its answers are cached; only if `fields`
says that bindings examine more is the body of a batch opened, and then it is asked once per distinct tuple of those
fields.
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
    """The target of a binding: a topic, or another exchange."""

    name: str
    is_exchange: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """One rule of an exchange: matching messages go to `target`."""

    target: Target
    key: str = ""
    """The routing key, or pattern, as the exchange's type reads it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments specific to this type of exchange."""


class Subject(NamedTuple):
    """The parts of a message that an exchange may examine. Only what `fields` asks for is filled in after `labels`."""

    routing_key: str
    labels: Labels
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    """The last header of each name, as with Kafka's `lastHeader`; headers without a value are left out."""
    size: int = 0
    """Size of the value in bytes; 0 for a tombstone."""


class Exchange(Protocol):
    """Matches subjects against bindings. Synchronous and pure: equal bindings and subjects give equal answers."""

    def bind(self, binding: Binding) -> None:
        """Add a binding; an existing one is kept once. Raises BindingInvalid, and then nothing has changed."""

    def unbind(self, binding: Binding) -> None:
        """Remove a binding; no error if it does not exist."""

    def bindings(self) -> Sequence[Binding]:
        """All bindings in the order in which they were made."""

    def fields(self) -> frozenset[str]:
        """The fields that the present bindings examine beyond routing key and labels: "key", "size", "header:NAME"."""

    def match(self, subject: Subject) -> Sequence[Binding]:
        """The matching bindings, in the order in which they were made; may be empty.

        An exception fails the publish with a LinnError that names the plugin.
        """


@runtime_checkable
class MatchesInSteps(Protocol):
    """An exchange that may take long over one subject, and lets other tasks run meanwhile."""

    def match_in_steps(self, subject: Subject) -> Steps[Sequence[Binding]]:
        """Match in steps of at most a millisecond. Bindings may come and go between them."""


@dataclass(frozen=True, slots=True)
class ExchangeKind:
    """An exchange type, as a plugin registers it."""

    name: str
    """The value of `type =` in an `[exchanges.*]` table."""
    settings: type[Any]
    """A frozen msgspec.Struct for the other keys of that table, each with a default and a help text."""
    make: Callable[[str, Any], Exchange]
    """(exchange's name, settings) -> exchange."""
