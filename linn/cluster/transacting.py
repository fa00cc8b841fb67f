"""Requests about transactions to other brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from linn.cluster.link import Link
from linn.core.ports.principal import Principal
from linn.core.transactions.cluster_coordinator import TopicMarks
from linn.core.transactions.producer import Owner, TopicKey
from linn.wire import messages as m

U64_MAX = 2**64 - 1


class LinkTransacting:
    """The port `TransactionLinks`: each request has a lane of its own, as it may wait for long."""

    def __init__(self, link: Callable[[int], Awaitable[Link]], itself: Callable[[], Principal]) -> None:
        """`link`: returns the link to a node. Raises PeerUnreachable, PeerRefused, PeerStale. `itself`: this broker."""
        self._link = link
        self._itself = itself

    async def transact(self, node: int, principal: Principal, message: m.Message) -> m.Message:
        """See `TransactionLinks.transact`."""
        wanted = m.OpenedTransactions if isinstance(message, m.OpenTransactions) else m.Done
        return await self._ask(node, principal, message, wanted)

    async def join(self, node: int, branch: int, number: int, topic: TopicKey, owner: Owner | None) -> None:
        """See `TransactionLinks.join`."""
        user, epoch = (owner.user, owner.epoch) if owner is not None else ("", -1)
        message = m.JoinTransaction(branch, number, topic.name, *_halves(topic), user, epoch)
        await self._ask(node, self._itself(), message, m.Done)

    async def mark(self, node: int, marks: TopicMarks) -> None:
        """See `TransactionLinks.mark`."""
        topic = marks.topic.name, *_halves(marks.topic)
        message = m.MarkTransaction(*topic, marks.producer_id, marks.number, [*marks.commits], [*marks.aborts])
        await self._ask(node, self._itself(), message, m.Done)

    async def _ask(self, node: int, principal: Principal, message: m.Message, wanted: type[m.Message]) -> m.Message:
        """Ask, and wait for the answer. Raises its error, PeerError."""
        link = await self._link(node)
        lane = await link.open_lane(principal)
        try:
            answer = (await link.ask(lane, message, is_repeatable=True)).message
        finally:
            link.close_lane(lane)
        if not isinstance(answer, wanted):
            raise link.unexpected(answer, type(message).__name__, is_repeatable=True)
        return answer


def _halves(topic: TopicKey) -> tuple[int, int]:
    """The upper and the lower half of a topic's id."""
    id = UUID(topic.id).int
    return id >> 64, id & U64_MAX


def key_of(message: m.JoinTransaction | m.MarkTransaction) -> TopicKey:
    """The topic that a message is about."""
    return TopicKey(message.topic, UUID(int=message.topic_id_high << 64 | message.topic_id_low).hex)
