"""The catalog: every topic and exchange of a broker, by name.

Law: an error to a client has the names of its request, and no others, which the client may not be allowed to see.
"""

from __future__ import annotations

from collections.abc import Callable

from linn.core.errors.tree import ExchangeUnknown, TopicUnknown
from linn.core.routing.default_exchange import DEFAULT_EXCHANGE, DefaultExchange
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.router import Router
from linn.core.topics.topic import Topic


class Catalog:
    """The topics and exchanges that exist at this moment."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.topics: dict[str, Topic] = {}
        self.exchanges: ExchangeGraph[Router] = ExchangeGraph(monotonic)
        self.routers: dict[str, Router] = self.exchanges.routers
        self._default = Router(DEFAULT_EXCHANGE, "default", lambda: DefaultExchange(self.topics), self.exchanges)

    def topic(self, name: str) -> Topic:
        """The topic of that name. Raises TopicUnknown."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicUnknown(f'there is no topic "{name[:80]}"')
        return topic

    def led_topic(self, name: str) -> Topic:
        """The topic of that name, if this broker leads it. Raises TopicUnknown, NotLeader."""
        topic = self.topic(name)
        topic.check_led()
        return topic

    def router(self, name: str) -> Router:
        """The exchange of that name, also the default one. Raises ExchangeUnknown."""
        router = self.routers.get(name) if name != DEFAULT_EXCHANGE else self._default
        if router is None:
            raise ExchangeUnknown(f'there is no exchange "{name[:80]}"')
        return router
