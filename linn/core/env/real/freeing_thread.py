"""A thread that frees the space of deleted files: ext4 takes a second for 1 GiB, during which the loop would stop.

To delete a large file, the disk opens it before it is unlinked, and gives the descriptor to this thread. While the
thread is busy, small files take the same way: the file system makes a small deletion wait for a large one.

Laws: there is at most one thread, and none before the first large file. Nothing waits for it: the end of the process
frees the rest. If no thread can be started, files are closed in place.
"""

from __future__ import annotations

import contextlib
import os
import threading
from queue import SimpleQueue

FREED_AT_ONCE_BYTES_MAX = 4 << 20
"""Largest file that is freed in place, in 4 ms: a file of 1 GiB takes a second."""


class FreeingThread:
    """Closes descriptors, for one disk."""

    def __init__(self) -> None:
        self._descriptors: SimpleQueue[int] = SimpleQueue()
        self._runs = self._works = False

    def wants(self, size_bytes: int) -> bool:
        """Whether a file of this size should be kept open when it is unlinked, and given to `close`."""
        if size_bytes >= FREED_AT_ONCE_BYTES_MAX:
            return self._runs or self._start()
        return self._works or not self._descriptors.empty()

    def _start(self) -> bool:
        # Not from `close`, which a finalizer may call when the interpreter ends and has no threads any more.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._run, name="linn-freeing", daemon=True).start()
            self._runs = True
        return self._runs

    def close(self, descriptor: int) -> None:
        """Close a descriptor, in the thread if that frees the space of a deleted file. Raises OSError."""
        if self._runs:
            status = os.fstat(descriptor)
            if status.st_nlink == 0 and self.wants(status.st_size):
                self._descriptors.put(descriptor)
                return
        os.close(descriptor)

    def _run(self) -> None:
        while True:
            self._works = False
            descriptor = self._descriptors.get()
            self._works = True
            with contextlib.suppress(OSError):
                os.close(descriptor)
