"""Positions of one subscription in the partitions of a stream, as far as the client needs them. Pure: no I/O.

Laws: the broker answers a seek in order: deliveries before the answer are from the old place, and later ones from the
new place. A paused partition hands out nothing, and goes on at the first record that was not handed out.
"""

from __future__ import annotations

from collections.abc import Iterable

from linn.core.batch.batch import RecordBatch
from linn.wire.messages import WHERE_IT_IS


class Positions:
    """Positions of a reader, or of a group's member, which goes on from commits after a reconnection."""

    def __init__(self, is_member: bool, next_offsets: dict[int, int]) -> None:
        """`next_offsets`: by partition, the offset from which records are handed out."""
        self._is_member = is_member
        self._next = next_offsets
        """Next offset by partition: of a reader, or of a member during a set-back by a nack.
        """
        self._owned: set[int] | None = None
        self._paused: dict[int, int | None] = {}
        """Paused partitions, and the offsets at which they go on; None: where the broker has stopped."""

    def skip(self, partition: int, records: RecordBatch) -> int:
        """Return the number of unwanted records at the start of a delivered batch, and move the position after it."""
        position = self._next.get(partition)
        count = int(records.count)
        if partition in self._paused:
            if self._paused[partition] is None:
                self._paused[partition] = max(records.base_offset, position or 0)
            return count
        if self._is_member:
            if position is None:
                return 0
            if not records.base_offset <= position < records.end_offset:
                return count  # The batch was on its way when reading was set back.
            del self._next[partition]
            return records.index_at(position)
        self._next[partition] = max(position or 0, records.end_offset)
        return 0 if position is None else records.index_at(position)

    def passed(self, partition: int, offset: int) -> None:
        """Move a reader on to `offset`, before which there are no records for it."""
        if not self._is_member:
            self._next[partition] = max(self._next.get(partition, 0), offset)

    def wants(self, partition: int) -> bool:
        """Tell whether records that have arrived may be handed out."""
        if partition in self._paused or (self._owned is not None and partition not in self._owned):
            return False
        return not (self._is_member and partition in self._next)

    def reads(self, partition: int) -> bool:
        """Tell whether a reader is known to read a partition."""
        return partition in self._next

    def assigned(self, partitions: Iterable[int]) -> None:
        """Note a member's new share. Partitions that moved to other members are no longer paused."""
        self._owned = set(partitions)
        for positions in (self._next, self._paused):
            for partition in [known for known in positions if known not in self._owned]:
                del positions[partition]

    def set_back(self, partition: int, offset: int) -> int:
        """Set a member back, as a nack does, until `set_back_done`; return the offset from which it reads again.

        With several nacks in a row that is the lowest offset, so that no nacked record is skipped.
        """
        offset = min(offset, self._next.get(partition, offset))
        if self._is_member:
            self._next[partition] = offset
            if partition in self._paused:
                self._paused[partition] = offset
        return offset

    def set_back_done(self, partition: int) -> None:
        """Note the broker's answer: records that arrive from now on were read after the set-back."""
        if self._is_member:
            self._next.pop(partition, None)

    # --- seek ---

    def is_paused(self, partition: int) -> bool:
        """Tell whether a partition is paused."""
        return partition in self._paused

    def resumes_at(self, partition: int) -> int:
        """Return the offset of the seek that resumes a partition."""
        place = self._paused.get(partition)
        return WHERE_IT_IS if place is None else place

    def pause(self, partition: int, unread: int | None) -> None:
        """Pause a partition; `unread` is the first arrived offset that was not handed out, if any."""
        place = self._paused.get(partition) if unread is None else unread
        if place is None and self._is_member:
            place = self._next.get(partition)
        self._paused[partition] = place
        if not self._is_member and place is not None:
            self._next[partition] = place

    def resumed(self, partition: int) -> None:
        """Hand records out again, from `resumes_at` on."""
        self._paused.pop(partition, None)

    def sought(self, partition: int, offset: int) -> None:
        """Go on at `offset`, as the broker does from now on, and drop records that have arrived."""
        if partition in self._paused:
            self._paused[partition] = offset
        if self._is_member:
            self._next.pop(partition, None)
        else:
            self._next[partition] = offset

    def resume_offsets(self) -> dict[int, int]:
        """Return the next offset by partition of a reader, for its next subscription; nothing for a member."""
        return {} if self._is_member else self._next
