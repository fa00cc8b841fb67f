"""Looking at messages without taking them: fetches of each partition, up to where it ended at the start."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from linn.cli.message_format import LineOf
from linn.cli.moment import Place
from linn.cli.selection import Selects, selection
from linn.cli.session import with_client
from linn.client.client import Client
from linn.client.message import Message
from linn.core.errors import OffsetOutOfRange, PartitionUnknown

Ranges = Sequence[Sequence[int]]
"""[first, end) pairs of offsets, in order."""


class Browsing:
    """`linn browse`."""

    def __init__(
        self,
        topic: str,
        partitions: Sequence[int],
        *,
        count: int | None,
        start: Place | None,
        line_of: LineOf,
        where: str | None,
    ) -> None:
        """`start`: None for what is not settled of a queue, and for all of a stream. Raises PredicateInvalid."""
        self._topic = topic
        self._partitions = partitions
        self._left = count
        self._start = start
        self._line_of = line_of
        self._selects: Selects | None = None if where is None else selection(where)

    def run(self, url: str) -> None:
        """Print. Raises LinnError, BrokenPipeError, KeyboardInterrupt."""
        with_client(url, self._work)

    async def _work(self, client: Client) -> None:
        topic = await client.admin.topic(self._topic)
        bounds = topic["partitions"]
        unsettled = await self._unsettled(client, topic)
        for partition in self._partitions or range(len(bounds)):
            if not 0 <= partition < len(bounds):
                raise PartitionUnknown(f"topic {self._topic} has the partitions 0 to {len(bounds) - 1}")
            first, settled = unsettled.get(partition, (bounds[partition]["start"], ()))
            if self._start is not None:
                first = await self._first(client, partition, bounds[partition])
            await self._read(client, partition, first, bounds[partition]["end"], settled)

    async def _unsettled(self, client: Client, topic: Mapping[str, Any]) -> dict[int, tuple[int, Ranges]]:
        """Of a queue, where what is not settled begins in each partition, and what is settled beyond that."""
        if topic["settings"]["kind"] != "queue" or self._start is not None:
            return {}
        queue = await client.admin.subscription(self._topic)
        return {part["partition"]: (part["settled_before"], part["settled"]) for part in queue["by_partition"]}

    async def _first(self, client: Client, partition: int, bounds: Mapping[str, int]) -> int:
        start = self._start
        if isinstance(start, datetime):
            return await client.find_offset(self._topic, partition, int(start.timestamp() * 1000))
        if isinstance(start, int):
            return max(bounds["start"], start)
        return bounds["end"] if start == "latest" else bounds["start"]

    async def _read(self, client: Client, partition: int, offset: int, end: int, settled: Ranges) -> None:
        while offset < end and self._left != 0:
            try:
                fetched = await client.fetch(self._topic, partition, offset)
            except OffsetOutOfRange:
                # What was to be read was settled or dropped meanwhile.
                offset = (await client.admin.topic(self._topic))["partitions"][partition]["start"]
                continue
            messages = [message for batch in fetched.batches for message in batch]
            if not messages:
                return
            offset = messages[-1].offset + 1
            self._write(message for message in messages if message.offset < end and not _within(message, settled))

    def _write(self, messages: Iterable[Message]) -> None:
        chosen = [message for message in messages if self._selects is None or self._selects(message)][: self._left]
        if self._left is not None:
            self._left -= len(chosen)
        sys.stdout.buffer.write(b"".join(map(self._line_of, chosen)))
        sys.stdout.buffer.flush()


def _within(message: Message, ranges: Ranges) -> bool:
    return any(first <= message.offset < end for first, end in ranges)
