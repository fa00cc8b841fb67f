"""Encoding of a description of topics in steps: they may have many thousands of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from linn.core.batch import schema
from linn.core.batch.steps import Steps
from linn.wire import messages as m

if TYPE_CHECKING:
    from linn.core.gateway.gateway import Gateway
    from linn.core.gateway.requests import TopicBounds
    from linn.core.gateway.session import Session

PARTITION_BYTES = 24
"""Size of one partition in a description."""


def description_frame(gateway: Gateway, session: Session, names: Sequence[str], correlation: int) -> Steps[bytes]:
    """Encode the frame of a `messages.Description`. A topic is described as it is when its turn comes."""
    frame = schema.load("protocol").Frame.new_message()
    frame.correlation = correlation
    description = frame.init("description")
    description.broker = gateway.name
    (node,) = description.init("nodes", 1)
    node.id, node.address = 0, next(iter(gateway.addresses.values()), "")
    for target, name in zip(description.init("topics", len(names)), names, strict=True):
        target.name = name
        topic = session.topic_bounds(name)
        if topic is not None:
            yield from _write_topic(target, topic)
        yield
    return bytes(frame.to_bytes())


def _write_topic(target: Any, topic: TopicBounds) -> Steps[None]:
    target.kind, target.delivery, target.partitioner = topic.kind, topic.delivery, topic.partitioner
    target.idHigh, target.idLow = topic.topic_id
    target.messageBytesMax = min(topic.message_bytes_max, m.LIMIT_MAX)
    yield
    for info, (start, end) in zip(target.init("partitions", len(topic.partitions)), topic.partitions, strict=True):
        info.startOffset, info.highWatermark = start, end
        yield
