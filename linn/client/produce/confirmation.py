"""Confirmation: the outcome of one batch, for all its publishers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import anyio

from linn.client.connection.answer import again
from linn.core.env.env import Stream
from linn.core.errors.tree import LinnError
from linn.wire.messages import Placement


class Confirmation:
    """Future that is settled once: with a placement, with None (acks="none") or with an error."""

    __slots__ = ("_event", "error", "placement", "reading", "settled", "watcher", "without_waiter")

    def __init__(self) -> None:
        self.settled = False
        self.placement: Placement | None = None
        self.error: LinnError | None = None
        self.watcher: Callable[[Confirmation], None] | None = None
        """Callback for when it is settled."""
        self.without_waiter = False
        """Whether the batch holds messages of `publish_nowait`, whose failure the next flush reports."""
        self.reading: Stream | None = None
        """Stream that the publisher reads from instead of waiting for this object."""
        self._event: anyio.Event | None = None

    def settle(self, placement: Placement | None, error: LinnError | None = None) -> None:
        """Set the outcome of the batch."""
        assert not self.settled, "a batch is confirmed once"
        self.settled, self.placement, self.error = True, placement, error
        if self._event is not None:
            self._event.set()
        if self.reading is not None:
            self.reading.interrupt()
        if self.watcher is not None:
            self.watcher(self)

    async def wait(self) -> Placement | None:
        """Wait for the outcome. Raises the batch's error."""
        if not self.settled:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        if self.error is not None:
            raise again(self.error)
        return self.placement


def is_returned(ranges: Sequence[int], place: int) -> bool:
    """Tell whether the message at `place` of its batch was returned; `ranges` as in `Placement.returned`."""
    # A place behind an odd number of bounds is inside a range.
    return bool(bisect_right(ranges, place) & 1)


def places_returned(ranges: Sequence[int], count: int) -> list[int]:
    """List the places of a batch's returned messages; ranges beyond its `count` messages are ignored."""
    return [place for place in range(count) if is_returned(ranges, place)] if ranges else []
