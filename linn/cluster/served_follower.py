"""A follower of this broker's logs, in a lane of a link.

Laws: a lane follows one topic, with one request at a time. The follower is the node, in the session, that has proved
the secret, whatever its messages tell. Of each link, one follower at a time has batches read for it, and only when the
link has room: a broker that reads nothing costs one answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

import trio

from linn.cluster.channel import Channel
from linn.core.cluster.following import NEWS_BATCHES_MAX, FollowerSeat
from linn.core.errors.tree import ProtocolError, RequestUnknown
from linn.core.log.replication.events import Cut, LogTable
from linn.protocols.capnp.responder import Responder
from linn.wire import messages as m
from linn.wire.connection import Event

NEWS_BYTES_MAX = 4 << 20
"""Limit of the batches in one answer, whatever the follower asks for, unless it is a single one."""


class FollowerNode(NamedTuple):
    """The broker at the other end of a link."""

    node: int
    session: str
    turns: trio.Lock
    """Held while an answer for it is read and put into the output."""
    silent_s: Callable[[], float]
    """The time since its last word."""


class ServedFollower:
    """The follower in one lane, if there is one."""

    def __init__(self, responder: Responder, channel: Channel, who: FollowerNode) -> None:
        self._responder = responder
        self._channel = channel
        self._who = who
        self._seat: FollowerSeat | None = None
        self._waits = False
        """Whether a `replicate` has no answer yet."""

    def follow(self, event: Event) -> None:
        """Begin to follow, or begin anew. Raises LinnErrors for the answer; ends the link for a breach of protocol."""
        asked = event.message
        assert isinstance(asked, m.Follow)
        followed = self._responder.gateway.followed_logs
        if followed is None:
            raise RequestUnknown("this broker leads nothing that others follow")
        if self._waits:
            self._channel.lose(ProtocolError("follow before the answer to replicate"))
            return
        self.leave()
        tables = {
            table.log: LogTable(table.start, table.end, tuple([(row.leader_epoch, row.offset) for row in table.epochs]))
            for table in asked.logs
        }
        if len(tables) < len(asked.logs):
            raise ProtocolError("a log has two tables")
        topic_id = UUID(int=asked.topic_id_high << 64 | asked.topic_id_low)
        who = self._who
        self._seat = followed.follow(who.node, who.session, topic_id, asked.leader_epoch, tables, who.silent_s)
        cuts = [
            m.LogCut(log, match.at, not isinstance(match, Cut), match.producers)
            for log, match in self._seat.matches.items()
        ]
        self._responder.reply(event.correlation, m.Followed(cuts))

    def replicate(self, event: Event) -> None:
        """Count acknowledgements, and answer when there are news.

        Raises LinnErrors for the answer; ends the link for a breach of protocol, or an end that can't be.
        """
        asked, seat = event.message, self._seat
        assert isinstance(asked, m.Replicate)
        if seat is None or self._waits:
            self._channel.lose(ProtocolError("replicate before the answer to the last one, or before follow"))
            return
        try:
            seat.acknowledge([(end.log, end.end) for end in asked.ends])
        except ProtocolError as error:
            self._channel.lose(error)
            return
        self._waits = True
        bytes_max = min(asked.bytes_max, NEWS_BYTES_MAX)
        self._responder.in_task(event, lambda: self._answer(event.correlation, seat, bytes_max))

    async def _answer(self, correlation: int, seat: FollowerSeat, bytes_max: int) -> None:
        try:
            await seat.wait()
            async with self._who.turns:
                await self._channel.wait_room()
                news = await seat.take(bytes_max)
                batches = [batch for log in news for batch in log.batches]
                assert len(batches) <= NEWS_BATCHES_MAX, "a frame has no more"
                told = [
                    m.LogNews(it.number, it.start, it.watermark, len(it.batches), it.producers, it.thinned)
                    for it in news
                ]
                self._responder.reply_with(correlation, m.Replicated(told), batches)
        finally:
            self._waits = False

    def leave(self) -> None:
        """End the seat: the lane was closed, the link was lost, or the follower begins anew."""
        if self._seat is not None:
            self._seat.leave()
            self._seat = None
