"""Describing and changing topics and exchanges over the native protocol.

Law: verbs of one connection are carried out one at a time, in the order in which they came; the next one begins when
the connection has room for its answer. Arguments that wait for their turn are text, and counted in `received`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from linn.core.errors import LimitExceeded
from linn.core.memory_budget import RESERVE_BYTES
from linn.core.verb import ARGUMENTS_BYTES_MAX
from linn.protocols.capnp import messages as m
from linn.protocols.capnp.connection import Event

if TYPE_CHECKING:
    from linn.protocols.capnp.session import Session

DESCRIBED_MAX = 4_096
"""Names in one describe: each takes 20 us, known or not, and they are answered in one go."""
WAITING_BYTES_MAX = 2 * ARGUMENTS_BYTES_MAX
"""Of arguments of one connection: of the verb that is carried out, and of one behind it."""


class Administering:
    """What one connection asks of the broker as a whole."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last: trio.Event | None = None
        """Set when the verb that came last has been carried out; None where none came yet."""
        self._waiting_bytes = 0

    def is_full(self) -> bool:
        """Whether so much waits that no more should be read; where memory is short, that is little."""
        waiting, session = self._waiting_bytes, self._session
        if waiting >= WAITING_BYTES_MAX:
            return True
        return waiting > RESERVE_BYTES and session.broker.memory.received.is_over and not session.consumes

    def describe(self, event: Event) -> None:
        """Answer with kinds, partitions and bounds of topics; one that is named twice is described once."""
        describe = event.message
        assert isinstance(describe, m.Describe)
        if len(describe.topics) > DESCRIBED_MAX:
            raise LimitExceeded(f"{len(describe.topics)} topics in one describe, more than {DESCRIBED_MAX}")
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
        """Carry out a verb of `linn.core.administration`, behind those that came before it."""
        administer = event.message
        assert isinstance(administer, m.Administer)
        session, administration = self._session, self._session.broker.administration
        administration.check(administer.verb, administer.arguments)
        received, size = session.broker.memory.received, len(administer.arguments)
        before, done = self._last, trio.Event()
        self._last = done
        self._waiting_bytes += size
        received.used_bytes += size

        async def work() -> None:
            try:
                if before is not None:
                    await before.wait()
                await session.outbox.wait_room()
                result = await administration.perform(administer.verb, administer.arguments)
                session.reply(event.correlation, m.Administered(result))
            finally:
                self._waiting_bytes -= size
                received.give_back(size)
                done.set()

        session.in_task(event, work)
