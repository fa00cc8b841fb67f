"""A wall clock that is wrong for a moment: retention by age goes on, and drops nothing early."""

from __future__ import annotations

import pytest
import trio
from raw_client import broker_on, connected, records, simulated

from linn.core.broker.broker import Broker
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

AGE_S = 3600
YEAR_MS = 365 * 86_400_000
TOPIC = f'[topics.t]\nkind = "stream"\nretention = "{AGE_S}s"\n'
SMALL_SEGMENTS = "[storage.segmented-log]\nsegment_bytes_max = 4096\n"
STORAGES = {
    "segmented-log": TOPIC,
    "dram": TOPIC + 'storage = "memory"\n[storage.memory]\nengine = "dram"\n',
    "dram on disk": TOPIC + 'storage = "memory"\n[storage.memory]\nengine = "dram"\nmemory_bytes_max = "1KiB"\n'
    'scratch_bytes_max = "4KiB"\n',
}
every_storage = pytest.mark.parametrize("text", STORAGES.values(), ids=STORAGES)


def bounds(broker: Broker) -> tuple[int, int]:
    """The first offset that is left, and the end."""
    return broker.topics["t"].partitions[0].log.bounds()


async def publish(env: SimEnv, count: int = 1) -> None:
    """Publish so many batches."""
    client = await connected(env)
    for _ in range(count):
        await client.publish("t", ["x"])


async def publish_ahead(env: SimEnv) -> None:
    """Publish one record while the clock is wrong, for less time than between two rounds of retention."""
    env.clock.jump(YEAR_MS)
    await publish(env)
    env.clock.jump(-YEAR_MS)


@every_storage
@pytest.mark.parametrize("later", [0, 5])
@simulated
async def test_records_are_dropped_though_one_was_appended_while_the_clock_was_ahead(
    env: SimEnv, text: str, later: int
) -> None:
    async with broker_on(env, text) as broker:
        await publish(env)
        await publish_ahead(env)
        await publish(env, later)
        await trio.sleep(AGE_S / 2)
        assert bounds(broker)[0] == 0
        await trio.sleep(AGE_S)
        assert bounds(broker)[0] == 2 + later


@every_storage
@simulated
async def test_records_that_come_again_and_again_are_dropped_as_well(env: SimEnv, text: str) -> None:
    async with broker_on(env, text + SMALL_SEGMENTS) as broker:
        await publish_ahead(env)
        for _ in range(5 * AGE_S // 600):
            await publish(env, 3)
            await trio.sleep(600)
        start, end = bounds(broker)
        assert 0 < end - start < 3 * 1.5 * AGE_S // 600


@pytest.mark.parametrize("later", [0, 5])
def test_a_restart_changes_nothing_about_that(later: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, TOPIC):
            await publish_ahead(env)
        async with broker_on(env, TOPIC) as broker:
            await publish(env, later)
            await trio.sleep(1.5 * AGE_S)
            assert bounds(broker)[0] == 1 + later

    run_simulation(0, scenario)
    lines = [record for record in caplog.records if "s in the future" in record.getMessage()]
    assert len(lines) == (1 if later else 0)


@every_storage
@pytest.mark.parametrize("rounds", [0, 5])
@simulated
async def test_nothing_is_dropped_early_where_the_clock_was_behind(env: SimEnv, text: str, rounds: int) -> None:
    async with broker_on(env, text) as broker:
        await publish(env)
        env.clock.jump(-YEAR_MS)
        await publish(env)
        await trio.sleep(10 * rounds)
        env.clock.jump(YEAR_MS)
        await trio.sleep(AGE_S / 2)
        assert bounds(broker)[0] == 0
        await trio.sleep(AGE_S)
        assert bounds(broker)[0] == 2


@every_storage
def test_a_round_of_retention_during_a_jump_drops_nothing_and_the_log_says_when_the_clock_jumped(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, text) as broker:
            await publish(env)
            await trio.sleep(1)
            env.clock.jump(YEAR_MS)
            await trio.sleep(10)
            env.clock.jump(-YEAR_MS)
            await trio.sleep(60)
            assert bounds(broker)[0] == 0

    run_simulation(0, scenario)
    lines = [record.getMessage() for record in caplog.records if record.name == "linn.clock"]
    assert [line.split(": ")[0] for line in lines] == [
        "the wall clock jumped forward by 31536000 s",
        "the wall clock jumped back by 31536000 s",
    ]


@every_storage
@simulated
async def test_a_search_by_time_finds_the_first_record_of_that_time_whatever_the_clock_was(
    env: SimEnv, text: str
) -> None:
    async with broker_on(env, text):
        client = await connected(env)
        for timestamp_ms in (1_000, 2_000, 3_000, 4_000):
            env.clock.jump(YEAR_MS * (-1) ** (timestamp_ms // 1_000))
            await client.call(m.Publish("t"), [records(["x"], timestamp_ms=timestamp_ms)])
        for timestamp_ms, offset in ((0, 0), (1_000, 0), (1_001, 1), (3_000, 2), (4_000, 3), (4_001, 4)):
            found = await client.call(m.FindOffset("t", 0, timestamp_ms))
            assert found.offset == offset
