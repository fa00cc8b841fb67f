"""A consumer's batches, for `async for`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from linn.client.consume.message import Batch

if TYPE_CHECKING:
    from linn.client.consume.consumer import Consumer


class Batches:
    """Iterates over a consumer's batches."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        """The next batch. See `Consumer.__anext__`."""
        return await self._consumer.next_batch()
