"""A record: the message that a user publishes and gets back, with all its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

LabelValue = str | int | float | bool
Labels = Mapping[str, LabelValue]
Headers = tuple[tuple[str, bytes | None], ...]

NO_LABELS: Labels = MappingProxyType({})
DUE_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, beyond which dates can't be written."""
RESERVED_LABELS = "linn."
"""Beginning of the names of labels that only the broker writes, into dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A message's content and properties, without the topic and offset that a log assigns."""

    value: bytes | None = b""
    """The content. None is a tombstone, as in Kafka."""
    key: bytes | None = None
    """The key by which records are partitioned and ordered."""
    routing_key: str = ""
    """Words separated by dots, used for routing by direct and topic exchanges."""
    labels: Labels = field(default_factory=lambda: NO_LABELS)
    """Typed properties that exchanges can see: text, 64-bit int, float or bool by name."""
    headers: Headers = ()
    """Application properties that only readers see; names may repeat, order is kept."""
    id: UUID | None = None
    """128 bits; the producer's library chooses one if the user gives none."""
    timestamp_ms: int = 0
    """Creation time, ms since 1970."""
    priority: int = 0
    """0 to 255; higher goes first if the topic orders by priority."""
    delay_ms: int = 0
    """Earliest delivery, in ms after the append."""
    ttl_ms: int = 0
    """Latest delivery, in ms after the append; 0: no limit."""
    due_ms: int = 0
    """Earliest delivery, in ms since 1970; 0: at once, or after `delay_ms`."""
