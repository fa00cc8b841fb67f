"""Reading of topics that another broker of the cluster leads: its port, and the fetches and bounds that go through it.

Law: a fetch that waits at another broker has no records on their way. The fetches of one session that do have some are
asked one after another, each when its client has room for the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import trio

from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import LinnError
from linn.core.gateway.fetch import FETCH_BYTES_MAX, decide_reading, needs_of, no_limit
from linn.core.gateway.requests import Fetched, FetchRequest
from linn.core.loop.waiting import WaitDeadline
from linn.core.ports.principal import Principal
from linn.core.security.access import Access
from linn.core.topics.topic import Topic

logger = logging.getLogger("linn.gateway")

DESCRIBED_AT_ONCE_MAX = 1_024
"""Topics and partitions that are asked for in one message: decoding its answer takes about 2 ms."""
ASK_S = 1.0
"""Longest wait for bounds: a description is needed for kinds and partitions as well, which every broker knows."""

Bounds = Sequence[tuple[int, int]]
"""(start offset, high watermark) of each partition of a topic."""


class PeerReader(Protocol):
    """Reads for one principal at other brokers.

    Each method raises the LinnErrors of the request, with the texts of the other broker; and PeerUnreachable,
    PeerRefused, PeerStale: it can be asked again. Cancellation: the other broker is told to stop.
    """

    async def fetch(self, node: int, request: FetchRequest, wait_s: float) -> Fetched:
        """Fetch from a partition of a topic that a node leads, after waiting for so long."""

    async def find_offset(self, node: int, topic: str, partition: int, place: int, timestamp_ms: int) -> int:
        """Find an offset as `Session.find_offset` does."""

    async def bounds(self, node: int, names: Sequence[str]) -> Mapping[str, Bounds]:
        """Return the bounds of topics, as far as the node knows them."""

    def close(self) -> None:
        """Close idle lanes. Idempotent."""


class ReadLinks(Protocol):
    """Links to the other brokers of the cluster."""

    def reading(self, principal: Principal) -> PeerReader:
        """Make a reader for a principal; `close` it."""


class FetchElsewhere:
    """One fetch under way, of a partition that another broker leads. Used as a `Fetch`."""

    __slots__ = ("_access", "_node", "_reader", "_request", "_turn")

    def __init__(self, reader: PeerReader, node: int, request: FetchRequest, turn: trio.Lock, access: Access) -> None:
        """`turn`, `access`: as for a `Fetch`."""
        self._reader = reader
        self._node = node
        self._request = request
        self._turn = turn
        self._access = access

    def read_nowait(self) -> None:
        """Read nothing: the leader has to be asked."""

    async def read(self, deadline: WaitDeadline, room: Callable[[], Awaitable[int]] = no_limit) -> Fetched:
        """Wait for records, up to a deadline, and read them, as `Fetch.read`.

        Raises Forbidden, errors of `Session.fetch` and `Fetch.read` at the leader, and errors of a `PeerReader`.
        Cancellation: nothing happens.
        """
        asked = self._request
        is_selected = bool(asked.where) or asked.is_unsettled
        waits = asked.bytes_min > 1 and not is_selected
        while True:
            if waits:
                await deadline.wait(partial(self._wait, asked, deadline))
            async with self._turn:
                limited = asked._replace(bytes_max=max(1, min(asked.bytes_max, FETCH_BYTES_MAX, await room())))
                found = await self._reader.fetch(self._node, limited, 0)
            if found.batches or deadline.is_over or not (found.next_offset == asked.offset or is_selected):
                await decide_reading(self._access, needs_of(asked))
                return found
            waits = found.next_offset == asked.offset
            asked = asked._replace(offset=found.next_offset)

    async def _wait(self, asked: FetchRequest, deadline: WaitDeadline) -> None:
        """Let the leader answer when there are enough bytes, without any records."""
        bytes_min = min(asked.bytes_min, max(1, asked.bytes_max))
        await self._reader.fetch(
            self._node,
            asked._replace(bytes_max=0, bytes_min=bytes_min, where="", is_unsettled=False),
            deadline.left_s,
        )


class BoundsElsewhere:
    """The topics of a description that other brokers lead, by node."""

    def __init__(self, reader: PeerReader, topics: Mapping[int, Sequence[Topic]]) -> None:
        self._reader = reader
        self._topics = topics

    async def ask(self) -> Mapping[str, Bounds]:
        """Ask the leaders for bounds. A leader that does not answer within `ASK_S` is left out."""
        found: dict[str, Bounds] = {}

        async def ask(node: int, topics: Sequence[Topic]) -> None:
            try:
                for names in _in_parts(topics):
                    found.update(await self._reader.bounds(node, names))
            except LinnError as error:
                logger.debug("node %(node)d does not tell bounds: %(error)s", {"node": node} | log_fields(error))

        with trio.move_on_after(ASK_S):
            async with trio.open_nursery() as nursery:
                for node, topics in self._topics.items():
                    nursery.start_soon(ask, node, topics)
        return found


def _in_parts(topics: Sequence[Topic]) -> list[list[str]]:
    """Divide topics into messages of which none has a long answer; returns their names."""
    parts: list[list[str]] = []
    left = 0
    for topic in topics:
        size = 1 + topic.settings.partitions
        if size > left:
            parts.append([])
            left = DESCRIBED_AT_ONCE_MAX
        parts[-1].append(topic.name)
        left -= size
    return parts
