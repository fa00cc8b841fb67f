"""The distinct (routing key, labels) pairs of a batch, encoded once as a `Routes` message.

A broker looks up the bytes in a cache of routes, so that a batch like an earlier one is routed by one dictionary
look-up. Law: equal pairs in equal order give equal bytes (labels are sorted by name, in order of code points). Equal
includes equal in type: `True`, `1` and `1.0` are three labels, `0.0` and `-0.0` are two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import capnp

from linn.core.batch import schema
from linn.core.batch.flat_message import Buffer
from linn.core.batch.flat_routes import read_routes
from linn.core.batch.record import Labels, LabelValue
from linn.core.errors.tree import BatchMalformed, MessageInvalid

PAIRS_MAX = 65_535
"""Pairs that a UInt16 index can distinguish."""
LABELS_MAX = 256
"""Limit of the labels of a pair: more labels are data, not routing criteria."""
TEXT_BYTES_MAX = 4_096
"""Limit of a routing key, a label's name or a label's text, in UTF-8: 16 times RabbitMQ's limit for routing keys."""
ROUTES_BYTES_MAX = 2 << 20
"""Limit of the encoded pairs: space for 65,535 routing keys of 15 bytes. Decoding that many of the costliest bytes
takes a third of a second (measured); a batch of the largest size would block a broker for 1.3 s."""


class Pair(NamedTuple):
    """A distinct (routing key, labels) pair of a batch."""

    routing_key: str
    labels: tuple[tuple[str, LabelValue], ...]


NO_PAIR = Pair("", ())


def pair_of(routing_key: str, labels: Labels | None) -> Pair:
    """The pair of a record, labels sorted by name.

    Raises MessageInvalid if labels are not a mapping from text.
    """
    if not labels:
        return Pair(routing_key, ())
    try:
        return Pair(routing_key, tuple(sorted(labels.items())))
    except (TypeError, AttributeError) as error:
        raise MessageInvalid(f"labels must be a mapping from text to values: {error}") from error


def exact_kinds(pairs: Iterable[Pair]) -> tuple[object, ...]:
    """The differences that == ignores: the type of each label's value, and all bits of a float."""
    return tuple(v.hex() if isinstance(v, float) else type(v) for _, labels in pairs for _, v in labels)


def _checked_text(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise MessageInvalid(f"{what} must be text, not {type(text).__name__}")
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
            raise MessageInvalid(f"label {name!r} does not fit into 64 bits")
        target.int = int(value)  # pycapnp refuses subclasses.
    elif isinstance(value, float):
        target.float = float(value)
    else:
        raise MessageInvalid(f"label {name!r} must be text, int, float or bool, not {type(value).__name__}")


def routes_bytes(pairs: Sequence[Pair]) -> int:
    """An upper bound of the bytes of encoded pairs."""
    return 8 * _words_of(pairs)


def _words_of(pairs: Sequence[Pair]) -> int:
    """An upper bound of the encoded size, in words, so that the message is one segment."""
    words = 8
    for routing_key, labels in pairs:
        words += 4 + len(routing_key) // 2
        for name, value in labels:
            words += 7 + len(name) // 2 + (len(value) // 2 if isinstance(value, str) else 0)
    return words


def encode_routes(pairs: Sequence[Pair]) -> bytes:
    """Encode pairs as the batch's `routes` field.

    Raises:
        MessageInvalid: too many pairs or labels, a text too long, a label of another type, or the whole encoding too
            large.
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
        assert all(first[0] < second[0] for first, second in pairwise(labels)), "labels are sorted by name"
        for label, (name, value) in zip(target.init("labels", len(labels)), labels, strict=True):
            label.name = _checked_text(name, "a label's name")
            _set_value(label.value, name, value)
    data = bytes(message.to_bytes())
    if len(data) > ROUTES_BYTES_MAX:
        raise MessageInvalid(f"the routing keys and labels of a batch have {len(data)} bytes, over {ROUTES_BYTES_MAX}")
    return data


@lru_cache(maxsize=1024)
def _encode_exact(pairs: tuple[Pair, ...], _kinds: tuple[object, ...]) -> bytes:
    return encode_routes(pairs)


def encode_routes_cached(pairs: tuple[Pair, ...]) -> bytes:
    """Encode a tuple of few pairs, which producers repeat batch after batch; see `encode_routes`.

    Raises MessageInvalid; TypeError if a label can't be hashed.
    """
    return _encode_exact(pairs, exact_kinds(pairs))


def decode_routes(data: Buffer, count: int) -> list[Pair]:
    """Read the `routes` field of a batch that claims to have `count` pairs.

    Raises:
        BatchMalformed: not a Routes message, another count, an unknown type of label, or over a limit.
    """
    if len(data) > ROUTES_BYTES_MAX:
        raise BatchMalformed(f"the routes of a batch have {len(data)} bytes, over {ROUTES_BYTES_MAX}")
    data = bytes(data)
    if (flat := read_routes(data, count, LABELS_MAX, TEXT_BYTES_MAX)) is not None:
        return list(map(Pair._make, flat))
    return decode_any_routes(data, count)


def decode_any_routes(data: bytes, count: int) -> list[Pair]:
    """Decode routes in any layout that Cap'n Proto allows. Raises BatchMalformed."""
    try:
        # Each word is read once: a message that points at the same bytes repeatedly is refused.
        with schema.load("batch").Routes.from_bytes(
            data, traversal_limit_in_words=len(data) // 8 + 64, nesting_limit=8
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
    found: list[tuple[str, LabelValue]] = []
    for label in labels:
        name = _read_text(label.name)
        if found and name <= found[-1][0]:
            raise BatchMalformed("the labels of a message are not sorted by name, or a name repeats")
        found.append((name, _read_value(label.value)))
    return Pair(_read_text(pair.routingKey), tuple(found))


def _read_value(value: Any) -> LabelValue:
    kind = str(value.which())
    result: LabelValue = getattr(value, kind)
    return _read_text(result) if isinstance(result, str) else result


def _read_text(text: str) -> str:
    # UTF-8 has at most four bytes per code point: short texts need not be encoded to be measured.
    if len(text) > TEXT_BYTES_MAX // 4 and len(text.encode()) > TEXT_BYTES_MAX:
        raise BatchMalformed(f"a routing key or label is longer than {TEXT_BYTES_MAX} bytes")
    return text
