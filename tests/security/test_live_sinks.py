"""A request starts no pipeline, which would have the rights of the broker's user, but within the limits of the file."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import trio
from raw_client import broker_on, connected
from simulated_time import simulated

from linn.core.env.secret import Secret
from linn.core.errors.auth import Forbidden
from linn.core.errors.tree import ConfigNotLive, TopicExists
from linn.core.security.rule import rules_of
from linn.core.security.users import User
from linn.spark_plugin.service.live_sinks import live_problem, query_problem
from linn.spark_plugin.service.settings import SinkSettings, SparkSettings
from linn.testing.sim_env import SimEnv
from linn.testing.virtual_world import VirtualWorld
from tests.spark.scripted_driver import LIVE, STREAM, ScriptedDriver, in_spark_world, pipelines, spark_world

STREAMED = {"kind": "stream", "storage": "segmented-log"}
SAFE = '[topics.plain]\nkind = "stream"\nstorage = "segmented-log"\n' + STREAM + 'storage = "segmented-log"\n'
SINK = {"path": "lake/x"}
FILE_ONLY = r"comes from the configuration file alone, which opens it to requests with live = true in \[spark\]"


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


# --- requests ---


@in_spark_world(STREAM + '[topics.plain]\nkind = "stream"\n')
async def test_a_request_gives_no_topic_a_sink(world: VirtualWorld, driver: ScriptedDriver) -> None:
    await trio.sleep(10)
    async with world.connect() as client:
        before = [await client.admin.topic(name) for name in ("orders", "plain")]
        for only in (False, True):
            for verb, name, settings in (
                ("topic.create", "new", {"kind": "stream", "spark_sink": SINK}),
                ("topic.create", "new", {"kind": "stream", "spark_sink.path": "lake/x"}),
                ("topic.alter", "plain", {"spark_sink": SINK}),
                ("topic.alter", "plain", {"partitions": 2, "spark_sink": SINK}),
                ("topic.alter", "orders", {"spark_sink": SINK}),
                ("topic.alter", "orders", {"spark_sink.sql": "SELECT 1"}),
                ("topic.alter", "orders", {"spark_sink.path": "/etc/cron.d"}),
            ):
                with pytest.raises(ConfigNotLive, match=rf"^topics\.{name}\.spark_sink: {FILE_ONLY}"):
                    await client.admin.perform(verb, name=name, settings=settings, validate_only=only)
        assert [await client.admin.topic(name) for name in ("orders", "plain")] == before
        assert [topic["name"] for topic in await client.admin.topics()] == ["orders", "plain"]
    await trio.sleep(10)
    assert (len(driver.specs), list(await pipelines(world))) == (1, ["orders"])


@in_spark_world()
async def test_what_the_file_says_may_be_said_again_and_all_else_may_change(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    await trio.sleep(10)
    table = {"path": "lake/orders"}
    async with world.connect() as client:
        asked = {"kind": "stream", "spark_sink": table}
        assert await client.admin.perform("topic.create", name="orders", settings=asked) == {"created": False}
        with pytest.raises(TopicExists):
            await client.admin.perform("topic.create", name="orders", settings=asked | {"partitions": 2})
        answer = await client.admin.perform("topic.alter", name="orders", settings={"spark_sink": table})
        assert answer["changed"] == []
        await client.admin.alter_topic("orders", partitions=2)
        assert (await client.admin.topic("orders"))["settings"]["spark_sink"] == table  # type: ignore[typeddict-item]
        await client.admin.perform("topic.alter", name="orders", settings={"spark_sink": None})
        await trio.sleep(10)
        assert await pipelines(world) == {}, "as linn spark stop does, a request may end a pipeline"


@pytest.mark.parametrize(
    ("later", "left"),
    [
        ("", []),
        (LIVE, ["made", "plain"]),
        (LIVE.replace('["."]', '["lake"]'), []),
    ],
)
@simulated
async def test_a_start_drops_what_the_file_no_longer_permits(
    env: SimEnv, caplog: pytest.LogCaptureFixture, later: str, left: list[str]
) -> None:
    async with broker_on(env, SAFE + LIVE):
        client = await connected(env)
        await client.administer("topic.alter", name="orders", settings={"spark_sink": {"path": "other/orders"}})
        await client.administer("topic.alter", name="plain", settings={"spark_sink": {"path": "other/plain"}})
        await client.administer("topic.create", name="made", settings={"spark_sink": {"path": "other/made"}} | STREAMED)
    warned = ["plain", "made"] if not left else []
    for expected, tables in ((warned, later), ([], LIVE)):
        caplog.clear()
        async with broker_on(env, SAFE + tables):
            client = await connected(env)
            (spark,) = await client.administer("service.list")
            found = {each["name"]: each["path"] for each in spark["status"]["pipelines"]}
            assert found == {"orders": "lake/orders"} | {name: f"other/{name}" for name in left}
            await client.publish("made", ["the topic is there"])
        assert re.findall(r"a stored table is dropped: topics\.(\w+)\.spark_sink: ", caplog.text) == expected


RIGHTS = """
[users.anonymous]
roles = ["maker"]
[roles.maker]
broker = ["run"]
"topic:mine" = ["configure", "consume"]
"topic:new" = ["configure", "consume"]
"topic:blind" = ["configure"]
"topic:late*" = ["publish"]
"exchange:news" = ["publish"]
[topics.mine]
kind = "stream"
[topics.blind]
kind = "stream"
[topics.late]
[topics.other]
[exchanges.news]
[exchanges.secret]
"""
TO_TOPIC = {"format": "linn", "options": {"topic": "late"}}
WITH_DEAD_LETTERS = {**TO_TOPIC, "value": "json", "schema": "id INT", "dead_letter": "late"}


@in_spark_world(LIVE + RIGHTS)
async def test_a_live_sink_writes_where_its_maker_may_publish(world: VirtualWorld, driver: ScriptedDriver) -> None:
    async with world.connect() as client:
        for sink, lacks in (
            (TO_TOPIC | {"options": {"topic": "other"}}, "publish topic:other"),
            (TO_TOPIC | {"options": {"topic": "missing"}}, "publish topic:missing"),
            (TO_TOPIC | {"options": {"exchange": "secret"}}, "publish exchange:secret"),
            (TO_TOPIC | {"options": {"topic": "late", "exchange": "secret"}}, "publish exchange:secret"),
            (WITH_DEAD_LETTERS | {"dead_letter": "other"}, "publish topic:other"),
        ):
            for only in (True, False):
                for verb, name in (("topic.alter", "mine"), ("topic.create", "new")):
                    settings = {"spark_sink": sink} | ({} if verb == "topic.alter" else {"kind": "stream"})
                    with pytest.raises(Forbidden, match=rf"may not {lacks} \["):
                        await client.admin.perform(verb, name=name, settings=settings, validate_only=only)
        with pytest.raises(Forbidden, match=r"may not consume topic:blind \["):
            await client.admin.perform("topic.alter", name="blind", settings={"spark_sink": TO_TOPIC})
        await client.admin.perform("topic.alter", name="mine", settings={"spark_sink": WITH_DEAD_LETTERS})
        with pytest.raises(Forbidden, match=r"may not publish topic:other \["):
            await client.admin.perform("topic.alter", name="mine", settings={"spark_sink.options.topic": "other"})
        await client.admin.perform("topic.alter", name="mine", settings={"spark_sink.options": {"exchange": "news"}})
        settings = {"kind": "stream", "spark_sink": TO_TOPIC}
        await client.admin.perform("topic.create", name="new", settings=settings)
    await trio.sleep(10)
    assert {one["name"]: one["options"] for one in driver.specs[-1]["pipelines"]} == {
        "mine": {"exchange": "news"},
        "new": {"topic": "late"},
    }


@in_spark_world(LIVE + RIGHTS.replace('roles = ["maker"]', "roles = []"))
async def test_a_sink_that_stays_or_goes_needs_no_rights_of_its_own(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    broker = world.broker
    await broker.long_work.run(broker.policy.put_user(User(name="anonymous", roles=("maker",))), immediate=True)
    async with world.connect() as client:
        await client.admin.perform("topic.alter", name="mine", settings={"spark_sink": TO_TOPIC})
        less = rules_of({"broker": ["run"], "topic:mine": ["configure"]})
        await broker.long_work.run(broker.policy.put_role("maker", less), immediate=True)
        await client.admin.perform("topic.alter", name="mine", settings={"spark_sink": TO_TOPIC, "partitions": 2})
        await client.admin.perform("topic.alter", name="mine", settings={"spark_sink": None})
        with pytest.raises(Forbidden):
            await client.admin.perform("topic.alter", name="mine", settings={"spark_sink": TO_TOPIC})


# --- what a file may open ---

OPEN = SparkSettings(
    live=True,
    paths=("/lake", "shared/out", "s3a://bucket/live", "file:///mnt"),
    modules=("flights", "shop.orders"),
    connections={
        "warehouse": {"url": "jdbc:postgresql://db/x", "password": Secret(env="X")},
        "rest": {"catalog.uri": "x"},
    },
)


def problem(**sink: Any) -> str | None:
    return live_problem(OPEN, SinkSettings(**{"format": "console", **sink}))


@pytest.mark.parametrize(
    "sink",
    [
        {"format": "parquet", "path": "/lake/orders", "options": {"compression": "zstd"}},
        {"format": "json", "path": "shared/out/a b/c=1", "checkpoint": "/lake/checkpoints/x"},
        {"format": "json", "path": "./shared//out/./a"},
        {"format": "delta", "path": "s3a://bucket/live/orders", "options": {"connection": "rest"}},
        {"format": "parquet", "path": "file:/mnt/x"},
        {"format": "iceberg", "options": {"connection": "rest", "table": "lake.orders"}},
        {"format": "jdbc", "options": {"connection": "warehouse", "dbtable": "public.orders"}},
        {"format": "linn", "options": {"topic": "late"}, "source_options": {"startingOffsets": "latest"}},
        {"transform": "shop.orders:late"},
        {"sql": "SELECT key, 'a;b--c' AS x, `from`, f.value FROM orders f JOIN returns r USING (key) WHERE a >= 1.5e3"},
        {"sql": "with late as (select * from orders where get_json_object(value, '$.late') > 0)\nselect * from late"},
        {"sql": 'SELECT transform(items, x -> x.id) AS reasons, "it\'s" FROM orders'},
    ],
    ids=lambda sink: str(sink)[:60],
)
def test_live_sinks_within_the_limits(sink: dict[str, Any]) -> None:
    assert problem(**sink) is None


@pytest.mark.parametrize(
    "path",
    [
        "/lake",
        "/lake/",
        "/lakes/orders",
        "/etc/cron.d/x",
        "/lake/../etc/x",
        "/lake/orders/..",
        "lake/orders",
        "shared",
        "/shared/out/x",
        "file:///lake/x",
        "FILE:///mnt/x",
        "file://host/mnt/x",
        "//host/lake/x",
        "file:///mnt/%2e%2e/etc/x",
        "/lake/%2e%2e/x",
        "s3a://bucket/live/..\\..\\x",
        "s3a://other/live/x",
        "s3a://bucket@evil/live/x",
        "s3a://bucket/live?x=/y",
        "s3a://bucket/live/{a,b}",
        "s3://bucket/live/x",
        "/lake/ .. /x",
        "/lake/x\n",
        "/lake/x\0",
        "",
    ],
)
@pytest.mark.parametrize("key", ["path", "checkpoint"])
def test_a_live_sink_writes_nowhere_else(key: str, path: str) -> None:
    found = problem(format="parquet", **{"path": "/lake/orders", key: path})
    assert found is not None
    assert found.startswith(f"{key} ")


@pytest.mark.parametrize(
    ("sink", "says"),
    [
        ({"format": "jdbc", "options": {"url": "jdbc:x", "dbtable": "t"}}, "options has 'url'"),
        ({"format": "jdbc", "options": {"connection": "warehouse", "dbtable": "t", "url": "jdbc:x"}}, "has 'url'"),
        (
            {"format": "jdbc", "options": {"connection": "warehouse", "dbtable": "t", "sessionInitStatement": "x"}},
            "options has 'sessionInitStatement'",
        ),
        ({"format": "jdbc", "options": {"connection": "warehouse", "dbtable": "t; DROP TABLE u"}}, "names a table"),
        ({"format": "jdbc", "options": {"connection": "rest", "dbtable": "t"}}, 'the connection "rest" has no url'),
        ({"format": "jdbc", "options": {"connection": "ware", "dbtable": "t"}}, 'no connection "ware"'),
        ({"format": "iceberg", "options": {"catalog.uri": "sqlite:////x", "table": "t"}}, "options has 'catalog.uri'"),
        ({"format": "delta", "path": "/lake/x", "options": {"AWS_ENDPOINT": "x"}}, "options has 'AWS_ENDPOINT'"),
        ({"format": "parquet", "path": "/lake/x", "options": {"path": "/etc"}}, "options has 'path'"),
        ({"options": {"fs.s3a.impl": "x"}}, "options has 'fs.s3a.impl'"),
        ({"format": "linn", "options": {"topic": "t", "linn.bootstrap.servers": "linn://x"}}, "options has 'linn.boo"),
        ({"source_options": {"linn.bootstrap.servers": "linn://x"}}, "source_options has 'linn.bootstrap.servers'"),
        ({"source_options": {"subscribePattern": ".*"}}, "source_options has 'subscribePattern'"),
        ({"transform": "os:system"}, "transform is of a module"),
        ({"transform": "shop:orders"}, "transform is of a module"),
        ({"transform": "shop.orders.evil:f"}, "transform is of a module"),
        ({"sql": "DROP TABLE orders"}, "sql does not begin with SELECT or WITH"),
    ],
)
def test_a_live_sink_has_no_option_that_reaches_further(sink: dict[str, Any], says: str) -> None:
    assert says in (problem(**sink) or "")


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SET spark.sql.runSQLOnFiles = true",
        "ADD JAR '/srv/x.jar'",
        "CREATE FUNCTION f AS 'x.Y' USING JAR '/srv/x.jar'",
        "FROM orders INSERT INTO t SELECT *",
        "(SELECT 1)",
        "SELECT 1; DROP TABLE t",
        "SELECT 1 -- ' \n",
        "SELECT /*+ x */ 1",
        "WITH a AS (SELECT 1) INSERT OVERWRITE DIRECTORY '/etc' USING parquet SELECT * FROM a",
        "WITH a AS (SELECT 1) FROM a insert INTO t SELECT *",
        "WITH a AS (SELECT 1) DELETE FROM t",
        "SELECT TRANSFORM(value) USING 'sh -c id' FROM orders",
        "SELECT TRANSFORM(value) USING r'id' FROM orders",
        "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
        "SELECT `java_method`('java.lang.System', 'getenv', 'HOME')",
        "SELECT system.builtin.Try_Reflect('java.lang.System', 'getenv', 'HOME')",
        "SELECT IDENTIFIER('ref' 'lect')('java.lang.System', 'getenv')",
        "SELECT ıdentifier('reflect')('java.lang.System', 'getenv')",
        "SELECT '${env:HOME}'",
        "SELECT '\\' reflect('",
        "SELECT 'open",
        "SELECT `open",
    ],
)
def test_a_query_of_a_live_sink_only_computes(sql: str) -> None:
    assert query_problem(sql) is not None


def test_files_are_no_tables_where_queries_may_come_from_requests(driver: ScriptedDriver) -> None:
    async def scenario(world: VirtualWorld) -> None:
        await trio.sleep(10)

    spark_world(driver, STREAM).run(scenario)
    spark_world(driver, STREAM + LIVE + 'conf = { "spark.ui.enabled" = "true" }\n').run(scenario)
    off = {"spark.sql.runSQLOnFiles": "false"}
    assert [spec["conf"] for spec in driver.specs] == [{}, {**off, "spark.ui.enabled": "true"}]


@in_spark_world(
    '[spark]\nlive = true\n[spark.connections.db]\nurl = "jdbc:postgresql://db/x"\nschema = "of the connection"\n'
    '[topics.orders]\nkind = "stream"\n'
)
async def test_the_options_of_a_connection_reach_the_driver_and_nobody_else(
    world: VirtualWorld, driver: ScriptedDriver
) -> None:
    sink = {"format": "jdbc", "options": {"connection": "db", "dbtable": "orders"}}
    async with world.connect() as client:
        await client.admin.perform("topic.alter", name="orders", settings={"spark_sink": sink})
        await trio.sleep(10)
        (pipeline,) = driver.specs[-1]["pipelines"]
        assert pipeline["options"] == {
            "url": "jdbc:postgresql://db/x",
            "schema": "of the connection",
            "dbtable": "orders",
        }
        shown = json.dumps([await client.admin.topics(), await client.admin.perform("service.list")])
        assert '"connection": "db"' in shown
        assert "of the connection" not in shown
