"""ClusterTransactions: the ways between a broker's part in transactions and the broker that coordinates them.

Law: a request goes to the broker that leads the log of transactions, and is made again, for a bounded time, while no
broker leads it or the answer is lost: all requests can be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar
from uuid import UUID

from linn.core.env.env import Clock
from linn.core.errors.peers import PeerError
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import BrokerStopping, TopicUnknown
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.ports.principal import Principal
from linn.core.topics.catalog import Catalog
from linn.core.transactions.cluster_coordinator import ClusterCoordinator, TopicMarks
from linn.core.transactions.participant import Participant, key_of
from linn.core.transactions.producer import Owner, TopicKey
from linn.verbs import TRANSACTIONS_TOPIC

REPEATED_S = 20.0
"""Time for which a request is made again: a broker that dies is given up after the session timeout, 6 s by default."""
PAUSE_S = 0.05
"""Pause before a request is made again."""

T = TypeVar("T")


class TransactionLinks(Protocol):
    """Links to the other brokers of the cluster. Each method raises PeerError, and the errors of the other side."""

    async def transact(self, node: int, principal: Principal, message: Any) -> Any:
        """Pass a client's request on to the coordinator, as its protocol has it; returns the answer."""

    async def join(self, node: int, branch: int, number: int, topic: TopicKey, owner: Owner | None) -> None:
        """See `ClusterCoordinator.join`."""

    async def mark(self, node: int, marks: TopicMarks) -> None:
        """See `Participant.mark`."""


class ClusterTransactions:
    """A broker's part in the transactions of its cluster."""

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        catalog: Catalog,
        groups: GroupCoordinator,
        clock: Clock,
        make_topic: Callable[[], Awaitable[None]],
        has_topic: Callable[[str], bool],
        is_stopping: Callable[[], bool],
    ) -> None:
        """`make_topic` makes the topic of the log, unless it exists; `has_topic`: whether the cluster has a topic with
        this id; `is_stopping`: whether this broker is.
        """
        self.coordinator = coordinator
        self.participant = Participant(catalog, groups, clock, self._join)
        self.links: TransactionLinks | None = None
        """Set by the composition root; None: this broker has no links to others."""
        self._catalog = catalog
        self._clock = clock
        self._make_topic = make_topic
        self._has_topic = has_topic
        self._is_stopping = is_stopping
        coordinator.mark, coordinator.opened_here_s = self._mark, self.participant.opened_s

    async def at_coordinator(
        self, here: Callable[[], Awaitable[T]], there: Callable[[TransactionLinks, int], Awaitable[T]]
    ) -> T:
        """Carry out a request `here` if this broker coordinates, or at the node that does.

        Raises the request's LinnErrors; NotLeader, PeerError: there was no answer for a while, and it may have been
        carried out. Cancellation: likewise.
        """
        until_s = self._clock.monotonic() + REPEATED_S
        while True:
            try:
                if TRANSACTIONS_TOPIC not in self._catalog.topics:
                    await self._make_topic()
                topic = self._catalog.topic(TRANSACTIONS_TOPIC)
                if topic.led_by is None:
                    return await here()
                leader = topic.led_by()
                if self.links is None or not leader.leader:
                    raise leader
                return await there(self.links, leader.leader)
            except (NotLeader, PeerError, BrokerStopping):
                if self._clock.monotonic() >= until_s or self._is_stopping():
                    raise
            await self._clock.sleep(PAUSE_S)

    async def _join(self, branch: int, number: int, topic: TopicKey, owner: Owner | None) -> None:
        await self.at_coordinator(
            lambda: self.coordinator.join(branch, number, topic, owner),
            lambda links, node: links.join(node, branch, number, topic, owner),
        )

    async def _mark(self, marks: TopicMarks) -> None:
        """Mark an end in a topic, at the broker that leads it.

        Raises TopicUnknown: it is deleted. NotLeader, PeerError, StorageError: it is not marked yet.
        """
        topic = self._catalog.topics.get(marks.topic.name)
        if topic is None or key_of(topic) != marks.topic:
            if self._has_topic(str(UUID(marks.topic.id))):
                raise NotLeader(f"topic {marks.topic.name} is not known here yet")
            raise TopicUnknown(f"there is no topic {marks.topic.name} with this id")
        if topic.led_by is None:
            await self.participant.mark(marks)
            return
        leader = topic.led_by()
        if self.links is None or not leader.leader:
            raise leader
        await self.links.mark(leader.leader, marks)
