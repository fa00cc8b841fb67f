"""A queue's events that its state log has no room for, encoded and in order.

Law: the waiting records, written from first to last, give the state as of the last. When they are more than a snapshot,
which is equivalent, a snapshot replaces them: a full disk may last, and consumers continue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from linn.core.errors.tree import StorageError
from linn.core.log.state_log import StateLog

WAITING_BYTES_MAX = 256 << 10
"""Limit of records waiting after a snapshot, unless the snapshot is larger: making the next one then costs no more than
it replaces.
"""
RECORD_BYTES = 48
"""Memory that a record takes besides its own bytes."""


class UnwrittenEvents:
    """A writer to a state log that may have no room. `len` is the number of records that wait."""

    def __init__(self, state: StateLog, snapshot: Callable[[], bytes]) -> None:
        """`snapshot` gives the state with all events that were given to `write`."""
        self._state = state
        self._snapshot = snapshot
        self._records: deque[bytes] = deque()
        self._snapshot_bytes = 0
        """Size of the first record if it is a snapshot."""
        self._behind_bytes = 0

    def write(self, record: bytes = b"") -> None:
        """Append the waiting records, then this one. Raises StorageError: records not written keep waiting."""
        waiting, state = self._records, self._state
        try:
            while waiting:
                # One by one: each try on a full disk costs the same, however many wait.
                state.append(waiting[0])
                waiting.popleft()
            self._snapshot_bytes = self._behind_bytes = 0
            if record:
                state.append(record)
        except StorageError:
            if record:
                self._keep(record)
            raise

    def _keep(self, record: bytes) -> None:
        self._records.append(record)
        self._behind_bytes += len(record) + RECORD_BYTES
        if len(self._records) > 1 and self._behind_bytes > max(WAITING_BYTES_MAX, self._snapshot_bytes):
            snapshot = self._snapshot()
            self._records = deque([snapshot])
            self._snapshot_bytes, self._behind_bytes = len(snapshot), 0

    def __len__(self) -> int:
        return len(self._records)
