"""A queue's events that its state log has no room for: kept as they are to be written, in their order.

Law: what waits gives, written from the first to the last, the state as of the last. Where it is more than a snapshot,
which says the same, a snapshot takes its place: a full disk may last, and consumers go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from linn.core.errors.tree import StorageError
from linn.core.log.state_log import StateLog

WAITING_BYTES_MAX = 256 << 10
"""Behind a snapshot, or as much as the snapshot takes: then making the next one costs no more than what it replaces."""
RECORD_BYTES = 48
"""What a record takes in memory beside its own bytes."""


class UnwrittenEvents:
    """The way into a state log that may have no room now. `len` is the number of records that wait."""

    def __init__(self, state: StateLog, snapshot: Callable[[], bytes]) -> None:
        """`snapshot` gives the state with all events that were given to `write`."""
        self._state = state
        self._snapshot = snapshot
        self._records: deque[bytes] = deque()
        self._snapshot_bytes = 0
        """Of the first record, where it is a snapshot."""
        self._behind_bytes = 0

    def write(self, record: bytes = b"") -> None:
        """Append what waits, then this record. Raises StorageError: what was not written waits."""
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
