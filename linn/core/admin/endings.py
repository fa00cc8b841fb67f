"""Ends of topics and exchanges without a request: of those without a use, and of those whose connection is gone.

Laws: their use is checked in the turn of the change, as a consumer or a binding may have come meanwhile. In a cluster
the leader of a topic deletes it, and only as long as it leads: the write names the entry by which it does. The first
broker that tries deletes an exchange. A broker that stops deletes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from linn.core.admin.exchanges import ExchangeAdministration
from linn.core.admin.topics import TopicAdministration
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.metadata import MetadataError
from linn.core.errors.tree import BrokerStopping, TopicError
from linn.core.ports.principal import Principal
from linn.core.routing.router import Router
from linn.core.topics.topic import Topic

RETRY_S = 5.0
"""Pause before a deletion is tried again, because the metadata store could not be reached."""

logger = logging.getLogger("linn.administration")


class Endings:
    """The topics and exchanges of a broker that end by themselves."""

    def __init__(
        self,
        topics: TopicAdministration,
        exchanges: ExchangeAdministration,
        run_change: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        self._topics = topics
        self._exchanges = exchanges
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
            self._spawn(partial(self._end, f"topic {topic.name}", partial(self._topics.end, topic)))

    def exchange_unused(self, router: Router) -> None:
        """Delete an exchange that has lost its last binding, soon; in a cluster the first broker to do so does it."""
        self._spawn(partial(self._end, f"exchange {router.name}", partial(self._exchanges.end_unused, router)))

    async def _end(self, name: str, end: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await self._run_change(end)
            except BrokerStopping:
                return
            except MetadataError as error:
                logger.warning(
                    "%(name)s is to be deleted, and is tried again: %(error)s", {"name": name} | log_fields(error)
                )
                await self._clock.sleep(RETRY_S)
            except TopicError as error:
                logger.info("%(name)s is not deleted: %(error)s", {"name": name} | log_fields(error))
                return
            else:
                return
