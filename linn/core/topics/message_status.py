"""The status of a topic's messages, found by their ids.

Laws: a message is known from its append until it is older than the topic's `status`, or IDS_MAX offsets of its
partition lie behind it, whatever was settled meanwhile. Its status follows from logs: from the records, and from the
state of the topic's queue, which keeps the endings of records that no consumer settled.

Where several records have an id, the newest one of a partition counts, and one that was aborted if there is no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from linn.core.batch.steps import Steps
from linn.core.log.partition import Partition
from linn.core.queue.queue import Queue
from linn.core.topics.message_ids import KnownIds, MessageIds, each_id_of
from linn.message_status import MessageState, MessageStatus

IDS_AT_ONCE = 256
"""Ids that are looked up in one partition without a pause, in less than a millisecond."""


class MessageStatuses(KnownIds):
    """The messages of one topic. Its own queue says what became of them; a stream only stores them."""

    ids_of = staticmethod(each_id_of)

    def find(
        self, asked: Sequence[UUID], partitions: Mapping[int, Partition], queue: Queue | None
    ) -> Steps[list[MessageStatus]]:
        """The status of each message, in the order of the ids, in steps of IDS_AT_ONCE."""
        found: dict[bytes, MessageStatus] = {}
        ids = list(dict.fromkeys(id.bytes for id in asked))
        for index, known in list(self._ids.items()):
            known.forget(self._clock.monotonic(), self.window_s)
            for at in range(0, len(ids), IDS_AT_ONCE):
                if (partition := partitions.get(index)) is None:
                    break  # Another broker leads the topic by now.
                some = ids[at : at + IDS_AT_ONCE]
                for id, offset in zip(some, known.find(some), strict=True):
                    if offset is not None and (id not in found or found[id]["state"] == "aborted"):
                        state, reason = _state(partition, known, offset, queue)
                        found[id] = _status(UUID(bytes=id), state, reason, index, offset)
                yield
        return [found.get(id.bytes) or _status(id, "unknown") for id in asked]

    def forget_endings(self, queue: Queue) -> None:
        """Let the topic's queue forget the endings of records whose ids are forgotten."""
        for index, partition_queue in enumerate(queue.partition_queues):
            before = self.kept_from(index)
            start = partition_queue.partition.start_offset
            partition_queue.subscription.forget_endings(start if before is None else before)


def _status(
    id: UUID, state: MessageState, reason: str = "", partition: int | None = None, offset: int | None = None
) -> MessageStatus:
    return {"id": str(id), "state": state, "reason": reason, "partition": partition, "offset": offset}


def _state(partition: Partition, known: MessageIds, offset: int, queue: Queue | None) -> tuple[MessageState, str]:
    """The state of a record of a partition's log, and the reason."""
    for _, _, write in known.writes.pieces(offset, offset + 1):
        if partition.transactions.hides(write):
            return "aborted", ""
        if partition.transactions.is_open(write.producer_id, write.transaction):
            return "in_doubt", ""
    if offset >= partition.high_watermark:
        return "in_doubt", ""
    if queue is None:
        return ("stored" if offset >= partition.start_offset else "dropped"), ""
    return queue.partition_queue(partition.id.index).subscription.state_at(offset)
