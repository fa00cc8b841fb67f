"""Copy of a topic to another broker: messages, settled records of its subscriptions, and offsets of its groups.

Laws: a partition is copied to the partition of the same number, in order; a group's offset is translated, so that it
points to the copy of the same record. From a queue the unsettled records are copied; from a stream, and from a topic of
kind both, all committed records. The target must be empty, so that an interrupted copy is begun again, and nothing is
there twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import groupby
from typing import NamedTuple

from linn.cli.outgoing_message import without_reserved
from linn.client.client import Client
from linn.client.consume.consumer import Consumer
from linn.client.consume.message import Message
from linn.client.produce.producer import Producer
from linn.core.admin.subscriptions import SETTLED_RANGES_MAX
from linn.core.batch.record import Record
from linn.core.errors.texts import counted
from linn.core.errors.tree import SharedBusy, TopicError
from linn.descriptions import GroupOffset, QueueDetails, TopicDescription

FROM_CLIENT = ("murmur2", "sticky")
"""Partitioners with which a client may name the partition."""


class TopicPlan(NamedTuple):
    """Topic on both brokers, with its subscriptions and its groups' offsets."""

    source: TopicDescription
    target: TopicDescription
    subscriptions: Sequence[QueueDetails]
    """Its queue and its named subscriptions at the source."""
    offsets: Mapping[str, Sequence[GroupOffset]]
    """Members and committed offsets of the topic's groups, by group."""

    @property
    def name(self) -> str:
        """Name on both brokers."""
        return self.source["name"]

    @property
    def is_queue(self) -> bool:
        """Whether the topic is only a queue, so that only unsettled messages are copied."""
        return self.source["settings"]["kind"] == "queue"

    @property
    def settled(self) -> list[QueueDetails]:
        """Subscriptions whose settled records must be settled at the target too, as the log is copied whole."""
        return [] if self.is_queue else [*self.subscriptions]


async def plan_of(name: str, source: Client, target: Client) -> TopicPlan:
    """Examine a topic on both brokers. Raises TopicUnknown."""
    described = await source.admin.topic(name)
    listed = await source.admin.subscriptions(name)
    subscriptions = [await source.admin.subscription(name, subscription["subscription"]) for subscription in listed]
    offsets: dict[str, list[GroupOffset]] = {}
    for group in [] if described["settings"]["kind"] == "queue" else await source.admin.groups(name):
        rows = (await source.admin.group(group["group"]))["offsets"]
        offsets[group["group"]] = [row for row in rows if row["topic"] == name]
    return TopicPlan(described, await target.admin.topic(name), subscriptions, offsets)


def problems_of(plan: TopicPlan) -> Iterator[str]:
    """Yield the reasons why a topic can't be copied now, each with a remedy."""
    source, target = plan.source, plan.target
    for key in ("kind", "partitions"):
        here, there = source["settings"][key], target["settings"][key]
        if here != there:
            yield f'"{key}" is {here} here and {there} at the target: import the definitions there'
    if any(bounds["end"] > bounds["start"] for bounds in target["partitions"]):
        yield "the target has messages in it: delete it there, and import the definitions again"
    if len(target["partitions"]) > 1 and target["settings"]["partitioner"] not in FROM_CLIENT:
        chosen = target["settings"]["partitioner"]
        yield f"partitioner {chosen} chooses the partitions at the target: make it there with partitioner=sticky"
    for subscription in plan.subscriptions:
        of = f"subscription {subscription['subscription']}" if subscription["subscription"] else "its queue"
        if subscription["leased"] or subscription["decided"]:
            yield f"{of} has messages in flight: stop its consumers, and see linn deliveries list {plan.name}"
        if subscription["dead"]:
            dead = counted(subscription["dead"], "message")
            yield f"{of} has {dead} on the way to be dead letters: see linn dead-letters"
    for subscription in plan.settled:
        of = f"subscription {subscription['subscription']}" if subscription["subscription"] else "its queue"
        delivery = source["settings"]["delivery"]
        if delivery != "at-least-once" and any(_settled_count(subscription)):
            yield f"{of} has settled messages, which can't be settled at the target where delivery is {delivery}"
        if any(len(row["settled"]) >= SETTLED_RANGES_MAX for row in subscription["by_partition"]):
            yield f"{of} has settled {SETTLED_RANGES_MAX:,} ranges out of order: let its consumers go on"
    for group, rows in plan.offsets.items():
        if any(row["member"] is not None for row in rows):
            yield f"group {group} has members: stop them"


def _settled_count(subscription: QueueDetails) -> Iterator[int]:
    for row in subscription["by_partition"]:
        yield row["settled_before"] + len(row["settled"])


