"""The way of dead letters and of due records to their targets, by steps of a transfer.

Dead letters are published as the broker itself. Due records were published already: they go into their partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import take_batch
from linn.core.env.env import Env
from linn.core.errors.tree import ProducerDuplicate, TopicFull, Unroutable
from linn.core.gateway.gateway import Gateway
from linn.core.log.producers import numbers_of
from linn.core.ports.principal import Principal
from linn.core.publish.producer_ids import OwnedProducers, ProducerIds
from linn.core.publish.publisher import Publisher
from linn.core.publish.request import PublishRequest
from linn.core.queue.dead_letter_source import DeadLetterSource
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.scheduled_queue import SCHEDULED_AT_ONCE, DueRecords, ScheduledQueue
from linn.core.queue.transfer import (
    RECORDS_AT_ONCE,
    REFUSED,
    UNROUTABLE,
    Numbers,
    StepLimits,
    log_dropped,
    settle_in_turns,
    transfer_step,
)
from linn.core.security.access import FullAccess
from linn.core.security.policy import ADMINISTRATOR
from linn.core.security.users import node_user
from linn.core.topics.topic import Topic

DUE_BYTES_MAX = 1 << 20
"""Limit of the bytes of one step of due records, unless their topic has limits."""


async def store_due(topic: Topic, index: int, batch: RecordBatch) -> None:
    """Store a step of due records in their partition, unless it has it, and wait until it is committed there.

    Ids count here: a record whose id the topic knows by now is dropped, once the record that it knows is committed.

    Raises TopicFull, MessageInDoubt, NotLeader, StorageError.
    """
    topic.check_led()
    partition, numbers = topic.partition(index), numbers_of(batch)
    try:
        known = partition.find(numbers, None)
    except ProducerDuplicate:
        known = 0
    if known is None:
        fresh: Sequence[int] = range(batch.count)
        if topic.ids.dedup is not None:
            fresh, _ = topic.ids.dedup.find(partition, batch, set())
        if fresh:
            batch = take_batch(batch, fresh) if len(fresh) < batch.count else batch
            if not topic.room.takes(batch.size, batch.count):
                raise TopicFull(f"topic {topic.name} is full")
            topic.append(partition, batch, numbers)
    await partition.committed.wait(partition.log.bounds()[1])


class DeadLetters:
    """Moves the dead letters of all queues, and the records of all timing logs."""

    def __init__(self, gateway: Gateway, publisher: Publisher, env: Env, producer_ids: ProducerIds) -> None:
        self._gateway = gateway
        self._publisher = publisher
        self._env = env
        self._ids = producer_ids
        self._numbers: WeakKeyDictionary[PartitionQueue, Numbers] = WeakKeyDictionary()

    async def move(self, topic: Topic, queue: PartitionQueue) -> None:
        """Move the lowest dead records of a queue's partition, some at least; without a target they are dropped.

        Raises and is cancelled as `transfer_step`.
        """
        numbers = self._numbers.setdefault(queue, Numbers(self._env.rng))
        settings = topic.settings
        if isinstance(queue, ScheduledQueue):
            await self._move_due(topic, DueRecords(queue, numbers))
            return
        source = DeadLetterSource(queue, numbers, self._env.clock, settings.dead_letter_key)
        if not settings.has_dead_letters:
            dead = queue.subscription.lowest_dead(RECORDS_AT_ONCE)
            await settle_in_turns(source, [(each.first, each.end) for each in dead])
            return
        target, to_exchange = settings.dead_letter or settings.dead_letter_exchange or "", settings.dead_letter is None
        request = PublishRequest(target, (), to_exchange, queue.partition.id.index, wants_returned=to_exchange)
        carry = partial(self._carry, source, request)
        await transfer_step(source, carry, self._limits(target))

    async def _move_due(self, topic: Topic, source: DueRecords) -> None:
        """Move records that are due into their partition. Raises and is cancelled as `transfer_step`."""
        limits, settings = self._limits(topic.name), topic.settings
        if settings.bytes_max is None and settings.records_max is None:
            limits = limits._replace(records=SCHEDULED_AT_ONCE, bytes=DUE_BYTES_MAX)
        try:
            await transfer_step(source, partial(store_due, topic, source.partition.id.index), limits)
        finally:
            source.put_back()

    def _limits(self, target: str) -> StepLimits:
        """The limits of a step: several fit into a small topic, so that it is filled though a whole step never fits."""
        limits = StepLimits(self._publisher.limits.batch_bytes_max)
        topic = self._publisher.catalog.topics.get(target)
        bytes_max, records_max = (topic.settings.bytes_max, topic.settings.records_max) if topic else (None, None)
        if bytes_max is not None:
            limits = limits._replace(bytes=min(limits.bytes, bytes_max // 4))
        if records_max is not None:
            limits = limits._replace(records=min(limits.records, max(1, records_max // 4)))
        return limits

    async def _carry(self, source: DeadLetterSource, request: PublishRequest, batch: RecordBatch) -> None:
        """Publish a step, with every right. Raises LinnError."""
        membership = self._gateway.membership
        name = node_user(membership.node) if membership is not None else ADMINISTRATOR
        # Brokers know one another as these users.
        principal = Principal("", self._gateway.name, name, FullAccess(name), "secret", (ADMINISTRATOR,))
        owned = OwnedProducers(self._ids, name)
        owned.give(batch.producer_id)
        (result,) = await self._publisher.publish(request._replace(batches=[batch]), principal, owned)
        for refused in result.refused:
            source.dropped(refused.number, REFUSED)
            log_dropped(source.partition, refused.number, f"are refused by {request.target}", refused.error)
        if returned := sum(result.returned[1::2]) - sum(result.returned[::2]):
            source.dropped(returned, UNROUTABLE)
            error = Unroutable(f"no binding of exchange {request.target} leads to a topic")
            log_dropped(source.partition, returned, "find no topic", error)
