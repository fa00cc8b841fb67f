"""The limit on one message's bytes, its value, key and headers together, checked for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, sub

from linn.core.batch.batch import Format, RecordBatch
from linn.core.batch.body import Body, HeaderColumn
from linn.core.batch.column import any_step_over
from linn.core.batch.steps import STEP_RECORDS, Steps
from linn.core.errors.tree import MessageTooLarge
from linn.core.routing.budget import PublishBudget

_QUICK_BYTES_MAX = 1 << 30
"""Largest body whose sizes are added up as 31-bit digits: there are two columns of them."""


def check_steps(batch: RecordBatch, limit: int | None, budget: PublishBudget) -> Steps[None]:
    """Check that no message of a verified batch is over the limit; done once for a batch with many topics, or that
    waits.

    Raises MessageTooLarge with the indexes of all messages that are over it; BatchMalformed; LimitExceeded: it is over
    the budget.
    """
    # If the whole native body is not over the limit, no message is.
    if limit is None or (batch.body_bytes <= limit and batch.format == Format.NATIVE):
        return
    if batch.messages_within is None or batch.messages_within > limit:
        budget.look_into(batch)
        if batch.body_bytes >= _QUICK_BYTES_MAX or not _is_plainly_within(batch.body(), limit):
            yield from _check_each(batch.body(), limit)
        batch.messages_within = limit


def _is_plainly_within(body: Body, limit: int) -> bool:
    """Whether all sizes are within the limit, without a loop over records: a few compressed bytes may hold
    a million.
    """
    columns = [body.values.offsets] if body.keys is None else [body.values.offsets, body.keys.offsets]
    headers_bytes = len(body.headers.names.data) + len(body.headers.values.data) if body.headers is not None else 0
    if headers_bytes > limit:
        return False
    return not any_step_over(limit - headers_bytes, columns)


def _check_each(body: Body, limit: int) -> Steps[None]:
    count, over, largest = len(body.values), list[int](), 0
    for first in range(0, count, STEP_RECORDS):
        last = min(first + STEP_RECORDS, count)
        sizes = _sizes(body.values.offsets.cast("i")[first : last + 1])
        if body.keys is not None:
            sizes = list(map(add, sizes, _sizes(body.keys.offsets.cast("i")[first : last + 1])))
        if body.headers is not None:
            sizes = list(map(add, sizes, _sizes_of_headers(body.headers, first, last)))
        if max(sizes) > limit:
            largest = max(largest, *sizes)
            over += [first + place for place, size in enumerate(sizes) if size > limit]
        yield
    if over:
        size = f"{largest} bytes, more than {limit}" if len(over) == 1 else f"more than {limit} bytes"
        raise MessageTooLarge(f"a message of {size}").of_messages(over)


def _sizes_of_headers(headers: HeaderColumn, first: int, last: int) -> Sequence[int]:
    entries = memoryview(headers.offsets).cast("i")[first : last + 1].tolist()
    names, values = (column.offsets.cast("i") for column in (headers.names, headers.values))
    return list(map(add, *(_sizes([ends[entry] for entry in entries]) for ends in (names, values))))


def _sizes(ends: Sequence[int]) -> list[int]:
    return list(map(sub, ends[1:], ends))
