"""A damaged batch in a queue: its records are kept back, are named once, and cost nobody else anything."""

from __future__ import annotations

import logging

import pytest
import trio
from raw_client import RawClient, Refused, broker_on, connected, served, values

from linn.core.queue import consumer
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = '[topics.q]\npartitions = 2\nlease = "1h"\nmax_deliveries = 2\n'
BATCHES = 12


async def filled(client: RawClient) -> None:
    """Store twelve batches of three records in each partition."""
    for number in range(BATCHES):
        for partition in (0, 1):
            await client.publish("q", [f"{partition}.{number}.{i}" for i in range(3)], partition=partition)


async def flip(env: SimEnv, batch: int) -> None:
    """Flip one bit in the body of a batch of partition 0; once more, and it is whole again."""
    path = "data/segmented-log/q/0/00000000000000000000.log"
    file = env.disk.open(path)
    size = file.size() // BATCHES
    at = batch * size + size - 12
    byte = (await file.read(at, 1))[0]
    file.write_at(bytes([byte ^ 1]), at)
    file.close()


async def stay(client: RawClient, seconds: float) -> None:
    """Stay connected for `seconds`."""
    for _ in range(round(seconds / 5)):
        await trio.sleep(5)
        await client.call(m.Ping())


async def everything(client: RawClient, subscription: int, count: int) -> list[str]:
    """Receive and ack `count` values."""
    seen: list[str] = []
    while len(seen) < count:
        event = await client.delivery()
        seen += values(event.batches)
        assert await client.settle(subscription, event) == []
    return seen


@pytest.mark.parametrize("credit", [1, 7, 4_096])
@pytest.mark.parametrize("damaged", [(0,), (5,), (11,), (3, 4), (2, 7)])
def test_all_but_the_damaged_records_are_delivered(
    credit: int, damaged: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, TEXT):
            client = await connected(env)
            await filled(client)
            for batch in damaged:
                await flip(env, batch)
            lost = {f"0.{batch}.{i}" for batch in damaged for i in range(3)}
            whole = {f"{p}.{b}.{i}" for p in (0, 1) for b in range(BATCHES) for i in range(3)} - lost
            worker = (await client.call(m.Subscribe("q", credit=credit))).subscription
            assert sorted(await everything(client, worker, len(whole))) == sorted(whole)
            assert await client.is_silent(10)
            said = [record for record in caplog.records if "are damaged" in record.getMessage()]
            ranges = 1 if damaged == (3, 4) else len(damaged)
            assert len(said) == ranges
            assert all(record.levelno == logging.ERROR for record in said)
            shown = await client.administer("subscription.show", topic="q")
            assert (shown["damaged"], shown["unsettled"]) == (len(lost), len(lost))
            assert sum(end - first for first, end in shown["by_partition"][0]["damaged"]) == len(lost)
            metrics = await client.administer("metrics.show", names=["linn_queue_damaged_records"])
            assert [sample for metric in metrics for sample in metric["samples"]] == [[["q", ""], len(lost)]]
            with pytest.raises(Refused, match=r"log\.corrupt"):
                await client.fetch("q", offset=3 * damaged[0])

    caplog.clear()
    run_simulation(0, scenario)


@served(TEXT)
async def test_records_that_are_whole_again_are_delivered_with_their_first_attempt(
    env: SimEnv, client: RawClient
) -> None:
    await filled(client)
    await flip(env, 5)
    worker = (await client.call(m.Subscribe("q", credit=100))).subscription
    await everything(client, worker, 69)
    await stay(client, 3 * consumer.DAMAGED_RETRY_S)
    assert await client.is_silent(1), "looking again uses no attempt up, and makes no dead letter"
    await flip(env, 5)
    await stay(client, 2 * consumer.DAMAGED_RETRY_S)
    event = await client.delivery()
    assert (values(event.batches), event.message.attempt) == (["0.5.0", "0.5.1", "0.5.2"], 1)  # type: ignore[attr-defined]
    assert (await client.administer("subscription.show", topic="q"))["damaged"] == 0


@served(TEXT + 'delivery = "at-most-once"\n')
async def test_at_most_once_the_others_are_delivered_too(env: SimEnv, client: RawClient) -> None:
    await filled(client)
    await flip(env, 5)
    await client.call(m.Subscribe("q", credit=100))
    seen: list[str] = []
    while len(seen) < 69:
        seen += values((await client.delivery()).batches)
    assert await client.is_silent(10)
    assert not {"0.5.0", "0.5.1", "0.5.2"} & set(seen)


@served('[topics.q]\nlease = "1h"\n')
async def test_a_first_delivery_on_a_full_disk_waits_for_room(env: SimEnv, client: RawClient) -> None:
    """The next delivery id must be logged before."""
    await client.publish("q", ["a"])
    env.disk.capacity_bytes = 0
    await client.call(m.Subscribe("q", credit=1))
    assert await client.is_silent(10)
    env.disk.capacity_bytes = 1 << 30
    event = await client.delivery()
    assert (values(event.batches), event.message.attempt) == (["a"], 1)  # type: ignore[attr-defined]
