"""Views of a broker, for tests: the records of its topics, and waits for the code under test.

All functions run in the broker's own loop, and change nothing.
"""

from __future__ import annotations

import trio

from linn.client.consume.message import Batch, Message
from linn.core.broker.broker import Broker
from linn.core.errors.texts import counted
from linn.core.errors.tree import SubscriptionWrongKind
from linn.core.groups.group import ConsumerGroup
from linn.core.topics.topic import Topic

POLL_S = 0.002
"""Polling interval for a group's commits, which send no notification."""
_READ_BYTES = 1 << 20


async def records(broker: Broker, topic: str) -> list[Message]:
    """Return the records of a topic, by partition and offset; of a queue, the unsettled ones. Raises TopicUnknown."""
    opened = broker.topic(topic)
    found: list[Message] = []
    for index in opened.partitions:
        found += [message for message in await _kept(opened, index) if not _is_settled(opened, message)]
    return found


async def _kept(topic: Topic, index: int) -> list[Message]:
    partition = topic.partitions[index]
    found: list[Message] = []
    offset, end = partition.start_offset, partition.high_watermark
    while offset < end:
        for records in await partition.read_range(offset, end, _READ_BYTES):
            found += Batch(topic.name, index, records)
            offset = records.end_offset
    return found


def _is_settled(topic: Topic, message: Message) -> bool:
    if topic.settings.kind != "queue" or topic.queue is None:
        return False
    subscription = topic.queue.partition_queues[message.partition].subscription
    if message.offset < subscription.settled_before():
        return True
    return any(first <= message.offset < end for first, end in subscription.settled)


async def wait_records(broker: Broker, topic: str, count: int) -> None:
    """Wait until `count` records were published to a topic since the broker started. Raises TopicUnknown."""
    partitions = list(broker.topic(topic).partitions.values())
    advanced = trio.Event()

    def look() -> None:
        if sum(partition.appended_records for partition in partitions) >= count:
            advanced.set()

    for partition in partitions:
        partition.watchers.add(look)
    try:
        look()
        await advanced.wait()
    finally:
        for partition in partitions:
            partition.watchers.remove(look)


async def wait_settled(broker: Broker, topic: str) -> None:
    """Wait until no record of a queue is unsettled; dead letters are copied by then.

    Raises TopicUnknown, SubscriptionWrongKind.
    """
    opened = broker.topic(topic)
    if opened.queue is None:
        raise SubscriptionWrongKind(f"topic {topic} is a stream: nothing is settled there, but groups commit")
    while opened.queue.unsettled_count():
        await opened.room.wait()


async def wait_committed(broker: Broker, topic: str, group: str) -> None:
    """Wait until a group has committed all records of a stream; the group need not exist yet.

    Raises TopicUnknown, SubscriptionWrongKind.
    """
    opened = broker.topic(topic)
    if opened.stream is None:
        raise SubscriptionWrongKind(f"topic {topic} is a queue: no groups commit there, but messages are settled")
    groups = broker.groups.groups
    while group not in groups or _lag(opened, groups[group]):
        await broker.env.clock.sleep(POLL_S)


def _lag(topic: Topic, group: ConsumerGroup) -> int:
    return sum(
        # Records behind an open transaction are not readable yet.
        partition.readable_count(group.position(topic.name, index) or 0)
        + partition.high_watermark
        - partition.stable_offset
        for index, partition in topic.partitions.items()
    )


def summary(broker: Broker) -> str:
    """Describe each topic in a line, to help find the cause of a failure."""
    return "\n".join(_described(broker, topic) for topic in broker.topics.values()) or "no topics"


def _described(broker: Broker, topic: Topic) -> str:
    partitions = topic.partitions.values()
    published = sum(partition.appended_records for partition in partitions)
    kept = sum(partition.readable_count() for partition in partitions)
    parts = [f"{published} published", f"{kept} kept"]
    if topic.queue is not None:
        queue = topic.queue
        leased = sum(partition_queue.subscription.leased_count for partition_queue in queue.partition_queues)
        decided = sum(partition_queue.subscription.decided_count for partition_queue in queue.partition_queues)
        dead_letters = sum(partition_queue.dead_letters.count for partition_queue in queue.partition_queues)
        held = f"{leased} leased, {decided} decided" if decided else f"{leased} leased"
        parts.append(f"{queue.unsettled_count()} unsettled, {held}, {counted(dead_letters, 'dead letter')}")
        parts.append(counted(len(queue.consumers), "consumer"))
    parts += [
        f'group "{name}" is {_lag(topic, group)} behind with {broker.groups.members(name, topic.name)} members'
        for name, group in broker.groups.groups.items()
        if topic.name in group.topics
    ]
    return f"{topic.name} ({topic.settings.kind}): " + ", ".join(parts)
