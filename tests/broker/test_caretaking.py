"""Tasks that sessions share: each session is still watched, flushed and closed as if it were the only one."""

from __future__ import annotations

import trio
from raw_client import HEAD, broker_on, connected, records, served, simulated, values

from linn.core.broker.broker import Broker
from linn.protocols.capnp.keepalive import SESSIONS_IN_A_ROW_MAX, SLICES
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

KEEPALIVE_S = 20.0
MANY = SESSIONS_IN_A_ROW_MAX + 50
STREAM = '[topics.t]\nkind = "stream"\n'


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


@served(STREAM + "[topics.q]\n")
async def test_an_idle_connection_is_one_task(env: SimEnv) -> None:
    await connected(env)
    await trio.sleep(1)
    before = tasks()
    clients = [await connected(env) for _ in range(10)]
    assert tasks() == before + 10
    for client in clients:
        await client.publish("t", ["x" * 60_000])
        await client.fetch("t")
    await trio.sleep(1)
    assert tasks() == before + 10
    for client in clients:
        await client.call(m.Subscribe("q", credit=1))
    await trio.sleep(1)
    assert tasks() == before + 20


@served("")
async def test_a_silent_session_ends_after_three_intervals_and_before_the_fifth(env: SimEnv, broker: Broker) -> None:
    lasted: list[float] = []
    async with trio.open_nursery() as nursery:

        async def come_and_be_silent(after_s: float) -> None:
            await trio.sleep(after_s)
            client = await connected(env)
            since = trio.current_time()
            assert await client.until_closed(10 * KEEPALIVE_S) == []
            lasted.append(trio.current_time() - since)

        for number in range(40):
            nursery.start_soon(come_and_be_silent, number * KEEPALIVE_S / 13)
    assert len(lasted) == 40
    assert min(lasted) >= 3 * KEEPALIVE_S
    assert max(lasted) <= 4 * KEEPALIVE_S + KEEPALIVE_S / SLICES
    assert broker.listening.connections == 0


@simulated
async def test_many_clients_get_goodbye_and_are_disconnected_at_once(env: SimEnv) -> None:
    async with broker_on(env, STREAM, HEAD + f"connections_max = {MANY}\n") as broker:
        clients = [await connected(env) for _ in range(MANY)]
        with trio.fail_after(1):
            await broker.drain()
        for client in clients:
            assert [type(message) for message in await client.until_closed()] == [m.Goodbye]


@simulated
async def test_all_waiting_readers_get_a_record_and_those_after_it_in_order(env: SimEnv) -> None:
    async with broker_on(env, STREAM, HEAD + f"connections_max = {MANY + 1}\n"):
        publisher = await connected(env)
        readers = [await connected(env) for _ in range(MANY)]
        for reader in readers:
            await reader.call(m.Subscribe("t", group="", credit=100))
        for number in range(5):
            await publisher.tell(m.Publish("t"), [records([str(number)])])
        for reader in readers:
            got: list[str] = []
            while len(got) < 5:
                got += values((await reader.delivery()).batches)
            assert got == list("01234")
