"""Where a consumer begins: from what its user said, and from what it has read, to requests to the broker."""

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
"""A subscription to ask for, and from which offset on its partitions are to be handed over."""


def check_start(start: object) -> None:
    """Raises MessageInvalid where `start` is no place."""
    if isinstance(start, datetime):
        timestamp_ms_of(start)
        return
    number = isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= I64_MAX
    if not number and not (isinstance(start, str) and start in ("earliest", "latest")):
        raise MessageInvalid(f'start is "earliest", "latest", an offset or a datetime, not {shown(start)}')


async def first_requests(connector: Connector, topic: str, group: str, start: Start) -> list[Request]:
    """What to subscribe to where nothing has been read yet. Raises ConnectionLost, RequestTimeout, TopicUnknown."""
    if isinstance(start, datetime):
        return await _requests_by_time(connector, topic, group, timestamp_ms_of(start))
    if start == "latest" and not group:
        # The place is kept, whatever happens before the first record.
        return await _requests_by_time(connector, topic, group, START_LATEST)
    if isinstance(start, str):
        return [(Subscribe(topic, group, 0, START_LATEST if start == "latest" else START_EARLIEST), {})]
    return [(Subscribe(topic, group, 0, start), {})]


async def _requests_by_time(connector: Connector, topic: str, group: str, timestamp_ms: int) -> list[Request]:
    (info,) = (await describe(connector, [topic])).topics
    if info.kind != "stream" and not group:
        return [(Subscribe(topic, start=START_LATEST), {})]  # The broker's to refuse: a queue has no start.
    partitions = range(len(info.partitions))
    found = [await find_offset(connector, topic, partition, timestamp_ms) for partition in partitions]
    if group:
        # Whichever of them this member comes to own, and where the group has committed nothing.
        return [(Subscribe(topic, group, starts=found), {})]
    return [_reader(topic, partition, offset) for partition, offset in enumerate(found)]


async def next_requests(connector: Connector, topic: str, start: Start, positions: dict[int, int]) -> list[Request]:
    """What a reader subscribes to that goes on; partitions of which it has read nothing begin where `start` says.

    Raises ConnectionLost, RequestTimeout.
    """
    (info,) = (await describe(connector, [topic])).topics
    first = start if isinstance(start, int) else START_EARLIEST
    every = dict.fromkeys(range(len(info.partitions)), first) | positions
    return [_reader(topic, partition, offset) for partition, offset in every.items()]


def _reader(topic: str, partition: int, offset: int) -> Request:
    return Subscribe(topic, start=offset, partitions=[partition]), {partition: offset}
