"""Replies to requesters that are connected to another broker of the cluster."""

from __future__ import annotations

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, records, values
from simulated_time import simulated

import linn
from linn.core.batch.batch import RecordBatch
from linn.core.connections.inboxes import place_of
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


async def inbox_of(client: RawClient) -> str:
    address: str = (await client.call(m.OpenInbox())).address
    return address


async def code_of(client: RawClient, to: str, batch: RecordBatch) -> str:
    with pytest.raises(Refused) as refused:
        await client.call(m.Reply(to), [batch])
    return refused.value.code


async def two(world: BrokerWorld) -> tuple[SimBroker, SimBroker]:
    first, second = await world.brokers(2)
    await until(lambda: all(it.broker.gateway.membership.place_of(3 - it.number) is not None for it in (first, second)))
    return first, second


@simulated
async def test_a_reply_goes_to_the_broker_that_the_address_names(env: SimEnv) -> None:
    async with broker_world(env) as world:
        first, second = await two(world)
        requester, worker = await first.client(), await second.client()
        address = await inbox_of(requester)
        assert place_of(address).node == 1
        for number in range(3):
            assert await worker.call(m.Reply(f"{address}.{number}"), [records([f"{number}"])]) == m.Done()
            event = await requester.push()
            assert (event.message, values(event.batches)) == (m.Reply(f"{address}.{number}"), [f"{number}"])
        assert await requester.call(m.Reply(address), [records(["to itself"])]) == m.Done()


@simulated
async def test_forged_addresses_cost_a_broker_nothing(env: SimEnv) -> None:
    async with broker_world(env) as world:
        first, second = await two(world)
        requester, worker = await first.client(), await second.client()
        address = await inbox_of(requester)
        for to in (f"2.{address[2:]}", f"1.{'0' * 32}", "1."):
            assert await code_of(worker, to, records(["v"])) == "inbox.unknown"
        with trio.fail_after(1):
            for node in range(3, 200):
                assert await code_of(worker, f"{node}.{address[2:]}", records(["v"])) == "inbox.unknown"
        assert set(second.broker.gateway.links._ways) <= {1}
        assert await requester.is_silent(1)


@simulated
async def test_a_requester_that_is_gone_and_a_broker_that_is_gone_are_told(env: SimEnv) -> None:
    async with broker_world(env) as world:
        first, second = await two(world)
        requester, worker = await first.client(), await second.client()
        address = await inbox_of(requester)
        await requester.stream.aclose()
        await until(lambda: not len(first.broker.connections.inboxes))
        assert await code_of(worker, address, records(["v"])) == "inbox.unknown"
        await first.stop()
        with trio.fail_after(30):
            assert await code_of(worker, address, records(["v"])) in ("inbox.unknown", "peer.unreachable", "peer.stale")


@simulated
async def test_replies_that_wait_for_a_broker_take_no_more_memory_than_a_connection_may(env: SimEnv) -> None:
    """Its power is lost, and its session lasts: a reply waits for a link until that is given up."""
    async with broker_world(env) as world:
        first, second = await world.brokers(2, broker_toml='connection_bytes_max = "256KiB"')
        requester, worker = await first.client(), await second.client()
        address = await inbox_of(requester)
        await until(lambda: second.broker.gateway.membership.place_of(1) is not None)
        first.env.crash()
        received, most = second.broker.memory.received, 0
        async with trio.open_nursery() as nursery:
            tickets: list[int] = []

            async def send() -> None:
                for _ in range(40):
                    tickets.append(await worker.send(m.Reply(address), [records([b"x" * 60_000])]))

            nursery.start_soon(send)
            for _ in range(100):
                most = max(most, received.used_bytes)
                await trio.sleep(0.01)
            assert 256 << 10 <= most < 512 << 10
            with trio.fail_after(120):
                while len(tickets) < 40:
                    await trio.sleep(0.1)
        for ticket in tickets:
            assert await worker.code_of(ticket) in ("peer.unreachable", "inbox.unknown")
        assert received.used_bytes < 128 << 10


@simulated
async def test_a_request_and_its_reply_cross_the_brokers(env: SimEnv) -> None:
    """The topic is led by one broker, the requester and the worker are connected to the two others."""
    async with broker_world(env) as world:
        brokers = await world.brokers(3)
        await (await brokers[0].client()).administer("topic.create", name="jobs")
        (leader,) = (await until_led(brokers, "jobs")).values()
        asking, working = [it for it in brokers if it is not leader]
        async with (
            linn.connect(f"linn://{asking.address}", env=env) as client,
            linn.connect(f"linn://{working.address}", env=env) as other,
            trio.open_nursery() as nursery,
        ):

            async def work() -> None:
                async with other.consumer("jobs") as consumer:
                    async for message in consumer:
                        assert await message.reply(message.text.upper().encode())
                        await message.ack()

            nursery.start_soon(work)
            for word in ("one", "two"):
                assert (await client.request("jobs", word.encode(), timeout_s=30)).text == word.upper()
            nursery.cancel_scope.cancel()
