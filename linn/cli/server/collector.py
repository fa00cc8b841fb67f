"""Garbage collection of the broker process: objects that survive a collection are not visited again until memory grows.

Python's collector visits all objects each time their number has grown by a quarter, and stops the process meanwhile:
with a million objects (10,000 connections, or groups that read 4,096 partitions) for 100 to 200 ms. Here a collection
visits new objects only. A cycle of older objects is found by a full collection, which runs when the process has
doubled: seldom, but often enough to bound the memory that is lost.

A connection that ends leaves no cycle, as a test shows. Only deleted topics and groups leave cycles.

Separate from the server because it can be tested without a broker.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping

GROWTH_MAX = 2
"""Growth of memory since the last full collection that starts the next one."""
GROWTH_BYTES_MIN = 64 << 20
"""Minimum growth, as a small process doubles easily."""
_OLDEST = 2


class Collector:
    """Context manager that applies these rules to collections; outside of it Python's own rules hold."""

    def __init__(self, memory_bytes: Callable[[], int]) -> None:
        """`memory_bytes`: returns the memory of the process."""
        self._memory_bytes = memory_bytes
        self._is_full = False
        self._full_from_bytes = 0
        """Memory from which a collection is full."""

    def __enter__(self) -> Collector:
        self.keep()
        gc.callbacks.append(self._on_collection)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def keep(self) -> None:
        """Exempt all present objects from collections that are not full."""
        gc.freeze()
        self._note_size()

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Callback of Python before and after each collection, in any thread."""
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._is_full = self._memory_bytes() >= self._full_from_bytes
            if self._is_full:
                gc.unfreeze()
        else:
            gc.freeze()
            if self._is_full:
                self._note_size()

    def _note_size(self) -> None:
        size = self._memory_bytes()
        self._full_from_bytes = max(size * GROWTH_MAX, size + GROWTH_BYTES_MIN)
