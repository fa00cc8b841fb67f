"""How the process finds cycles: what was looked at once and stays is not looked at again, until memory has grown.

Python's collector looks, each time that the objects have become a quarter more, at all of them, and nothing else goes
on meanwhile: with a million objects (10,000 connections, or groups that read 4,096 partitions) for 100 to 200 ms. Here
it looks at those that are new. A cycle that is left by older ones is found when it looks at everything once more, which
it does when the process has doubled: seldom, and so often that what is lost is bounded.

A connection that ends leaves no cycle; see the test. What linn leaves in cycles is what is deleted: topics, groups.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping

GROWTH_MAX = 2
"""Of the memory after everything was looked at last."""
GROWTH_BYTES_MIN = 64 << 20
"""A small process doubles easily."""
_OLDEST = 2


class Collector:
    """Use it with `with`: before and after, Python's own rules hold."""

    def __init__(self, memory_bytes: Callable[[], int]) -> None:
        """`memory_bytes`: what the process takes now."""
        self._memory_bytes = memory_bytes
        self._looks_at_all = False
        self._grown_bytes = 0
        """The size from which on everything is looked at."""

    def __enter__(self) -> Collector:
        self.keep()
        gc.callbacks.append(self._on_collection)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def keep(self) -> None:
        """What there is now stays."""
        gc.freeze()
        self._note_size()

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Python calls this before and after each, in whichever thread."""
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._looks_at_all = self._memory_bytes() >= self._grown_bytes
            if self._looks_at_all:
                gc.unfreeze()
        else:
            gc.freeze()
            if self._looks_at_all:
                self._note_size()

    def _note_size(self) -> None:
        size = self._memory_bytes()
        self._grown_bytes = max(size * GROWTH_MAX, size + GROWTH_BYTES_MIN)
