"""The use of a queue by its consumers, and the end of a queue without any."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from linn.core.config.topic_settings import TopicSettings
from linn.core.env.alarm import Alarm
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.lifetimes import TopicExclusive
from linn.core.errors.tree import BrokerStopping, LinnError
from linn.core.ports.principal import Principal
from linn.core.queue.queue import Queue

logger = logging.getLogger("linn.topic")

DELETE_RETRY_S = 60.0
"""Pause before a queue that could not be deleted is tried again: its dead letters may be wanted by another topic."""


class TopicUse:
    """Deletes a queue without consumers, as its settings say.

    Laws: a queue is in use as long as it has a consumer. The time of `expires` begins when the last consumer has left,
    when the topic is opened, or when a client asks to make a topic like it. With `delete_when = "unused"` the queue
    ends when its last consumer leaves, and not before there was one. A topic that is closed because the broker stops,
    or because another one leads it, is not deleted.
    """

    def __init__(self, topic: str, clock: Clock, spawn: Spawn, delete: Callable[[], Awaitable[None]]) -> None:
        """`delete` deletes the topic unless it is in use; it raises LinnError."""
        self._topic = topic
        self._clock = clock
        self._spawn = spawn
        self._delete_topic = delete
        self.owner: Principal | None = None
        """The caller, by its session, that alone may consume the topic, and with which it ends; None: it is for all."""
        self._queue: Queue | None = None
        self._expires_ms: int | None = None
        self._ends_unused = False
        self._alarm = Alarm(clock, spawn, self._ring)

    @property
    def is_used(self) -> bool:
        """Whether the queue has consumers, or is closed."""
        return self._queue is None or self._queue.closed or bool(self._queue.consumers)

    def check_owner(self, caller: Principal) -> None:
        """Check that a session may consume the topic. Raises TopicExclusive."""
        if self.owner is not None and self.owner is not caller:
            raise TopicExclusive(f"topic {self._topic} belongs to the connection that has made it")

    def follow(self, queue: Queue, settings: TopicSettings) -> None:
        """Follow the consumers of the topic's queue, under these settings from now on; not of a named subscription."""
        if queue.name:
            return
        is_new = (settings.expires_ms, settings.delete_when == "unused") != (self._expires_ms, self._ends_unused)
        self._expires_ms, self._ends_unused = settings.expires_ms, settings.delete_when == "unused"
        if queue is not self._queue or is_new:
            self._queue = queue
            queue.on_used = self._changed if self._ends_unused or self._expires_ms is not None else None
            self.renew()

    def renew(self) -> None:
        """Begin to count the time without consumers anew."""
        self._alarm.cancel()
        if self._expires_ms is not None and not self.is_used:
            self._alarm.set(self._clock.monotonic() + self._expires_ms / 1000)

    def _changed(self) -> None:
        """Take note that a consumer has come or left."""
        self.renew()
        if self._ends_unused and not self.is_used:
            self._alarm.set(self._clock.monotonic())

    def _ring(self) -> None:
        if not self.is_used:
            self._spawn(self._delete)

    async def _delete(self) -> None:
        try:
            await self._delete_topic()
        except BrokerStopping:
            return
        except LinnError as error:
            text = "topic %(topic)s is unused and can't be deleted now: %(error)s"
            logger.warning(text, {"topic": self._topic} | log_fields(error))
            self._alarm.set(self._clock.monotonic() + DELETE_RETRY_S)
