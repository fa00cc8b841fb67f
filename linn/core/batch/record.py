"""One record: what a user publishes and gets back, with everything that a message may carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

LabelValue = str | int | float | bool
Labels = Mapping[str, LabelValue]
Headers = tuple[tuple[str, bytes | None], ...]

NO_LABELS: Labels = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A message's content and properties, apart from the topic and offset that a log gives it."""

    value: bytes | None = b""
    """The content. None is a tombstone, as in Kafka."""
    key: bytes | None = None
    """What partitioning and key order go by."""
    routing_key: str = ""
    """What direct and topic exchanges go by: words separated by dots."""
    labels: Labels = field(default_factory=lambda: NO_LABELS)
    """Typed properties that exchanges can see: text, 64-bit int, float or bool by name."""
    headers: Headers = ()
    """Application properties that only readers see; names may repeat, order is kept."""
    id: UUID | None = None
    """128 bits; given by the producer's library where the user gives none."""
    timestamp_ms: int = 0
    """When it was made, ms since 1970."""
    priority: int = 0
    """0 to 255, higher first where a topic orders by priority."""
    delay_ms: int = 0
    """Not to be delivered before this long after the append."""
    ttl_ms: int = 0
    """Not to be delivered later than this long after the append; 0: no limit."""
