"""The transactions of a session, here and over the brokers of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from linn.core.delivery.consumer import AnyConsumer
from linn.core.delivery.settlement import Settlement
from linn.core.errors.tree import SubscriptionWrongKind
from linn.core.gateway.rooms import Rooms
from linn.core.groups.member import GroupMember
from linn.core.ports.principal import Principal
from linn.core.publish.producer_ids import OwnedProducers
from linn.core.queue.consumer import QueueConsumer
from linn.core.transactions.cluster_transactions import ClusterTransactions, TransactionLinks
from linn.core.transactions.ending import Ending
from linn.core.transactions.producer import Awaits, Owner, RequestedEnd, TransactionId
from linn.rights import TRANSACTION, USE, Need

T = TypeVar("T")


class SessionTransactions:
    """The transactions of a session, which share its producer ids."""

    __slots__ = ("_access", "_forwards", "_principal", "_producers", "_rooms")

    def __init__(self, rooms: Rooms, principal: Principal, producers: OwnedProducers, *, forwards: bool) -> None:
        """`forwards`: see `Session.forwards`."""
        self._rooms = rooms
        self._principal = principal
        self._access = principal.access
        self._producers = producers
        self._forwards = forwards

    async def open(
        self, name: str, timeout_s: float, owner: tuple[int, int] | None = None, opening: int = 0
    ) -> tuple[int, int, int]:
        """Take over a name of transactions; returns producer id, epoch, and the number of the next transaction.

        The session owns the producer id from then on. `owner`: only if this producer id, which the session owns, and
        epoch still own the name. `opening`: see `TransactionCoordinator.open`.

        Raises Forbidden, DeliveryError, LimitExceeded, ProducerForeign, TransactionBusy, TransactionFenced,
        StorageError; NotLeader: another broker coordinates the transactions of the cluster.
        """
        await self._access.decided(lambda: self._access.check(USE, TRANSACTION, name))
        user = self._principal.name
        if owner is not None:
            self._producers.check(owner[0])
        self._producers.check_room()
        taken_over = Owner(*owner, user) if owner is not None else None
        cluster, asked = self._rooms.cluster_transactions, (name, timeout_s, user, taken_over, opening)
        if cluster is not None:
            opened = await cluster.coordinator.open_name(*asked)
        else:
            opened = await self._rooms.transactions.open(*asked)
        self._producers.give(opened.producer_id)
        return opened.producer_id, opened.epoch, opened.number

    def add_branch(self, producer_id: int, epoch: int, branch: int) -> Awaits:
        """Let a producer write in a client's transactions; returns the marks to wait for. The session owns both ids.

        Raises ProducerForeign, TransactionError, LimitExceeded, StorageError.
        """
        self._producers.check(branch)
        return self._rooms.transactions.add_branch(self._owner(producer_id, epoch), branch)

    def settle(self, owner: tuple[int, int, int], consumer: AnyConsumer, settlements: Sequence[Settlement]) -> Awaits:
        """Ack records of a queue, or commit offsets of a group's member, when a transaction is committed; returns the
        marks to wait for.

        `owner`: producer id, which the session owns, epoch and number. Raises ProducerForeign, TransactionError,
        LimitExceeded, SubscriptionWrongKind, StorageError, and the errors of `Consumer.settle`.
        """
        transactions, transaction = self._rooms.transactions, self._transaction(owner)
        if isinstance(consumer, QueueConsumer):
            return transactions.hold(transaction, consumer, settlements)
        if isinstance(consumer, GroupMember):
            awaits: Awaits = ()
            for settled in settlements:
                place = settled.partition, settled.delivery_id, settled.end
                awaits = transactions.commit_offset(transaction, consumer, *place)
            return awaits
        raise SubscriptionWrongKind("a reader without a group has nothing to settle in a transaction")

    def end(self, owner: tuple[int, int, int], end: RequestedEnd) -> Ending | None:
        """Commit a transaction, or abort it.

        `owner`: as for `settle`. Returns and raises as `TransactionCoordinator.end_nowait`; raises
        ProducerForeign as well.
        """
        return self._rooms.transactions.end_nowait(self._transaction(owner), end)

    # --- transactions over brokers ---

    @property
    def is_clustered(self) -> bool:
        """Whether the broker is one of a cluster, which may have its transactions coordinated by another one."""
        return self._rooms.cluster_transactions is not None

    async def at_coordinator(self, here: Callable[[], Awaitable[T]], request: Any) -> T:
        """Carry out a request about transactions: `here`, or at the broker that coordinates them, which gets `request`
        as the protocol has it, and answers with what `here` returns.

        Raises what `here` raises; NotLeader, PeerError: there was no answer for a while, and it may have been carried
        out. Cancellation: likewise.
        """
        cluster = self._rooms.cluster_transactions
        if cluster is None or not self._forwards:
            return await here()
        principal = self._principal

        async def there(links: TransactionLinks, node: int) -> T:
            answer: T = await links.transact(node, principal, request)
            return answer

        return await cluster.at_coordinator(here, there)

    def check_branch(self, branch: int) -> None:
        """Check that a producer is this session's, unless the broker of its client has. Raises ProducerForeign."""
        if self._forwards:
            self._producers.check(branch)

    async def announce(self, producer_id: int, epoch: int, branch: int) -> None:
        """Let a producer write in a client's transactions, as `add_branch`, at the broker that coordinates them."""
        await self._clustered().coordinator.announce(self._owner(producer_id, epoch), branch)

    async def settle_over_brokers(
        self, owner: tuple[int, int, int], consumer: AnyConsumer, settlements: Sequence[Settlement]
    ) -> Awaits:
        """Settle in a transaction, as `settle`, at the broker that leads the consumer's topic.

        Returns the marks to wait for. Raises NotLeader, PeerError as well.
        """
        if not isinstance(consumer, QueueConsumer | GroupMember):
            raise SubscriptionWrongKind("a reader without a group has nothing to settle in a transaction")
        topic = self._rooms.catalog.led_topic(consumer.topic)
        return await self._clustered().participant.settle(self._transaction(owner), topic, consumer, settlements)

    async def end_over_brokers(self, owner: tuple[int, int, int], end: RequestedEnd) -> None:
        """Commit a transaction or abort it, as `end`, at the broker that coordinates, and wait for it.

        Raises NotLeader as well.
        """
        await self._clustered().coordinator.end(self._transaction(owner), end)

    def _clustered(self) -> ClusterTransactions:
        assert self._rooms.cluster_transactions is not None, "the broker is one of a cluster"
        return self._rooms.cluster_transactions

    def _owner(self, producer_id: int, epoch: int) -> Owner:
        """The owner of a name with these numbers. Raises ProducerForeign: it is not this session's; Forbidden."""
        self._producers.check(producer_id)
        if name := self._rooms.transactions.name_with(producer_id):
            self._access.check_all([Need(USE, TRANSACTION, name)])
        return Owner(producer_id, epoch, self._principal.name)

    def _transaction(self, owner: tuple[int, int, int]) -> TransactionId:
        """The transaction with these numbers. Raises ProducerForeign: it is not this session's."""
        producer_id, epoch, number = owner
        return TransactionId(*self._owner(producer_id, epoch), number)
