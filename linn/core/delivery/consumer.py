"""The ports of consumers, which a protocol gets from a subscribe.

They name no object of this broker's process, so that a consumer may be a proxy for one at another broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, TypeAlias

from linn.core.batch.steps import Steps
from linn.core.delivery.delivery import Delivery
from linn.core.delivery.settlement import Settlement, SettleOutcome
from linn.core.delivery.vocabulary import ConsumerKind
from linn.core.errors.tree import LinnError
from linn.core.log.mark import Mark
from linn.core.loop.waiting import WaitDeadline

OnAssigned: TypeAlias = Callable[[int, Sequence[int], Sequence[int]], None]
"""A callback with (epoch, partitions, partitions to give up) when a member joins and whenever its share changes."""


def do_nothing(*_: object) -> None:
    """Do nothing: the default callback."""


class Consumer(Protocol):
    """One consumer of one topic. Used by one task, except for `settle`."""

    name: str
    """The client's name for the consumer; for a group's member, its id. "": none."""
    lease_ms: int
    """Duration of a lease; 0: there are no leases, because records are settled on delivery or offsets are committed."""

    on_ended: Callable[[], None]
    """Called when the topic was deleted or changed its kind, and by `end`: from then on `next` only raises."""

    held: int
    """Records delivered under leases that are neither settled nor returned. 0 if there are no leases."""

    on_released: Callable[[], None]
    """Called when `held` has decreased."""

    on_lease_lost: Callable[[int, int], None]
    """Called with (partition, delivery id) when a lease ended without being settled: it expired, or its records were
    dropped."""

    accepts: Sequence[int]
    """The accepted formats of bodies; a batch in another format is translated into the first of them, or into linn's
    own if it has to be cut."""

    wants: bool
    """Set by a protocol: whether its client takes records as soon as there are some, also while `next` is not being
    called. Consumers of a lower priority get none meanwhile."""

    takes_stored: bool
    """Set by a protocol that passes batches on unchanged: some may then stay in their files, with only their stamps
    checked. Initially False."""

    @property
    def ended(self) -> bool:
        """Whether the topic was deleted or changed its kind, or `end` was called."""

    async def next(self, records_max: int, bytes_max: int, deadline: WaitDeadline) -> Delivery:
        """Wait for records and take up to `records_max` of them; at least one, whatever its size.

        Empty if the deadline comes first, or to report the progress of a filter past skipped records. Once records are
        taken, the deadline no longer applies, so that a slow disk does not return them with an attempt used up.

        Raises:
            LinnError: the records can't be read, or the topic is gone.
        Cancellation: taken records are returned; the attempt counts.
        """

    def settle(self, settlements: Iterable[Settlement]) -> Steps[SettleOutcome]:
        """Carry out settlements one by one, in steps of `SETTLE_STEP`; a refused one changes nothing and does not stop
        the others. Run the steps after the first with `long_work`.

        Raises StorageError with the last step: all are carried out, but not durably. The work may stop after any step.
        """

    def is_holding(self) -> bool:
        """Whether records are leased to this consumer."""

    def end(self, reason: LinnError) -> None:
        """End the consumer: nothing is delivered or settled any more, and `next` and `settle` raise the reason."""

    def close(self) -> None:
        """Leave: leased records are returned, partitions go to other members. Idempotent."""

    def disconnect(self) -> Steps[None]:
        """Close after the connection was lost: the session of a group's member goes on. Idempotent.

        Deliveries stop at once; the steps are the rest of the work, which may be long.
        """


class CompetingConsumer(Consumer, Protocol):
    """A consumer that competes for the records of a queue, or of a shared subscription of a stream."""

    kind: Literal[ConsumerKind.SHARED]

    on_active: Callable[[Sequence[int]], None]
    """Called when the choice of the single active consumer changes: with all partitions of the queue if this consumer
    gets records from now on, and with none otherwise."""

    @property
    def stands_by(self) -> bool:
        """Whether it gets no records, because another one is the single active consumer, or a takeover waits."""

    async def next_from(self, partition: int, start: int, records_max: int, bytes_max: int) -> Delivery:
        """Take ready records of one partition from offset `start` on, without waiting; the delivery may be empty.

        Raises PartitionUnknown; SubscriptionWrongKind if records are settled on delivery; and the errors of `next`.
        """

    def resolve(
        self, partition: int, delivery_id: int, first: int, end: int
    ) -> tuple[bool, Sequence[tuple[Mark, int]]]:
        """Whether a delivery of [first, end) was decided to this consumer, and the marks to wait for before using the
        answer.

        An undecided delivery is aborted. Raises PartitionUnknown, DeliveryFenced, TopicUnknown, StorageError.
        """


class StreamConsumer(Consumer, Protocol):
    """A consumer that reads partitions of a stream in order."""

    def seek(self, partition: int, offset: int | None, *, is_paused: bool) -> None:
        """Continue at `offset`, or pause there until the next call. None: the present offset.

        Raises PartitionUnknown if the consumer does not read the partition, OffsetOutOfRange, GroupFenced.
        """


class Reader(StreamConsumer, Protocol):
    """A reader of a stream without stored offsets."""

    kind: Literal[ConsumerKind.READER]


class Member(StreamConsumer, Protocol):
    """A member of a group, which has a share of a stream's partitions."""

    kind: Literal[ConsumerKind.GROUP]

    def heartbeat(self, epoch: int) -> None:
        """Renew the session; the member has given up the partitions revoked up to `epoch`. Raises GroupFenced."""

    def commit(self, partition: int, epoch: int, offset: int, text: str = "") -> Sequence[tuple[Mark, int]]:
        """Commit an offset with a text, independent of deliveries; returns the marks to wait for.

        Raises GroupFenced, PartitionUnknown, OffsetOutOfRange, LimitExceeded; StorageError: it is written later.
        """


AnyConsumer: TypeAlias = CompetingConsumer | Member | Reader
"""A consumer of any kind; `kind` tells which."""
