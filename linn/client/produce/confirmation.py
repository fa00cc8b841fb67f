"""Confirmation: the outcome of one batch, for all its publishers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import anyio

from linn.client.connection.answer import again
from linn.core.env.env import Stream
from linn.core.errors.codes import error_from_code
from linn.core.errors.tree import ConnectionLost, LinnError, RequestTimeout
from linn.wire.messages import Placement


def refused_as(error: LinnError, in_doubt: bool) -> LinnError:
    """Return the error of a refusal; `in_doubt`: an earlier attempt has an unknown outcome."""
    if not in_doubt or isinstance(error, ConnectionLost | RequestTimeout):
        return error
    text = f"it was sent before the connection was lost, and may or may not be stored; sent again, it failed: {error}"
    return ConnectionLost(text)


class Confirmation:
    """Future that is settled once: with a placement, with None (acks="none") or with an error."""

    __slots__ = ("_event", "error", "in_doubt", "placement", "reading", "settled", "watcher", "without_waiter")

    def __init__(self) -> None:
        self.settled = False
        self.placement: Placement | None = None
        self.error: LinnError | None = None
        self.in_doubt = False
        """Whether the batch was sent earlier over a connection that ended before the answer."""
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

    def refusals(self) -> list[tuple[LinnError, Sequence[int]]]:
        """Errors of the messages that the broker refused, with the ranges of their places."""
        refused = self.placement.refused if self.placement is not None else []
        return [
            (refused_as(error_from_code(refusal.code, refusal.text), self.in_doubt), refusal.records)
            for refusal in refused
        ]

    async def wait(self) -> Placement | None:
        """Wait for the outcome. Raises the batch's error."""
        if not self.settled:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        if self.error is not None:
            raise again(self.error)
        return self.placement


def is_among(ranges: Sequence[int], place: int) -> bool:
    """Tell whether `place` is in `ranges`, in the form of `Placement.returned`."""
    # A place after an odd number of bounds is inside a range.
    return bool(bisect_right(ranges, place) & 1)


def places_among(ranges: Sequence[int], count: int) -> list[int]:
    """List the places in ranges; places beyond the `count` messages of the batch are ignored."""
    return [place for place in range(count) if is_among(ranges, place)] if ranges else []


def offset_at(placement: Placement, place: int) -> int:
    """Return the offset of the message at `place` of its batch, which is stored in one partition."""
    refused = sum([len(places_among(refusal.records, place)) for refusal in placement.refused])
    return placement.base_offset + place - refused
