"""Admin: topics, exchanges, bindings and groups, made and shown while the broker runs.

Settings have the names and values of the TOML tables: `lease="30s"`, `retention="14d"`, `kind="stream"`. Each method
raises what the broker refuses with, ConnectionLost and RequestTimeout. Cancellation: the change may have been made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from linn.core.errors import ConfigError, ProtocolError
from linn.protocols.capnp.messages import Administer, Administered

if TYPE_CHECKING:
    from linn.client.client import Client


class Admin:
    """`client.admin`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def perform(self, verb: str, **arguments: Any) -> Any:
        """Carry out any verb of the broker's. Raises ConfigError where an argument is not JSON."""
        try:
            encoded = json.dumps(arguments)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the arguments of {verb} can't be written as JSON: {error}") from error
        shown = verb.partition(".")[2] in ("show", "list")
        answer = (await self._client.request(Administer(verb, encoded), repeat=shown)).message
        if not isinstance(answer, Administered):
            raise ProtocolError(f"the broker answered {verb} with {type(answer).__name__}")
        return json.loads(answer.result)

    # --- topics ---

    async def create_topic(self, name: str, **settings: Any) -> bool:
        """Make a topic; False where it is there already, with the same settings. Raises TopicExists, ConfigError."""
        return bool((await self.perform("topic.create", name=name, settings=settings))["created"])

    async def alter_topic(self, name: str, **settings: Any) -> list[str]:
        """Change settings of a topic; those that differed. Raises TopicUnknown, ConfigNotLive, ConfigError."""
        changed: list[str] = (await self.perform("topic.alter", name=name, settings=settings))["changed"]
        return changed

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Raises TopicUnknown."""
        await self.perform("topic.delete", name=name)

    async def purge_topic(self, name: str) -> int:
        """Settle all that waits in a queue; how many records. Raises TopicUnknown, SubscriptionWrongKind."""
        return int((await self.perform("topic.purge", name=name))["purged"])

    async def topics(self) -> list[dict[str, Any]]:
        """All topics, as `topic` shows one."""
        found: list[dict[str, Any]] = await self.perform("topic.list")
        return found

    async def topic(self, name: str) -> dict[str, Any]:
        """A topic's settings, the bounds of its partitions, and what waits in its queue. Raises TopicUnknown."""
        found: dict[str, Any] = await self.perform("topic.show", name=name)
        return found

    # --- exchanges ---

    async def create_exchange(self, name: str, **settings: Any) -> bool:
        """Make an exchange, `type="direct"` unless said; False where it is there. Raises TopicExists, ConfigError."""
        return bool((await self.perform("exchange.create", name=name, settings=settings))["created"])

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange that has no bindings. Raises ExchangeUnknown, TopicError."""
        await self.perform("exchange.delete", name=name)

    async def exchanges(self) -> list[dict[str, Any]]:
        """All exchanges with their bindings."""
        found: list[dict[str, Any]] = await self.perform("exchange.list")
        return found

    async def bind(self, exchange: str, topic: str, key: str = "", **arguments: Any) -> None:
        """Have an exchange send to a topic what `key` fits. Raises ExchangeUnknown, TopicUnknown, BindingInvalid."""
        await self.perform("exchange.bind", exchange=exchange, topic=topic, key=key, arguments=arguments)

    async def unbind(self, exchange: str, topic: str, key: str = "", **arguments: Any) -> None:
        """Take a binding back. Raises ExchangeUnknown, TopicUnknown."""
        await self.perform("exchange.unbind", exchange=exchange, topic=topic, key=key, arguments=arguments)

    # --- groups, broker ---

    async def groups(self, topic: str) -> list[dict[str, Any]]:
        """The consumer groups of a topic. Raises TopicUnknown."""
        found: list[dict[str, Any]] = await self.perform("group.list", topic=topic)
        return found

    async def group_offsets(self, topic: str, group: str) -> list[dict[str, Any]]:
        """Committed offset and lag by partition. Raises TopicUnknown, GroupUnknown, SubscriptionWrongKind."""
        found: list[dict[str, Any]] = await self.perform("group.show", topic=topic, group=group)
        return found

    async def broker(self) -> dict[str, Any]:
        """The broker's name, listeners, and counts of what it has."""
        found: dict[str, Any] = await self.perform("broker.show")
        return found
