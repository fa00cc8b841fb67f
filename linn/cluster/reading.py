"""Reads at other brokers for one session elsewhere: fetches, offsets and bounds.

Each request has a lane for itself, so that one that is given up is ended by closing its lane. A lane whose request was
answered rests, and the next request to the same broker takes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import ceil

import trio

from linn.cluster.link import Link
from linn.core.batch.batch import RecordBatch
from linn.core.cluster.peers import Forwarded
from linn.core.errors.tree import LinnError
from linn.core.gateway.elsewhere import Bounds
from linn.core.gateway.requests import Fetched, FetchRequest
from linn.core.ports.principal import Principal
from linn.wire import messages as m
from linn.wire.connection import Event

WAITS_MAX = 64
"""Limit of one session's fetches that wait at other brokers, each in a lane: otherwise a few clients could take all
lanes of a link. Further ones wait for one of them to end."""


class Reading:
    """The port `PeerReader`."""

    def __init__(self, link: Callable[[int], Awaitable[Link]], principal: Principal, forwarded: Forwarded) -> None:
        """`link`: returns the link to a node. Raises PeerUnreachable, PeerRefused, PeerStale."""
        self._link = link
        self._principal = principal
        self._forwarded = forwarded
        self._resting: dict[int, tuple[Link, int]] = {}
        """The lane that rests, by node."""
        self._waits = trio.Semaphore(WAITS_MAX)
        self._is_closed = False

    async def fetch(self, node: int, request: FetchRequest, wait_s: float) -> Fetched:
        """See `PeerReader.fetch`."""
        asked = m.Fetch(
            request.topic,
            request.partition,
            request.offset,
            min(request.bytes_min, m.LIMIT_MAX),
            min(request.bytes_max, m.LIMIT_MAX),
            ceil(wait_s * 1000),
            request.where,
            request.is_unsettled,
            request.leader_epoch,
            *request.topic_id,
            list(request.accepts),
            request.is_uncommitted,
        )
        if wait_s:
            async with self._waits:
                event = await self._ask(node, asked, m.Fetched)
        else:
            event = await self._ask(node, asked, m.Fetched)
        found = event.message
        assert isinstance(found, m.Fetched), "it was checked"
        self._forwarded.delivered_bytes += sum([batch.size for batch in event.batches])
        return Fetched(event.batches, found.next_offset, found.start_offset, found.high_watermark, found.leader_epoch)

    async def find_offset(self, node: int, topic: str, partition: int, place: int, timestamp_ms: int) -> int:
        """See `PeerReader.find_offset`."""
        event = await self._ask(node, m.FindOffset(topic, partition, timestamp_ms, place), m.FoundOffset)
        assert isinstance(event.message, m.FoundOffset), "it was checked"
        return event.message.offset

    async def bounds(self, node: int, names: Sequence[str]) -> Mapping[str, Bounds]:
        """See `PeerReader.bounds`."""
        event = await self._ask(node, m.Describe(list(names)), m.Description)
        assert isinstance(event.message, m.Description), "it was checked"
        return {
            topic.name: [(info.start_offset, info.high_watermark) for info in topic.partitions]
            for topic in event.message.topics
        }

    def close(self) -> None:
        """See `PeerReader.close`."""
        self._is_closed = True
        resting, self._resting = self._resting, {}
        for link, lane in resting.values():
            link.close_lane(lane)

    async def _ask(
        self,
        node: int,
        message: m.Message,
        answer: type[m.Message],
        batches: Sequence[RecordBatch] = (),
        *,
        is_repeatable: bool = True,
    ) -> Event:
        """Ask a node. Raises LinnError: the answer, or the other broker could not be asked."""
        link, lane = await self._lane(node)
        try:
            event = await link.ask(lane, message, batches, is_repeatable=is_repeatable)
        except LinnError:
            self._rest(node, link, lane)
            raise
        except BaseException:
            link.close_lane(lane)
            raise
        if not isinstance(event.message, answer):
            raise link.unexpected(event.message, type(message).__name__, is_repeatable=is_repeatable)
        self._rest(node, link, lane)
        return event

    async def _lane(self, node: int) -> tuple[Link, int]:
        link, lane = self._resting.pop(node, (None, 0))
        if link is not None and link.error is None:
            link.use(lane)
            return link, lane
        link = await self._link(node)
        return link, await link.open_lane(self._principal)

    def _rest(self, node: int, link: Link, lane: int) -> None:
        if self._is_closed or node in self._resting:
            link.close_lane(lane)
        elif link.error is None:
            self._resting[node] = link, lane
            link.rest(lane, partial(self._resting.pop, node, None))
