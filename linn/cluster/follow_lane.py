"""A follower's lane, on the side that follows: requests to the leader, and checks of its answers.

Laws: an answer is about logs that the leader has matched, each once, and has as many batches as it tells; another one
ends the link. Whether the batches continue the log, and are whole, is checked where they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import trio

from linn.cluster.link import Link
from linn.core.batch.batch import RecordBatch
from linn.core.cluster.following import LogNews
from linn.core.errors.peers import PeerUnreachable
from linn.core.errors.tree import FrameTooLarge
from linn.core.log.replication.events import Cut, LogTable, Match, Restart
from linn.wire import messages as m
from linn.wire.connection import Event

U64_MAX = 2**64 - 1


class LinkFollowLane:
    """A `FollowLane` in a lane of a link."""

    def __init__(self, link: Link, lane: int) -> None:
        self._link = link
        self._lane = lane
        self._is_closed = False
        self._asking: trio.CancelScope | None = None
        """The request in progress."""
        self._logs: frozenset[int] = frozenset()
        """The logs that the leader has matched."""

    async def follow(self, topic_id: UUID, epoch: int, logs: Mapping[int, LogTable]) -> Mapping[int, Match]:
        """See `FollowLane.follow`."""
        asked = m.Follow(topic_id.int >> 64, topic_id.int & U64_MAX, epoch, _tables(logs))
        answer = (await self._ask(asked)).message
        if not isinstance(answer, m.Followed):
            raise self._distrusted(f"answered follow with {type(answer).__name__}")
        matches: dict[int, Match] = {}
        for cut in answer.cuts:
            end = logs[cut.log].end if cut.log in logs else 0
            if cut.log in matches or cut.at < 0 or (cut.at > end and not cut.is_restart):
                raise self._distrusted(f"cuts log {cut.log} at {cut.at}, which ends at {end}, or a second time")
            matches[cut.log] = (Restart if cut.is_restart else Cut)(cut.at, cut.producers)
        self._logs = frozenset(matches)
        return matches

    async def replicate(self, ends: Sequence[tuple[int, int]], bytes_max: int) -> Sequence[LogNews[RecordBatch]]:
        """See `FollowLane.replicate`."""
        answer = await self._ask(m.Replicate([m.LogEnd(*end) for end in ends], bytes_max))
        if not isinstance(answer.message, m.Replicated):
            raise self._distrusted(f"answered replicate with {type(answer.message).__name__}")
        told = answer.message.logs
        if sum([news.batches for news in told]) != len(answer.batches):
            raise self._distrusted(f"sent {len(answer.batches)} batches of logs, and tells another number of them")
        news: list[LogNews[RecordBatch]] = []
        missing, first = set(self._logs), 0
        for each in told:
            if each.log not in missing or min(each.start, each.watermark, each.thinned) < 0:
                raise self._distrusted(f"tells of log {each.log}, which is not followed, or tells it twice, or wrong")
            missing.remove(each.log)
            batches = answer.batches[first : first + each.batches]
            first += each.batches
            news.append(LogNews(each.log, each.start, each.watermark, batches, each.producers, each.thinned))
        return news

    async def _ask(self, message: m.Message) -> Event:
        """Make a request, and wait for its answer. Raises its error; PeerUnreachable. Cancellation: closes the lane."""
        assert self._asking is None, "one request at a time"
        if not self._is_closed:
            with trio.CancelScope() as self._asking:
                try:
                    return await self._link.ask(self._lane, message, is_repeatable=True)
                except trio.Cancelled:
                    self.close()
                    raise
                finally:
                    self._asking = None
        raise PeerUnreachable("the lane is closed")

    def _distrusted(self, deed: str) -> PeerUnreachable:
        return PeerUnreachable(self._link.distrust(deed))

    def close(self) -> None:
        """See `FollowLane.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._link.close_lane(self._lane)
            if self._asking is not None:
                self._asking.cancel()


def _tables(logs: Mapping[int, LogTable]) -> list[m.LogTable]:
    """Encode tables. Of each, as many of the newest epochs are told as fit into one message: others are seldom needed.

    Raises FrameTooLarge: there are too many logs.
    """
    if len(logs) > m.FOLLOW_ROWS_MAX:
        raise FrameTooLarge(f"{len(logs):,} logs of one topic are followed, more than {m.FOLLOW_ROWS_MAX:,}")
    rows_max = m.FOLLOW_ROWS_MAX // max(1, len(logs))
    return [
        m.LogTable(number, start, end, [m.EpochStart(*row) for row in rows[-rows_max:]])
        for number, (start, end, rows) in logs.items()
    ]
