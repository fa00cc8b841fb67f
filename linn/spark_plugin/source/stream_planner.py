"""StreamPlanner: the micro-batches of a streaming query, in its planning process.

Law: an offset that was given to Spark keeps its meaning; options for the start apply to new queries only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from linn.client.blocking.generated.client import Client
from linn.core.errors.auth import AuthFailed
from linn.core.errors.tree import ConnectionLost, RequestTimeout
from linn.spark_plugin.connections import forget_client, patiently, pooled_client
from linn.spark_plugin.source.bounds import PartitionBounds, find_bounds, offsets_of
from linn.spark_plugin.source.options import ReadOptions
from linn.spark_plugin.source.ranges import Task, tasks
from linn.spark_plugin.source.stream_offset import StreamOffset, next_end, pending_records, ranges_between


class StreamPlanner:
    """Plans micro-batches."""

    def __init__(self, options: ReadOptions, now_ms: Callable[[], int]) -> None:
        self._options = options
        self._now_ms = now_ms
        self._last: list[PartitionBounds] | None = None
        """Bounds of the partitions when they were last requested."""
        self._target: list[PartitionBounds] | None = None
        """Bounds at which the query ends by itself; None: it has no end."""
        self._delayed_since: int | None = None

    def initial(self) -> StreamOffset:
        """Return where a new query starts. Raises SparkOptionInvalid, ConnectionLost and others."""
        bounds = self._bounds(is_strict=True)
        find = partial(offsets_of, self._client(), self._options.start, bounds, keeps_latest=True)
        offsets = patiently(find)
        return StreamOffset.of(bounds, offsets)

    def end_after(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset:
        """Return the end of the next micro-batch. `is_limited`: within the limits of the options.

        Raises SparkOptionInvalid, SparkDataLost, ConnectionLost and others.
        """
        bounds = self._target if self._target is not None else self._bounds()
        limits, fails = self._options.limits, self._options.fails_on_data_loss
        if is_limited and self._is_delayed(start, bounds):
            return start
        self._delayed_since = None
        return next_end(start, bounds, limits.offsets_max if is_limited else None, fails)

    def _is_delayed(self, start: StreamOffset, bounds: list[PartitionBounds]) -> bool:
        """Whether the next micro-batch waits for more records; a query that ends by itself does not wait."""
        limits = self._options.limits
        if limits.offsets_min is None or self._target is not None:
            return False
        count = pending_records(start, bounds)
        if count >= limits.offsets_min:
            return False
        now_ms = self._now_ms()
        if self._delayed_since is None:
            self._delayed_since = now_ms
        return now_ms - self._delayed_since < limits.delay_ms_max

    def stop_at_present_end(self) -> None:
        """Read nothing beyond the present ends. Raises SparkOptionInvalid, ConnectionLost and others."""
        self._target = self._bounds()

    def latest(self) -> StreamOffset | None:
        """Return the ends that were last requested; None if there was no request."""
        if self._last is None:
            return None
        return StreamOffset.of(self._last, {each.place: each.latest for each in self._last})

    def planned(self, start: StreamOffset, end: StreamOffset) -> list[Task]:
        """Return the tasks of a micro-batch. Raises SparkDataLost, ConnectionLost and others."""
        if start == end:
            return []
        options = self._options
        ranges = ranges_between(start, end, self._bounds(), options.fails_on_data_loss)
        return tasks(ranges, options.partitions_min, options.records_per_partition_max)

    def _client(self) -> Client:
        return pooled_client(self._options.broker)

    def _bounds(self, *, is_strict: bool = False) -> list[PartitionBounds]:
        try:
            find = partial(find_bounds, self._client(), self._options, is_stream=True, takes_missing=not is_strict)
            self._last = patiently(find)
        except (AuthFailed, ConnectionLost, RequestTimeout):  # The file may have another login by now.
            forget_client(self._options.broker)
            raise
        return self._last
