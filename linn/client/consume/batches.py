"""Iteration over a consumer's batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from linn.client.consume.message import Batch


class Batches:
    """Iterator over a consumer's batches."""

    __slots__ = ("_next",)

    def __init__(self, next_batch: Callable[[], Awaitable[Batch]]) -> None:
        self._next = next_batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        """Wait for the next batch; see `Consumer.__anext__`."""
        return await self._next()
