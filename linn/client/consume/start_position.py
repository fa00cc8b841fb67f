"""Start position of a consumer: the Subscribe requests for a user's choice, or for what was read already."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from linn.client.arguments import I64_MAX, shown, timestamp_ms_of
from linn.client.connection.connector import Connector
from linn.client.connection.metadata import describe, find_offset
from linn.core.errors.tree import MessageInvalid
from linn.wire.messages import START_EARLIEST, START_LATEST, Subscribe

Start = Literal["earliest", "latest"] | int | datetime
Request = tuple[Subscribe, dict[int, int]]
"""A subscription to ask for, and the offset by partition from which records are handed over."""


def check_start(start: object) -> None:
    """Check a start position. Raises MessageInvalid."""
    if isinstance(start, datetime):
        timestamp_ms_of(start)
        return
    number = isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= I64_MAX
    if not number and not (isinstance(start, str) and start in ("earliest", "latest")):
        raise MessageInvalid(f'start must be "earliest", "latest", an offset or a datetime, not {shown(start)}')


async def first_requests(connector: Connector, topic: str, group: str, start: Start) -> list[Request]:
    """Build the requests of a consumer that has read nothing. Raises ConnectionLost, RequestTimeout, TopicUnknown."""
    if isinstance(start, datetime):
        return await _requests_by_time(connector, topic, group, timestamp_ms_of(start))
    if start == "latest" and not group:
        # An offset now: the position survives a reconnection before the first record.
        return await _requests_by_time(connector, topic, group, START_LATEST)
    if isinstance(start, str):
        return [(Subscribe(topic, group, 0, START_LATEST if start == "latest" else START_EARLIEST), {})]
    return [(Subscribe(topic, group, 0, start), {})]


async def _requests_by_time(connector: Connector, topic: str, group: str, timestamp_ms: int) -> list[Request]:
    (info,) = (await describe(connector, [topic])).topics
    if info.kind != "stream" and not group:
        return [(Subscribe(topic, start=START_LATEST), {})]  # The broker refuses it: a queue has no start.
    partitions = range(len(info.partitions))
    found = [await find_offset(connector, topic, partition, timestamp_ms) for partition in partitions]
    if group:
        # For the partitions that this member will own and that have no committed offset.
        return [(Subscribe(topic, group, starts=found), {})]
    return [_reader(topic, partition, offset) for partition, offset in enumerate(found)]


async def next_requests(connector: Connector, topic: str, start: Start, positions: dict[int, int]) -> list[Request]:
    """Build the requests of a reader that goes on; unread partitions begin at `start`.

    Raises ConnectionLost, RequestTimeout.
    """
    (info,) = (await describe(connector, [topic])).topics
    first = start if isinstance(start, int) else START_EARLIEST
    every = dict.fromkeys(range(len(info.partitions)), first) | positions
    return [_reader(topic, partition, offset) for partition, offset in every.items()]


def _reader(topic: str, partition: int, offset: int) -> Request:
    return Subscribe(topic, start=offset, partitions=[partition]), {partition: offset}
