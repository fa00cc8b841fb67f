"""Read requests: a subscription, and a fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from linn.core.batch.batch import RecordBatch
from linn.core.batch.format import NATIVE_ONLY
from linn.core.delivery.consumer import AnyConsumer
from linn.core.log.storage import StoredBatch

START_EARLIEST = -2
START_LATEST = -1
NO_ID = (0, 0)


class SubscribeRequest(NamedTuple):
    """A request to read a topic from a place."""

    topic: str
    group: str = ""
    """On a stream, the group whose members share the partitions. "": on a queue, a competing consumer; on a stream, a
    reader without stored offsets."""
    start: int = START_EARLIEST
    """The first offset on a stream without a committed offset; or START_EARLIEST, START_LATEST."""
    starts: Sequence[int] = ()
    """`start` by partition. Empty: `start` holds for all."""
    partitions: Sequence[int] = ()
    """The partitions for a reader without a group. Empty: all."""
    where: str = ""
    """On a stream, a predicate over routing key and labels: other records are skipped. "": all records."""
    member: str = ""
    """The name of the consumer; it takes over from a member of the group, or a consumer of the shared subscription, of
    the same name. "": any."""
    session_s: float = 0.0
    """Time without a heartbeat after which a member is removed; 0: it lives as long as its connection."""
    is_static: bool = False
    """Whether a member keeps its share for the length of a session after it leaves."""
    leader_epoch: int = 0
    """The epoch of the records before the starts of a reader without a group; 0: not checked."""
    shared: str = ""
    """The name of a stream's shared subscription, whose consumers compete. It is created at `start` if missing."""
    accepts: Sequence[int] = NATIVE_ONLY
    """The accepted formats of bodies; a batch in another format is translated into the first of them."""
    is_two_phase: bool = False
    """Whether the consumer takes part in two-phase deliveries: it answers "ready", later "done" for records."""
    is_uncommitted: bool = False
    """On a stream, whether to read records of open and aborted transactions too."""
    topic_id: tuple[int, int] = NO_ID
    """The two halves of the topic's id, as the client knows it; NO_ID: unknown."""
    priority: int = 0
    """Priority of a consumer that competes for records: a higher one gets them first."""


class Subscribed(NamedTuple):
    """A new consumer, and its topic."""

    consumer: AnyConsumer
    topic_id: tuple[int, int]
    leader_epoch: int
    """The latest epoch of the topic's partitions; on one broker they are all led in the same one."""


class FetchRequest(NamedTuple):
    """A request for a part of a partition."""

    topic: str
    partition: int
    offset: int
    bytes_max: int
    """Maximum bytes of an answer; it has at least one batch, whatever its size. 0: wait, and answer without batches."""
    bytes_min: int = 1
    """Bytes to wait for."""
    where: str = ""
    """A predicate over routing key and labels: other records are left out. "": all records."""
    accepts: Sequence[int] = NATIVE_ONLY
    """The accepted formats of bodies; a batch in another format is translated into the first of them."""
    is_unsettled: bool = False
    """Whether to read only the unsettled records of a queue."""
    is_uncommitted: bool = False
    """Whether to read records of open and aborted transactions too."""
    leader_epoch: int = 0
    """The epoch of the record before `offset`; 0: not checked."""
    topic_id: tuple[int, int] = NO_ID
    """The topic's id as the client knows it, as in `SubscribeRequest`."""


class Fetched(NamedTuple):
    """Part of a partition, and the partition's bounds."""

    batches: Sequence[RecordBatch | StoredBatch]
    next_offset: int
    """The offset at which to continue."""
    start_offset: int
    high_watermark: int
    leader_epoch: int


class TopicBounds(NamedTuple):
    """A topic, with the bounds of its partitions at one moment."""

    name: str
    kind: str
    delivery: str
    partitioner: str
    topic_id: tuple[int, int]
    message_bytes_max: int
    partitions: Sequence[tuple[int, int]]
    """(start offset, high watermark) of each partition."""
    leader: int = 0
    """The node that leads the topic; 0: unknown, or the broker is in no cluster."""
    leader_epoch: int = 0
    """The epoch in which it leads; 0: unknown."""
