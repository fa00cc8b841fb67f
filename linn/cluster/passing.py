"""Publishes of one connection elsewhere, passed on to the brokers that lead their topics.

Laws: each broker has one lane, which keeps the order; a lane is replaced only when none of its publishes is under way.
Every publish has one outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio

from linn.cluster.link import Link, publish_of, result_of
from linn.cluster.requests import Outcome
from linn.core.cluster.peers import Forwarded
from linn.core.errors.tree import LinnError
from linn.core.ports.principal import Principal
from linn.core.publish.forwarding import Told
from linn.core.publish.request import PublishRequest
from linn.wire import messages as m


class _Lane:
    """A lane to one broker."""

    def __init__(self, link: Link, number: int, producers: Mapping[int, int]) -> None:
        self.link = link
        self.number = number
        self.producers = producers
        """The blocks of producer ids that it was opened with: their first ids, and keys."""
        self.under_way = 0
        """The number of its publishes without an outcome, sent or about to be."""
        self.is_open = True

    def closed(self) -> None:
        """Note that the link has closed it, in favour of another."""
        self.is_open = False


class Passing:
    """The port `PassedPublishes`."""

    def __init__(self, link: Callable[[int], Awaitable[Link]], principal: Principal, forwarded: Forwarded) -> None:
        """`link`: returns the link to a node. Raises PeerUnreachable, PeerRefused, PeerStale."""
        self._link = link
        self._principal = principal
        self._forwarded = forwarded
        self._lanes: dict[int, _Lane] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self._is_closed = False

    async def begin(self, node: int, request: PublishRequest, producers: Mapping[int, int], tell: Told) -> None:
        """See `PassedPublishes.begin`."""
        lane = await self._lane(node, producers)
        # Numbers let a batch be sent again whether or not it was stored.
        is_numbered = all(batch.producer_id for batch in request.batches)

        def told(outcome: Outcome) -> None:
            self._rest(lane)
            if self._is_closed:
                return
            if isinstance(outcome, LinnError):
                tell(outcome)
                return
            answer = outcome.message
            if isinstance(answer, m.Published) and len(answer.placements) == len(request.batches):
                tell([result_of(placement) for placement in answer.placements])
            else:
                tell(lane.link.unexpected(answer, "a publish", is_repeatable=is_numbered))

        asked = publish_of(request)
        try:
            await lane.link.begin(lane.number, asked, request.batches, told, is_repeatable=is_numbered)
        except BaseException:
            self._rest(lane)
            raise
        self._forwarded.publishes += 1
        self._forwarded.published_bytes += sum([batch.size for batch in request.batches])

    async def _lane(self, node: int, producers: Mapping[int, int]) -> _Lane:
        """Take the lane to a node, which knows these producers; the caller adds one publish to it."""
        while True:
            lane = self._lanes.get(node)
            if lane is not None and lane.is_open and lane.link.error is None:
                if producers.keys() <= lane.producers.keys():
                    if not lane.under_way:
                        lane.link.use(lane.number)
                    lane.under_way += 1
                    return lane
                if lane.under_way:
                    await self._changed.park()
                    continue
                lane.link.close_lane(lane.number)
                producers = {**lane.producers, **producers}
            link = await self._link(node)
            lane = self._lanes[node] = _Lane(link, await link.open_lane(self._principal, producers), producers)
            lane.under_way = 1
            return lane

    def _rest(self, lane: _Lane) -> None:
        lane.under_way -= 1
        if not lane.under_way and lane.is_open:
            lane.link.rest(lane.number, lane.closed)
            self._changed.unpark_all()

    def close(self) -> None:
        """See `PassedPublishes.close`."""
        self._is_closed = True
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            if lane.is_open:
                lane.is_open = False
                lane.link.close_lane(lane.number)
