"""Describing and changing topics and exchanges over the native protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linn.protocols.capnp import messages as m
from linn.protocols.capnp.connection import Event

if TYPE_CHECKING:
    from linn.protocols.capnp.session import Session


class Administering:
    """What one connection asks of the broker as a whole."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def describe(self, event: Event) -> None:
        """Answer with kinds, partitions and bounds of topics; one that is named twice is described once."""
        describe = event.message
        assert isinstance(describe, m.Describe)
        broker = self._session.broker
        topics = [self._topic_info(name) for name in dict.fromkeys(describe.topics) or sorted(broker.topics)]
        nodes = [m.Node(0, next(iter(broker.addresses.values()), ""))]
        self._session.reply(event.correlation, m.Description(broker.name, nodes, topics))

    def _topic_info(self, name: str) -> m.TopicInfo:
        topic = self._session.broker.topics.get(name)
        if topic is None:
            return m.TopicInfo(name, "", [], "", 0)
        partitions = [
            m.PartitionInfo(0, partition.start_offset, partition.high_watermark)
            for _, partition in sorted(topic.partitions.items())
        ]
        settings = topic.settings
        limit = min(settings.message_bytes_max or 0, m.LIMIT_MAX)
        return m.TopicInfo(name, settings.kind, partitions, settings.delivery or "", limit, settings.partitioner)

    def administer(self, event: Event) -> None:
        """Carry out a verb of `linn.core.administration`."""
        administer = event.message
        assert isinstance(administer, m.Administer)

        async def work() -> None:
            result = await self._session.broker.administration.perform(administer.verb, administer.arguments)
            self._session.reply(event.correlation, m.Administered(result))

        self._session.in_task(event, work)
