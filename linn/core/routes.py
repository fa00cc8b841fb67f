"""The distinct (routing key, labels) pairs of a batch, encoded once as a `Routes` message.

A broker looks its bytes up in a cache of routes, so that a batch like the one before it is routed by one dictionary
look-up. Law: equal pairs in equal order give equal bytes (labels are sorted by name).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import capnp

from linn.core import schema
from linn.core.errors import BatchMalformed, MessageInvalid
from linn.core.flat_message import Buffer
from linn.core.record import Labels, LabelValue

PAIRS_MAX = 65_535
"""What a UInt16 index can tell apart."""
LABELS_MAX = 256
"""Labels per pair: more are data, not something to route by."""
TEXT_BYTES_MAX = 4_096
"""A routing key, a label's name or a label's text, in UTF-8: 16 times RabbitMQ's limit for routing keys."""


class Pair(NamedTuple):
    """One distinct (routing key, labels) of a batch."""

    routing_key: str
    labels: tuple[tuple[str, LabelValue], ...]


NO_PAIR = Pair("", ())


def pair_of(routing_key: str, labels: Labels | None) -> Pair:
    """The pair of a record, labels sorted by name."""
    if not labels:
        return Pair(routing_key, ())
    return Pair(routing_key, tuple(sorted(labels.items())))


def _checked_text(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise MessageInvalid(f"{what} is text, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise MessageInvalid(f"{what} is not valid Unicode") from error
    if size > TEXT_BYTES_MAX:
        raise MessageInvalid(f"{what} has {size} bytes, more than {TEXT_BYTES_MAX}")
    return text


def _set_value(target: Any, name: str, value: LabelValue) -> None:
    if isinstance(value, bool):
        target.bool = value
    elif isinstance(value, str):
        target.text = _checked_text(value, f"label {name!r}")
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise MessageInvalid(f"label {name!r} does not fit 64 bits")
        target.int = value
    elif isinstance(value, float):
        target.float = value
    else:
        raise MessageInvalid(f"label {name!r} is text, int, float or bool, not {type(value).__name__}")


def _words_of(pairs: Sequence[Pair]) -> int:
    """An upper bound of the encoded size, in words, so that the message is one segment."""
    words = 8
    for routing_key, labels in pairs:
        words += 4 + len(routing_key)
        for name, value in labels:
            words += 7 + len(name) + (len(value) if isinstance(value, str) else 0)
    return words


def encode_routes(pairs: Sequence[Pair]) -> bytes:
    """Encode pairs as the batch's `routes` field.

    Raises:
        MessageInvalid: too many pairs or labels, a text too long, a label of another type.
    """
    if len(pairs) > PAIRS_MAX:
        raise MessageInvalid(f"{len(pairs)} distinct (routing key, labels) pairs in one batch, more than {PAIRS_MAX}")
    message = schema.load("batch").Routes.new_message(num_first_segment_words=_words_of(pairs))
    targets = message.init("pairs", len(pairs))
    for target, (routing_key, labels) in zip(targets, pairs, strict=True):
        target.routingKey = _checked_text(routing_key, "routing key")
        if not labels:
            continue
        if len(labels) > LABELS_MAX:
            raise MessageInvalid(f"{len(labels)} labels on one message, more than {LABELS_MAX}")
        for label, (name, value) in zip(target.init("labels", len(labels)), labels, strict=True):
            label.name = _checked_text(name, "a label's name")
            _set_value(label.value, name, value)
    return bytes(message.to_bytes())


encode_routes_cached = lru_cache(maxsize=1024)(encode_routes)
"""`encode_routes` for a tuple of few pairs, which producers repeat batch after batch."""


def decode_routes(data: Buffer, count: int) -> list[Pair]:
    """Read the `routes` field of a batch that says it has `count` pairs.

    Raises:
        BatchMalformed: not a Routes message, another count, or an unknown type of label.
    """
    try:
        # Twice the words plus some: a message that points at the same bytes again and again is refused.
        with schema.load("batch").Routes.from_bytes(
            bytes(data), traversal_limit_in_words=len(data) // 4 + 64, nesting_limit=8
        ) as message:
            pairs = message.pairs
            if len(pairs) != count:
                raise BatchMalformed(f"the batch names {count} pairs and holds {len(pairs)}")
            return [_read_pair(pair) for pair in pairs]
    except (capnp.KjException, UnicodeDecodeError, ValueError) as error:
        raise BatchMalformed("the routes of the batch can't be read") from error


def _read_pair(pair: Any) -> Pair:
    labels = pair.labels
    if len(labels) > LABELS_MAX:
        raise BatchMalformed(f"{len(labels)} labels on one message, more than {LABELS_MAX}")
    return Pair(pair.routingKey, tuple((label.name, _read_value(label.value)) for label in labels))


def _read_value(value: Any) -> LabelValue:
    kind = str(value.which())
    result: LabelValue = getattr(value, kind)
    return result
