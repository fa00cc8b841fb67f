"""Prebuilt requests of one point: the same bytes for the floor and for linn."""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmarks.load import SEND_BYTES
from benchmarks.matrix.point import Point
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch
from linn.wire import messages
from linn.wire.connection import frames_of

SEND_BATCHES_MAX = 256
"""Batches handed to the kernel at once: a quarter of the requests that a connection may have open."""
ACKS = {"none": messages.Acks.NONE, "leader": messages.Acks.LEADER, "all": messages.Acks.ALL}
CROWD_PASSES_MIN = 4
"""Least passes of many connections: with a single batch of each, a run would be over before they interfere."""
TEXT = b'{"flight": 1141, "origin": "JFK"}'


@dataclass(frozen=True)
class Send:
    """Buffers that are sent together."""

    buffers: tuple[bytes, ...]
    batches: int


@dataclass(frozen=True)
class Shipment:
    """Publishes of the same batch."""

    sends: tuple[Send, ...]
    """One pass: once through all partitions, if there are several."""
    batches: int
    """Batches of one pass."""
    records: int
    """Records of one batch."""
    batch_bytes: int
    is_answered: bool
    last: bytes
    """A publish that is always answered: with acks "none", its answer says that all before it was read."""

    def passes(self, bytes_max: int, batches_max: int, connections: int) -> int:
        """The number of passes of each connection, such that all of them stay within the limits; but at least a few."""
        least = 1 if connections == 1 else CROWD_PASSES_MIN
        return max(least, min(bytes_max // self.batch_bytes, batches_max) // (self.batches * connections))


def batch_of(point: Point) -> RecordBatch:
    """Make a batch; half of each value is random, the other half is text that repeats."""
    half = point.record_bytes // 2
    text = (TEXT * (half // len(TEXT) + 2))[: point.record_bytes - half]
    values = [os.urandom(half) + text for _ in range(point.records)]
    return build_batch(BatchColumns(values, 1_700_000_000_000, 1 << 64), point.batch_codec)


def shipment(point: Point) -> Shipment:
    """Make publishes to every partition of the point, in turn."""
    batch = batch_of(point)
    content = bytes(batch.message)
    per_send = max(1, min(SEND_BATCHES_MAX, SEND_BYTES // batch.size // point.connections))
    controls = [_control(point, number, batch) for number in range(point.partitions)]
    sends: tuple[Send, ...]
    if len(controls) == 1:
        sends = (Send(((controls[0] + content) * per_send,), per_send),)
    else:
        sends = tuple(_send(controls[first : first + per_send], content) for first in range(0, len(controls), per_send))
    return Shipment(
        sends=sends,
        batches=sum(send.batches for send in sends),
        records=point.records,
        batch_bytes=batch.size,
        is_answered=point.acks != "none",
        last=_control(Point(), 0, batch) + content,
    )


def _control(point: Point, number: int, batch: RecordBatch) -> bytes:
    topic, partition = point.place(number)
    request = messages.Publish(topic, acks=ACKS[point.acks], partition=partition)
    return bytes(frames_of(request, int(point.acks != "none"), [batch])[0])


def _send(controls: list[bytes], content: bytes) -> Send:
    # Buffers side by side: joined, the batches of 10,000 partitions would take 640 MB.
    return Send(tuple(buffer for control in controls for buffer in (control, content)), len(controls))
