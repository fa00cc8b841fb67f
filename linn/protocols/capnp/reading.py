"""Reading over the native protocol: fetches of a partition by offset, and looking up the offset of a time.

Law: waiting fetches hold nothing but themselves, however many there are; their answers are read one after another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from linn.core.errors.tree import RequestUnknown
from linn.core.log.partition import Partition
from linn.core.log.selection import Selection
from linn.core.log.uncommitted import UncommittedView
from linn.core.loop.memory_budget import RESERVE_BYTES
from linn.core.loop.waiting import WaitDeadline
from linn.protocols.capnp.responder import Responder
from linn.wire import messages as m
from linn.wire.connection import Event, frames_to

FETCH_BYTES_MAX = 16 << 20
"""Largest answer to one fetch, whatever the client asks for."""
FETCH_BYTES_MIN_MAX = 1 << 20
"""Largest minimum that a fetch may wait for: it is read once to be counted, by each fetch that waits."""
SELECTED_BYTES_MAX = 1 << 20
"""Bytes of the log that are looked at in one step of a fetch with a choice of records."""
FETCH_RECORDS_MAX = 1 << 31
WAIT_MS_MAX = 60_000
"""Longest wait of a fetch or pull: connections are kept alive by other means."""


class Reading:
    """The fetches of one connection."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._fetching = trio.Lock()
        self._waits: dict[WaitDeadline, None] = {}
        self._draining = False

    def end_waits(self) -> None:
        """Answer at once every wait for records, now and from now on."""
        self._draining = True
        for deadline in self._waits:
            deadline.end()

    def fetch(self, event: Event) -> None:
        """Answer with batches, when there are enough or the client has waited long enough."""
        fetch = event.message
        assert isinstance(fetch, m.Fetch)
        topic = self._responder.gateway.topic(self._responder.principal, fetch.topic)
        topic.check_id(fetch.topic_id_high, fetch.topic_id_low)
        partition = topic.partition(fetch.partition)
        if fetch.uncommitted:
            partition = UncommittedView(partition)
        partition.check_position(fetch.offset, fetch.leader_epoch)
        asked = min(max(fetch.bytes_max, 1), FETCH_BYTES_MAX)
        accepts = self._responder.gateway.formats.accepts_of(fetch.formats)
        selection = self._responder.gateway.fetch_selection(
            self._responder.principal, fetch.topic, fetch.partition, fetch.where, accepts, unsettled=fetch.unsettled
        )
        if selection is not None:
            self._responder.in_task(
                event, partial(self._fetch_selected, event.correlation, partition, selection, fetch)
            )
            return
        if fetch.bytes_min <= 1 and self._fetch_nowait(event.correlation, partition, fetch.offset, asked, accepts):
            return

        async def work() -> None:
            bytes_min = min(fetch.bytes_min, asked, FETCH_BYTES_MIN_MAX)
            await self._wait(fetch.wait_max_ms, lambda: self._wait_bytes(partition, fetch.offset, bytes_min))
            # One at a time, so that however many wait, one answer is over the outbox's bound.
            if self._fetching.locked():
                await self._fetching.acquire()
            else:
                self._fetching.acquire_nowait()
            try:
                outbox = self._responder.outbox
                await outbox.wait_room()
                bytes_max = min(asked, RESERVE_BYTES) if outbox.is_short else asked
                end = partition.stable_offset
                batches = await partition.read_stored(fetch.offset, end, bytes_max, accepts)
                partition.count_delivered(batches)
                behind = batches[-1].end_offset if batches else end
                answer = _fetched(partition, behind)
                outbox.put(frames_to(answer, event.correlation, batches))
            finally:
                self._fetching.release()

        self._responder.in_task(event, work)

    def _fetch_nowait(
        self, correlation: int, partition: Partition, offset: int, bytes_max: int, accepts: Sequence[int]
    ) -> bool:
        """Answer with available batches, so that readers are served as soon as publishers; returns whether there were
        any.
        """
        responder, outbox = self._responder, self._responder.outbox
        if self._fetching.locked() or outbox.is_short or not outbox.has_room():
            return False
        batches = partition.read_nowait(offset, partition.stable_offset, bytes_max, accepts)
        if not batches:
            return False
        partition.count_delivered(batches)
        answer = _fetched(partition, batches[-1].end_offset)
        responder.answer(frames_to(answer, correlation, batches))
        return True

    async def _fetch_selected(
        self, correlation: int, partition: Partition, selection: Selection, fetch: m.Fetch
    ) -> None:
        """Answer with the first wanted records, or with none when the client has waited long enough.

        The answer says how far the partition was looked at, which is one read at least.
        """
        outbox, offset = self._responder.outbox, fetch.offset
        bytes_max = min(max(fetch.bytes_max, 1), SELECTED_BYTES_MAX)
        deadline = WaitDeadline(0 if self._draining else min(fetch.wait_max_ms, WAIT_MS_MAX) / 1000)
        self._waits[deadline] = None
        try:
            while True:
                if offset == partition.stable_offset:
                    await deadline.wait(partition.watchers.wait)
                async with self._fetching:
                    await outbox.wait_room()
                    batches, offset = await selection.read(
                        partition, offset, covers_from=offset, records_max=FETCH_RECORDS_MAX, bytes_max=bytes_max
                    )
                    if batches or deadline.is_over:
                        partition.count_delivered(batches)
                        answer = _fetched(partition, offset)
                        outbox.put(frames_to(answer, correlation, batches))
                        return
        finally:
            del self._waits[deadline]

    async def _wait(self, wait_max_ms: int, something: Callable[[], Awaitable[None]]) -> None:
        """Wait for something, up to the client's limit and the broker's stop."""
        deadline = WaitDeadline(0 if self._draining else min(wait_max_ms, WAIT_MS_MAX) / 1000)
        self._waits[deadline] = None
        try:
            await deadline.wait(something)
        finally:
            del self._waits[deadline]

    async def _wait_bytes(self, partition: Partition, offset: int, bytes_min: int) -> None:
        """Wait until there are so many bytes from `offset` on. Each byte is looked at once, and none is held."""
        missing = bytes_min
        while missing > 0:
            if offset == partition.stable_offset:
                await partition.watchers.wait()
            elif bytes_min <= 1:
                return
            else:
                size, offset = await self._look(partition, offset, missing)
                missing -= size

    async def _look(self, partition: Partition, offset: int, bytes_max: int) -> tuple[int, int]:
        """(bytes of the next batches, offset after them). One fetch at a time has them in memory."""
        async with self._fetching:
            stable = partition.stable_offset
            batches = await partition.read(offset, bytes_max)
            return sum(batch.size for batch in batches), batches[-1].end_offset if batches else max(offset, stable)

    def find_offset(self, event: Event) -> None:
        """Answer with the first offset at or after a time."""
        find = event.message
        assert isinstance(find, m.FindOffset)

        async def work() -> None:
            partition = self._responder.gateway.partition(self._responder.principal, find.topic, find.partition)
            if find.place == m.Place.LATEST:
                offset = partition.stable_offset
            elif find.place == m.Place.EARLIEST:
                offset = partition.start_offset
            elif find.place != m.Place.TIME:
                raise RequestUnknown(f"place {find.place} is not known to this version")
            else:
                offset = min(await partition.log.offset_at(find.timestamp_ms), partition.stable_offset)
            self._responder.reply(event.correlation, m.FoundOffset(offset))

        self._responder.in_task(event, work)


def _fetched(partition: Partition, next_offset: int) -> m.Fetched:
    return m.Fetched(partition.start_offset, partition.high_watermark, next_offset, partition.leader_epoch)
