"""Encoding of a description of topics in steps: they may have many thousands of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from linn.core.batch import schema
from linn.core.batch.steps import Steps
from linn.wire import messages as m

if TYPE_CHECKING:
    from linn.core.gateway.gateway import Gateway
    from linn.core.topics.topic import Topic

PARTITION_BYTES = 24
"""Size of one partition in a description."""


def description_frame(
    gateway: Gateway, topics: Mapping[str, Topic], names: Sequence[str], correlation: int
) -> Steps[bytes]:
    """Encode the frame of a `messages.Description`. A topic is described as it is when its turn comes."""
    frame = schema.load("protocol").Frame.new_message()
    frame.correlation = correlation
    description = frame.init("description")
    description.broker = gateway.name
    (node,) = description.init("nodes", 1)
    node.id, node.address = 0, next(iter(gateway.addresses.values()), "")
    for target, name in zip(description.init("topics", len(names)), names, strict=True):
        target.name = name
        topic = topics.get(name)
        if topic is not None:
            yield from _write_topic(target, topic)
        yield
    return bytes(frame.to_bytes())


def _write_topic(target: Any, topic: Topic) -> Steps[None]:
    settings = topic.settings
    target.kind, target.delivery, target.partitioner = settings.kind, settings.delivery or "", settings.partitioner
    target.idHigh, target.idLow = topic.id_halves
    target.messageBytesMax = min(settings.message_bytes_max or 0, m.LIMIT_MAX)
    # Taken at one moment: a description in turns must not meet the topic's deletion halfway.
    bounds = [(partition.start_offset, partition.high_watermark) for _, partition in sorted(topic.partitions.items())]
    yield
    for info, (start_offset, high_watermark) in zip(target.init("partitions", len(bounds)), bounds, strict=True):
        info.startOffset, info.highWatermark = start_offset, high_watermark
        yield
