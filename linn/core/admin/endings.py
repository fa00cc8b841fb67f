"""Ends of topics without a request: of those without a use, and of those whose connection is gone.

Laws: the use of a topic is checked in the turn of the change, as a consumer may have come meanwhile. In a cluster its
leader deletes it, and only as long as it leads: the write names the entry by which it does. A broker that stops deletes
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from linn.core.admin.topics import TopicAdministration
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.metadata import MetadataError
from linn.core.errors.tree import BrokerStopping
from linn.core.ports.principal import Principal
from linn.core.topics.topic import Topic

RETRY_S = 5.0
"""Pause before a topic without its connection is deleted again, as the metadata store could not be reached."""

logger = logging.getLogger("linn.administration")


class Endings:
    """The topics of a broker that end by themselves."""

    def __init__(
        self,
        topics: TopicAdministration,
        run_change: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        self._topics = topics
        self._run_change = run_change
        self._clock = clock
        self._spawn = spawn

    async def delete_unused(self, topic: Topic) -> None:
        """Delete a topic unless it is in use, or the broker stops.

        Raises BrokerStopping, TopicError, StorageError, MetadataError.
        """
        # Not while the broker stops: its consumers leave it, and come back.
        await self._run_change(partial(self._topics.end_unused, topic))

    def session_ended(self, owner: Principal) -> None:
        """Delete the topics that end with a session, soon."""
        for topic in self._topics.owned.pop(id(owner), ()):
            self._spawn(partial(self._delete_owned, topic))

    async def _delete_owned(self, topic: Topic) -> None:
        while True:
            try:
                await self._run_change(partial(self._topics.end, topic))
            except BrokerStopping:
                return  # It ends with the broker.
            except MetadataError as error:
                text = "topic %(topic)s ends later, with its connection gone: %(error)s"
                logger.warning(text, {"topic": topic.name} | log_fields(error))
                await self._clock.sleep(RETRY_S)
            else:
                return
