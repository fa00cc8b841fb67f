"""Ports by which a broker follows the logs of a topic at their leader, and by which the leader serves it.

A follower opens a lane to the leader, lets it compare the logs (`follow`), cuts its own where it has to, and then asks
for news again and again (`replicate`). Each of these requests acknowledges as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from linn.core.batch.batch import RecordBatch
from linn.core.log.replication.events import LogTable, Match
from linn.core.log.storage import StoredBatch

NEWS_BATCHES_MAX = 1_024
"""Limit of the batches in one answer, as many as may follow one frame."""


AnyBatch = TypeVar("AnyBatch", bound=RecordBatch | StoredBatch, covariant=True)
"""A follower has batches in memory; at the leader they may be in their files."""


class LogNews(NamedTuple, Generic[AnyBatch]):
    """News of one log at the leader."""

    number: int
    start: int
    """The leader's first offset."""
    watermark: int
    """The leader's watermark; it may be beyond these batches."""
    batches: Sequence[AnyBatch]
    """The next batches in order of their offsets, as they are stored; none: only the numbers are new."""
    producers: bytes = b""
    """A snapshot of the producers of all records up to these batches, if the follower was not sent all of them."""
    thinned: int = 0
    """The offset below which the leader has thinned the log."""


class FollowLane(Protocol):
    """A follower's lane for the logs of one topic. One request at a time."""

    async def follow(self, topic_id: UUID, epoch: int, logs: Mapping[int, LogTable]) -> Mapping[int, Match]:
        """Begin to follow anew: the leader compares the logs, and says where each of its own has to be cut here.

        Logs of `logs` that the leader does not have are not in the answer; a log that is not in `logs` is empty here.
        No log is to be cut beyond its end.

        Raises:
            NotLeader: the other broker does not lead in this epoch; with its own `leader` and `epoch`.
            TopicUnknown: it does not know the topic, or not yet.
            ProtocolError: it can't use the tables, or (FrameTooLarge) they do not fit into a message. The lane goes on.
            PeerUnreachable: the link is lost, or the lane is closed.
            Other LinnErrors of the leader.
        Cancellation: the lane is closed.
        """

    async def replicate(self, ends: Sequence[tuple[int, int]], bytes_max: int) -> Sequence[LogNews[RecordBatch]]:
        """Acknowledge the ends that are durable here, and wait for news. It may wait for ever.

        Args:
            ends: (number, end) of logs of the last `follow`, of which more is durable than was acknowledged.
            bytes_max: limit of the batches together; a single one may be larger.

        Raises:
            NotLeader: the other broker leads no more; with its own `leader` and `epoch`.
            PeerUnreachable: the link is lost, or the lane is closed. The leader may know the ends, or not.
            Other LinnErrors of the leader, such as of its storage.
        Cancellation: the lane is closed. The leader may know the ends, or not.
        """

    def close(self) -> None:
        """Follow no more: the leader is told, and a request in progress fails with PeerUnreachable. Idempotent."""


class FollowerSeat(Protocol):
    """A follower at its leader, from one `follow` to the next."""

    @property
    def matches(self) -> Mapping[int, Match]:
        """The place at which the follower has to cut each log of the leader."""

    def acknowledge(self, ends: Sequence[tuple[int, int]]) -> None:
        """The follower holds its logs up to these offsets, durably by the topic's policy.

        Raises:
            ProtocolError: a log is unknown, or an end is beyond the log's or before an earlier one: the link ends.
            NotLeader: this broker leads no more.
        """

    async def wait(self) -> None:
        """Wait until there is something to `take`: batches, or (not too often) another start or watermark alone.

        Raises NotLeader: this broker leads no more. Cancellation: nothing happens.
        """

    async def take(self, bytes_max: int) -> Sequence[LogNews[RecordBatch | StoredBatch]]:
        """Return the news since the last time, if there are any, with at most `NEWS_BATCHES_MAX` batches.

        `bytes_max`: limit of all batches together, except that the first one may be larger. Called when it can be sent:
        the leader holds the batches of no more than one follower for each link.

        Raises NotLeader, and errors of the storage. Cancellation: the seat is left soon.
        """

    def leave(self) -> None:
        """The follower is gone, or follows anew: its lane was closed, or the link was lost. Idempotent."""


class FollowedLogs(Protocol):
    """The logs that this broker leads, for their followers."""

    def follow(
        self,
        node: int,
        session: str,
        topic_id: UUID,
        epoch: int,
        logs: Mapping[int, LogTable],
        silent_s: Callable[[], float],
    ) -> FollowerSeat:
        """Let a node follow the logs of a topic, in the session that it has proved. An older seat of it ends.

        `silent_s` tells the time since the last word of the node, in seconds.

        Raises NotLeader, with `leader` and `epoch` as far as they are known; TopicUnknown; ProtocolError: a table is
        wrong.
        """
