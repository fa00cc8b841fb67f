"""Reading over the native protocol: fetches of a partition by offset, and offsets by time."""

from __future__ import annotations

from linn.api import FETCH_BYTES_MAX, RESERVE_BYTES, Fetched, FetchRequest, WaitDeadline
from linn.protocols.capnp.responder import Responder
from linn.wire import messages as m
from linn.wire.connection import Event

WAIT_MS_MAX = 60_000
"""Longest wait of a fetch or pull: connections are kept alive by other means."""


class Reading:
    """The fetches of one connection."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._waits: dict[WaitDeadline, None] = {}
        self._draining = False

    def end_waits(self) -> None:
        """Answer every wait for records at once, from now on."""
        self._draining = True
        for deadline in self._waits:
            deadline.end()

    def fetch(self, event: Event) -> None:
        """Answer with batches when there are enough, or when the client's wait is over."""
        asked = event.message
        assert isinstance(asked, m.Fetch)
        responder, outbox = self._responder, self._responder.outbox
        fetch = responder.session.fetch(_request(asked))
        if not outbox.is_short and outbox.has_room():  # Serve readers as soon as publishers, if possible.
            fetched = fetch.read_nowait()
            if fetched is not None:
                responder.reply_with(event.correlation, _answer(fetched), fetched.batches)
                return

        async def work() -> None:
            deadline = WaitDeadline(0 if self._draining else min(asked.wait_max_ms, WAIT_MS_MAX) / 1000)
            self._waits[deadline] = None
            try:
                fetched = await fetch.read(deadline, self._room)
            finally:
                del self._waits[deadline]
            responder.reply_with(event.correlation, _answer(fetched), fetched.batches)

        responder.in_task(event, work)

    async def _room(self) -> int:
        """Wait until an answer can be sent; returns its maximum size, small if memory is short."""
        await self._responder.outbox.wait_room()
        return RESERVE_BYTES if self._responder.outbox.is_short else FETCH_BYTES_MAX

    def find_offset(self, event: Event) -> None:
        """Answer with the first offset at or after a time."""
        find = event.message
        assert isinstance(find, m.FindOffset)

        async def work() -> None:
            session = self._responder.session
            offset = await session.find_offset(find.topic, find.partition, find.place, find.timestamp_ms)
            self._responder.reply(event.correlation, m.FoundOffset(offset))

        self._responder.in_task(event, work)


def _request(asked: m.Fetch) -> FetchRequest:
    return FetchRequest(
        asked.topic,
        asked.partition,
        asked.offset,
        asked.bytes_max,
        asked.bytes_min,
        asked.where,
        asked.formats,
        asked.unsettled,
        asked.uncommitted,
        asked.leader_epoch,
        (asked.topic_id_high, asked.topic_id_low),
    )


def _answer(fetched: Fetched) -> m.Fetched:
    return m.Fetched(fetched.start_offset, fetched.high_watermark, fetched.next_offset, fetched.leader_epoch)
