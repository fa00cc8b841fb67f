"""The tables of Spark pipelines: what is refused, with its file, line and key, and what becomes of the rest."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from linn.api import ServiceListener
from linn.core.config.config import Config, check_config
from linn.core.config.toml_source import TomlSource
from linn.core.plugins.manager import PluginManager, built_in
from linn.spark_plugin.service.pipeline import asked_for
from linn.spark_plugin.service.service import bootstrap_url
from linn.spark_plugin.service.settings import PipelineSettings, SinkSettings, SparkSettings
from linn.spark_plugin.spec import PipelineSpec

TOPICS = '[topics.orders]\nkind = "stream"\n[topics.jobs]\n[topics.both]\nkind = "both"\n'
PIPELINE = '[[spark.pipelines]]\nname = "p"\ntopics = ["orders"]\n'


@pytest.fixture(scope="module")
def kinds() -> PluginManager:
    return built_in()


def checked(kinds: PluginManager, toml: str) -> tuple[Config | None, list[str]]:
    config, problems = check_config(TomlSource(toml, "linn.toml"), kinds)
    return config, [problems.describe(problem) for problem in problems.in_order() if problem.severity == "error"]


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (PIPELINE, '6: spark.pipelines[0]: needs a path: format is "parquet"'),
        (PIPELINE + 'format = "delta"\n', '6: spark.pipelines[0]: needs a path: format is "delta"'),
        (PIPELINE + 'format = "jdbc"\n', '6: spark.pipelines[0]: needs options.url: format is "jdbc"'),
        (
            PIPELINE + 'format = "linn"\n',
            '6: spark.pipelines[0]: needs options.topic or options.exchange: format is "linn"',
        ),
        (
            PIPELINE + 'format = "csv"\n',
            '9: spark.pipelines[0].format: must be one of "parquet", "json", "delta", "iceberg", "jdbc", "console", '
            '"linn", not "csv"',
        ),
        (
            PIPELINE + 'path = "x"\nsql = "select 1"\ntransform = "a:b"\n',
            "6: spark.pipelines[0]: has transform and sql, of which there can be one",
        ),
        (
            PIPELINE + 'path = "x"\ntransform = "a.b"\n',
            "6: spark.pipelines[0]: transform must be \"module:function\", not 'a.b'",
        ),
        (
            PIPELINE + 'path = "x"\nschema = "a long"\n',
            '6: spark.pipelines[0]: has schema, which needs value = "json"',
        ),
        (
            PIPELINE + 'path = "x"\nvalue = "json"\n',
            '6: spark.pipelines[0]: needs a schema, such as "id long, name string": value is "json"',
        ),
        (
            PIPELINE + 'format = "jdbc"\noptions = { url = "u" }\n',
            '6: spark.pipelines[0]: needs options.dbtable: format is "jdbc"',
        ),
        (
            PIPELINE + 'path = "x"\noutput_mode = "update"\n',
            '6: spark.pipelines[0]: has output_mode = "update": format "parquet" takes "append" only',
        ),
        (
            PIPELINE + 'format = "console"\npartition_by = ["a"]\n',
            '6: spark.pipelines[0]: has partition_by, which format "console" does not know',
        ),
        (
            PIPELINE + 'path = "x"\nvalue = "json"\nschema = "a long"\ndead_letter = "orders"\n',
            '12: spark.pipelines[0].dead_letter: is a topic that the pipeline reads: "orders"',
        ),
        (
            PIPELINE + 'path = "x"\n' + PIPELINE + 'path = "y"\n',
            '11: spark.pipelines[1].name: there are two pipelines of the name "p"',
        ),
        (
            PIPELINE.replace('"orders"', '"order"') + 'path = "x"\n',
            '8: spark.pipelines[0].topics[0]: there is no topic "order"; did you mean "orders"?',
        ),
        (
            PIPELINE.replace('"orders"', '"orders", "jobs"') + 'path = "x"\n',
            '8: spark.pipelines[0].topics[1]: topic "jobs" is a queue, which can\'t be streamed: give it kind = '
            '"both", a queue on a stream',
        ),
        (PIPELINE.replace('["orders"]', "[]") + 'path = "x"\n', "8: spark.pipelines[0].topics: must be an array"),
        ('[[spark.pipelines]]\npath = "x"\n', '6: spark.pipelines[0]: the key "name" is missing'),
        (
            PIPELINE + 'path = "x"\nvalue = "json"\nschema = "a long"\ndead_letter = "ordres"\n',
            '12: spark.pipelines[0].dead_letter: there is no topic "ordres"; did you mean "orders"?',
        ),
        (PIPELINE + 'path = "x"\ntrigger = 5\n', "10: spark.pipelines[0].trigger: 5 of what? Write it with its unit"),
        (
            PIPELINE + 'path = "x"\ntriger = "5s"\n',
            '10: spark.pipelines[0].triger: unknown key; did you mean "trigger"',
        ),
        (PIPELINE.replace('"p"', '"a/b"') + 'path = "x"\n', "7: spark.pipelines[0].name: "),
        ('[spark]\nmastr = "x"\n', '7: spark.mastr: unknown key; did you mean "master"?'),
        ('[spark]\ndrain_timeout = "0s"\n', "7: spark.drain_timeout: must be"),
        ("[spark]\nconf = { a = 1 }\n", "7: spark.conf: must be text"),
        ('[spark]\nenvironment = ["AWS_KEY", "*"]\n', "6: spark: environment lists names such as"),
        (
            '[spark]\npaths = ["lake", "lake/../x"]\n',
            "7: spark.paths[1]: must be a folder or URL without .., wildcards",
        ),
        (
            PIPELINE + 'format = "jdbc"\noptions = { connection = "db", dbtable = "t" }\n',
            '10: spark.pipelines[0].options: there is no connection "db" in [spark]',
        ),
        (
            '[spark.connections.db]\nuser = "x"\n'
            + PIPELINE
            + 'format = "jdbc"\noptions = { connection = "db", dbtable = "t" }\n',
            '12: spark.pipelines[0].options: the connection "db" has no url',
        ),
        ('[spark]\nenvironment = ["A=b"]\n', '6: spark: environment lists names such as "AWS_REGION" or "AWS_*"'),
        ('[sparc]\nmaster = "x"\n', '6: sparc: unknown key; did you mean "spark"?'),
        ('[topics.jobs.spark_sink]\npath = "x"\n', '6: topics.jobs.spark_sink: topic "jobs" is a queue'),
        ("[topics.orders.spark_sink]\n", '6: topics.orders.spark_sink: needs a path: format is "parquet"'),
        (
            '[topics.orders.spark_sink]\npth = "x"\n',
            '7: topics.orders.spark_sink.pth: unknown key; did you mean "path"?',
        ),
        (
            '[topics.orders.spark_sinc]\npath = "x"\n',
            '6: topics.orders.spark_sinc: unknown key; did you mean "spark_sink',
        ),
        ("[topics.x]\nretenton = 1\n", '7: topics.x.retenton: unknown key; did you mean "retention"?'),
        (
            '[topics.orders.spark_sink]\npath = "x"\n' + PIPELINE.replace('"p"', '"orders"') + 'path = "y"\n',
            '6: topics.orders.spark_sink: there are two pipelines of the name "orders"',
        ),
        ('[topics.orders.spark_sink]\npath = "x"\ndriver = "a b"\n', "8: topics.orders.spark_sink.driver: "),
        (
            f'[topics.orders.spark_sink]\npath = "x"\ndriver = "{"d" * 201}"\n',
            "8: topics.orders.spark_sink.driver: a driver's name has at most 200 characters, this one has 201",
        ),
        (
            PIPELINE + 'path = "x"\n' + PIPELINE.replace('"p"', '"q"') + 'format = "json"\npath = "x/"\n',
            '14: spark.pipelines[1].path: is the path of "p" too, and one would lose what the other writes: give each '
            "its own",
        ),
        (
            '[topics.orders.spark_sink]\npath = "x"\n[topics.both.spark_sink]\npath = "x"\n',
            '9: topics.both.spark_sink.path: is the path of "orders" too',
        ),
        (
            '[topics.orders.spark_sink]\nformat = "console"\ncheckpoint = "c"\n'
            + PIPELINE
            + 'format = "delta"\npath = "x"\ncheckpoint = "c/"\n',
            '8: topics.orders.spark_sink.checkpoint: is the checkpoint of "p" too',
        ),
    ],
)
def test_an_error_has_its_line_its_key_and_what_to_do(kinds: PluginManager, toml: str, says: str) -> None:
    config, errors = checked(kinds, TOPICS + toml)
    assert config is None
    assert errors[0].startswith(f"linn.toml:{says}"), errors


def test_pipelines_may_share_a_table_of_a_lake(kinds: PluginManager) -> None:
    toml = PIPELINE + 'format = "delta"\npath = "x"\n'
    config, errors = checked(kinds, TOPICS + toml + toml.replace('"p"', '"q"'))
    assert config is not None, errors


def test_every_key_reaches_the_driver(kinds: PluginManager) -> None:
    toml = (
        PIPELINE.replace('["orders"]', '["orders", "both"]')
        + """
