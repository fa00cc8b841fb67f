"""Replicas of a topic, as brokers in a simulation know them."""

from __future__ import annotations

from collections.abc import Sequence

from broker_world import SimBroker

from linn.core.replicas.replication import Replication
from linn.core.replicas.topic_replica import TopicReplica

ALL = 2
"""`acks = all`, as the schema numbers it."""
READ_ALL = 1 << 40


def replica_at(broker: SimBroker, name: str) -> TopicReplica | None:
    """A broker's replica of a topic."""
    topic, replication = broker.broker.topics.get(name), broker.broker.administration.replication
    assert isinstance(replication, Replication)
    return replication.replicas.get(topic.id) if topic is not None else None


def in_sync(broker: SimBroker, name: str = "t") -> tuple[int, ...]:
    """Nodes in the in-sync set, as a broker knows it."""
    cluster, topic = broker.broker.cluster, broker.broker.topics.get(name)
    assert cluster is not None
    part = cluster.view.state.parts.get(f"parts/{topic.id}/0") if topic is not None else None
    return part.isr if part is not None else ()


def holders(brokers: Sequence[SimBroker], name: str) -> list[SimBroker]:
    """The brokers that hold a topic, as the first one knows it."""
    cluster, topic = brokers[0].broker.cluster, brokers[0].broker.topics.get(name)
    part = cluster.view.state.parts.get(f"parts/{topic.id}/0") if cluster is not None and topic is not None else None
    return [it for it in brokers if part is not None and it.number in part.replicas]


def is_whole(brokers: Sequence[SimBroker], name: str, replicas: int) -> bool:
    """Whether a topic has so many replicas, and all brokers know that they are in sync."""
    return len(holders(brokers, name)) == replicas and all(len(in_sync(it, name)) == replicas for it in brokers)


def marks(broker: SimBroker, name: str) -> dict[int, tuple[int, int, int]]:
    """(start, end, watermark) of each log that a broker has of a topic."""
    replica = replica_at(broker, name)
    logs = replica.logs if replica is not None else {}
    return {number: (*log.log.bounds(), log.high_watermark) for number, log in sorted(logs.items())}


def agree(brokers: list[SimBroker], name: str) -> bool:
    """Whether all brokers have the same logs of a topic, of which all is committed."""
    first = marks(brokers[0], name)
    ends = {number: (end, watermark) for number, (_, end, watermark) in first.items()}
    return bool(ends) and all(
        {number: (end, watermark) for number, (_, end, watermark) in marks(it, name).items()} == ends
        and all(end == watermark for end, watermark in ends.values())
        for it in brokers
    )


async def content(broker: SimBroker, name: str, number: int) -> dict[int, tuple[int, int, bytes]]:
    """The batches of one log by offset: (epoch, records, what the producer sealed)."""
    replica = replica_at(broker, name)
    assert replica is not None
    log, found = replica.logs[number].log, dict[int, tuple[int, int, bytes]]()
    offset, end = log.bounds()
    while offset < end:
        for batch in await log.read(offset, READ_ALL):
            found[batch.base_offset] = (batch.leader_epoch, batch.count, batch.crc.to_bytes(4, "big"))
            offset = batch.end_offset
    return found
