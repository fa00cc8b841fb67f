"""Settling: what a consumer said of some records, until the broker has answered. Pure: no I/O.

Laws: settlements reach the broker in the order in which they were made, merged where they adjoin; each is either
carried out, or its refusal is raised by whoever awaits it, or else it is put before the consumer's next step.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio
import anyio.lowlevel

from linn.client.connection.answer import again
from linn.core.errors.tree import LinnError
from linn.wire.messages import Settlement, Verdict

OPEN, SENT, DONE = range(3)


class Delivery:
    """Records that came together, under one lease or under none. A lease may come in several deliveries."""

    __slots__ = ("__weakref__", "attempt", "delivery_id", "first", "partition", "since_s", "until_s")

    def __init__(
        self,
        partition: int,
        delivery_id: int,
        attempt: int,
        first: int = 0,
        since_s: float = 0.0,
        until_s: float = math.inf,
    ) -> None:
        self.partition = partition
        self.delivery_id = delivery_id
        self.attempt = attempt
        self.first = first
        """An offset that it was granted for."""
        self.since_s = since_s
        """When it arrived, by the client's clock."""
        self.until_s = until_s
        """When the lease is over at the latest, by the client's clock."""


class PendingSettlement:
    """A range of records and what is to become of it. Awaiting it waits for the broker's word, and raises a refusal.

    It is sent also where nobody awaits it. Cancellation: it is sent all the same.
    """

    __slots__ = ("_event", "_send", "awaited", "delivery", "end", "error", "first", "ms", "state", "verdict")

    def __init__(
        self, delivery: Delivery, first: int, end: int, verdict: Verdict, ms: int, send: Callable[[], None]
    ) -> None:
        self.delivery = delivery
        self.first = first
        self.end = end
        self.verdict = verdict
        self.ms = ms
        self.state = OPEN
        self.awaited = False
        self.error: LinnError | None = None
        self._send = send
        self._event: anyio.Event | None = None

    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        self.awaited = True
        if self.state == OPEN:
            self._send()
        await self.until_done()
        if self.error is not None:
            raise again(self.error)

    async def until_done(self) -> None:
        """Wait for the broker's answer, whatever it is."""
        if self.state == DONE:
            await anyio.lowlevel.checkpoint()
            return
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    def finish(self, error: LinnError | None) -> None:
        """The broker has answered, or can't any more."""
        self.state, self.error = DONE, error
        if self._event is not None:
            self._event.set()

    def joins(self, later: PendingSettlement) -> bool:
        """Whether `later`, made after this, may be said in one breath with it."""
        return (
            self.delivery.delivery_id == later.delivery.delivery_id
            and self.delivery.partition == later.delivery.partition
            and self.end == later.first
            and self.verdict == later.verdict
            and self.ms == later.ms
        )


class NothingToSettle:
    """What settles records that the broker does not wait for."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return anyio.lowlevel.checkpoint().__await__()


NOTHING_TO_SETTLE = NothingToSettle()
Settled = Awaitable[None]
"""Await it for the broker's word, or let it be."""


def merged(settlings: list[PendingSettlement]) -> list[tuple[Settlement, list[PendingSettlement]]]:
    """The entries of one Settle request, each with those who hear of its refusal."""
    if len({(settling.verdict, settling.ms) for settling in settlings}) == 1:
        # All say the same, so that their order tells nothing.
        settlings = sorted(settlings, key=lambda one: (one.delivery.partition, one.delivery.delivery_id, one.first))
    entries: list[tuple[Settlement, list[PendingSettlement]]] = []
    for settling in settlings:
        if entries and entries[-1][1][-1].joins(settling):
            entries[-1][0].end = settling.end
            entries[-1][1].append(settling)
        else:
            entries.append((_entry(settling, settling.first), [settling]))
    return entries


def _entry(settling: PendingSettlement, first: int) -> Settlement:
    delivery = settling.delivery
    return Settlement(delivery.partition, delivery.delivery_id, first, settling.end, settling.verdict, settling.ms)


def latest_commits(settlings: list[PendingSettlement]) -> list[tuple[Settlement, list[PendingSettlement]]]:
    """As `merged`, for a consumer group: of a run of acks only the furthest place in each partition is said."""
    entries: list[tuple[Settlement, list[PendingSettlement]]] = []
    furthest: dict[int, tuple[Settlement, list[PendingSettlement]]] = {}
    for settling in settlings:
        if settling.verdict != Verdict.ACK:
            furthest = {}  # What comes after something else must not be said before it.
            entries.append((_entry(settling, settling.first), [settling]))
            continue
        known = furthest.get(settling.delivery.partition)
        if known is None:
            known = furthest[settling.delivery.partition] = (_entry(settling, settling.first), [])
            entries.append(known)
        known[0].first = min(known[0].first, settling.first)
        known[0].end = max(known[0].end, settling.end)
        known[1].append(settling)
    return entries
