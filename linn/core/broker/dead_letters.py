"""The way of dead letters to their topic, which this broker or another one leads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from linn.core.batch.batch import RecordBatch
from linn.core.env.env import Env
from linn.core.env.log_fields import log_fields
from linn.core.errors.peers import PeerError
from linn.core.errors.replication import NotLeader
from linn.core.gateway.gateway import Gateway
from linn.core.publish.copies import PeerCopies
from linn.core.publish.producer_ids import PER_CONNECTION, ProducerIds
from linn.core.queue.dead_letter_copy import CopyTarget, LocalTarget, copy_dead_letters
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.topics.topic import Topic

logger = logging.getLogger("linn.broker")

RETRY_S = 1.0
"""Pause before a broker that can't be asked, or does not lead the topic any more, is asked again."""
PRODUCERS_MAX = 10_000
"""Limit of the queues' partitions whose numbers are kept; the one that was used first gets new ones."""


class _Numbers:
    """The numbers of the copies from one partition of a queue to one other."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.next = 0


class DeadLetters:
    """Copies the dead letters of all queues."""

    def __init__(self, gateway: Gateway, env: Env, producer_ids: ProducerIds, topic: Callable[[str], Topic]) -> None:
        """`topic` returns a topic by its name. Raises TopicUnknown."""
        self._gateway = gateway
        self._env = env
        self._ids = producer_ids
        self._free_ids = range(0)
        self._topic = topic
        self._copies: PeerCopies | None = None
        self._numbers: dict[tuple[str, ...], _Numbers] = {}

    async def copy(self, topic: Topic, partition_queue: PartitionQueue) -> None:
        """Copy the lowest dead records of a queue's partition. Raises and is cancelled as `copy_dead_letters`."""
        name = topic.settings.dead_letter
        await copy_dead_letters(partition_queue, self._targets(name, partition_queue) if name else {}, self._env)

    def _targets(self, name: str, source: PartitionQueue) -> dict[int, CopyTarget]:
        """The partitions of the dead-letter topic. Raises TopicUnknown; NotLeader: it has no leader."""
        target = self._topic(name)
        if target.led_by is None:
            append = target.append_copy
            return {index: LocalTarget(partition, append) for index, partition in target.partitions.items()}
        if self._gateway.links is None or not target.led_by().leader:
            raise target.led_by()
        if self._copies is None:
            self._copies = self._gateway.links.copies()
        return {index: RemoteTarget(self, target, index, source) for index in range(target.settings.partitions)}

    def node_of(self, target: Topic) -> int:
        """The node that leads a topic. Raises TopicUnknown, NotLeader: none, or this one now."""
        topic = self._topic(target.name)
        if topic is not target or topic.led_by is None:
            raise NotLeader(f"topic {target.name} is at this broker now")
        error = topic.led_by()
        if not error.leader:
            raise error
        return error.leader

    @property
    def copies(self) -> PeerCopies:
        """Copies at other brokers."""
        assert self._copies is not None, "targets elsewhere have it"
        return self._copies

    async def pause(self) -> None:
        """Wait before another try."""
        await self._env.clock.sleep(RETRY_S)

    def numbers(self, key: tuple[str, ...]) -> _Numbers:
        """The numbers of the copies of this origin and target."""
        found = self._numbers.get(key)
        if found is None:
            if not self._free_ids:
                first = self._ids.take()
                self._free_ids = range(first, first + PER_CONNECTION)
            found = self._numbers[key] = _Numbers(self._free_ids[0])
            self._free_ids = self._free_ids[1:]
            if len(self._numbers) > PRODUCERS_MAX:
                del self._numbers[next(iter(self._numbers))]
        return found

    def forget(self, key: tuple[str, ...]) -> None:
        """Begin with new numbers."""
        self._numbers.pop(key, None)


class RemoteTarget:
    """A partition of a dead-letter topic that another broker leads: a `CopyTarget`."""

    def __init__(self, letters: DeadLetters, topic: Topic, index: int, source: PartitionQueue) -> None:
        self.index = index
        self._letters = letters
        self._topic = topic
        self._source = source
        self._key = str(source.partition.id), source.name, str(topic.id), str(index)

    async def place(self) -> int:
        """See `CopyTarget.place`."""
        letters, topic = self._letters, self._topic
        return await letters.copies.place(letters.node_of(topic), topic.name, self.index)

    async def settled_start(self) -> int:
        """See `CopyTarget.settled_start`."""
        letters, topic = self._letters, self._topic
        await letters.copies.place(letters.node_of(topic), topic.name, self.index)
        return await letters.copies.start(letters.node_of(topic), topic.name, self.index)

    async def read(self, offset: int) -> tuple[Sequence[RecordBatch], int]:
        """See `CopyTarget.read`."""
        letters, topic = self._letters, self._topic
        return await letters.copies.read(letters.node_of(topic), topic.name, self.index, offset)

    async def store(self, batch: RecordBatch) -> None:
        """Store a copy. After an unknown outcome the same one is sent again, with the same numbers.

        Raises LinnErrors of the other broker: it is not stored. NotLeader, PeerError: the queue was closed.
        """
        letters, topic = self._letters, self._topic
        numbers = letters.numbers(self._key)
        batch.number(numbers.producer_id, 0, numbers.next, batch.attributes)
        try:
            while True:
                try:
                    await letters.copies.store(letters.node_of(topic), topic.name, self.index, batch)
                    break
                except (PeerError, NotLeader) as error:
                    if not error.retriable or not self._source.log.is_open:
                        raise
                    about = {"topic": topic.name} | log_fields(error)
                    logger.debug("copies for %(topic)s are sent again: %(error)s", about)
                    await letters.pause()
        except BaseException:
            letters.forget(self._key)
            raise
        numbers.next += batch.count

    async def confirm(self) -> None:
        """Return at once: `store` has waited."""
