"""Admin: topics, exchanges, bindings and groups, made and shown while the broker runs.

Settings have the names and values of the TOML tables: `lease="30s"`, `retention="14d"`, `kind="stream"`. Each method
raises what the broker refuses with, ConnectionLost and RequestTimeout. Cancellation: the change may have been made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Unpack

from linn.client.admin_types import (
    BrokerDescription,
    ConnectionDescription,
    ExchangeDescription,
    GroupDescription,
    GroupOffset,
    MetricDescription,
    QueueDescription,
    QueueDetails,
    TopicDescription,
    TopicSettings,
)
from linn.client.arguments import checked_text, timestamp_ms_of
from linn.client.connection.connector import Connector
from linn.core.errors.tree import ConfigError, ProtocolError
from linn.wire.messages import Administer, Administered


class Admin:
    """`client.admin`.

    Example:
        await client.admin.create_topic("invoices", kind="both", retention="14d")
        await client.admin.delete_topic("invoices")
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def perform(self, /, verb: str, **arguments: Any) -> Any:
        """Carry out any verb of the broker's.

        Raises ConfigError where an argument is not JSON, MessageInvalid where a text is not valid Unicode.

        Example:
            print(await client.admin.perform("topic.show", name="orders"))
        """
        checked_text(verb, "a verb")
        try:
            encoded = json.dumps(arguments, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the arguments of {verb} can't be written as JSON: {error}") from error
        checked_text(encoded, f"an argument of {verb}")
        shown = verb.partition(".")[2] in ("show", "list")
        answer = (await self._connector.request(Administer(verb, encoded), repeat=shown)).message
        if not isinstance(answer, Administered):
            raise ProtocolError(f"the broker answered {verb} with {type(answer).__name__}")
        return json.loads(answer.result)

    # --- topics ---

    async def create_topic(self, /, name: str, **settings: Unpack[TopicSettings]) -> bool:
        """Make a topic; False where it is there already, with the same settings. Raises TopicExists, ConfigError.

        Example:
            created = await client.admin.create_topic("invoices", kind="queue", lease="30s")
        """
        return bool((await self.perform("topic.create", name=name, settings=settings))["created"])

    async def alter_topic(self, /, name: str, **settings: Unpack[TopicSettings]) -> list[str]:
        """Change settings of a topic; those that differed. Raises TopicUnknown, ConfigNotLive, ConfigError.

        Example:
            changed = await client.admin.alter_topic("orders", lease="1m")
        """
        changed: list[str] = (await self.perform("topic.alter", name=name, settings=settings))["changed"]
        return changed

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Raises TopicUnknown.

        Example:
            await client.admin.delete_topic("prices")
        """
        await self.perform("topic.delete", name=name)

    async def purge_topic(self, name: str) -> int:
        """Settle all that waits in a queue; how many records. Raises TopicUnknown, SubscriptionWrongKind.

        Example:
            settled = await client.admin.purge_topic("orders")
        """
        return int((await self.perform("topic.purge", name=name))["purged"])

    async def topics(self) -> list[TopicDescription]:
        """All topics, as `topic` shows one.

        Example:
            print([topic["name"] for topic in await client.admin.topics()])
        """
        found: list[TopicDescription] = await self.perform("topic.list")
        return found

    async def topic(self, name: str) -> TopicDescription:
        """A topic's settings, the bounds of its partitions, and what waits in its queue. Raises TopicUnknown.

        Example:
            print((await client.admin.topic("orders"))["queue"]["unsettled"])
        """
        found: TopicDescription = await self.perform("topic.show", name=name)
        return found

    # --- exchanges ---

    async def create_exchange(
        self,
        /,
        name: str,
        *,
        type: str = "direct",
        alternate: str | None = None,
        bindings: Sequence[Mapping[str, Any]] = (),
        **settings: Any,
    ) -> bool:
        """Make an exchange; False where it is there. Raises TopicExists, ConfigError.

        Args:
            type: direct, fanout, topic, headers, content, consistent-hash, or a plugin's.
            alternate: the exchange that takes messages which no binding of this one matches.
            bindings: what other exchanges send here; each with `exchange`, `key`, and what that one's type takes.
            settings: those of the exchange's type.

        Example:
            await client.admin.create_exchange("alerts", type="fanout")
        """
        own: dict[str, Any] = {"type": type, "alternate": alternate, "bindings": list(bindings)}
        asked = {key: value for key, value in own.items() if value} | settings
        return bool((await self.perform("exchange.create", name=name, settings=asked))["created"])

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange that has no bindings and is nobody's alternate. Raises ExchangeUnknown, TopicError.

        Example:
            await client.admin.create_exchange("alerts", type="fanout")
            await client.admin.delete_exchange("alerts")
        """
        await self.perform("exchange.delete", name=name)

    async def exchange(self, name: str) -> ExchangeDescription:
        """An exchange's type, alternate, settings and bindings. Raises ExchangeUnknown.

        Example:
            print((await client.admin.exchange("news"))["bindings"])
        """
        found: ExchangeDescription = await self.perform("exchange.show", name=name)
        return found

    async def exchanges(self) -> list[ExchangeDescription]:
        """All exchanges, as `exchange` shows one.

        Example:
            print([exchange["name"] for exchange in await client.admin.exchanges()])
        """
        found: list[ExchangeDescription] = await self.perform("exchange.list")
        return found

    async def bind(self, /, exchange: str, topic: str, key: str = "", **arguments: Any) -> bool:
        """Have an exchange send to a topic what `key` fits; whether this is new.

        Raises ExchangeUnknown, TopicUnknown, BindingInvalid.

        Example:
            await client.admin.bind("news", "orders", "order.#")
        """
        asked = {"exchange": exchange, "topic": topic, "key": key, "arguments": arguments}
        return bool((await self.perform("exchange.bind", **asked))["created"])

    async def unbind(self, /, exchange: str, topic: str, key: str = "", **arguments: Any) -> bool:
        """Take a binding back; whether there was one. Raises ExchangeUnknown, TopicUnknown.

        Example:
            await client.admin.unbind("news", "prices", "price.*")
        """
        asked = {"exchange": exchange, "topic": topic, "key": key, "arguments": arguments}
        return bool((await self.perform("exchange.unbind", **asked))["deleted"])

    async def bind_exchange(self, /, exchange: str, target: str, key: str = "", **arguments: Any) -> bool:
        """Have an exchange send to another one what `key` fits; whether this is new.

        Raises ExchangeUnknown, BindingInvalid for a circle.

        Example:
            await client.admin.create_exchange("alerts", type="fanout")
            await client.admin.bind_exchange("news", "alerts", "price.*")
        """
        asked = {"exchange": exchange, "target_exchange": target, "key": key, "arguments": arguments}
        return bool((await self.perform("exchange.bind", **asked))["created"])

    async def unbind_exchange(self, /, exchange: str, target: str, key: str = "", **arguments: Any) -> bool:
        """Take a binding to another exchange back; whether there was one. Raises ExchangeUnknown.

        Example:
            await client.admin.create_exchange("alerts", type="fanout")
            await client.admin.bind_exchange("news", "alerts", "price.*")
            await client.admin.unbind_exchange("news", "alerts", "price.*")
        """
        asked = {"exchange": exchange, "target_exchange": target, "key": key, "arguments": arguments}
        return bool((await self.perform("exchange.unbind", **asked))["deleted"])

    # --- groups, broker ---

    async def groups(self, topic: str | None = None) -> list[GroupDescription]:
        """The consumer groups of a topic, or of all: members, generation and lag. Raises TopicUnknown.

        Example:
            print([group["group"] for group in await client.admin.groups("prices")])
        """
        arguments = {} if topic is None else {"topic": topic}
        found: list[GroupDescription] = await self.perform("group.list", **arguments)
        return found

    async def group_offsets(self, topic: str, group: str) -> list[GroupOffset]:
        """Committed offset, lag and member by partition. Raises TopicUnknown, GroupUnknown, SubscriptionWrongKind.

        Example:
            for row in await client.admin.group_offsets("prices", "dashboard"):
                print(row["partition"], row["offset"], row["lag"])
        """
        found: list[GroupOffset] = await self.perform("group.show", topic=topic, group=group)
        return found

    async def reset_group(
        self, topic: str, group: str, to: Literal["earliest", "latest"] | int | datetime, partitions: Sequence[int] = ()
    ) -> list[GroupOffset]:
        """Have a group that nobody reads with go on elsewhere, in all partitions or in some; as `group_offsets` after.

        An offset that a partition does not have becomes the nearest one that it has.

        Raises TopicUnknown, PartitionUnknown, GroupUnknown, GroupBusy, SubscriptionWrongKind.

        Example:
            await client.admin.reset_group("prices", "dashboard", to="earliest")
        """
        arguments: dict[str, Any] = {"partitions": list(partitions)} if partitions else {}
        if isinstance(to, datetime):
            arguments["timestamp_ms"] = timestamp_ms_of(to)
        else:
            arguments["offset" if isinstance(to, int) else "to"] = to
        found: list[GroupOffset] = await self.perform("group.reset", topic=topic, group=group, **arguments)
        return found

    async def delete_group(self, topic: str, group: str) -> None:
        """Forget a group that nobody reads with, and its offsets. Raises TopicUnknown, GroupUnknown, GroupBusy.

        Example:
            await client.admin.delete_group("prices", "dashboard")
        """
        await self.perform("group.delete", topic=topic, group=group)

    async def subscriptions(self) -> list[QueueDescription]:
        """The queues: records that are ready, leased, delayed or dead, and how many consumers compete.

        Example:
            print([queue["topic"] for queue in await client.admin.subscriptions()])
        """
        found: list[QueueDescription] = await self.perform("subscription.list")
        return found

    async def subscription(self, topic: str) -> QueueDetails:
        """One queue, also by partition and by consumer. Raises TopicUnknown, SubscriptionWrongKind.

        Example:
            print(await client.admin.subscription("orders"))
        """
        found: QueueDetails = await self.perform("subscription.show", topic=topic)
        return found

    async def metrics(self, *names: str) -> list[MetricDescription]:
        """The broker's metrics whose names begin so, all without one: name, kind, labels and samples.

        Raises LimitExceeded where that is too much for one answer.

        Example:
            print(await client.admin.metrics("linn_topic"))
        """
        found: list[MetricDescription] = await self.perform("metrics.show", names=list(names) or [""])
        return found

    async def connections(self) -> list[ConnectionDescription]:
        """The open connections of all listeners, the oldest first.

        Example:
            print([connection["peer"] for connection in await client.admin.connections()])
        """
        found: list[ConnectionDescription] = await self.perform("connection.list")
        return found

    async def close_connection(self, number: int, reason: str = "") -> None:
        """Close a connection; its client is told the reason, and its leases end. A linn client connects again.

        Raises ConnectionUnknown.

        Example:
            for connection in await client.admin.connections():
                if connection["held_bytes"] > 1 << 30:
                    await client.admin.close_connection(connection["number"], "it holds too much")
        """
        await self.perform("connection.close", number=number, reason=reason)

    async def broker(self) -> BrokerDescription:
        """The broker's name, listeners, and counts of what it has.

        Example:
            print((await client.admin.broker())["name"])
        """
        found: BrokerDescription = await self.perform("broker.show")
        return found
