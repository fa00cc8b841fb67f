"""A follower of a topic at its leader: the records that it was sent, and the watermarks that it was told.

Law: a seat lasts for one epoch of the leader, and until its node follows anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.cluster.following import NEWS_BATCHES_MAX, LogNews
from linn.core.env.env import Clock
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import OffsetOutOfRange
from linn.core.log.partition import Partition
from linn.core.log.replication.events import Match
from linn.core.log.replication.leader import Leader
from linn.core.log.storage import StoredBatch
from linn.core.replicas.log_numbers import is_data
from linn.core.replicas.replication_counts import ReplicationCounts

TELL_S = 0.1
"""Interval at which a watermark alone is told: a follower needs it when it is elected, and readers never."""

SeatNews = LogNews[RecordBatch | StoredBatch]


class FollowedTopic(Protocol):
    """The replica of a topic at its leader, as a seat needs it."""

    logs: dict[int, Partition]
    clock: Clock
    counts: ReplicationCounts

    @property
    def leader(self) -> Leader | None:
        """This broker as the leader; None: it is not."""

    def not_leader(self) -> NotLeader:
        """The error of requests to a leader that this broker is not."""

    def obey(self) -> None:
        """Carry out what the rules say."""

    def left(self, seat: TopicSeat, leader: Leader, node: int, session: str) -> None:
        """A follower is gone."""


class TopicSeat:
    """The port `FollowerSeat` for one topic."""

    def __init__(
        self, replica: FollowedTopic, leader: Leader, node: int, session: str, matches: Mapping[int, Match]
    ) -> None:
        logs = replica.logs
        self.matches = {n: it._replace(producers=_producers(logs, n, it.at)) for n, it in matches.items()}
        self._replica = replica
        self._leader = leader
        self._node = node
        self._session = session
        self._sent = {number: match.at for number, match in matches.items()}
        """The offset after the last record that was sent, by log."""
        self._checked: set[int] = set()
        """Logs whose first records here were read and checked. Later ones are sent from their files as they are: if the
        follower finds one damaged it follows again, and the leader finds the damage itself."""
        self._told: dict[int, tuple[int, int]] = {}
        """(start, watermark) of each log, as told last."""
        self._told_s = float("-inf")
        self._changed = dict.fromkeys(matches)
        """Logs about which there may be news."""
        self._woken = trio.lowlevel.ParkingLot()
        self._has_left = False

    def tell(self, number: int) -> None:
        """There may be news about a log."""
        self._changed[number] = None
        self._woken.unpark_all()

    def end(self) -> None:
        """The leader's epoch is over, or the node follows anew: `wait` and `take` fail from now on."""
        self._has_left = True
        self._woken.unpark_all()

    def acknowledge(self, ends: Sequence[tuple[int, int]]) -> None:
        """See `FollowerSeat.acknowledge`."""
        self._check()
        self._leader.acknowledged(self._node, self._session, ends)
        self._replica.obey()

    def _check(self) -> None:
        """Raises NotLeader."""
        if self._has_left or self._replica.leader is not self._leader:
            raise self._replica.not_leader()

    async def wait(self) -> None:
        """See `FollowerSeat.wait`."""
        while True:
            self._check()
            has_batches, has_numbers = self._look()
            if has_batches:
                return
            left_s = self._told_s + TELL_S - self._replica.clock.monotonic()
            if has_numbers and left_s <= 0:
                return
            with trio.move_on_after(left_s if has_numbers else float("inf")):
                await self._woken.park()

    def _look(self) -> tuple[bool, bool]:
        """Whether there are batches to send, and other numbers to tell; forgets logs about which there is no news."""
        has_numbers = False
        for number in list(self._changed):
            partition = self._replica.logs.get(number)
            if partition is None or number not in self._sent:
                del self._changed[number]
                continue
            start, end = partition.log.bounds()
            if self._sent[number] < end:
                return True, True
            if self._told.get(number) != (start, partition.high_watermark):
                has_numbers = True
            else:
                del self._changed[number]
        return False, has_numbers

    async def take(self, bytes_max: int) -> Sequence[SeatNews]:
        """See `FollowerSeat.take`."""
        found: list[SeatNews] = []
        bytes_left, batches_left = bytes_max, NEWS_BATCHES_MAX
        for number in list(self._changed):
            news = await self._news_of(number, bytes_left, found)
            if news is None:
                continue
            found.append(news)
            bytes_left -= sum([batch.size for batch in news.batches])
            batches_left -= len(news.batches)
            del self._changed[number]
            self._changed[number] = None  # Behind the others: each has its turn.
            if bytes_left <= 0 or batches_left <= 0:
                break
        self._check()
        self._told_s = self._replica.clock.monotonic()
        self._replica.counts.sent_bytes += bytes_max - bytes_left
        return found

    async def _news_of(self, number: int, bytes_max: int, found: Sequence[SeatNews]) -> SeatNews | None:
        """The news of one log; None: there are none, or they do not fit behind `found`."""
        partition = self._replica.logs.get(number)
        if partition is None or number not in self._sent:
            return None
        start, end = partition.log.bounds()
        offset, producers = max(self._sent[number], start), b""
        if start > self._sent[number]:
            producers, self._sent[number] = _producers(self._replica.logs, number, start), start
        batches: list[RecordBatch | StoredBatch] = []
        if offset < end:
            if number in self._checked:
                batches = list(partition.log.read_nowait(offset, bytes_max))
            if not batches:
                try:
                    batches = list(await partition.read_log(offset, bytes_max))
                except OffsetOutOfRange:
                    return None  # Dropped meanwhile: the start is told next.
                self._checked.add(number)
            room = NEWS_BATCHES_MAX - sum(len(news.batches) for news in found)
            del batches[room:]
            if found and sum([batch.size for batch in batches]) > bytes_max:
                return None
            if batches:
                self._sent[number] = batches[-1].end_offset
        told = start, partition.high_watermark
        if not batches and not producers and self._told.get(number) == told:
            return None
        self._told[number] = told
        return LogNews(number, *told, batches, producers)

    def leave(self) -> None:
        """See `FollowerSeat.leave`."""
        if not self._has_left:
            self.end()
            self._replica.left(self, self._leader, self._node, self._session)


def _producers(logs: Mapping[int, Partition], number: int, before: int) -> bytes:
    """A snapshot of the producers of the records before an offset of a log; b"": it has none."""
    found = logs[number].log.facts.producers.before(before) if is_data(number) and number in logs else ()
    return found.encode() if found else b""
