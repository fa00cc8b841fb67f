"""Descriptions of topics for the verbs, built in steps: there may be thousands of partitions and topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from linn.core.batch.steps import Steps
from linn.core.config.topic_settings import encode_without_bindings
from linn.core.env.secret import masked
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.queue import Queue
from linn.core.topics.topic import Topic


class JsonText(str):
    """The result of a verb, already encoded as JSON: a large one is encoded in steps as well."""

    __slots__ = ()


def topics_as_json(topics: Mapping[str, Topic], names: list[str]) -> Steps[JsonText]:
    """Describe topics as JSON, without topics deleted meanwhile."""
    shown: list[str] = []
    for name in names:
        topic = None
        while topic is None and name in topics:
            topic = yield from topic_as_json(topics, name)
        if topic is not None:
            shown.append(topic)
    return JsonText(f"[{','.join(shown)}]")


def topic_as_json(topics: Mapping[str, Topic], name: str) -> Steps[JsonText | None]:
    """Describe settings, partitions and, for a queue, record counts. None if the topic was deleted meanwhile, or is led
    by another broker since then: it can be described again.
    """
    topic = topics.get(name)
    if topic is None:
        return None
    # Values that administrative changes affect are taken at one moment; the contents of partitions keep changing.
    settings = encode_without_bindings(topic.settings)
    settings |= {key: masked(table) for key, table in topic.settings.services.items()}
    queue, partition_queues = topic.queue, _partition_queues(topic.queue)
    bindings = (*topic.settings.bindings, *topic.live_bindings)
    shown: dict[str, Any] = {"name": name, "id": str(topic.id), "settings": {**settings, "bindings": bindings}}
    producers = duplicates = 0
    partitions: list[str] = []  # As text: a hundred thousand objects would trigger a full garbage collection.
    for number in sorted(topic.partitions):
        partition = topic.partitions.get(number)
        if topics.get(name) is not topic or partition is None:
            return None  # Its logs may be deleted as well.
        start, end, size = partition.start_offset, partition.stable_offset, partition.log.size_bytes()
        producers += len(partition.log.facts.producers)
        duplicates += partition.duplicates
        count = partition.readable_count()
        partitions.append(f'{{"start":{start},"end":{end},"records":{count},"bytes":{size}}}')
        yield
    shown["partitions"] = msgspec.Raw(f"[{','.join(partitions)}]".encode())
    shown["producers"], shown["duplicates"] = producers, duplicates
    if queue is not None:
        counts = yield from _count(partition_queues)
        ended = {"dropped": topic.room.dropped_records, "dead_lettered": topic.room.dead_records}
        shown["queue"] = {**counts, "consumers": len(queue.consumers), **ended}
    replicas = topic.logs.describe() if topic.logs is not None else None
    if replicas is not None:
        has_leader = topic.led_by is None or topic.led_by().leader > 0
        shown["replicas"] = replicas if has_leader else {**replicas, "leader": 0}
    return JsonText(msgspec.json.encode(shown).decode())


def _partition_queues(queue: Queue | None) -> Sequence[PartitionQueue]:
    return () if queue is None else tuple(queue.partition_queues)


def _count(partition_queues: Sequence[PartitionQueue]) -> Steps[dict[str, int]]:
    """The numbers of unsettled records, leased records, and records decided to a consumer."""
    unsettled = leased = decided = 0
    for partition_queue in partition_queues:
        unsettled += partition_queue.subscription.unsettled_count(partition_queue.partition.stable_offset)
        leased += partition_queue.subscription.leased_count
        decided += partition_queue.subscription.decided_count
        yield
    return {"unsettled": unsettled, "leased": leased, "decided": decided}
