"""The fields of a batch's records that exchanges examine, by column, beyond routing keys and labels.

Law: the body is opened once per batch, and only columns that were asked for are read. There is a Python loop over
records, because a binding asked for a field that each of them has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import sub
from typing import Any

from linn.core.batch.batch import RecordBatch
from linn.core.batch.body import Body, HeaderColumn
from linn.core.routing.exchange import NO_HEADERS, Subject

HEADER = "header:"
"""Prefix of a field that asks for a header; its name follows."""
Content = tuple[Any, ...]
"""One record's values of the fields, in the order of `ContentFields.names`."""


class ContentFields:
    """Fields in a fixed order."""

    def __init__(self, names: Collection[str]) -> None:
        """`names` must have passed `check_fields`."""
        self.names = tuple(sorted(names))

    def rows(self, batch: RecordBatch) -> list[Content]:
        """The content of each record. Raises BatchMalformed."""
        body = batch.body()
        wanted = [name.removeprefix(HEADER) for name in self.names if name.startswith(HEADER)]
        headers = _headers(body.headers, wanted, batch.count)
        columns = [
            _SIMPLE[name](body, batch.count) if name in _SIMPLE else headers[name.removeprefix(HEADER)]
            for name in self.names
        ]
        return list(zip(*columns, strict=True))

    def subject(self, routing_key: str, labels: Mapping[str, Any], content: Content) -> Subject:
        """The subject that an exchange is shown for a record with this content."""
        known = dict(zip(self.names, content, strict=True))
        headers = {
            name.removeprefix(HEADER): value
            for name, value in known.items()
            if name.startswith(HEADER) and value is not None
        }
        return Subject(routing_key, labels, known.get("key"), headers or NO_HEADERS, known.get("size", 0))


def check_fields(names: Collection[str]) -> None:
    """Check names of fields. Raises ValueError if one is not a field."""
    for name in names:
        if name not in _SIMPLE and not name.startswith(HEADER):
            raise ValueError(f"fields() names {name!r}, which is none of key, size and header:NAME")


def _keys(body: Body, count: int) -> Sequence[bytes | None]:
    return body.keys.to_list() if body.keys is not None else [None] * count


def _sizes(body: Body, count: int) -> Sequence[int]:
    ends = memoryview(body.values.offsets).cast("i")
    return list(map(sub, ends[1:], ends))


_SIMPLE: Mapping[str, Callable[[Body, int], Sequence[Any]]] = {"key": _keys, "size": _sizes}


def _headers(column: HeaderColumn | None, names: Sequence[str], count: int) -> dict[str, list[bytes | None]]:
    """The values of each of these headers by record; for a name that repeats, the last."""
    found: dict[str, list[bytes | None]] = {name: [None] * count for name in names}
    if column is None or not names:
        return found
    by_name = {name.encode(): found[name] for name in names}
    ends = memoryview(column.offsets).cast("i")
    for record in range(count):
        for entry in range(ends[record], ends[record + 1]):
            wanted = by_name.get(column.names[entry] or b"")
            if wanted is not None:
                wanted[record] = column.values[entry]
    return found
