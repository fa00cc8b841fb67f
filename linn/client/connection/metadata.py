"""Topic metadata: kinds, partitions and offsets, requested once or periodically."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

from linn.client.arguments import I64_MAX, checked_number, checked_text, timestamp_ms_of
from linn.client.connection.connector import Connector
from linn.client.connection.leaders import TOPICS_MAX
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError, ProtocolError
from linn.wire.messages import Describe, Description, FindOffset, FoundOffset, Message, Place, TopicInfo


async def describe(connector: Connector, topics: Sequence[str]) -> Description:
    """Return kind, partitions and bounds of topics; of all if no name is given.

    Raises MessageInvalid, ConnectionLost, RequestTimeout. Cancellation: nothing is changed.
    """
    asked = [checked_text(topic, "a topic") for topic in topics]
    found = (await connector.request(Describe(asked), repeat=True)).message
    if not isinstance(found, Description) or (topics and len(found.topics) != len(topics)):
        raise ProtocolError("the broker did not describe what it was asked for")
    connector.leaders.told(found, is_asked=bool(topics) and len(topics) <= TOPICS_MAX // 2)
    return found


async def find_leaders(connector: Connector, topics: Sequence[str], *, anew: bool = False) -> None:
    """Connect to the leaders of topics, as far as they can be reached soon; ask who they are if that is unknown.

    `anew`: ask in any case. A failure to ask is ignored: the topics are used through the broker at hand.

    Raises MessageInvalid: a name is no text.
    """
    topics = list(dict.fromkeys([checked_text(topic, "a topic's name") for topic in topics]))
    leaders = connector.leaders
    if not leaders.is_needed:
        return
    asked = [topic for topic in topics if anew or not leaders.knows(topic)]
    with contextlib.suppress(LinnError):
        if asked:
            await describe(connector, asked)
    for topic in topics:
        await leaders.reach(topic)


async def find_offset(
    connector: Connector, topic: str, partition: int, place: Literal["earliest", "latest"] | int | datetime
) -> int:
    """Return the offset of a place: a time, as a datetime or in milliseconds since 1970, or an end of the partition.

    Raises MessageInvalid, TopicUnknown, PartitionUnknown, ConnectionLost, RequestTimeout.
    """
    request = FindOffset(topic, partition)
    if place in ("earliest", "latest"):
        request.place = Place.EARLIEST if place == "earliest" else Place.LATEST
    elif isinstance(place, datetime):
        request.timestamp_ms = timestamp_ms_of(place)
    else:
        request.timestamp_ms = checked_number(place, "a place in milliseconds since 1970", I64_MAX, -I64_MAX - 1)
    await find_leaders(connector, [topic])
    found = (await connector.request(request, repeat=True, topic=topic)).message
    if not isinstance(found, FoundOffset):
        raise ProtocolError(f"the broker answered find offset with {type(found).__name__}")
    return found.offset


class TopicRefresh:
    """Keeps a producer's view of its topic fresh: asks on each new connection, when another broker leads it, and every
    `metadata_age_max_s`.

    It is the caller of its requests. A failed request is repeated only at the next interval.
    """

    def __init__(self, connector: Connector, topic: str, follow: Callable[[TopicInfo], None]) -> None:
        self.stopped = False
        self._connector = connector
        self._topic = topic
        self._follow = follow

    def start(self) -> None:
        """Ask periodically, for the first time when the present metadata reaches its age limit."""
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
            self._connector.leaders.told(message)
            self._follow(message.topics[0])

    def failed(self, error: LinnError) -> None:
        """Ignore a failure; the next request may succeed."""
