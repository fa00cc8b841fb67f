"""Lanes and requests of one link, on the side that asks: a state machine without I/O.

A lane stands for one connection elsewhere. Its requests are answered in any order; other lanes do not wait for it. It
takes up its number, and its part of the windows, until the other side has told that it has ended.

Laws: every request has one outcome. Numbers of lanes and of requests are never used again. When the link is lost, a
request whose last byte was not handed to the stream was surely not carried out.
"""

from __future__ import annotations

from collections.abc import Callable

from linn.cluster.window import Limits, Window
from linn.core.errors.peers import PeerUnknown, PeerUnreachable
from linn.core.errors.tree import LinnError, ProtocolError
from linn.wire import messages as m
from linn.wire.connection import Event
from linn.wire.failure import error_of

SPARE_PART = 10
"""One in so many lanes is left to requests that end by themselves."""

Outcome = Event | LinnError
"""An answer, or why there is none."""
Tell = Callable[[Outcome], None]
"""Called once, with the outcome of a request."""


class _Lane:
    __slots__ = ("is_closing", "lost", "pushed", "requests", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self.requests: dict[int, _Request] = {}
        """Requests without an answer, by correlation."""
        self.is_closing = False
        self.pushed: Callable[[Event], None] | None = None
        """Takes the pushes of the other side; None: it must not send any."""
        self.lost: Callable[[LinnError], None] | None = None


class _Request:
    __slots__ = ("counts", "ends_at", "is_repeatable", "size", "tell")

    def __init__(self, size: int, counts: bool, ends_at: int, is_repeatable: bool, tell: Tell) -> None:
        self.size = size
        self.counts = counts
        """Whether it counts in the window of the link."""
        self.ends_at = ends_at
        self.is_repeatable = is_repeatable
        self.tell = tell


class Requests:
    """The lanes of one link, and the requests in them."""

    def __init__(self, limits: Limits) -> None:
        """`limits`: from the other side's welcome."""
        self._limits = limits
        self._window = Window(limits.requests_max, limits.bytes_max)
        self._lanes: dict[int, _Lane] = {}
        self._last_lane = self._last_correlation = 0
        self.closing = 0
        """Lanes that the other side has not ended yet, and will."""

    @property
    def has_lanes(self) -> bool:
        """Whether there are lanes that the other side has not ended."""
        return bool(self._lanes)

    def open_lane(self) -> int | None:
        """Take a new lane; None: there are as many as the other side allows."""
        if len(self._lanes) >= self._limits.lanes_max:
            return None
        self._last_lane += 1
        self._lanes[self._last_lane] = _Lane(Window(self._limits.lane_requests_max, self._limits.lane_bytes_max))
        return self._last_lane

    def has_room_for_leg(self, resting: int) -> bool:
        """Whether one more lane may be kept as long as a consumer lives: a part of all is left to others.

        `resting`: the number of open lanes that can be closed for it.
        """
        return len(self._lanes) - resting < self._limits.lanes_max - self._limits.lanes_max // SPARE_PART

    def listen(self, lane: int, pushed: Callable[[Event], None], lost: Callable[[LinnError], None]) -> None:
        """Let the other side push messages in a lane: `pushed` takes them. `lost` is told the end of the link,
        before the lane's requests are."""
        self._lanes[lane].pushed, self._lanes[lane].lost = pushed, lost

    def close_lane(self, lane: int) -> None:
        """Ask for no more in a lane. Requests without an answer get none; their callers no longer wait."""
        self._lanes[lane].is_closing = True
        self.closing += 1

    def next_correlation(self, lane: int, size: int, *, counts: bool = True) -> int | None:
        """Take the number of the lane's next request; None: a window has no room for it. `counts`: see `asked`."""
        found = self._lanes[lane]
        assert not found.is_closing, "the lane is closed"
        if not found.window.has_room(size) or (counts and not self._window.has_room_for(found.window, size)):
            return None
        self._last_correlation += 1
        return self._last_correlation

    def asked(
        self,
        lane: int,
        correlation: int,
        size: int,
        ends_at: int,
        tell: Tell,
        *,
        is_repeatable: bool,
        counts: bool = True,
    ) -> None:
        """Note a request that was put into the output.

        Args:
            ends_at: the number of bytes of the link's output up to its end.
            is_repeatable: whether it can be made again if its outcome is unknown, as it changes nothing, or only once.
            counts: whether it counts in the window of the link, not only in that of its lane.
        """
        found = self._lanes[lane]
        found.window.take(size)
        if counts:
            self._window.take(size)
        found.requests[correlation] = _Request(size, counts, ends_at, is_repeatable, tell)

    def take(self, event: Event) -> None:
        """Take a message of the other side. Raises ProtocolError: it fits nothing that was asked."""
        lane = self._lanes.get(event.lane)
        if lane is None:
            raise ProtocolError(f"{type(event.message).__name__} in a lane that is not open")
        if isinstance(event.message, m.CloseLane):
            self._ended(event.lane, lane)
            return
        if lane.pushed is not None and not event.correlation:
            if not lane.is_closing:
                lane.pushed(event)
            return
        request = lane.requests.pop(event.correlation, None)
        if request is None:
            raise ProtocolError(f"{type(event.message).__name__} answers nothing that was asked")
        lane.window.give_back(request.size)
        self._give_back(request)
        request.tell(error_of(event.message) if isinstance(event.message, m.Failed) else event)

    def _ended(self, number: int, lane: _Lane) -> None:
        if not lane.is_closing:
            raise ProtocolError("the other side has ended a lane that was not closed")
        del self._lanes[number]
        self.closing -= 1
        for request in lane.requests.values():
            self._give_back(request)

    def _give_back(self, request: _Request) -> None:
        if request.counts:
            self._window.give_back(request.size)

    def lose(self, handed_bytes: int, error: LinnError) -> None:
        """Tell every request that the link is lost. `handed_bytes`: of the link's output, what may have been sent."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            if lane.lost is not None and not lane.is_closing:
                lane.lost(error)
            for request in lane.requests.values():
                if request.ends_at > handed_bytes:
                    request.tell(PeerUnreachable(f"nothing was done: {error.text}"))
                elif request.is_repeatable:
                    request.tell(PeerUnreachable(f"it can be done again: {error.text}"))
                else:
                    request.tell(PeerUnknown(f"it may have been done or not: {error.text}"))
