"""Message properties, checked one message at a time, so that a wrong one fails only its own publish.

The checks cover everything for which `build_batch` would refuse a whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from linn.client.arguments import I64_MAX, U32_MAX, HeadersInput, as_bytes, checked_headers, checked_number, due_ms_of
from linn.core.batch.record import Headers, Labels
from linn.core.batch.routes import NO_PAIR, Pair, encode_routes
from linn.core.errors.tree import MessageInvalid

HEADER_BYTES = 16
"""Offsets of one header in its columns."""


class Properties(NamedTuple):
    """Properties of one message: everything but its value."""

    key: bytes | None = None
    pair: Pair = NO_PAIR
    headers: Headers = ()
    id: UUID | None = None
    timestamp_ms: int | None = None
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    due_ms: int = 0

    @property
    def is_delayed(self) -> bool:
        """Whether the message comes into its topic later."""
        return bool(self.delay_ms or self.due_ms)


PLAIN = Properties()


def checked_pair(routing_key: str, labels: Labels | None) -> Pair:
    """Check routing key and labels of a message; return them as a pair. Raises MessageInvalid."""
    if not routing_key and not labels:
        return NO_PAIR
    try:
        if not labels:
            return _checked_pair(routing_key, (), ())
        return _checked_pair(routing_key, tuple(labels.items()), tuple(map(type, labels.values())))
    except (TypeError, AttributeError) as error:
        raise _wrong_pair(routing_key, labels) from error


def _wrong_pair(routing_key: object, labels: object) -> MessageInvalid:
    """Make the error for a pair that can't be hashed or sorted."""
    if not isinstance(routing_key, str):
        return MessageInvalid(f"a routing key must be text, not {type(routing_key).__name__}")
    if not isinstance(labels, Mapping):
        return MessageInvalid(f"labels must be a mapping from text to values, not {type(labels).__name__}")
    for name, value in labels.items():
        if not isinstance(name, str):
            return MessageInvalid(f"a label's name must be text, not {type(name).__name__}")
        if not isinstance(value, str | int | float):
            return MessageInvalid(f"label {name!r} must be text, int, float or bool, not {type(value).__name__}")
    return MessageInvalid("labels are text, int, float or bool by name")


@lru_cache(maxsize=4096)
def _checked_pair(routing_key: str, items: tuple[tuple[str, Any], ...], types: tuple[type, ...]) -> Pair:
    """Check a pair, with a cache; `types` tells 1 from True and from 1.0 in it."""
    pair = Pair(routing_key, tuple(sorted(items)))
    encode_routes((pair,))
    return pair


def checked_numbers(priority: int, delay_ms: int, ttl_ms: int, timestamp_ms: int | None) -> None:
    """Check numbers against the range of their columns. Raises MessageInvalid."""
    checked_number(priority, "priority", 255)
    checked_number(delay_ms, "delay_ms", U32_MAX)
    checked_number(ttl_ms, "ttl_ms", U32_MAX)
    if timestamp_ms is not None:
        checked_number(timestamp_ms, "timestamp_ms", I64_MAX)


def checked(
    key: object,
    routing_key: str,
    labels: Labels | None,
    headers: HeadersInput | None,
    id: UUID | None,
    timestamp_ms: int | None,
    priority: int,
    delay_ms: int,
    ttl_ms: int,
    at: datetime | int | None,
) -> Properties:
    """Check the properties of one message. Raises MessageInvalid."""
    checked_numbers(priority, delay_ms, ttl_ms, timestamp_ms)
    if id is not None and not isinstance(id, UUID):
        raise MessageInvalid(f"id must be a UUID, not {type(id).__name__}")
    return Properties(
        as_bytes(key, "a key") if key is not None else None,
        checked_pair(routing_key, labels),
        checked_headers(headers),
        id,
        timestamp_ms,
        priority,
        delay_ms,
        ttl_ms,
        due_ms_of(at, delay_ms),
    )


def size_of(properties: Properties) -> int:
    """Return the size of key and headers together, as a broker counts it against `message_bytes_max`."""
    key, headers = properties.key, properties.headers
    size = len(key) if key is not None else 0
    return size + sum(len(name.encode()) + len(value or b"") for name, value in headers)


def overhead_of(properties: Properties) -> int:
    """Return the bytes that a message adds to a batch besides value, key, content of headers, and labels."""
    _, _, headers, id, timestamp_ms, _, delay_ms, ttl_ms, due_ms = properties
    row = 16 * (id is not None) + 8 * (timestamp_ms is not None) + 4 * (delay_ms > 0) + 4 * (ttl_ms > 0)
    row += 8 * (due_ms > 0)
    return row + HEADER_BYTES * len(headers)


def index_pairs(pairs: Sequence[Pair]) -> tuple[tuple[Pair, ...], list[int] | None]:
    """Return the distinct pairs by first occurrence, and each record's index among them; None if there is only one."""
    places: dict[object, int] = {}
    distinct: list[Pair] = []
    by_object: dict[int, int] = {}
    for pair in {id(pair): pair for pair in pairs}.values():
        # Types are told apart: 1, True and 1.0 are equal in Python and three values to an exchange.
        typed = (pair.routing_key, tuple((name, type(value), value) for name, value in pair.labels))
        place = places.setdefault(typed, len(distinct))
        if place == len(distinct):
            distinct.append(pair)
        by_object[id(pair)] = place
    if len(distinct) == 1:
        return (() if distinct[0] == NO_PAIR else tuple(distinct)), None
    return tuple(distinct), [by_object[id(pair)] for pair in pairs]
