"""The lag of a Spark pipeline: the records of its topics that are not in its sink, whether it runs or not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from linn.testing.sim_programs import SimProgram
from linn.testing.virtual_world import VirtualWorld
from tests.spark.scripted_driver import LIVE, STREAM, ScriptedDriver, ask, in_spark_world, pipelines, spark_world, state

ALERTS = Path(__file__).parents[2] / "deploy" / "alerts.yml"
TO_CONSOLE = """
[topics.orders]
kind = "stream"

[[spark.pipelines]]
name = "p"
topics = ["orders"]
format = "console"
"""
SAFE = STREAM + 'storage = "safe"\n[storage.safe]\nengine = "segmented-log"\nfsync = "always"\n'


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


async def lag(world: VirtualWorld, name: str = "orders") -> int | None:
    """The lag as `linn spark` shows it, which is that of the metric."""
    shown: int | None = (await pipelines(world))[name]["progress"]["lag"]
    samples = await metric(world, "linn_spark_pipeline_lag_records")
    assert samples.get((name,)) == shown
    return shown


async def metric(world: VirtualWorld, name: str) -> dict[tuple[str, ...], float]:
    async with world.connect() as client:
        report = {each["name"]: each["samples"] for each in await client.admin.metrics("linn_spark_")}
    return {tuple(labels): value for labels, value in report.get(name, ())}


async def orders(world: VirtualWorld, count: int) -> None:
    async with world.connect() as client, client.producer("orders") as producer:
        await producer.publish_many([b"an order"] * count)


@in_spark_world()
async def test_a_pipeline_that_has_never_started_lags_by_all_there_is(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    driver.start_s = 1e6
    await orders(world, 5)
    await trio.sleep(10)
    assert (await state(world), await lag(world)) == ("starting", 5)


async def stopped(driver: ScriptedDriver, world: VirtualWorld) -> None:
    await ask(world, "stop", pipelines=["orders"])
    await trio.sleep(10)


async def backing_off(driver: ScriptedDriver, world: VirtualWorld) -> None:
    assert driver.running is not None
    driver.life = driver.exit_1
    driver.running.kill()
    await trio.sleep(20)


async def failed(driver: ScriptedDriver, world: VirtualWorld) -> None:
    assert driver.running is not None
    await driver.running.say({"event": "terminated", "pipeline": "orders", "error": "no column", "fatal": True})
    await trio.sleep(1)


async def starting(driver: ScriptedDriver, world: VirtualWorld) -> None:
    driver.start_s = 1e6
    await ask(world, "restart", pipelines=["orders"])
    await trio.sleep(10)


@pytest.mark.parametrize("becomes", [stopped, backing_off, failed, starting])
@in_spark_world()
async def test_a_pipeline_that_does_not_run_lags_by_what_was_published_since(
    world: VirtualWorld, driver: ScriptedDriver, becomes: Any
) -> None:
    await orders(world, 5)
    await trio.sleep(10)
    assert await lag(world) == 5
    await driver.commit(5)
    await trio.sleep(1)
    assert await lag(world) == 0
    await becomes(driver, world)
    assert await state(world) == becomes.__name__.replace("_", " ")
    await orders(world, 3)
    assert await lag(world) == 3


@pytest.mark.parametrize("ends", ["kill", "power"])
@in_spark_world(SAFE)
async def test_a_restarted_broker_knows_the_lag_before_a_driver_runs(
    world: VirtualWorld, driver: ScriptedDriver, ends: str
) -> None:
    await orders(world, 5)
    await trio.sleep(10)
    await driver.commit(4)
    await trio.sleep(1)
    driver.start_s = 1e6
    if ends == "kill":
        world.kill()
    else:
        world.lose_power()
    await world.restart()
    await orders(world, 3)
    assert await state(world) == "starting"
    assert await lag(world) in ((4,) if ends == "kill" else (4, 8)), "at worst all that there is"
    assert (await pipelines(world))["orders"]["progress"]["offsets"] in ({"orders": {"0": 4}}, {})


@in_spark_world(SAFE)
async def test_a_driver_that_starts_with_nothing_to_read_corrects_what_a_killed_broker_had_not_heard(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    await orders(world, 5)
    await trio.sleep(10)
    await driver.commit(4)
    await trio.sleep(1)
    world.kill()
    driver.committed = {"orders": {"0": 5}}
    await world.restart()
    assert await lag(world) == 1
    await trio.sleep(10)
    assert (await state(world), await lag(world)) == ("running", 0)


@in_spark_world(LIVE + STREAM)
async def test_another_checkpoint_is_another_beginning(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await orders(world, 5)
    await trio.sleep(10)
    await driver.commit(5)
    await trio.sleep(1)
    driver.start_s = 1e6
    async with world.connect() as client:
        sink = {"path": "elsewhere", "checkpoint": "elsewhere"}
        await client.admin.perform("topic.alter", name="orders", settings={"spark_sink": sink})
    await trio.sleep(10)
    assert await lag(world) == 5


@in_spark_world(TO_CONSOLE)
async def test_a_topic_that_is_made_again_is_a_new_one(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await orders(world, 5)
    await trio.sleep(10)
    await driver.commit(5, "p")
    await trio.sleep(1)
    async with world.connect() as client:
        await client.admin.delete_topic("orders")
        assert (await state(world, "p"), await lag(world, "p")) == ("failed", 0)
        await client.admin.create_topic("orders", kind="stream")
    await orders(world, 7)
    assert await lag(world, "p") == 7


def test_a_pipeline_that_begins_at_the_end_has_no_lag_before_it_has_begun(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await orders(world, 5)
        assert await lag(world, "p") is None
        await trio.sleep(10)
        await driver.commit(5, "p")
        await orders(world, 2)
        assert await lag(world, "p") == 2

    config = TO_CONSOLE + 'source_options = { startingOffsets = "latest" }\n'
    spark_world(driver, config).run(scenario)


@in_spark_world()
async def test_what_no_reader_may_see_yet_is_no_lag_and_all_that_can_be_read_is(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    await trio.sleep(10)
    async with world.connect() as client:
        async with client.transaction("till") as transaction:
            await transaction.publish("orders", b"an order")
            assert await lag(world) == 0
        end = await client.find_offset("orders", 0, "latest")
    await driver.commit(end)
    await trio.sleep(1)
    assert await lag(world) == 0


@in_spark_world()
async def test_a_disk_without_room_does_not_end_the_service(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await orders(world, 5)
    await trio.sleep(10)
    world.fill_disk()
    await driver.commit(3)
    await trio.sleep(1)
    assert (await state(world), await lag(world)) == ("running", 2)
    world.free_disk()


# --- alerts ----------------------------------------------------------------------------------------------------------

MINUTES = 60


def alert(name: str) -> str:
    """The expression of an alert that linn ships."""
    found = re.search(rf"- alert: {name}\n +expr: (.*)\n +for: (\d+)m", ALERTS.read_text())
    assert found is not None
    assert int(found[2]) < MINUTES
    return found[1]


def test_the_shipped_alert_fires_for_a_pipeline_that_never_comes_to_run(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        driver.life = never_runs
        for _ in range(MINUTES):
            states = await metric(world, "linn_spark_pipeline_state")
            assert sum(value for (_, each), value in states.items() if re.fullmatch(wanted[1], each)) == 1
            await trio.sleep(60)

    async def never_runs(program: SimProgram, spec: dict[str, Any]) -> int:
        await trio.sleep(100)
        return 1

    written = r'sum by \(instance, pipeline\) \(linn_spark_pipeline_state\{state=~"(.*)"\}\) == 1'
    wanted = re.fullmatch(written, alert("LinnPipelineDown"))
    assert wanted is not None
    spark_world(driver).run(scenario)


@pytest.mark.parametrize("becomes", [stopped, backing_off, failed, starting])
def test_the_shipped_alert_fires_for_a_lag_that_does_not_shrink(driver: ScriptedDriver, becomes: Any) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)
        await becomes(driver, world)
        await orders(world, most + 1)
        for _ in range(MINUTES):
            assert await lag(world) == most + 1
            await trio.sleep(60)

    metric = "linn_spark_pipeline_lag_records"
    wanted = re.fullmatch(rf"deriv\({metric}\[15m\]\) >= 0 and {metric} > (\d+)", alert("LinnPipelineLags"))
    assert wanted is not None
    most = int(wanted[1])
    spark_world(driver).run(scenario)
