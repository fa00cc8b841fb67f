"""Admin: creates, changes and describes topics, exchanges, bindings, groups, users and roles while the broker runs.

Settings have the names and values of the TOML tables: `lease="30s"`, `retention="14d"`, `kind="stream"`. Each method
raises the broker's refusal, ConnectionLost or RequestTimeout. Cancellation: the change may have been made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Unpack

from linn import verbs
from linn.client.arguments import timestamp_ms_of
from linn.client.performing import Performing
from linn.descriptions import (
    BrokerDescription,
    CallerDescription,
    ClusterDescription,
    ConnectionDescription,
    DecidedDeliveries,
    ExchangeDescription,
    GroupDescription,
    GroupOffset,
    GroupSummary,
    MetricDescription,
    QueueDescription,
    QueueDetails,
    RightDescription,
    RoleDescription,
    TopicDescription,
    TopicSettings,
    TransactionDescription,
    TransactionState,
    TransactionSummaries,
    UserDescription,
)


class Admin(Performing):
    """The admin interface of a client, `client.admin`.

    Example:
        await client.admin.create_topic("invoices", kind="both", retention="14d")
        await client.admin.delete_topic("invoices")
    """

    # --- topics ---

    async def create_topic(self, /, name: str, **settings: Unpack[TopicSettings]) -> bool:
        """Create a topic; return False if it exists with the same settings. Raises TopicExists, ConfigError.

        Example:
            created = await client.admin.create_topic("invoices", kind="queue", lease="30s")
        """
        return (await self._ask(verbs.CREATE_TOPIC, verbs.SettingsChange(name, settings)))["created"]

    async def alter_topic(self, /, name: str, **settings: Unpack[TopicSettings]) -> list[str]:
        """Change settings of a topic; return the names that differed. Raises TopicUnknown, ConfigNotLive, ConfigError.

        Example:
            changed = await client.admin.alter_topic("orders", lease="1m")
        """
        return (await self._ask(verbs.ALTER_TOPIC, verbs.SettingsChange(name, settings)))["changed"]

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Raises TopicUnknown.

        Example:
            await client.admin.delete_topic("prices")
        """
        await self._ask(verbs.DELETE_TOPIC, verbs.NamedChange(name))

    async def purge_topic(self, name: str) -> int:
        """Settle all records of a queue; return how many. Raises TopicUnknown, SubscriptionWrongKind.

        Example:
            settled = await client.admin.purge_topic("orders")
        """
        return (await self._ask(verbs.PURGE_TOPIC, verbs.NamedChange(name)))["purged"]

    async def topics(self) -> list[TopicDescription]:
        """Describe all topics, each as `topic` does.

        Example:
            print([topic["name"] for topic in await client.admin.topics()])
        """
        return await self._ask(verbs.LIST_TOPICS, verbs.NoArguments())

    async def topic(self, name: str) -> TopicDescription:
        """Describe a topic: settings, bounds of its partitions, counts of its queue. Raises TopicUnknown.

        Example:
            print((await client.admin.topic("orders"))["queue"]["unsettled"])
        """
        return await self._ask(verbs.SHOW_TOPIC, verbs.Named(name))

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
        """Create an exchange; return False if it exists with the same settings. Raises TopicExists, ConfigError.

        Args:
            type: direct, fanout, topic, headers, content, consistent-hash, or a plugin's.
            alternate: exchange for messages that match no binding.
            bindings: bindings of other exchanges to this one; each with `exchange`, `key`, and arguments of its type.
            settings: settings of the exchange's type, and `internal`, `delete_when` or `lifetime`.

        Example:
            await client.admin.create_exchange("alerts", type="fanout")
        """
        own: dict[str, Any] = {"type": type, "alternate": alternate, "bindings": list(bindings)}
        asked = {key: value for key, value in own.items() if value} | settings
        return (await self._ask(verbs.CREATE_EXCHANGE, verbs.SettingsChange(name, asked)))["created"]

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange that has no bindings and is no exchange's alternate. Raises ExchangeUnknown, TopicError.

        Example:
            await client.admin.create_exchange("alerts", type="fanout")
            await client.admin.delete_exchange("alerts")
        """
        await self._ask(verbs.DELETE_EXCHANGE, verbs.NamedChange(name))

    async def exchange(self, name: str) -> ExchangeDescription:
        """Describe an exchange: type, alternate, settings and bindings. Raises ExchangeUnknown.

        Example:
            print((await client.admin.exchange("news"))["bindings"])
        """
        return await self._ask(verbs.SHOW_EXCHANGE, verbs.Named(name))

    async def exchanges(self) -> list[ExchangeDescription]:
        """Describe all exchanges, each as `exchange` does.

        Example:
            print([exchange["name"] for exchange in await client.admin.exchanges()])
        """
        return await self._ask(verbs.LIST_EXCHANGES, verbs.NoArguments())

    async def bind(self, /, exchange: str, topic: str, key: str = "", **arguments: Any) -> bool:
        """Bind a topic to an exchange, for messages that match `key`; return whether the binding is new.

        Raises ExchangeUnknown, TopicUnknown, BindingInvalid.

        Example:
            await client.admin.bind("news", "orders", "order.#")
        """
        asked = verbs.BindingChange(exchange, topic, key=key, arguments=arguments)
        return (await self._ask(verbs.BIND, asked))["created"]

    async def unbind(self, /, exchange: str, topic: str, key: str = "", **arguments: Any) -> bool:
        """Remove a binding; return whether there was one. Raises ExchangeUnknown, TopicUnknown.

        Example:
            await client.admin.unbind("news", "prices", "price.*")
        """
        asked = verbs.BindingChange(exchange, topic, key=key, arguments=arguments)
        return (await self._ask(verbs.UNBIND, asked))["deleted"]

    async def bind_exchange(self, /, exchange: str, target: str, key: str = "", **arguments: Any) -> bool:
        """Bind exchange `target` to an exchange, for messages that match `key`; return whether the binding is new.

        Raises ExchangeUnknown, BindingInvalid for a cycle.

        Example:
            await client.admin.create_exchange("alerts", type="fanout")
            await client.admin.bind_exchange("news", "alerts", "price.*")
        """
        asked = verbs.BindingChange(exchange, target_exchange=target, key=key, arguments=arguments)
        return (await self._ask(verbs.BIND, asked))["created"]

    async def unbind_exchange(self, /, exchange: str, target: str, key: str = "", **arguments: Any) -> bool:
        """Remove a binding to another exchange; return whether there was one. Raises ExchangeUnknown.

        Example:
            await client.admin.create_exchange("alerts", type="fanout")
            await client.admin.bind_exchange("news", "alerts", "price.*")
            await client.admin.unbind_exchange("news", "alerts", "price.*")
        """
        asked = verbs.BindingChange(exchange, target_exchange=target, key=key, arguments=arguments)
        return (await self._ask(verbs.UNBIND, asked))["deleted"]

    # --- groups, broker ---

    async def groups(self, topic: str | None = None) -> list[GroupSummary]:
        """Describe all consumer groups, or the groups of a topic: members, epoch and lag.

        Raises TopicUnknown, SubscriptionWrongKind.

        Example:
            print([group["group"] for group in await client.admin.groups("prices")])
        """
        return await self._ask(verbs.LIST_GROUPS, verbs.OfTopic(topic))

    async def group(self, name: str) -> GroupDescription:
        """Describe one consumer group: its members, and offset, lag and owner by topic and partition.

        Raises GroupUnknown.

        Example:
            for row in (await client.admin.group("dashboard"))["offsets"]:
                print(row["topic"], row["partition"], row["offset"], row["lag"])
        """
        return await self._ask(verbs.SHOW_GROUP, verbs.OfGroup(name))

    async def reset_group(
        self,
        group: str,
        to: Literal["earliest", "latest"] | int | datetime,
        topic: str | None = None,
        partitions: Sequence[int] = (),
        *,
        dry_run: bool = False,
    ) -> list[GroupOffset]:
        """Move the offsets of a group without members; return the new offsets.

        An offset outside a partition's bounds becomes the nearest one within. With `dry_run` nothing is moved.

        Args:
            topic: move only the offsets in this topic; None: in all topics of the group.
            partitions: move only these partitions of the topic; empty: all.

        Raises TopicUnknown, PartitionUnknown, GroupUnknown, GroupBusy, SubscriptionWrongKind.

        Example:
            await client.admin.reset_group("dashboard", to="earliest")
        """
        chosen = list(partitions) or None
        asked = verbs.GroupReset(group, topic, chosen, validate_only=dry_run, **_place_of(to))
        return await self._ask(verbs.RESET_GROUP, asked)

    async def delete_group(self, group: str, topic: str | None = None) -> None:
        """Delete a group without members, or its offsets in one topic. Raises TopicUnknown, GroupUnknown, GroupBusy.

        Example:
            await client.admin.delete_group("dashboard")
        """
        await self._ask(verbs.DELETE_GROUP, verbs.GroupDeletion(group, topic))

    async def subscriptions(self, topic: str | None = None) -> list[QueueDescription]:
        """Describe the queues and named shared subscriptions of one topic or of all.

        The descriptions count ready, leased, delayed and dead records, and consumers. Raises TopicUnknown.

        Example:
            print([queue["topic"] for queue in await client.admin.subscriptions()])
        """
        return await self._ask(verbs.LIST_SUBSCRIPTIONS, verbs.OfTopic(topic))

    async def subscription(self, topic: str, name: str = "") -> QueueDetails:
        """Describe one queue, or one named subscription of a stream, also by partition and by consumer.

        Raises TopicUnknown, SubscriptionWrongKind, SharedUnknown.

        Example:
            print(await client.admin.subscription("orders"))
        """
        return await self._ask(verbs.SHOW_SUBSCRIPTION, verbs.OfSubscription(topic, name))

    async def create_subscription(
        self, topic: str, name: str, start: Literal["earliest", "latest"] | int | datetime = "earliest"
    ) -> bool:
        """Create a named shared subscription of a stream; return False if it exists, with any start.

        An offset outside a partition's bounds becomes the nearest one within.

        Raises TopicUnknown, SubscriptionWrongKind, ConfigError, LimitExceeded.

        Example:
            await client.admin.create_subscription("prices", "workers", start="latest")
        """
        asked = verbs.NewSubscription(topic, name, **_place_of(start))
        return (await self._ask(verbs.CREATE_SUBSCRIPTION, asked))["created"]

    async def delete_subscription(self, topic: str, name: str, *, force: bool = False) -> None:
        """Delete a named shared subscription; the stream's records stay. `force`: even if it has consumers.

        Raises TopicUnknown, SharedUnknown, SharedBusy.

        Example:
            await client.admin.create_subscription("prices", "workers")
            await client.admin.delete_subscription("prices", "workers")
        """
        await self._ask(verbs.DELETE_SUBSCRIPTION, verbs.SubscriptionDeletion(topic, name, force))

    async def decided_deliveries(
        self,
        topic: str | None = None,
        subscription: str | None = None,
        consumer: str | None = None,
        *,
        partition: int | None = None,
        delivery_id: int | None = None,
    ) -> DecidedDeliveries:
        """Describe the decided deliveries of one topic or of all topics that are not done.

        Returns the first 1,000 ranges of offsets; `more` counts the others. `subscription` ("" for the topic's own
        queue), `partition` and `delivery_id` select some of a topic's deliveries.

        Raises TopicUnknown, SharedUnknown, SubscriptionWrongKind, PartitionUnknown.

        Example:
            decided = await client.admin.decided_deliveries("orders", consumer="ledger-1")
            print(decided["deliveries"], decided["more"])
        """
        asked = verbs.DeliveryFilter(topic, subscription, consumer, partition, delivery_id)
        return await self._ask(verbs.LIST_DELIVERIES, asked)

    async def resolve_delivery(
        self,
        topic: str,
        partition: int,
        delivery_id: int,
        consumer: str,
        outcome: verbs.Outcome,
        *,
        subscription: str = "",
        first: int | None = None,
        end: int | None = None,
    ) -> int:
        """End a decided delivery, or its offsets [first, end), for a lost consumer; return the number of records.

        "done": settle the records, as if their effect was stored. "return": deliver them to another consumer; if the
        lost consumer has stored their effect, it happens twice. "dead-letter": reject them. The broker logs the caller.

        Raises DeliveryNotCurrent if none of it is decided for the consumer, TopicUnknown, SharedUnknown,
        SubscriptionWrongKind, PartitionUnknown.

        Example:
            for delivery in (await client.admin.decided_deliveries("orders", consumer="ledger-1"))["deliveries"]:
                place = delivery["partition"], delivery["delivery_id"]
                await client.admin.resolve_delivery("orders", *place, "ledger-1", "done")
        """
        asked = verbs.DeliveryResolution(topic, partition, delivery_id, consumer, outcome, subscription, first, end)
        return (await self._ask(verbs.RESOLVE_DELIVERY, asked))["records"]

    async def transactions(self, state: TransactionState | None = None, *, limit: int = 1_000) -> TransactionSummaries:
        """Describe the names of transactions, or the names in one state: open transactions first, oldest first.

        Returns at most `limit` and never more than 1,000; `more` counts the others.

        Example:
            for transaction in (await client.admin.transactions("open"))["transactions"]:
                print(transaction["name"], transaction["open_s"])
        """
        return await self._ask(verbs.LIST_TRANSACTIONS, verbs.TransactionFilter(state, limit))

    async def transaction(self, name: str) -> TransactionDescription:
        """Describe the transactions of a name, and the effects of the present one. Raises TransactionUnknown.

        Example:
            async with client.transaction("billing-1") as tx:
                await tx.publish("orders", b"two coffees")
                print((await client.admin.transaction("billing-1"))["wrote"])
        """
        return await self._ask(verbs.SHOW_TRANSACTION, verbs.Named(name))

    async def abort_transaction(self, name: str, number: int | None = None) -> int:
        """Abort the open transaction of a name, and return its number. The broker logs the caller.

        `number`: abort only this transaction, not a later one that the client may have begun meanwhile.

        Raises TransactionUnknown if none is open, or another number; TransactionBusy while it is being ended.

        Example:
            for transaction in (await client.admin.transactions("open"))["transactions"]:
                if (transaction["open_s"] or 0) > 600:
                    await client.admin.abort_transaction(transaction["name"], transaction["number"])
        """
        return (await self._ask(verbs.ABORT_TRANSACTION, verbs.TransactionAbort(name, number)))["number"]

    async def metrics(self, *names: str) -> list[MetricDescription]:
        """Return the metrics whose names begin with one of `names`, or all. Raises LimitExceeded: they are too many.

        Example:
            print(await client.admin.metrics("linn_topic"))
        """
        return await self._ask(verbs.SHOW_METRICS, verbs.MetricNames(names or ("",)))

    async def connections(self) -> list[ConnectionDescription]:
        """Describe the open connections of all listeners, oldest first: client, subscriptions, traffic and buffers.

        Example:
            for connection in await client.admin.connections():
                print(connection["client"], connection["peer"], connection["subscriptions"])
        """
        return await self._ask(verbs.LIST_CONNECTIONS, verbs.NoArguments())

    async def close_connection(self, number: int, reason: str = "") -> None:
        """Close a connection; its client is told the reason, and its leases end. A linn client reconnects.

        Raises ConnectionUnknown.

        Example:
            for connection in await client.admin.connections():
                if connection["held_bytes"] > 1 << 30:
                    await client.admin.close_connection(connection["number"], "it holds too much")
        """
        await self._ask(verbs.CLOSE_CONNECTION, verbs.ConnectionClose(number, reason))

    async def whoami(self) -> CallerDescription:
        """Describe the client itself to the broker: its user, how it logged in, and the user's roles.

        Example:
            print((await client.admin.whoami())["user"])
        """
        return await self._ask(verbs.SHOW_CALLER, verbs.NoArguments())

    async def cluster(self, *, troubled_max: int = 10) -> ClusterDescription:
        """Describe the cluster as the broker knows it: nodes, controller, metadata store, and topics in trouble.

        `node` is None, and all else is empty, where the broker is alone.

        Args:
            troubled_max: limit of the topics in trouble to list, at most 10,000; the worst come first.

        Raises ConfigError: `troubled_max` is out of range.

        Example:
            alive = [node for node in (await client.admin.cluster())["nodes"] if node["state"] == "alive"]
        """
        return await self._ask(verbs.CLUSTER_STATUS, verbs.ClusterAsked(troubled_max))

    async def broker(self) -> BrokerDescription:
        """Describe the broker: name, version, listeners, and numbers of connections, topics and exchanges.

        Example:
            print((await client.admin.broker())["name"])
        """
        return await self._ask(verbs.SHOW_BROKER, verbs.NoArguments())

    # --- users and roles ---

    async def create_user(
        self,
        name: str,
        roles: Sequence[str] = (),
        *,
        scram: str = "",
        certificate: str = "",
        uid: int | None = None,
        limits: Mapping[str, int] = {},
    ) -> bool:
        """Create a user; return False if it exists with the same settings.

        Args:
            roles: roles that exist. Their rights must be the caller's, too.
            scram: verifier of the password, as `linn users verifier` prints it. "": no password.
            certificate: the URI or DNS name in the user's certificate. "": none.
            uid: the user's id on the broker's machine, for Unix sockets.
            limits: `receive_bytes_per_s`, `send_bytes_per_s`, `requests_per_s`, `connections_max`, `client_...`.

        Raises UserExists, UserUnknown for a role, Forbidden, ConfigError, LimitExceeded.

        Example:
            await client.admin.create_user("grace", ["shop"], certificate="spiffe://example.org/grace")
        """
        asked = verbs.NewUser(name, roles=roles, scram=scram, certificate=certificate, uid=uid, limits=limits)
        return (await self._ask(verbs.CREATE_USER, asked))["created"]

    async def alter_user(
        self,
        name: str,
        roles: Sequence[str] | None = None,
        *,
        add_roles: Sequence[str] = (),
        remove_roles: Sequence[str] = (),
        scram: str | None = None,
        certificate: str | None = None,
        uid: int | None = None,
        limits: Mapping[str, int] = {},
    ) -> bool:
        """Change a user; return whether anything differed. Sessions of the user have the new rights on return.

        None leaves a setting as it is. "" for `scram` and `certificate`, -1 for `uid`, and 0 for one of the `limits`
        remove it. `roles` are all from then on; `add_roles` and `remove_roles` leave the others as they are when the
        broker makes the change. Raises UserUnknown, Forbidden, ConfigNotLive, ConfigError.

        Example:
            await client.admin.alter_user("ada", add_roles=["administrator"], certificate="")
        """
        asked = verbs.UserChange(name, roles=roles, add_roles=add_roles, remove_roles=remove_roles, limits=limits)
        asked.scram, asked.certificate, asked.uid = scram, certificate, uid
        return (await self._ask(verbs.ALTER_USER, asked))["changed"]

    async def delete_user(self, name: str) -> None:
        """Delete a user, and end its connections. Raises UserUnknown, Forbidden, ConfigNotLive.

        Example:
            await client.admin.delete_user("ada")
        """
        await self._ask(verbs.DELETE_USER, verbs.NamedChange(name))

    async def users(self) -> list[UserDescription]:
        """Describe all users, each as `user` does.

        Example:
            print([user["user"] for user in await client.admin.users() if not user["roles"]])
        """
        return await self._ask(verbs.LIST_USERS, verbs.NoArguments())

    async def user(self, name: str) -> UserDescription:
        """Describe a user: roles, and the ways to log in, without the password. Raises UserUnknown.

        Example:
            print((await client.admin.user("ada"))["roles"])
        """
        return await self._ask(verbs.SHOW_USER, verbs.Named(name))

    async def create_role(self, name: str, rules: Mapping[str, Sequence[str]]) -> bool:
        """Create a role; return False if it exists with the same rules.

        `rules`: operations by resource, as in TOML. Raises UserExists, Forbidden, ConfigError, LimitExceeded.

        Example:
            await client.admin.create_role("clerks", {"topic:orders.*": ["publish"], "group:clerks": ["use"]})
        """
        return (await self._ask(verbs.CREATE_ROLE, verbs.RoleRules(name, rules)))["created"]

    async def alter_role(self, name: str, rules: Mapping[str, Sequence[str]]) -> bool:
        """Replace all rules of a role; return whether anything differed. Sessions have the new rights on return.

        Raises UserUnknown, Forbidden, ConfigNotLive, ConfigError.

        Example:
            rules = (await client.admin.role("shop"))["rules"]
            await client.admin.alter_role("shop", {**rules, "topic:prices": ["consume"]})
        """
        return (await self._ask(verbs.ALTER_ROLE, verbs.RoleRules(name, rules)))["changed"]

    async def delete_role(self, name: str) -> None:
        """Delete a role that no user has. Raises UserUnknown, UserExists, Forbidden, ConfigNotLive.

        Example:
            await client.admin.create_role("guests", {"topic:prices": ["consume"]})
            await client.admin.delete_role("guests")
        """
        await self._ask(verbs.DELETE_ROLE, verbs.NamedChange(name))

    async def roles(self) -> list[RoleDescription]:
        """Describe all roles, each as `role` does.

        Example:
            print([role["role"] for role in await client.admin.roles()])
        """
        return await self._ask(verbs.LIST_ROLES, verbs.NoArguments())

    async def role(self, name: str) -> RoleDescription:
        """Describe a role: the operations that it allows, by resource. Raises UserUnknown.

        Example:
            print((await client.admin.role("shop"))["rules"])
        """
        return await self._ask(verbs.SHOW_ROLE, verbs.Named(name))

    async def can(self, user: str, operation: str, resource: str) -> RightDescription:
        """Tell whether a user may do something, and by which roles. Users may ask about themselves.

        `resource`: a kind and a name, such as "topic:orders", or "broker". An unknown user may do nothing.

        Raises Forbidden, ConfigError.

        Example:
            print((await client.admin.can("ada", "publish", "topic:orders"))["roles"])
        """
        return await self._ask(verbs.CAN_USER, verbs.RightAsked(user, operation, resource))


def _place_of(place: Literal["earliest", "latest"] | int | datetime) -> dict[str, Any]:
    """Return the argument of a verb that names a place in a stream."""
    if isinstance(place, datetime):
        return {"timestamp_ms": timestamp_ms_of(place)}
    return {"offset" if isinstance(place, int) else "to": place}
