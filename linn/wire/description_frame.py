"""Encoding of a description of topics in steps: they may have many thousands of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from linn.core.batch import schema
from linn.core.batch.steps import Steps
from linn.wire import messages as m

PARTITION_BYTES = 24
"""Size of one partition in a description."""


class DescribedTopic(Protocol):
    """A topic to describe."""

    @property
    def kind(self) -> str: ...
    @property
    def delivery(self) -> str: ...
    @property
    def partitioner(self) -> str: ...
    @property
    def topic_id(self) -> tuple[int, int]: ...
    @property
    def message_bytes_max(self) -> int: ...
    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partitions(self) -> Sequence[tuple[int, int]]:
        """(start offset, high watermark) of each partition."""


def description_frame(
    broker: str,
    nodes: Sequence[tuple[int, str]],
    names: Sequence[str],
    find: Callable[[str], DescribedTopic | None],
    correlation: int,
) -> Steps[bytes]:
    """Encode the frame of a `messages.Description`. Each topic is looked up with `find` when its turn comes.

    `nodes`: (number, address) of each.
    """
    frame = schema.load("protocol").Frame.new_message()
    frame.correlation = correlation
    description = frame.init("description")
    description.broker = broker
    for node, (number, address) in zip(description.init("nodes", len(nodes)), nodes, strict=True):
        node.id, node.address = number, address
    for target, name in zip(description.init("topics", len(names)), names, strict=True):
        target.name = name
        topic = find(name)
        if topic is not None:
            yield from _write_topic(target, topic)
        yield
    return bytes(frame.to_bytes())


def _write_topic(target: Any, topic: DescribedTopic) -> Steps[None]:
    target.kind, target.delivery, target.partitioner = topic.kind, topic.delivery, topic.partitioner
    target.idHigh, target.idLow = topic.topic_id
    target.messageBytesMax = min(topic.message_bytes_max, m.LIMIT_MAX)
    yield
    for info, (start, end) in zip(target.init("partitions", len(topic.partitions)), topic.partitions, strict=True):
        info.startOffset, info.highWatermark = start, end
        info.leader, info.leaderEpoch = topic.leader, topic.leader_epoch
        yield
