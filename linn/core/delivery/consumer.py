"""The ports of consumers: what a protocol holds of one that it has subscribed.

Nothing in them names an object of this broker's process, so that a consumer may stand for one at another broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, TypeAlias

from linn.core.batch.steps import Steps
from linn.core.delivery.delivery import Delivery
from linn.core.delivery.settlement import Settlement, SettleOutcome
from linn.core.delivery.vocabulary import ConsumerKind
from linn.core.log.mark import Mark
from linn.core.loop.waiting import WaitDeadline

OnAssigned: TypeAlias = Callable[[int, Sequence[int], Sequence[int]], None]
"""A callback with (epoch, partitions, partitions to let go of) when a member joins and whenever its share changes."""


def nobody(*_: object) -> None:
    """Do nothing: the callback of a caller that needs none."""


class Consumer(Protocol):
    """One consumer of one topic. Used by one task, except for `settle`."""

    name: str
    """The name that the client gave it; for a group's member, its id. "": none."""
    lease_ms: int
    """Duration of a lease; 0: records are settled on delivery, or offsets are committed instead."""

    on_ended: Callable[[], None]
    """Called when the topic was deleted or has another kind: from then on `next` only raises."""

    held: int
    """Records handed over under leases that are neither settled nor returned. 0 if there are no leases."""

    on_released: Callable[[], None]
    """Called when `held` has decreased."""

    on_lease_lost: Callable[[int, int], None]
    """Called with (partition, delivery id) when a lease ended without being settled: it expired, or its records were
    dropped.
    """

    accepts: Sequence[int]
    """The formats of bodies that are taken; a batch of another one is translated into the first of them, or cut, into
    linn's own.
    """

    takes_stored: bool
    """Set by a protocol that passes batches on unchanged: some may then stay in their files, with only their stamps
    checked. False at first.
    """

    @property
    def ended(self) -> bool:
        """Whether the topic was deleted or has another kind."""

    async def next(self, records_max: int, bytes_max: int, deadline: WaitDeadline) -> Delivery:
        """Wait for records and take up to `records_max` of them; at least one, whatever its size.

        Empty if the deadline comes before there are any, or to say how far a filter has passed over others. Once
        records are taken it counts no more, so that none is given back, with an attempt used up, because reading it
        from the disk took long.

        Raises:
            LinnError: the records can't be read, or the topic is gone.
        Cancellation: taken records go back; the attempt counts.
        """

    def settle(self, settlements: Iterable[Settlement]) -> Steps[SettleOutcome]:
        """Carry out settlements one by one, in steps of `SETTLE_STEP`; a refused one changes nothing and does not stop
        the others. Steps behind the first are for `long_work`.

        Raises StorageError with the last step: all are carried out, but not durably. A step is complete in itself, so
        the work may end after any.
        """

    def is_holding(self) -> bool:
        """Whether records are leased to this consumer."""

    def close(self) -> None:
        """Leave: leased records are returned, partitions go to other members. Idempotent."""

    def disconnect(self) -> Steps[None]:
        """Close after the connection was lost: the session of a group's member goes on. Idempotent.

        Nothing is handed over from here on; the steps are the rest of the work, which may be long.
        """


class CompetingConsumer(Consumer, Protocol):
    """One of the consumers that compete for a queue, or for a shared subscription of a stream."""

    kind: Literal[ConsumerKind.SHARED]

    async def next_from(self, partition: int, start: int, records_max: int, bytes_max: int) -> Delivery:
        """Take ready records of one partition from offset `start` on; without waiting: there may be none.

        Raises PartitionUnknown; SubscriptionWrongKind if records are settled on delivery; and the errors of `next`.
        """

    def resolve(
        self, partition: int, delivery_id: int, first: int, end: int
    ) -> tuple[bool, Sequence[tuple[Mark, int]]]:
        """Answer whether [first, end) was decided to this consumer by a delivery, and what has to be committed first.

        If it was not, it is aborted. Raises PartitionUnknown, DeliveryFenced, TopicUnknown, StorageError.
        """


class StreamConsumer(Consumer, Protocol):
    """A consumer that reads partitions of a stream in order."""

    def seek(self, partition: int, offset: int | None, *, is_paused: bool) -> None:
        """Continue at `offset`, None: where it is; or pause there until the next call.

        Raises PartitionUnknown if the partition is not read here, OffsetOutOfRange, GroupFenced.
        """


class Reader(StreamConsumer, Protocol):
    """A reader of a stream without stored offsets."""

    kind: Literal[ConsumerKind.READER]


class Member(StreamConsumer, Protocol):
    """A member of a group, which has a share of a stream's partitions."""

    kind: Literal[ConsumerKind.GROUP]

    def heartbeat(self, epoch: int) -> None:
        """Renew the session; the member has let go of what it was asked to up to `epoch`. Raises GroupFenced."""

    def commit(self, partition: int, epoch: int, offset: int, text: str = "") -> Sequence[tuple[Mark, int]]:
        """Commit an offset with a text, whatever was delivered; returns what to wait for.

        Raises GroupFenced, PartitionUnknown, OffsetOutOfRange, LimitExceeded; StorageError: it is written later.
        """


AnyConsumer: TypeAlias = CompetingConsumer | Member | Reader
"""A consumer, which its `kind` tells."""
