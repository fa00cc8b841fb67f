"""Snapshot of a topic: messages are fetched by partition, up to the end that the partition had at the start, and none
is consumed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

from linn.cli.moment import Place
from linn.client.client import Client
from linn.client.consume.message import Message
from linn.core.errors.texts import counted
from linn.core.errors.tree import OffsetOutOfRange, PartitionUnknown
from linn.descriptions import PartitionBounds


class TopicSnapshot:
    """Messages that a topic holds now: the unsettled ones of a queue, all of a stream."""

    def __init__(
        self,
        client: Client,
        topic: str,
        partitions: Sequence[int] = (),
        start: Place | None = None,
        where: str | None = None,
    ) -> None:
        """`partitions`: empty for all. `start`: None for the unsettled messages of a queue, and for all of a stream.
        `where`: a predicate over labels and routing key.
        """
        self._client = client
        self._topic = topic
        self._partitions = partitions
        self._start = start
        self._where = where

    async def messages(self) -> AsyncGenerator[list[Message]]:
        """Yield the messages by partition and offset, in batches. Raises TopicUnknown, PartitionUnknown, LinnError."""
        topic = await self._client.admin.topic(self._topic)
        bounds = topic["partitions"]
        unsettled = topic["settings"]["kind"] == "queue" and self._start is None
        for partition in self._partitions or range(len(bounds)):
            if not 0 <= partition < len(bounds):
                has = counted(len(bounds), "partition")
                raise PartitionUnknown(
                    f"topic {self._topic} has no partition {partition}: it has {has}, counted from 0"
                )
            offset, end = await self._first(partition, bounds[partition]), bounds[partition]["end"]
            while offset < end:
                try:
                    fetched = await self._client.fetch(
                        self._topic, partition, offset, where=self._where, unsettled=unsettled
                    )
                except OffsetOutOfRange:
                    # The records were settled or dropped meanwhile.
                    offset = (await self._client.admin.topic(self._topic))["partitions"][partition]["start"]
                    continue
                offset = fetched.next_offset
                messages = [message for batch in fetched.batches for message in batch if message.offset < end]
                if messages:
                    yield messages

    async def _first(self, partition: int, bounds: PartitionBounds) -> int:
        start = self._start
        if isinstance(start, datetime):
            return await self._client.find_offset(self._topic, partition, start)
        if isinstance(start, int):
            return max(bounds["start"], start)
        return bounds["end"] if start == "latest" else bounds["start"]
