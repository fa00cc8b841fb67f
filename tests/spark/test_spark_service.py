"""Spark pipelines under a broker's supervision, in virtual time, with drivers that the test scripts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio

from linn.core.errors.tree import (
    ConfigError,
    ConfigUnknownKey,
    LimitExceeded,
    RequestUnknown,
    ServiceFailed,
    ServiceUnknown,
)
from linn.spark_plugin.errors import SparkPipelineUnknown
from linn.spark_plugin.service import requirements
from linn.spark_plugin.service.service import FILES_MAX
from linn.testing.sim_programs import SimProgram
from linn.testing.virtual_world import VirtualWorld
from tests.spark.scripted_driver import LIVE, STREAM, ScriptedDriver, ask, in_spark_world, pipelines, spark_world, state

TWO = STREAM + '[topics.returns]\nkind = "both"\nspark_sink = { path = "lake/returns" }\n'


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


# --- life ------------------------------------------------------------------------------------------------------------


@in_spark_world()
async def test_a_sink_starts_and_runs(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await trio.sleep(1)
    assert await state(world) == "starting"
    await trio.sleep(5)
    assert await state(world) == "running"
    (spec,) = driver.specs
    assert spec["bootstrap"] == world.url
    assert spec["pipelines"][0]["path"] == "lake/orders"
    assert spec["pipelines"][0]["source_options"] == {"startingOffsets": "earliest"}
    assert spec["state_dir"] == "/linn/__services/spark"
    assert driver.running is not None
    assert driver.running.command[1:] == ("-m", "linn.spark_plugin.driver")


def test_without_any_table_no_program_is_started_and_there_is_no_service(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        async with world.connect() as client:
            assert await client.admin.perform("service.list") == []
            assert await client.admin.metrics("linn_spark_") == []
            with pytest.raises(ServiceUnknown, match='turns the service "spark" on'):
                await client.admin.perform("service.perform", service="spark", action="logs")

    world = spark_world(driver, "[topics.orders]\nkind = 'stream'\n")
    world.run(scenario)
    assert world.programs.started == []


def test_the_delays_between_failed_starts_double_up_to_a_minute_and_end_after_ten(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        driver.life = driver.exit_1
        await trio.sleep(20)
        assert await state(world) == "backing off"
        await trio.sleep(3600)
        found = (await pipelines(world))["orders"]
        assert (found["state"], found["reason"]) == ("failed", "the driver exited with code 1 (10 times in a row)")
        assert "linn spark logs" in found["remedy"]
        await world.publish("orders", b"the topic works on")

    spark_world(driver).run(scenario)
    delays = [after - before for before, after in itertools.pairwise(driver.started_s)]
    for delay, longest in zip(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert 0.8 * longest <= delay <= longest + 0.01


def test_a_minute_of_running_makes_a_failure_the_first_one_again(driver: ScriptedDriver) -> None:
    async def runs_for_two_minutes(program: SimProgram, spec: dict[str, Any]) -> int:
        await program.say({"event": "started", "pipeline": "orders"})
        await trio.sleep(120)
        return 1

    async def scenario(world: VirtualWorld) -> None:
        driver.life = runs_for_two_minutes
        await trio.sleep(3600)
        assert await state(world) in ("running", "backing off")

    spark_world(driver).run(scenario)
    delays = [after - before - 120 for before, after in itertools.pairwise(driver.started_s)]
    assert len(delays) > 25
    assert max(delays) <= 1.01


@pytest.mark.parametrize("crash_s", [0.0, 2.0, 7.0, 300.0])
@in_spark_world()
async def test_a_driver_that_is_killed_in_any_state_comes_back(
    world: VirtualWorld, driver: ScriptedDriver, crash_s: float
) -> None:
    await trio.sleep(crash_s)
    if driver.running is not None:
        driver.running.kill()
    await trio.sleep(10)
    assert await state(world) == "running"
    assert world.programs.running == 1


@in_spark_world()
async def test_a_driver_that_never_starts_is_killed_after_its_time(world: VirtualWorld, driver: ScriptedDriver) -> None:
    driver.start_s = 1_000_000.0
    await trio.sleep(120.5)
    found = (await pipelines(world))["orders"]
    text = "the driver was killed after 120 s (start_timeout): pipeline orders was still starting"
    assert (found["state"], found["reason"]) == ("backing off", text)
    assert world.programs.running == 0
    assert driver.started_s != []


@in_spark_world()
async def test_a_driver_that_starts_slowly_runs_in_the_end(world: VirtualWorld, driver: ScriptedDriver) -> None:
    driver.start_s = 700.0
    await trio.sleep(1_500)
    found = (await pipelines(world))["orders"]
    assert (found["state"], found["restarts"]) == ("starting", 3)
    assert "killed after 480 s (start_timeout)" in found["reason"]
    assert found["remedy"] == "if that is too short, raise start_timeout in [spark]"
    await trio.sleep(300)
    found = (await pipelines(world))["orders"]
    assert (found["state"], found["reason"], found["restarts"]) == ("running", None, 3)


@in_spark_world(TWO)
async def test_an_error_after_which_it_goes_on_is_not_called_a_failure(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    await trio.sleep(10)
    assert driver.running is not None
    for name, fatal in (("orders", False), ("returns", True)):
        failure = {"error": "no route", "error_class": "E", "fatal": fatal}
        await driver.running.say({"event": "terminated", "pipeline": name, **failure})
    await trio.sleep(0.5)
    said = [line["text"] for line in (await ask(world, "logs"))["lines"] if "no route" in line["text"]]
    assert said == [
        'Spark pipeline "orders" ended with an error, and may be started again: no route',
        'Spark pipeline "returns" has failed: no route',
    ]


@in_spark_world(TWO)
async def test_a_fatal_error_is_the_end_of_its_pipeline_alone(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await trio.sleep(10)
    assert driver.running is not None
    await driver.running.say(
        {
            "event": "terminated",
            "pipeline": "orders",
            "error": "there is no column price",
            "error_class": "AnalysisException",
            "fatal": True,
        }
    )
    await trio.sleep(3600)
    found = await pipelines(world)
    assert {name: each["state"] for name, each in found.items()} == {"orders": "failed", "returns": "running"}
    assert found["orders"]["reason"] == "there is no column price"
    assert found["orders"]["remedy"] == "mend the cause, then: linn spark start orders"
    assert len(driver.specs) == 1


def test_a_pipeline_whose_errors_may_pass_is_tried_again_alone_and_then_has_failed(driver: ScriptedDriver) -> None:
    async def fails_always(program: SimProgram, spec: dict[str, Any]) -> int:
        failed = {"event": "terminated", "pipeline": "orders", "error": "no route", "error_class": "E", "fatal": False}
        for name in ("orders", "returns"):
            await program.say({"event": "started", "pipeline": name, "query": "q", "run": "r"})
        await program.say(failed)
        while (line := await program.read_json()) is not None:
            driver.told.append(line)
            await program.say(failed)
        return 1

    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(1.5)
        found = await pipelines(world)
        assert [(each["state"], each["reason"]) for each in found.values()] == [
            ("backing off", "no route"),
            ("running", None),
        ]
        await trio.sleep(600)
        found = await pipelines(world)
        assert {name: each["state"] for name, each in found.items()} == {"orders": "failed", "returns": "running"}
        assert found["orders"]["reason"] == "no route (10 times in a row)"
        assert (found["orders"]["restarts"], found["returns"]["restarts"]) == (9, 0)
        assert driver.told == [{"start": ["orders"]}] * 9
        assert len(driver.specs) == 1

    driver.life = fails_always
    spark_world(driver, TWO).run(scenario)


# --- stop ------------------------------------------------------------------------------------------------------------


def test_a_broker_that_stops_lets_its_drivers_drain_and_serves_them_meanwhile(driver: ScriptedDriver) -> None:
    world = spark_world(driver)

    async def drains(program: SimProgram, spec: dict[str, Any]) -> int:
        await program.say({"event": "started", "pipeline": "orders"})
        assert await program.read_line() is None
        await world.publish("orders", b"written while it drains")
        driver.drained += 1
        return 0

    async def scenario(world: VirtualWorld) -> None:
        driver.life = drains
        await trio.sleep(10)

    world.run(scenario)
    assert driver.drained == 1
    assert world.programs.running == 0


def test_a_broker_that_stops_waits_no_longer_than_its_drain_timeout(driver: ScriptedDriver) -> None:
    ends: list[float] = []

    async def scenario(world: VirtualWorld) -> None:
        driver.drain_s = 1_000_000.0
        await trio.sleep(10)
        ends.append(trio.current_time())

    world = spark_world(driver, '[broker]\ndrain_timeout = "4s"\n' + STREAM)

    async def main() -> None:
        async with world:
            await scenario(world)
        ends.append(trio.current_time())

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert ends[1] - ends[0] == pytest.approx(4, abs=1)
    assert (driver.drained, world.programs.running) == (0, 0)


@in_spark_world()
async def test_a_stop_that_takes_too_long_kills(world: VirtualWorld, driver: ScriptedDriver) -> None:
    driver.drain_s = 1_000_000.0
    await trio.sleep(10)
    answer = await ask(world, "stop", pipelines=["orders"])
    assert answer == {"pipelines": [{"name": "orders", "state": "draining"}]}
    await trio.sleep(29)
    assert (await state(world), world.programs.running) == ("draining", 1)
    await trio.sleep(2)
    assert (await state(world), world.programs.running) == ("stopped", 0)


@in_spark_world()
async def test_a_driver_that_is_killed_while_it_drains_is_stopped_all_the_same(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    driver.drain_s = 20.0
    await trio.sleep(10)
    await ask(world, "stop", pipelines=["orders"])
    await trio.sleep(5)
    assert await state(world) == "draining"
    assert driver.running is not None
    driver.running.kill()
    await trio.sleep(1)
    assert (await state(world), world.programs.running, len(driver.specs)) == ("stopped", 0, 1)


@in_spark_world()
async def test_a_driver_that_is_killed_before_a_restart_is_through_starts_again(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    driver.drain_s = 20.0
    await trio.sleep(10)
    await ask(world, "restart", pipelines=["orders"])
    await trio.sleep(5)
    assert driver.running is not None
    driver.running.kill()
    await trio.sleep(10)
    assert (await state(world), len(driver.specs)) == ("running", 2)


@in_spark_world()
async def test_a_stop_before_the_process_is_there_is_a_stop(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await ask(world, "stop", pipelines=["orders"])
    await trio.sleep(60)
    assert (await state(world), world.programs.running) == ("stopped", 0)


@in_spark_world()
async def test_a_flood_of_output_does_not_hold_the_broker_up(world: VirtualWorld, driver: ScriptedDriver) -> None:
    async def floods(program: SimProgram, spec: dict[str, Any]) -> int:
        for _ in range(20_000):
            program.print_nowait("x" * 50)
        await trio.sleep(1_000)
        return 0

    driver.life = floods
    await trio.sleep(1)
    assert len((await ask(world, "logs"))["lines"]) == 1_000


@in_spark_world(TWO)
async def test_one_pipeline_of_a_driver_stops_and_starts_while_the_other_goes_on(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    await trio.sleep(10)
    await ask(world, "stop", pipelines=["orders"])
    await trio.sleep(5)
    assert {name: each["state"] for name, each in (await pipelines(world)).items()} == {
        "orders": "stopped",
        "returns": "running",
    }
    assert driver.told == [{"stop": ["orders"]}]
    assert len(driver.specs) == 1
    await ask(world, "start", pipelines=["orders"])
    await trio.sleep(10)
    assert driver.names == ["orders", "returns"]
    assert await state(world) == "running"
    assert driver.drained == 1


@pytest.mark.parametrize("crash", ["kill", "lose_power"])
def test_drivers_go_with_a_broker_that_dies_and_start_with_the_next_one(driver: ScriptedDriver, crash: str) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)
        await ask(world, "stop", pipelines=["returns"])
        await trio.sleep(10)
        getattr(world, crash)()
        await trio.sleep(1)
        assert world.programs.running == 0
        await world.restart()
        await trio.sleep(10)
        assert driver.names == ["orders", "returns"], "what an operator stopped is forgotten"

    spark_world(driver, '[broker]\ndefault_storage = "segmented-log"\n' + TWO).run(scenario)


# --- topics that change ----------------------------------------------------------------------------------------------


@in_spark_world(LIVE + STREAM)
async def test_a_table_that_is_altered_restarts_its_pipeline_and_one_that_is_taken_away_stops_it(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    await trio.sleep(10)
    async with world.connect() as client:
        table = {"path": "lake/orders", "trigger": "5s"}
        assert await client.admin.alter_topic("orders", spark_sink=table) == ["spark_sink"]  # type: ignore[call-arg]
        await trio.sleep(10)
        assert len(driver.specs) == 1, "another spelling of the same"
        await client.admin.alter_topic("orders", spark_sink={"path": "lake/2"})  # type: ignore[call-arg]
        await trio.sleep(10)
        assert driver.specs[-1]["pipelines"][0]["path"] == "lake/2"
        assert await state(world) == "running"
        await client.admin.alter_topic("orders", partitions=4)
        await trio.sleep(10)
        assert len(driver.specs) == 2, "a change of something else"
        await client.admin.alter_topic("orders", spark_sink=None)  # type: ignore[call-arg]
        await trio.sleep(10)
        assert await pipelines(world) == {}
        assert world.programs.running == 0


def test_the_first_topic_with_a_table_brings_a_driver_to_life(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        async with world.connect() as client:
            await client.admin.create_topic("live", kind="stream", spark_sink={"path": "lake"})  # type: ignore[call-arg]
            await trio.sleep(10)
            assert await state(world, "live") == "running"
            await client.admin.perform("topic.delete", name="live")
            await trio.sleep(10)
            assert await pipelines(world) == {}
        assert (driver.drained, world.programs.running) == (1, 0)

    spark_world(driver, LIVE).run(scenario)


def test_a_table_that_was_set_live_is_there_after_a_restart(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        async with world.connect() as client:
            await client.admin.alter_topic("orders", spark_sink={"path": "lake"})  # type: ignore[call-arg]
            await client.admin.create_topic("live", kind="stream", spark_sink={"path": "live"})  # type: ignore[call-arg]
        world.kill()
        await world.restart()
        await trio.sleep(10)
        assert driver.names == ["orders", "live"]

    config = LIVE + '[broker]\ndefault_storage = "segmented-log"\n[topics.orders]\nkind = "stream"\n'
    spark_world(driver, config).run(scenario)


def test_a_topic_that_a_pipeline_reads_may_go_and_come_back(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)
        async with world.connect() as client:
            with pytest.raises(ConfigError, match=r'spark.pipelines\[0\].topics\[0\]: topic "orders" is a queue'):
                await client.admin.alter_topic("orders", kind="queue")
            await client.admin.perform("topic.delete", name="orders")
            await trio.sleep(10)
            found = (await pipelines(world))["all"]
            assert (found["state"], found["reason"]) == ("failed", 'there is no topic "orders"')
            with pytest.raises(ConfigError, match="make the topic"):
                await ask(world, "start", pipelines=["all"])
            await client.admin.create_topic("orders", kind="stream")
            await trio.sleep(10)
            assert await state(world, "all") == "running"

    config = (
        '[[spark.pipelines]]\nname = "all"\ntopics = ["orders"]\nformat = "console"\n[topics.orders]\nkind = "both"\n'
    )
    spark_world(driver, config).run(scenario)


def test_a_table_is_checked_when_it_is_set_live(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        async with world.connect() as client:
            with pytest.raises(ConfigError, match=r'topics.jobs.spark_sink: topic "jobs" is a queue'):
                await client.admin.alter_topic("jobs", spark_sink={"path": "lake"})  # type: ignore[call-arg]
            with pytest.raises(ConfigError, match=r'topics.orders.spark_sink.pth: unknown key.*"path"'):
                await client.admin.alter_topic("orders", spark_sink={"pth": "lake"})  # type: ignore[call-arg]
            with pytest.raises(ConfigError, match=r'topics.others.spark_sink.path: is the path of "orders" too'):
                await client.admin.alter_topic("others", spark_sink={"path": "lake/orders/"})  # type: ignore[call-arg]
            with pytest.raises(ConfigError, match=r'topics.orders.spark_sinc: unknown key.*"spark_sink"'):
                await client.admin.alter_topic("orders", spark_sinc={"path": "lake"})  # type: ignore[call-arg]

    others = '[topics.others]\nkind = "stream"\n'
    spark_world(driver, "[topics.jobs]\n" + STREAM + others).run(scenario)


# --- what is missing -------------------------------------------------------------------------------------------------


def _java(*lines: str) -> Any:
    async def main(program: SimProgram) -> int:
        for line in lines:
            await program.print(line)
        return 0

    return main


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['java version "1.8.0_392"'], "/usr/bin/java is Java 8: install a newer one"),
        (['openjdk version "16.0.2" 2021-07-20'], "/usr/bin/java is Java 16: install a newer one"),
        (["Killed"], "/usr/bin/java does not say its version"),
        (None, "there is none: install it, or set JAVA_HOME"),
    ],
)
def test_without_java_17_the_pipeline_says_what_to_install_and_the_topic_works_on(
    driver: ScriptedDriver, lines: list[str] | None, says: str
) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)
        found = (await pipelines(world))["orders"]
        assert found["state"] == "failed"
        assert found["reason"].startswith("Spark pipelines need Java 17 or newer, and ")
        assert found["reason"].endswith(says)
        await world.publish("orders", b"one")
        assert driver.specs == []
        world.programs.install("java", _java('openjdk version "21" 2023-09-19'))
        await ask(world, "start", pipelines=["orders"])
        await trio.sleep(10)
        assert await state(world) == "running"

    world = spark_world(driver)
    if lines is None:
        world.programs.remove("java")
    else:
        world.programs.install("java", _java(*lines))
    world.run(scenario)


def test_without_pyspark_the_pipeline_says_what_to_install(
    driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)
        found = (await pipelines(world))["orders"]
        assert found["state"] == "failed"
        assert found["reason"] == "Spark pipelines need PySpark and pyarrow: pip install 'linn[spark]'"
        assert world.programs.started == []

    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    spark_world(driver).run(scenario)


def test_a_python_that_is_not_there_is_a_failure_that_says_so(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)
        found = (await pipelines(world))["orders"]
        assert (found["state"], found["reason"]) == ("failed", "can't start elsewhere: No such file or directory")
        assert found["remedy"] == "set python in [spark]"

    spark_world(driver, '[spark]\npython = "elsewhere"\n' + STREAM).run(scenario)


def test_spark_that_is_turned_off_starts_nothing(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)
        found = (await pipelines(world))["orders"]
        assert (found["state"], found["reason"]) == ("stopped", "Spark is turned off")
        with pytest.raises(ConfigError, match="set enabled = true"):
            await ask(world, "start", pipelines=["orders"])

    world = spark_world(driver, "[spark]\nenabled = false\n" + STREAM)
    world.run(scenario)
    assert world.programs.started == []


# --- drivers ---------------------------------------------------------------------------------------------------------


def test_pipelines_with_drivers_of_their_own_do_not_share_a_process(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)
        assert sorted(spec["group"] for spec in driver.specs) == ["default", "other"]
        assert world.programs.running == 2

    config = STREAM + '[topics.b]\nkind = "stream"\nspark_sink = { path = "b", driver = "other" }\n'
    spark_world(driver, config).run(scenario)


def test_settings_of_spark_reach_the_driver(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)
        (spec,) = driver.specs
        assert spec["master"] == "spark://somewhere:7077"
        assert spec["conf"] == {"spark.executor.memory": "2g"}
        assert (spec["bootstrap"], spec["state_dir"]) == ("linn://broker.example", "s3a://state")

    settings = """
