"""TopicWatch: keeps a producer informed of its topic. It asks when there is a new connection, and now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.wire.messages import Describe, Description, Message, TopicInfo

if TYPE_CHECKING:
    from linn.client.client import Client


class TopicWatch:
    """The caller of its own requests. An answer that does not come is asked for again the next time."""

    def __init__(self, client: Client, topic: str, follow: Callable[[TopicInfo], None]) -> None:
        self.stopped = False
        self._client = client
        self._topic = topic
        self._follow = follow

    def start(self) -> None:
        """Ask again and again, first when what is known now is old."""
        self._client._timers.after(self._client.options.metadata_age_max_s, self._tick)

    def _tick(self) -> None:
        if not self.stopped:
            self.ask()
            self.start()

    def ask(self) -> None:
        """Ask once, where there is a connection."""
        connection = self._client._usable_connection
        if connection is not None and connection.ready:
            connection.ask(self, Describe([self._topic]))

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """The broker described the topic."""
        if not self.stopped and isinstance(message, Description) and len(message.topics) == 1:
            self._follow(message.topics[0])

    def failed(self, error: LinnError) -> None:
        """The broker did not."""
