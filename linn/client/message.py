"""What a consumer reads: batches, and messages that are made from them when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from linn.client.settling import Delivery, Settled
from linn.core.batch import RecordBatch
from linn.core.errors import SubscriptionWrongKind
from linn.core.record import Headers, LabelValue, Record
from linn.protocols.capnp.messages import Verdict

if TYPE_CHECKING:
    from linn.client.subscription import Subscription


class Batch:
    """Records of one partition, in their order. `len`, iteration and `values` leave out what came before `first`."""

    __slots__ = ("_values", "base_offset", "delivery", "first", "partition", "records", "subscription", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        records: RecordBatch,
        first: int = 0,
        delivery: Delivery | None = None,
        subscription: Subscription | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records
        """The batch as the producer made it, column by column."""
        self.first = first
        """Index of the first record that belongs here."""
        self.base_offset: int = records.base_offset
        """Offset of the record with index 0."""
        self.delivery = delivery
        self.subscription = subscription
        self._values: list[bytes | None] | None = None

    @property
    def start_offset(self) -> int:
        """Offset of the first record."""
        return self.base_offset + self.first

    @property
    def end_offset(self) -> int:
        """The offset behind the last record."""
        return int(self.records.end_offset)

    @property
    def attempt(self) -> int:
        """1 the first time; 0 where attempts are not counted."""
        return self.delivery.attempt if self.delivery is not None else 0

    @property
    def values(self) -> list[bytes | None]:
        """All values. Raises BatchMalformed."""
        values = self._values if self._values is not None else self.load()
        return values[self.first :] if self.first else values

    def load(self) -> list[bytes | None]:
        """The values from index 0 on, read once. Raises BatchMalformed."""
        self._values = self.records.body().values.to_list()
        return self._values

    def __len__(self) -> int:
        return int(self.records.count) - self.first

    def __iter__(self) -> Iterator[Message]:
        return map(Message, repeat(self), range(self.first, self.records.count))

    def ack(self) -> Settled:
        """All records are done with; on a stream, the group's place is behind them. Await it, or let it be."""
        return self.settle(self.first, self.records.count, Verdict.ACK, 0)

    def nack(self, delay_ms: int = 0) -> Settled:
        """All records are to be delivered again; after `delay_ms`, or as the topic is configured where it is 0.

        On a stream, the group reads on from the first of them.
        """
        return self.settle(self.first, self.records.count, Verdict.NACK, delay_ms)

    def reject(self) -> Settled:
        """No record can be dealt with: to the dead-letter topic with them."""
        return self.settle(self.first, self.records.count, Verdict.REJECT, 0)

    def extend(self, lease_ms: int) -> Settled:
        """The leases last `lease_ms` from now."""
        return self.settle(self.first, self.records.count, Verdict.EXTEND, lease_ms)

    def settle(self, first: int, end: int, verdict: Verdict, ms: int) -> Settled:
        """Settle records by index. Raises SubscriptionWrongKind where they were not delivered but fetched."""
        subscription, delivery = self.subscription, self.delivery
        if subscription is None or delivery is None:
            raise SubscriptionWrongKind("fetched records are not delivered, there is nothing to settle")
        return subscription.settle(delivery, self.base_offset + first, self.base_offset + end, verdict, ms)

    def is_wanted(self) -> bool:
        """Whether it is still to be handed over: its lease, or its partition, may be gone."""
        return self.subscription is None or self.subscription.wants(self)

    def handed_over(self) -> None:
        """The application has it, or it was dropped."""
        if self.subscription is not None:
            self.subscription.handed_over(self)

    def __repr__(self) -> str:
        return f"<Batch {self.topic}/{self.partition} {self.start_offset}..{self.end_offset}>"


class Message(msgspec.Struct, gc=False, eq=False, frozen=True):
    """One record. Its properties are read from the batch when they are asked for."""

    batch: Batch
    index: int

    @property
    def value(self) -> bytes | None:
        """The content; None: a tombstone."""
        batch = self.batch
        values = batch._values
        return values[self.index] if values is not None else batch.load()[self.index]

    @property
    def key(self) -> bytes | None:
        """What partitioning goes by."""
        return self.batch.records.key(self.index)

    @property
    def routing_key(self) -> str:
        """What exchanges go by."""
        return self.batch.records.pair(self.index).routing_key

    @property
    def labels(self) -> Mapping[str, LabelValue]:
        """Typed properties that exchanges can see."""
        return self.batch.records.labels(self.index)

    @property
    def headers(self) -> Headers:
        """(name, value) pairs in order; names may repeat."""
        return self.batch.records.headers(self.index)

    @property
    def id(self) -> UUID:
        """The message's id, the same in every topic."""
        return self.batch.records.id(self.index)

    @property
    def timestamp_ms(self) -> int:
        """When it was made, ms since 1970."""
        return self.batch.records.timestamp_ms(self.index)

    @property
    def priority(self) -> int:
        """0 to 255."""
        priorities = self.batch.records.priorities
        return priorities[self.index] if priorities is not None else 0

    @property
    def topic(self) -> str:
        """Where it was read."""
        return self.batch.topic

    @property
    def partition(self) -> int:
        """Of the topic."""
        return self.batch.partition

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        return self.batch.base_offset + self.index

    @property
    def attempt(self) -> int:
        """1 the first time; 0 where attempts are not counted."""
        return self.batch.attempt

    def record(self) -> Record:
        """Everything but topic and offset, copied out."""
        return self.batch.records.record(self.index)

    def ack(self) -> Settled:
        """It is done with; on a stream, the group's place is behind it. Await it, or let it be."""
        batch, index = self.batch, self.index
        last = batch.subscription.last_ack if batch.subscription is not None else None
        if last is not None and last.end == batch.base_offset + index and last.delivery is batch.delivery:
            # The common case by far: the record behind the one that was acked last, which is not sent yet.
            last.end += 1
            return last
        return batch.settle(index, index + 1, Verdict.ACK, 0)

    def nack(self, delay_ms: int = 0) -> Settled:
        """It is to be delivered again; after `delay_ms`, or as the topic is configured where that is 0.

        On a stream, the group reads on from it.
        """
        return self.batch.settle(self.index, self.index + 1, Verdict.NACK, delay_ms)

    def reject(self) -> Settled:
        """It can't be dealt with: to the dead-letter topic with it."""
        return self.batch.settle(self.index, self.index + 1, Verdict.REJECT, 0)

    def extend(self, lease_ms: int) -> Settled:
        """Its lease lasts `lease_ms` from now."""
        return self.batch.settle(self.index, self.index + 1, Verdict.EXTEND, lease_ms)

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition}@{self.offset}>"
