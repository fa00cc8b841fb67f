"""Copies of this broker's dead letters at other brokers."""

from __future__ import annotations

from collections.abc import Sequence

from linn.cluster.reading import Reading
from linn.core.batch.batch import RecordBatch
from linn.core.delivery.vocabulary import Place
from linn.core.gateway.requests import FetchRequest
from linn.wire import messages as m

READ_BYTES = 1 << 20


class Copying(Reading):
    """The port `PeerCopies`, in lanes that the broker opens for itself."""

    async def store(self, node: int, topic: str, partition: int, batch: RecordBatch) -> None:
        """See `PeerCopies.store`."""
        await self._ask(node, m.Publish(topic, partition=partition), m.Published, [batch])

    async def place(self, node: int, topic: str, partition: int) -> int:
        """See `PeerCopies.place`."""
        return await self.find_offset(node, topic, partition, Place.LATEST, 0)

    async def start(self, node: int, topic: str, partition: int) -> int:
        """See `PeerCopies.start`."""
        fetched = await self.fetch(node, FetchRequest(topic, partition, 0, 0), 0)
        return fetched.start_offset

    async def read(self, node: int, topic: str, partition: int, offset: int) -> tuple[Sequence[RecordBatch], int]:
        """See `PeerCopies.read`."""
        asked = FetchRequest(topic, partition, offset, READ_BYTES, is_uncommitted=True)
        fetched = await self.fetch(node, asked, 0)
        return [batch for batch in fetched.batches if isinstance(batch, RecordBatch)], fetched.next_offset
