"""The output of a lane on the side that serves it: that of its link, with the lane's number, at the pace of its reader.

Law: of the deliveries, little more than `PACE_PINGS_MAX` times `PACE_BYTES` and one delivery is on its way to a client
that does not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from linn.cluster.channel import Channel
from linn.core.batch.flat_message import Buffer
from linn.core.env.file_region import Sendable
from linn.core.errors.tree import ProtocolError
from linn.wire import codec
from linn.wire import messages as m
from linn.wire.connection import frames_of

PACE_BYTES = 256 << 10
"""Output of a consumer after which the other side is asked whether its client reads: a few socket buffers."""
PACE_PINGS_MAX = 2
"""Pings without an answer at which nothing more is read for the client."""


class LaneOutput:
    """The port `Output` of one lane."""

    is_short = False

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._is_paced = False
        self._bytes = 0
        """Output since the last ping."""
        self._pings = 0
        """Pings without an answer."""
        self._answered = trio.Event()

    def pace(self) -> None:
        """Ask the other side by pings, between deliveries, whether the client reads: it has a consumer."""
        self._is_paced = True

    def pong(self) -> None:
        """Take the answer to a ping: the client has read on. Raises ProtocolError: there is none."""
        if not self._pings:
            raise ProtocolError("a pong without a ping")
        self._pings -= 1
        self._answered.set()
        self._answered = trio.Event()

    def put(self, frames: Sequence[Sendable]) -> None:
        """See `Output.put`."""
        self._put(frames)
        if self._is_paced:
            self._bytes += sum(map(len, frames))
            if self._bytes >= PACE_BYTES:
                self._bytes = 0
                self._pings += 1
                self._put(frames_of(m.Ping()))

    def _put(self, frames: Sequence[Sendable]) -> None:
        first, *rest = frames
        assert isinstance(first, Buffer), "a message begins with its own bytes"
        self._channel.put([codec.put_in_lane(first, self._number), *rest])

    def hold(self, frames: Sequence[Sendable]) -> None:
        """See `Output.hold`. A link's writer joins frames anyway."""
        self.put(frames)

    def has_room(self) -> bool:
        """See `Output.has_room`."""
        return self._pings < PACE_PINGS_MAX and self._channel.has_room()

    async def wait_room(self) -> None:
        """See `Output.wait_room`."""
        while not self.has_room() and self._channel.error is None:
            if self._pings >= PACE_PINGS_MAX:
                await self._answered.wait()
            else:
                await self._channel.wait_room()
