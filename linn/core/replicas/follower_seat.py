"""A follower of a topic at its leader: the records that it was sent, and the watermarks that it was told.

Laws: a seat lasts for one epoch of the leader, and until its node follows anew. Thinned batches have no producer: a
follower that was sent some is told the producers before it can be in sync.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.steps import run_steps
from linn.core.batch.thinning import can_be_thinned, thin_steps
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
        self._unsure: set[int] = set()
        """Logs of which the follower was not sent all records since it was told their producers."""
        self._told: dict[int, tuple[int, int, int]] = {}
        """(start, watermark, end of the thinned part) of each log, as told last."""
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
            if self._sent[number] < partition.log.bounds()[1]:
                return True, True
            if self._told.get(number) != _numbers(partition):
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
        if start > self._sent[number]:
            self._sent[number] = start
            self._unsure.add(number)
        offset, producers = self._sent[number], b""
        batches: list[RecordBatch | StoredBatch] = []
        if offset < end:
            if number in self._checked:
                batches = list(partition.log.read_nowait(offset, bytes_max))
            if not batches:
                try:
                    batches += await self._read_from(number, partition, offset, bytes_max)
                except OffsetOutOfRange:
                    return None  # Dropped meanwhile: the start is told next.
                self._checked.add(number)
            room = NEWS_BATCHES_MAX - sum(len(news.batches) for news in found)
            del batches[room:]
            if found and sum([batch.size for batch in batches]) > bytes_max:
                return None
            if batches:
                self._sent[number] = batches[-1].end_offset
            if any(batch.end_offset - batch.base_offset > batch.count for batch in batches):
                self._unsure.add(number)
        if number in self._unsure and self._sent[number] >= partition.high_watermark:
            self._unsure.discard(number)
            producers = _producers(self._replica.logs, number, self._sent[number])
        told = start, *_numbers(partition)[1:]
        if not batches and not producers and self._told.get(number) == told:
            return None
        self._told[number] = told
        return LogNews(number, *told[:2], batches, producers, told[2])

    async def _read_from(self, number: int, partition: Partition, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        """Read batches of which the first begins at an offset. Raises as `PartitionLog.read`; BatchMalformed.

        Thinning moves the ends of batches: a follower that stopped at one may go on within another, and gets a part.
        """
        batches = await partition.read_log(offset, bytes_max)
        if not batches or batches[0].base_offset >= offset or not can_be_thinned(batches[0]):
            return batches
        self._unsure.add(number)
        first, span = RecordBatch(batches[0].message), (offset, batches[0].end_offset)
        return [run_steps(thin_steps(first, [span], *span)) or first, *batches[1:]]

    def leave(self) -> None:
        """See `FollowerSeat.leave`."""
        if not self._has_left:
            self.end()
            self._replica.left(self, self._leader, self._node, self._session)


def _numbers(partition: Partition) -> tuple[int, int, int]:
    return partition.log.bounds()[0], partition.high_watermark, partition.thinning.before


def _producers(logs: Mapping[int, Partition], number: int, before: int) -> bytes:
    """A snapshot of the producers of the records before an offset of a log; b"": it has none."""
    found = logs[number].log.facts.producers.before(before) if is_data(number) and number in logs else ()
    return found.encode() if found else b""
