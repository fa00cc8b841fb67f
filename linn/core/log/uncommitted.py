"""Partitions as seen by readers of uncommitted records: everything up to the high watermark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from linn.core.batch.batch import CONTROL
from linn.core.log.partition import Partition
from linn.core.log.partition_reading import AnyBatch


class UncommittedView(Partition):
    """A read-only view of a partition, which shares its state.

    Its records may belong to a transaction that is open or was aborted.
    """

    def __init__(self, partition: Partition) -> None:
        self.__dict__ = partition.__dict__

    @property
    def stable_offset(self) -> int:
        """The high watermark: open transactions hold nothing back."""
        return self.high_watermark

    def _visible(self, batches: list[AnyBatch]) -> list[AnyBatch]:
        """All batches except markers."""
        if not self.transactions.markers:
            return batches
        return [batch for batch in batches if not batch.attributes & CONTROL]


class UncommittedViews(Mapping[int, Partition]):
    """Views of a topic's partitions, including partitions added later."""

    def __init__(self, partitions: Mapping[int, Partition]) -> None:
        self._partitions = partitions
        self._views: dict[int, UncommittedView] = {}

    def __getitem__(self, index: int) -> Partition:
        view = self._views.get(index)
        if view is None:
            view = self._views[index] = UncommittedView(self._partitions[index])
        return view

    def __iter__(self) -> Iterator[int]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)
