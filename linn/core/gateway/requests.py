"""Requests to read: a subscription, and a fetch."""

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
    """A topic to read, and from where."""

    topic: str
    group: str = ""
    """On a stream, the group whose members share the partitions. "": on a queue, one of the consumers that compete; on
    a stream, a reader without stored offsets."""
    start: int = START_EARLIEST
    """The first offset on a stream where nothing was committed; or START_EARLIEST, START_LATEST."""
    starts: Sequence[int] = ()
    """The same by partition. Empty: `start` holds for all."""
    partitions: Sequence[int] = ()
    """The partitions that a reader without a group reads. Empty: all."""
    where: str = ""
    """On a stream, a predicate over routing key and labels: other records are passed over. "": all are wanted."""
    member: str = ""
    """The name of the consumer; one that is taken is taken over, of a group's members or of the consumers of one shared
    subscription. "": any."""
    session_s: float = 0.0
    """Time without a heartbeat after which a member is given up; 0: it lives as long as its connection."""
    is_static: bool = False
    """Whether a member keeps its share, for the time of a session, when it leaves."""
    leader_epoch: int = 0
    """The epoch in which a reader without a group has read what lies before its starts; 0: not checked."""
    shared: str = ""
    """The name of a stream's shared subscription, whose consumers compete as those of a queue do. It is made if it is
    not there, and begins at `start` then."""
    accepts: Sequence[int] = NATIVE_ONLY
    """The formats of bodies that are taken; a batch of another one is translated into the first of them."""
    is_two_phase: bool = False
    """Whether the consumer says that it is ready for records, and done with what was decided to it."""
    is_uncommitted: bool = False
    """On a stream, whether records of transactions that are open, or were aborted, are read as well."""
    topic_id: tuple[int, int] = NO_ID
    """The halves of the id of the topic that the client knows by this name; NO_ID: it knows none."""


class Subscribed(NamedTuple):
    """A new consumer, and the topic that it reads."""

    consumer: AnyConsumer
    topic_id: tuple[int, int]
    leader_epoch: int


class FetchRequest(NamedTuple):
    """A part of a partition to read."""

    topic: str
    partition: int
    offset: int
    bytes_max: int
    """Bytes of an answer; one batch at least, whatever its size."""
    bytes_min: int = 1
    """Bytes to wait for."""
    where: str = ""
    """A predicate over routing key and labels: other records are left out. "": all are wanted."""
    accepts: Sequence[int] = NATIVE_ONLY
    """The formats of bodies that are taken; a batch of another one is translated into the first of them."""
    is_unsettled: bool = False
    """Whether only the records of a queue are read that are not settled."""
    is_uncommitted: bool = False
    """Whether records of transactions that are open, or were aborted, are read as well."""
    leader_epoch: int = 0
    """The epoch in which the reader has read what lies before `offset`; 0: not checked."""
    topic_id: tuple[int, int] = NO_ID
    """The id of the topic that the client knows, as in `SubscribeRequest`."""


class Fetched(NamedTuple):
    """Part of a partition, and the partition's bounds."""

    batches: Sequence[RecordBatch | StoredBatch]
    next_offset: int
    """The offset to go on at."""
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
    """(start offset, high watermark) of each."""
