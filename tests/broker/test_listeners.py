"""Several listeners of one broker: each lets clients in, and all end with it."""

from __future__ import annotations

import pytest
import trio
from raw_client import HEAD, Refused, broker_on, connected, served, simulated

from linn.core.broker.broker import Broker
from linn.core.errors.tree import AddressInUse, ConnectFailed
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

SECOND = '[listeners.second]\naddress = "127.0.0.1:5467"\n'
ADDRESSES = ("127.0.0.1:5466", "127.0.0.1:5467")


@simulated
async def test_clients_come_in_at_each_and_share_the_limit(env: SimEnv) -> None:
    async with broker_on(env, SECOND + "[topics.t]\n", HEAD + "connections_max = 2\n") as broker:
        assert list(broker.addresses.items()) == list(zip(("native", "second"), ADDRESSES, strict=True))
        first, second = [await connected(env, address) for address in ADDRESSES]
        await first.publish("t", ["a"])
        assert await second.fetch("t") == ["a"]
        assert broker.listening.connections == 2
        with pytest.raises(Refused, match=r"broker\.full"):
            await connected(env)


@served(SECOND)
async def test_a_stop_ends_the_connections_of_each(env: SimEnv, broker: Broker) -> None:
    clients = [await connected(env, address) for address in ADDRESSES]
    with trio.fail_after(1):
        await broker.drain()
    for client in clients:
        assert [type(message) for message in await client.until_closed()] == [m.Goodbye]
    for address in ADDRESSES:
        with pytest.raises(ConnectFailed):
            await env.net.connect(address)


@simulated
async def test_one_that_can_not_be_bound_leaves_none_bound(env: SimEnv) -> None:
    taken = await env.net.listen(ADDRESSES[1])
    with pytest.raises(AddressInUse):
        async with broker_on(env, SECOND):
            pass
    with pytest.raises(ConnectFailed):
        await env.net.connect(ADDRESSES[0])
    await taken.aclose()