class TopicCopy:
    """One run of a topic's plan."""

    def __init__(self, plan: TopicPlan, source: Client, target: Client, advance: Callable[[int], None]) -> None:
        self._plan = plan
        self._source = source
        self._target = target
        self._advance = advance
        self.name = plan.name
        self.messages = 0
        self.offsets = 0
        """Offsets of groups."""
        self._consumers: dict[str, Consumer] = {}
        """Consumers at the target, by subscription: they settle the copies of records that are settled at the source.
        """

    async def run(self) -> None:
        """Copy. Raises LinnError."""
        plan = self._plan
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(self._target.producer(plan.name))
            for subscription in plan.settled:
                name = subscription["subscription"]
                if name:
                    await self._target.admin.create_subscription(plan.name, name)
                if any(_settled_count(subscription)):
                    consumer = self._target.consumer(plan.name, shared=name, mode="pull")
                    self._consumers[name] = await stack.enter_async_context(consumer)
            places: dict[tuple[str, int], int] = {}
            for partition in range(len(plan.source["partitions"])):
                places |= await self._copy_partition(producer, partition)
        for group in plan.offsets:
            await self._move_group(group, {index: place for (name, index), place in places.items() if name == group})

    async def _copy_partition(self, producer: Producer, partition: int) -> dict[tuple[str, int], int]:
        """Copy one partition; return the offsets of groups in it at the target, by group and partition."""
        plan = self._plan
        offset, end = plan.source["partitions"][partition]["start"], plan.source["partitions"][partition]["end"]
        first = behind = plan.target["partitions"][partition]["end"]
        committed = {
            group: row["offset"]
            for group, rows in plan.offsets.items()
            for row in rows
            if row["partition"] == partition and row["offset"] is not None
        }
        places = dict.fromkeys(committed, first)
        while offset < end:
            fetched = await self._source.fetch(plan.name, partition, offset, unsettled=plan.is_queue)
            offset = fetched.next_offset
            messages = [message for batch in fetched.batches for message in batch if message.offset < end]
            if messages:
                await self._publish(producer, messages, partition)
                offsets = [message.offset for message in messages]
                await self._settle(offsets, partition, behind)
                behind += len(messages)
                for group, at in committed.items():
                    places[group] += bisect_left(offsets, at)
        now = (await self._target.admin.topic(plan.name))["partitions"][partition]["end"]
        if now != behind:
            text = f"{plan.name}/{partition} ends at {now} at the target, where the copies would end at {behind}"
            raise TopicError(f"{text}: an interceptor drops messages there, or another client publishes")
        return {(group, partition): place for group, place in places.items()}

    async def _publish(self, producer: Producer, messages: Sequence[Message], partition: int) -> None:
        """Publish copies in order, one priority at a time."""
        only = len(self._plan.target["partitions"]) == 1
        for priority, run in groupby(messages, lambda message: message.priority):
            copies = [*run]
            records = [message.record() for message in copies]
            where = None if only else partition
            await publish_copies(producer, copies, records, priority=priority, partition=where)
            self.messages += len(copies)
            self._advance(len(copies))

    async def _settle(self, offsets: Sequence[int], partition: int, first: int) -> None:
        """Settle the copies of records that are settled at the source. `first`: offset of the first copy."""
        for subscription in self._plan.settled:
            consumer = self._consumers.get(subscription["subscription"])
            row = subscription["by_partition"][partition]
            if consumer is None:
                continue
            ranges = [(0, row["settled_before"]), *row["settled"]]
            for begin, end in ranges:
                at, until = first + bisect_left(offsets, begin), first + bisect_left(offsets, end)
                while at < until:
                    batches = await consumer.pull(until - at, partition=partition, start=at)
                    if not batches or next(iter(batches[0])).offset != at:
                        raise SharedBusy(f"{self._plan.name} has other consumers at the target: stop them first")
                    for batch in batches:
                        await batch.ack()
                    at = batches[-1].end_offset

    async def _move_group(self, group: str, places: Mapping[int, int]) -> None:
        """Set a group's offsets at the target, by partition. A missing group is created by a member first."""
        if not places:
            return
        async with self._target.consumer(self.name, group=group, mode="pull"):
            pass
        for partition, offset in places.items():
            await self._target.admin.reset_group(group, offset, self.name, [partition])
            self.offsets += 1


async def publish_copies(
    producer: Producer,
    messages: Sequence[Message],
    records: Sequence[Record],
    *,
    priority: int = 0,
    partition: int | None = None,
    mandatory: bool = False,
) -> None:
    """Publish `records` as copies of `messages`, with their ids, and wait for their confirmation.

    Labels of dead letters become headers: the target's broker takes such labels from no client.

    Raises as `Producer.publish_many` does.
    """
    keys = [record.key for record in records]
    properties = [without_reserved(record.labels, record.headers) for record in records]
    await producer.publish_many(
        [record.value for record in records],
        keys=keys if any(key is not None for key in keys) else None,
        routing_keys=[record.routing_key for record in records],
        labels=[labels for labels, _ in properties],
        headers=[headers for _, headers in properties],
        ids=[message.id for message in messages],
        timestamp_ms=[record.timestamp_ms for record in records],
        priority=priority,
        mandatory=mandatory,
        partition=partition,
    )


def total_text(copies: Iterable[TopicCopy]) -> str:
    """Describe the copy, as part of a sentence."""
    done = [*copies]
    text = f"{counted(sum(subscription.messages for subscription in done), 'message')} of {counted(len(done), 'topic')}"
    return f"{text} and {counted(sum(subscription.offsets for subscription in done), 'offset')} of groups"
