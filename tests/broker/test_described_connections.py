"""Connections as `connection.list` shows them: what the client calls itself, and what it reads and holds."""

from __future__ import annotations

from typing import Any

from raw_client import RawClient, connected, served

from linn.core.connections.connections import CLIENT_CHARACTERS_MAX, SUBSCRIPTIONS_SHOWN_MAX
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TOML = """
[topics.jobs]
lease = "1h"
[topics.visits]
kind = "stream"
partitions = 2
"""


async def shown(client: RawClient) -> list[list[dict[str, Any]]]:
    """The subscriptions of each connection."""
    return [connection["subscriptions"] for connection in await client.administer("connection.list")]


def subscribe(topic: str, group: str = "", credit: int = 0) -> m.Subscribe:
    return m.Subscribe(topic, group, credit)


@served(TOML)
async def test_a_connection_shows_its_subscriptions_and_what_each_of_them_holds(
    client: RawClient, looker: RawClient
) -> None:
    assert await shown(looker) == [[], []]
    await client.publish("jobs", ["a", "b", "c"])
    queue = await client.call(subscribe("jobs", credit=2))
    delivery = await client.delivery()
    await client.call(subscribe("visits", "readers"))
    await client.call(subscribe("visits"))
    nobody = {"group": "", "shared": "", "name": "", "held": 0}
    read = [nobody | {"topic": "visits", "group": "readers", "name": "member-1"}, nobody | {"topic": "visits"}]
    assert await shown(looker) == [[nobody | {"topic": "jobs", "held": 2}, *read], []]
    await client.settle(queue.subscription, delivery)
    await client.call(m.Unsubscribe(queue.subscription))
    assert await shown(looker) == [read, []]


@served(TOML)
async def test_of_many_subscriptions_the_first_are_shown(client: RawClient) -> None:
    for _ in range(SUBSCRIPTIONS_SHOWN_MAX + 1):
        await client.call(subscribe("visits"))
    assert [len(subscriptions) for subscriptions in await shown(client)] == [SUBSCRIPTIONS_SHOWN_MAX]


@served(TOML)
async def test_a_client_is_listed_by_the_name_that_it_gives_itself(env: SimEnv) -> None:
    await connected(env, name="x" * (CLIENT_CHARACTERS_MAX + 1))
    looker = await connected(env, name="billing")
    listed = await looker.administer("connection.list")
    assert [connection["client"] for connection in listed] == ["x" * CLIENT_CHARACTERS_MAX, "billing"]