[spark]
master = "spark://somewhere:7077"
conf = { "spark.executor.memory" = "2g" }
bootstrap = "linn://broker.example"
state_dir = "s3a://state"
"""
    spark_world(driver, settings + STREAM).run(scenario)


@in_spark_world(LIVE + STREAM)
async def test_one_key_of_a_sink_is_changed_and_the_others_stay(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await trio.sleep(10)
    async with world.connect() as client:
        for changes in (
            {"spark_sink.value": "json", "spark_sink.schema": "id long"},
            {"spark_sink.schema": "id int", 'spark_sink.options."parquet.block.size"': "1"},
            {'spark_sink.options."parquet.block.size"': None},
        ):
            await client.admin.perform("topic.alter", name="orders", settings=changes)
        shown = (await client.admin.topic("orders"))["settings"]["spark_sink"]  # type: ignore[typeddict-item]
        assert shown == {"path": "lake/orders", "value": "json", "schema": "id int", "options": {}}
        with pytest.raises(ConfigUnknownKey, match=r'spark_sink.*did you mean "schema"'):
            await client.admin.perform("topic.alter", name="orders", settings={"spark_sink.shema": "id int"})
        with pytest.raises(ConfigUnknownKey, match=r"retention\.x"):
            await client.admin.perform("topic.alter", name="orders", settings={"retention.x": "1d"})
        new = {"kind": "stream", "spark_sink.path": "lake/new"}
        await client.admin.perform("topic.create", name="new", settings=new)
    await trio.sleep(10)
    path, schema = driver.specs[-1]["pipelines"][0]["path"], driver.specs[-1]["pipelines"][0]["schema"]
    assert (path, schema) == ("lake/orders", "id int")
    assert driver.names == ["orders", "new"]


# --- files -----------------------------------------------------------------------------------------------------------


@in_spark_world()
async def test_the_files_of_a_pipeline_are_listed_whatever_state_it_is_in(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    async def lists(program: SimProgram) -> int:
        spec = await program.read_json()
        for number in range(3):
            await program.say({"event": "file", "path": f"{spec['path']}/{number}.parquet"})
        return 0

    driver.start_s = 1e6
    driver.list_files = lists
    found = await ask(world, "files", pipeline="orders")
    assert found == {"files": [f"lake/orders/{number}.parquet" for number in range(3)]}
    with pytest.raises(SparkPipelineUnknown, match=r'no Spark pipeline "order" \['):
        await ask(world, "files", pipeline="order")
    with pytest.raises(ConfigError, match="must be a name"):
        await ask(world, "files")


@in_spark_world()
async def test_files_that_cant_be_listed_say_why_and_the_service_goes_on(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    async def fails(program: SimProgram) -> int:
        await program.say({"event": "failed", "error": "there is no catalog"})
        return 1

    async def babbles(program: SimProgram) -> int:
        await program.say_line("nonsense")
        return 0

    async def never_ends(program: SimProgram) -> int:
        await trio.sleep_forever()
        return 0

    async def floods(program: SimProgram) -> int:
        for number in range(FILES_MAX + 1):
            await program.say({"event": "file", "path": str(number)})
        return 0

    await trio.sleep(10)
    for program, error in (
        (driver.list_files, "No module named 'pyarrow'"),
        (fails, "there is no catalog"),
        (babbles, "can't be read"),
        (never_ends, "not listed within 25 s"),
        (floods, "more than 20,000 files"),
    ):
        driver.list_files = program
        with pytest.raises((ServiceFailed, LimitExceeded), match=error):
            await ask(world, "files", pipeline="orders")
        assert world.programs.running == 1
    assert await state(world) == "running"


# --- what a driver says ----------------------------------------------------------------------------------------------


@in_spark_world()
async def test_progress_shows_in_the_status_and_in_metrics(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await world.publish("orders", *[b"an order"] * 340)
    await trio.sleep(10)
    assert driver.running is not None
    for batch in range(3):
        await driver.running.say(
            {
                "event": "progress",
                "pipeline": "orders",
                "batch": batch,
                "rows": 100,
                "processed_rows_per_s": 250.04,
                "duration_ms": 400,
                "durations": {"addBatch": 300},
                "end": {"orders": {"0": 300}},
            }
        )
    await trio.sleep(1)
    progress = (await pipelines(world))["orders"]["progress"]
    assert (progress["rows"], progress["batches"], progress["batch"], progress["lag"]) == (300, 3, 2, 40)
    assert (progress["rows_per_s"], progress["duration_ms"]) == (250.0, 400)
    assert progress["offsets"] == {"orders": {"0": 300}}
    async with world.connect() as client:
        report = {each["name"]: each["samples"] for each in await client.admin.metrics("linn_spark_")}
    assert report["linn_spark_pipeline_rows_total"] == [[["orders"], 300]]
    assert report["linn_spark_pipeline_lag_records"] == [[["orders"], 40]]
    assert report["linn_spark_pipeline_batch_seconds"] == [[["orders"], 0.4]]
    assert [["orders", "running"], 1] in report["linn_spark_pipeline_state"]
    await driver.running.say({"event": "idle", "pipeline": "orders", "batch": 2})
    await trio.sleep(1)
    progress = (await pipelines(world))["orders"]["progress"]
    assert (progress["rows"], progress["lag"], progress["rows_per_s"]) == (300, 40, 0.0)


@in_spark_world()
async def test_lines_that_make_no_sense_are_in_the_log_and_do_no_harm(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    await trio.sleep(10)
    assert driver.running is not None
    for line in ("", "null", "[]", '{"event": 1}', '{"event": "progress", "pipeline": "orders", "rows": "many"}'):
        await driver.running.say_line(line)
    await driver.running.say({"event": "of tomorrow", "pipeline": "orders"})
    await driver.running.say({"event": "progress", "pipeline": "nobody's"})
    await trio.sleep(1)
    assert await state(world) == "running"
    lines = (await ask(world, "logs"))["lines"]
    assert sum("can't be read" in line["text"] for line in lines) == 5


@in_spark_world()
async def test_the_log_keeps_the_last_lines_and_can_be_followed(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await trio.sleep(10)
    assert driver.running is not None
    for number in range(1_500):
        await driver.running.print(f"line {number}")
    await trio.sleep(1)
    found = await ask(world, "logs", pipeline="orders", lines=2)
    assert [line["text"] for line in found["lines"]] == ["line 1498", "line 1499"]
    assert len((await ask(world, "logs"))["lines"]) == 1_000
    assert (await ask(world, "logs", after=found["next"]))["lines"] == []
    await driver.running.print("one more")
    await trio.sleep(1)
    after = (await ask(world, "logs", after=found["next"]))["lines"]
    assert [line["text"] for line in after] == ["one more"]


@in_spark_world()
async def test_what_is_asked_for_has_to_be_there(world: VirtualWorld, driver: ScriptedDriver) -> None:
    with pytest.raises(SparkPipelineUnknown, match=r'no Spark pipeline "order" \['):
        await ask(world, "stop", pipelines=["order"])
    with pytest.raises(RequestUnknown, match='did you mean "stop"'):
        await ask(world, "stopp")
    with pytest.raises(ConfigError, match="a list of names"):
        await ask(world, "stop", pipelines="orders")
