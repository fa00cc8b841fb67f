"""The exchange port: a function from (routing key, labels) to topics, evaluated once per distinct value in a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from linn.core.routes import Pair


@dataclass(frozen=True, slots=True)
class Binding:
    """One rule of an exchange: what matches goes to `topic`."""

    topic: str
    key: str = ""
    """The routing key, or pattern, as the exchange's type reads it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What only this type of exchange knows."""


class Exchange(Protocol):
    """Matches pairs against bindings. Synchronous and pure: equal bindings and pairs give equal topics."""

    def bind(self, binding: Binding) -> None:
        """Add a binding; one that exists already is kept once. Raises BindingInvalid."""

    def unbind(self, binding: Binding) -> None:
        """Remove a binding; no error where there is none."""

    def bindings(self) -> Sequence[Binding]:
        """All bindings in the order in which they were made."""

    def route(self, pair: Pair) -> Sequence[str]:
        """The topics for a pair, each once, in a stable order; empty where nothing matches.

        An exception fails the publish with a LinnError that names the plugin.
        """


@dataclass(frozen=True, slots=True)
class ExchangeKind:
    """What a plugin registers."""

    name: str
    """The value of `type =` in an `[exchanges.*]` table."""
    settings: type[Any]
    """A frozen msgspec.Struct for the other keys of that table, each with a default and a help text."""
    make: Callable[[str, Any], Exchange]
    """(exchange's name, settings) -> exchange."""
