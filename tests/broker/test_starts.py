"""The start of reading, partition by partition."""

from __future__ import annotations

import pytest
from raw_client import RawClient, broker_on, connected, records, served, simulated, values

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = '[topics.t]\nkind = "stream"\npartitions = 3\n'


async def fill(env: SimEnv) -> RawClient:
    client = await connected(env)
    for number in range(12):
        await client.publish("t", [str(number)], partition=number % 3)
    return client


async def read(client: RawClient, **place: object) -> dict[int, list[str]]:
    """The records that a new subscription is pushed, by partition."""
    await client.call(m.Subscribe("t", credit=1000, **place))  # type: ignore[arg-type]
    found: dict[int, list[str]] = {}
    while not await client.is_silent(1):
        event = await client.push()
        if isinstance(event.message, m.Deliver):
            found.setdefault(event.message.partition, []).extend(values(event.batches))
    return found


@pytest.mark.parametrize("group", ["g", ""])
@served(TEXT)
async def test_each_partition_begins_at_its_own_place(env: SimEnv, group: str) -> None:
    client = await fill(env)
    starts = [3, m.START_LATEST, m.START_EARLIEST]
    assert await read(client, group=group, starts=starts) == {0: ["9"], 2: ["2", "5", "8", "11"]}


@served(TEXT)
async def test_a_partition_behind_the_list_and_one_with_a_place_before_it_begin_at_their_start(env: SimEnv) -> None:
    client = await fill(env)
    found = await read(client, group="g", start=m.START_LATEST, starts=[4, -7])
    assert found == {1: ["1", "4", "7", "10"], 2: ["2", "5", "8", "11"]}


@served(TEXT)
async def test_a_groups_commit_takes_precedence(env: SimEnv) -> None:
    client = await fill(env)
    subscribed = await client.call(m.Subscribe("t", group="g"))
    await client.call(m.Settle(subscribed.subscription, [m.Settlement(0, 1, 0, 2)]))
    await client.call(m.Unsubscribe(subscribed.subscription))
    found = await read(client, group="g", starts=[4, 3, 4])
    assert found == {0: ["6", "9"], 1: ["10"]}


@simulated
async def test_many_partitions_together_leave_no_more_for_the_next_start_than_one(env: SimEnv) -> None:
    text = '[topics.t]\nkind = "stream"\npartitions = 20\n'
    with pytest.MonkeyPatch.context() as patch:
        for name, size_bytes in (("UNTIDIED_BYTES_MAX", 100_000), ("TIDY_FROM_BYTES", 5_000)):
            patch.setattr(f"linn.core.log.partition.{name}", size_bytes)
        async with broker_on(env, text) as broker:
            client, traffic = await connected(env), broker.measurements.storages["segmented-log"]
            most = 0
            for number in range(1_000):
                await client.call(m.Publish("t", partition=number % 20), [records(["x" * 1_000])])
                most = max(most, traffic.untidied_bytes)
            assert 100_000 <= most < 120_000
            await client.administer("topic.delete", name="t")
            assert traffic.untidied_bytes < 5_000
