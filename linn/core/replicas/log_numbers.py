"""Numbers of a topic's logs, by which the brokers that replicate the topic name them to each other.

A data partition has its own number. Above them are the state logs of subscriptions, the log of the positions of groups,
the timing logs with their state logs, which a topic has once a delayed record has come, and the logs of ids.
"""

from __future__ import annotations

from linn.core.errors.tree import ProtocolError
from linn.core.groups.topic_positions import groups_log
from linn.core.log.storage import PartitionId
from linn.core.topics.message_index import index_topic
from linn.core.topics.shared_entry import OWN_QUEUE, SHARED_MAX, state_topic
from linn.core.topics.timing_logs import BESIDE, timing_state_topic, timing_topic
from linn.core.topics.topic import Topic

KIND_BITS = 16
"""Bits for the number of a partition."""
_INDEX = (1 << KIND_BITS) - 1
_GROUPS = 2 + SHARED_MAX
_BESIDE = {named: _GROUPS + number for number, named in enumerate(BESIDE, 1)}
"""Kinds of other logs with a partition for each partition, by the function that names them."""


def logs_of(topic: Topic) -> list[PartitionId]:
    """The logs of a topic's partitions, subscriptions, ids and groups, by its settings."""
    topics, kind = [topic.name], topic.settings.kind
    if topic.keeps_state:
        numbers = [entry.number for entry in topic.entries.values() if not entry.deleted]
        numbers += [OWN_QUEUE] if kind != "stream" else []
        topics += [state_topic(number, topic.name) for number in numbers]
    topics += [index_topic(topic.name)] if topic.settings.status_ms is not None else []
    logs = [PartitionId(name, index) for name in topics for index in range(topic.settings.partitions)]
    return [*logs, groups_log(topic.name)]


async def timing_logs_there(topic: Topic) -> list[PartitionId]:
    """The timing logs of a topic and their state logs, if this broker has them, or may have. Raises StorageError."""
    if not topic.engine.capabilities.survives_restart:
        return []
    if await topic.engine.examine_topic(timing_topic(topic.name)) == []:
        return []
    names = [timing_topic(topic.name), *([timing_state_topic(topic.name)] if topic.keeps_records else ())]
    return [PartitionId(name, index) for name in names for index in range(topic.settings.partitions)]


def number_of(topic: str, id: PartitionId) -> int:
    """The number of one of a topic's logs."""
    if id.topic == topic:
        return id.index
    if id == groups_log(topic):
        return _GROUPS << KIND_BITS
    for named, kind in _BESIDE.items():
        if id.topic == named(topic):
            return kind << KIND_BITS | id.index
    prefix = id.topic.removesuffix(f".{topic}")
    return int(prefix.removeprefix("__s") or OWN_QUEUE) + 1 << KIND_BITS | id.index


def is_data(number: int) -> bool:
    """Whether a log has published records: one of the topic's partitions, or a timing log."""
    return number >> KIND_BITS in (0, _BESIDE[timing_topic])


def events_of(number: int) -> int:
    """The number of the log with the events of the records in a data log."""
    return number + (1 << KIND_BITS)


def subscription_of(number: int) -> int:
    """The number of the named subscription to which a log belongs; 0: it belongs to none."""
    kind = number >> KIND_BITS
    return kind - 1 if 1 < kind < _GROUPS else 0


def id_of(topic: str, number: int) -> PartitionId:
    """The log that has a number. Raises ProtocolError: none can have it."""
    kind, index = number >> KIND_BITS, number & _INDEX
    if not kind:
        return PartitionId(topic, index)
    if 0 < kind <= SHARED_MAX + 1:
        return PartitionId(state_topic(kind - 1, topic), index)
    if number == _GROUPS << KIND_BITS:
        return groups_log(topic)
    for named, other in _BESIDE.items():
        if kind == other:
            return PartitionId(named(topic), index)
    raise ProtocolError(f"no log of topic {topic} has the number {number}")
