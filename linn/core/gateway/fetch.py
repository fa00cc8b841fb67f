"""Fetches: reading a partition by offset.

Law: waiting fetches hold no records, however many there are; the fetches of one session are read one after another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from linn.core.gateway.requests import Fetched, FetchRequest
from linn.core.log.partition import Partition
from linn.core.log.partition_reading import AnyBatch
from linn.core.log.selection import Selection
from linn.core.loop.waiting import WaitDeadline
from linn.core.security.access import Access
from linn.core.topics.timing_logs import TIMING_TOPIC
from linn.rights import BROWSE, CONSUME, TOPIC, Need

FETCH_BYTES_MAX = 16 << 20
"""Largest answer to one fetch, whatever the client asks for."""
FETCH_BYTES_MIN_MAX = 1 << 20
"""Largest minimum that a fetch may wait for: each waiting fetch reads that many bytes once to count them."""
SELECTED_BYTES_MAX = 1 << 20
"""Bytes of the log examined in one step of a fetch with a predicate."""
FETCH_RECORDS_MAX = 1 << 31


def needs_of(request: FetchRequest) -> tuple[Need, Need]:
    """The rights of which a fetch needs one."""
    topic = request.topic.removeprefix(TIMING_TOPIC)
    return Need(CONSUME, TOPIC, topic), Need(BROWSE, TOPIC, topic)


async def decide_reading(access: Access, needs: Sequence[Need]) -> None:
    """Wait until it is decided whether a user has one of these rights. Raises Forbidden: none."""
    for need in needs:
        await access.decide([need])
        if access.may(*need):
            return
    access.check_any(needs)


async def no_limit() -> int:
    """Return no limit without waiting: the answer is sent as a whole."""
    return FETCH_BYTES_MAX


class Fetch:
    """One fetch under way."""

    __slots__ = (
        "_accepts",
        "_access",
        "_bytes_max",
        "_bytes_min",
        "_needs",
        "_offset",
        "_partition",
        "_selection",
        "_turn",
    )

    def __init__(
        self,
        partition: Partition,
        selection: Selection | None,
        request: FetchRequest,
        accepts: Sequence[int],
        turn: trio.Lock,
        access: Access,
    ) -> None:
        """`selection`: the records to read; None: all. `turn`: held by the fetch that has records in memory. `access`:
        the caller's, checked again after a wait."""
        self._partition = partition
        self._selection = selection
        self._offset = request.offset
        self._bytes_max = min(request.bytes_max, FETCH_BYTES_MAX)
        self._bytes_min = min(request.bytes_min, self._bytes_max or FETCH_BYTES_MIN_MAX, FETCH_BYTES_MIN_MAX)
        self._accepts = accepts
        self._turn = turn
        self._access = access
        self._needs = needs_of(request)

    def read_nowait(self) -> Fetched | None:
        """Read available records without waiting or opening a file; None if that is not possible, or there are none.

        Raises Forbidden, OffsetOutOfRange, LogCorrupt, FormatUnknown.
        """
        if self._selection is not None or self._bytes_min > 1 or not self._bytes_max or self._turn.locked():
            return None
        partition = self._partition
        batches = partition.read_nowait(self._offset, partition.stable_offset, self._bytes_max, self._accepts)
        return self._fetched(batches, batches[-1].end_offset) if batches else None

    async def read(self, deadline: WaitDeadline, room: Callable[[], Awaitable[int]] = no_limit) -> Fetched:
        """Wait for records, up to a deadline, and read them; there may be none. With `bytes_max` 0 none are read.

        `room` waits until an answer can be sent, and returns its maximum size; it is called once per answer or step.

        Raises Forbidden, OffsetOutOfRange, LogCorrupt, FormatUnknown, StorageError.
        Cancellation: nothing happens.
        """
        if self._selection is not None and self._bytes_max:
            return await self._select(self._selection, deadline, room)
        await deadline.wait(self._wait_bytes)
        await self._decide()
        if not self._bytes_max:
            return self._fetched((), self._offset)
        # One at a time, so that at most one answer exceeds the bound of `room`, however many wait.
        if self._turn.locked():
            await self._turn.acquire()
        else:
            self._turn.acquire_nowait()
        try:
            bytes_max = min(self._bytes_max, await room())
            end = self._partition.stable_offset
            batches = await self._partition.read_stored(self._offset, end, bytes_max, self._accepts)
            return self._fetched(batches, batches[-1].end_offset if batches else end)
        finally:
            self._turn.release()

    async def _select(
        self, selection: Selection, deadline: WaitDeadline, room: Callable[[], Awaitable[int]]
    ) -> Fetched:
        """Read the first selected records. The answer tells the progress: at least one step."""
        partition, offset = self._partition, self._offset
        bytes_max = min(self._bytes_max, SELECTED_BYTES_MAX)
        while True:
            if offset == partition.stable_offset:
                await deadline.wait(partition.watchers.wait)
            async with self._turn:
                await room()
                batches, offset = await selection.read(
                    partition, offset, covers_from=offset, records_max=FETCH_RECORDS_MAX, bytes_max=bytes_max
                )
                if batches or deadline.is_over:
                    await self._decide()
                    return self._fetched(batches, offset)

    def _fetched(self, batches: Sequence[AnyBatch], next_offset: int) -> Fetched:
        self._access.check_any(self._needs)
        partition = self._partition
        partition.count_delivered(batches)
        return Fetched(batches, next_offset, partition.start_offset, partition.high_watermark, partition.leader_epoch)

    async def _decide(self) -> None:
        """Wait until it is decided whether the caller may still read. Raises Forbidden."""
        await decide_reading(self._access, self._needs)

    async def _wait_bytes(self) -> None:
        """Wait until there are enough bytes. Each byte is counted once, and none is held."""
        missing, offset, partition = self._bytes_min, self._offset, self._partition
        while missing > 0:
            if offset == partition.stable_offset:
                await partition.watchers.wait()
            elif self._bytes_min <= 1:
                return
            else:
                size, offset = await self._look(offset, missing)
                missing -= size

    async def _look(self, offset: int, bytes_max: int) -> tuple[int, int]:
        """(bytes of the next batches, offset after them). One fetch at a time has them in memory."""
        async with self._turn:
            stable = self._partition.stable_offset
            batches = await self._partition.read(offset, bytes_max)
            return sum(batch.size for batch in batches), batches[-1].end_offset if batches else max(offset, stable)
