"""Start position of a consumer: Subscribe requests for the user's choice, or for the present positions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from linn.client.arguments import I64_MAX, shown, timestamp_ms_of
from linn.client.connection.connector import Connector
from linn.client.connection.metadata import describe, find_offset
from linn.core.errors.tree import MessageInvalid
from linn.wire.messages import START_EARLIEST, START_LATEST, Subscribe


class Read(NamedTuple):
    """Position of a reader in a partition."""

    offset: int
    """The next offset."""
    leader_epoch: int
    """Leader epoch in which the preceding records were read; 0: unknown."""
    topic_id: tuple[int, int]
    """The halves of the topic's id; zeros: unknown."""


Start = Literal["earliest", "latest"] | int | datetime
Request = tuple[Subscribe, dict[int, int]]
"""Subscribe request, and by partition the offset from which records are handed out."""


def check_start(start: object) -> None:
    """Check a start position. Raises MessageInvalid."""
    if isinstance(start, datetime):
        timestamp_ms_of(start)
        return
    number = isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= I64_MAX
    if not number and not (isinstance(start, str) and start in ("earliest", "latest")):
        raise MessageInvalid(f'start must be "earliest", "latest", an offset or a datetime, not {shown(start)}')


async def requests_for(
    connector: Connector,
    topics: Sequence[str],
    whose: tuple[str, str],
    start: Start,
    where: str,
    positions: dict[int, Read],
) -> list[Request]:
    """Build the requests of a consumer in a group, in a shared subscription, or alone.

    `whose`: names of group and shared subscription; `positions`: positions of a reader that goes on. Raises
    ConnectionLost, RequestTimeout, TopicUnknown.
    """
    requests: list[Request] = []
    for topic in topics:
        if positions:
            requests += await _next_requests(connector, topic, start, positions)
        else:
            requests += await _first_requests(connector, topic, *whose, start)
    for subscribe, _ in requests:
        subscribe.where = where
    return requests


async def _first_requests(connector: Connector, topic: str, group: str, shared: str, start: Start) -> list[Request]:
    """Build the requests of a consumer that has read nothing."""
    if isinstance(start, datetime):
        return await _requests_found(connector, topic, group, shared, start)
    if start == "latest" and not group and not shared:
        # Find the offset now, so that the position survives a reconnection before the first record.
        return await _requests_found(connector, topic, group, shared, "latest")
    if isinstance(start, str):
        start = START_LATEST if start == "latest" else START_EARLIEST
    return [(Subscribe(topic, group, start=start, shared=shared), {})]


async def _requests_found(
    connector: Connector, topic: str, group: str, shared: str, place: Literal["latest"] | datetime
) -> list[Request]:
    (info,) = (await describe(connector, [topic])).topics
    if info.kind != "stream" and not group and not shared:
        return [(Subscribe(topic, start=START_LATEST), {})]  # The broker refuses this: a queue has no start.
    partitions = range(len(info.partitions))
    found = [await find_offset(connector, topic, partition, place) for partition in partitions]
    if group or shared:
        # The start applies to partitions without a committed offset, or to a new subscription.
        return [(Subscribe(topic, group, starts=found, shared=shared), {})]
    return [_reader(topic, partition, Read(offset, 0, (0, 0))) for partition, offset in enumerate(found)]


async def _next_requests(connector: Connector, topic: str, start: Start, positions: dict[int, Read]) -> list[Request]:
    """Build the requests of a reader that goes on; unread partitions begin at `start`."""
    (info,) = (await describe(connector, [topic])).topics
    first = start if isinstance(start, int) else START_EARLIEST
    unread = Read(first, 0, (0, 0))
    every = dict.fromkeys(range(len(info.partitions)), unread) | positions
    for partition, read in every.items():
        if not read.leader_epoch and partition < len(info.partitions):
            # If nothing was read yet, a log that lost its end meanwhile is read from its end.
            every[partition] = read._replace(offset=min(read.offset, info.partitions[partition].high_watermark))
    return [_reader(topic, partition, read) for partition, read in every.items()]


def _reader(topic: str, partition: int, read: Read) -> Request:
    subscribe = Subscribe(topic, start=read.offset, partitions=[partition], leader_epoch=read.leader_epoch)
    subscribe.topic_id_high, subscribe.topic_id_low = read.topic_id
    return subscribe, {partition: read.offset}
