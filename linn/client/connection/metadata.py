"""Topic metadata: kinds, partitions and offsets, asked of the broker once or again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from linn.client.arguments import checked_text
from linn.client.connection.connector import Connector
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError, ProtocolError
from linn.wire.messages import Describe, Description, FindOffset, FoundOffset, Message, TopicInfo


async def describe(connector: Connector, topics: Sequence[str]) -> Description:
    """Return kind, partitions and bounds of topics; of all if none is named.

    Raises MessageInvalid, ConnectionLost, RequestTimeout. Cancellation: nothing is changed.
    """
    asked = [checked_text(topic, "a topic") for topic in topics]
    found = (await connector.request(Describe(asked), repeat=True)).message
    if not isinstance(found, Description) or (topics and len(found.topics) != len(topics)):
        raise ProtocolError("the broker did not describe what it was asked for")
    return found


async def find_offset(connector: Connector, topic: str, partition: int, timestamp_ms: int) -> int:
    """Return the offset of the first batch with a timestamp not before `timestamp_ms`; -1: the end, -2: the start.

    Raises MessageInvalid, TopicUnknown, PartitionUnknown, ConnectionLost, RequestTimeout.
    """
    found = (await connector.request(FindOffset(topic, partition, timestamp_ms), repeat=True)).message
    if not isinstance(found, FoundOffset):
        raise ProtocolError(f"the broker answered find offset with {type(found).__name__}")
    return found.offset


class TopicRefresh:
    """Keeps a producer's view of its topic fresh: asks on each new connection, and every `metadata_age_max_s`.

    It is the caller of its requests. A request that fails is not repeated before the next time.
    """

    def __init__(self, connector: Connector, topic: str, follow: Callable[[TopicInfo], None]) -> None:
        self.stopped = False
        self._connector = connector
        self._topic = topic
        self._follow = follow

    def start(self) -> None:
        """Ask periodically, first when the present metadata has reached its age limit."""
        self._connector.timers.after(self._connector.options.metadata_age_max_s, self._tick)

    def _tick(self) -> None:
        if not self.stopped:
            self.ask()
            self.start()

    def ask(self) -> None:
        """Ask once, if there is a connection."""
        connection = self._connector.usable
        if connection is not None and connection.ready:
            connection.ask(self, Describe([self._topic]))

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """Pass the broker's description on."""
        if not self.stopped and isinstance(message, Description) and len(message.topics) == 1:
            self._follow(message.topics[0])

    def failed(self, error: LinnError) -> None:
        """Ignore a failure; the next request may succeed."""