format = "delta"
path = "lake"
options = { mergeSchema = "true" }
source_options = { startingOffsets = "earliest" }
trigger = "1m"
available_now = true
partition_by = ["day"]
checkpoint = "points"
transform = "my_jobs.orders:joined"
value = "json"
schema = "id long"
dead_letter = "jobs"
"""
    )
    config, errors = checked(kinds, TOPICS + toml)
    assert config is not None, errors
    (found,) = asked_for(config.services["spark"], {}).values()
    assert found.spec == PipelineSpec(
        name="p",
        topics=("orders", "both"),
        format="delta",
        path="lake",
        options={"mergeSchema": "true"},
        source_options={"startingOffsets": "earliest"},
        trigger_ms=60_000,
        available_now=True,
        partition_by=("day",),
        checkpoint="points",
        transform="my_jobs.orders:joined",
        value="json",
        schema="id long",
        dead_letter="jobs",
    )
    ours = {field.name for field in msgspec.structs.fields(PipelineSettings)} - {"driver"} | {"secrets"}
    assert ours == {field.name for field in msgspec.structs.fields(PipelineSpec)}


def test_defaults_are_those_of_the_specification() -> None:
    default = {field.name: field.default for field in msgspec.structs.fields(PipelineSpec)}
    for field in msgspec.structs.fields(SinkSettings):
        if field.name not in ("format", "driver"):
            assert default[field.name] == field.default, field.name
    assert SparkSettings().master == "local[2,4]"


@pytest.mark.parametrize(
    ("listeners", "url"),
    [
        ([("capnp", "127.0.0.1:5466")], "linn://127.0.0.1:5466"),
        ([("metrics", "127.0.0.1:9000"), ("capnp", "0.0.0.0:5470")], "linn://127.0.0.1:5470"),
        ([("capnp", "[::]:5470")], "linn://[::1]:5470"),
        ([("capnp", "unix:/run/linn.sock"), ("capnp", "10.0.0.7:5466")], "linn://10.0.0.7:5466"),
        ([("capnp", "unix:/run/a b.sock")], "linn+unix:///run/a%20b.sock"),
        ([("capnp", "10.0.0.7:5466", True), ("capnp", "unix:/run/linn.sock")], "linn+unix:///run/linn.sock"),
        ([("capnp", "10.0.0.7:5466", True)], "linns://10.0.0.7:5466"),
        ([("capnp", "10.0.0.7:5466", False, True), ("capnp", "127.0.0.1:5467")], "linn://10.0.0.7:5466"),
        ([("capnp", "10.0.0.7:5466", True, True), ("capnp", "127.0.0.1:5467")], "linns://10.0.0.7:5466"),
        ([("capnp", "10.0.0.7:5466", True, True), ("capnp", "unix:/s", False, True)], "linn+unix:///s"),
        ([("capnp", "10.0.0.7:5466", True, True, False), ("capnp", "127.0.0.1:5467")], "linn://127.0.0.1:5467"),
        ([("capnp", "unix:/s", False, True, False)], None),
        ([("metrics", "127.0.0.1:9000")], None),
        ([], None),
    ],
)
def test_the_native_listener_is_the_address_of_drivers(listeners: list[tuple[Any, ...]], url: str | None) -> None:
    bound = [ServiceListener(f"l{number}", *each) for number, each in enumerate(listeners)]
    assert bootstrap_url(bound) == url


def test_a_file_without_spark_has_no_service(kinds: PluginManager) -> None:
    config, _ = checked(kinds, TOPICS)
    assert config is not None
    assert config.services == {}


def test_neither_the_plugin_nor_its_service_imports_pyspark_or_pyarrow() -> None:
    program = (
        "import sys, linn.spark_plugin.service.plugin, linn.spark_plugin.service.service;"
        "print([name for name in ('pyspark', 'pyarrow', 'py4j', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_connection_gives_its_options_to_a_pipeline_whose_own_come_first(kinds: PluginManager) -> None:
    toml = (
        '[spark.connections.db]\nurl = "jdbc:x"\nbatchsize = "10"\n'
        + PIPELINE
        + 'format = "jdbc"\noptions = { connection = "db", dbtable = "t", batchsize = "20" }\n'
    )
    config, errors = checked(kinds, TOPICS + toml)
    assert errors == []
    assert config is not None
    pipeline = asked_for(config.services["spark"], {})["p"]
    assert pipeline.spec.options == {"url": "jdbc:x", "dbtable": "t", "batchsize": "20"}
