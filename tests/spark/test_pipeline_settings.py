"""The specification of a driver, checks of pipelines, and the settings of a session."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from linn.spark_plugin.driver.control import Control, Start, Stop, command_of
from linn.spark_plugin.driver.pipeline_settings import (
    imported_transform,
    source_options,
    starts_at_latest,
    view_name,
)
from linn.spark_plugin.driver.session import local_slots, session_settings
from linn.spark_plugin.errors import PipelineInvalid
from linn.spark_plugin.spec import DriverSpec, PipelineSpec

JSON = {"value": "json", "schema": "id INT"}


def pipeline(**more: Any) -> PipelineSpec:
    return PipelineSpec(**{"name": "p", "topics": ("flights",), "format": "parquet", "path": "lake", **more})


def test_a_specification_is_read_as_it_was_written() -> None:
    spec = DriverSpec(group="g", bootstrap="linn://h:1", state_dir="s", pipelines=(pipeline(partition_by=("d",)),))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=DriverSpec) == spec


def test_specification_and_checks_import_no_pyspark() -> None:
    modules = "linn.spark_plugin.spec, linn.spark_plugin.driver.__main__, linn.spark_plugin.driver.pipeline_settings"
    code = f"import sys, {modules}\nprint({{'pyspark', 'pyarrow', 'py4j'}} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"topics": ()}, "names no topic"),
        ({"value": "json"}, "needs a schema"),
        ({"schema": "id INT"}, 'needs value = "json"'),
        ({"dead_letter": "bad"}, 'needs value = "json"'),
        ({"sql": "select 1", "transform": "a:b"}, "of which there can be one"),
        ({**JSON, "dead_letter": "flights"}, "reads its dead-letter topic"),
        ({"path": None}, "needs a path"),
        ({"output_mode": "complete"}, '"append" only'),
        ({"format": "console", "partition_by": ("x",)}, "has partition_by"),
        ({"format": "linn"}, "options.topic or options.exchange"),
        ({"format": "jdbc", "options": {"url": "jdbc:x"}}, "needs options.dbtable"),
    ],
)
def test_a_pipeline_that_makes_no_sense_is_refused(more: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pipeline(**more)
    made = msgspec.to_builtins(pipeline()) | more
    with pytest.raises(msgspec.ValidationError, match=text):
        msgspec.json.decode(msgspec.json.encode(made), type=PipelineSpec)


@pytest.mark.parametrize("more", [{}, JSON, {**JSON, "dead_letter": "bad"}, {"format": "console", "path": None}])
def test_a_pipeline_that_makes_sense_passes(more: dict[str, Any]) -> None:
    assert pipeline(**more).name == "p"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("os.path", "module:function"),
        ("nowhere_at_all:f", "No module named 'nowhere_at_all'"),
        ("os:nothing", "has no function nothing"),
        ("os:sep", "has no function sep"),
    ],
)
def test_a_transform_that_can_not_be_imported_is_refused(name: str, text: str) -> None:
    with pytest.raises(PipelineInvalid, match=text):
        imported_transform(name)


def test_options_by_topic_are_given_to_the_topics_that_they_name() -> None:
    options = {"startingOffsets": '{"a": {"0": 1}, "b": {"0": 2}}', "maxOffsetsPerTrigger": "5"}
    found = source_options(pipeline(topics=("a", "b"), source_options=options), ("a",))
    assert found == {"startingOffsets": '{"a": {"0": 1}}', "maxOffsetsPerTrigger": "5"}
    for topics in (("a",), ("a", "b", "c")):
        with pytest.raises(PipelineInvalid, match="names a, b, and the pipeline reads"):
            source_options(pipeline(topics=topics, source_options=options), ("a",))
    with pytest.raises(PipelineInvalid, match="startingOffsets is not JSON"):
        source_options(pipeline(source_options={"startingOffsets": "{"}), ("a",))


@pytest.mark.parametrize(
    ("options", "latest"),
    [
        ({}, True),
        ({"STARTINGOFFSETS": "Latest"}, True),
        ({"startingOffsets": "earliest"}, False),
        ({"startingOffsets": '{"a": {"0": -2, "1": 10}}'}, False),
        ({"startingOffsets": '{"a": {"0": 3, "1": -1}}'}, True),
        ({"startingTimestamp": "5"}, False),
    ],
)
def test_a_pipeline_begins_at_the_end_unless_it_says_otherwise(options: dict[str, str], latest: bool) -> None:
    assert starts_at_latest(pipeline(source_options=options)) is latest


def test_a_view_has_a_name_that_sql_takes() -> None:
    assert view_name("flights.late-2026/ü") == "flights_late_2026__"


@pytest.mark.parametrize(
    ("master", "slots"),
    [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local[2, 4]", 2), ("spark://h:7077", None), ("yarn", None)],
)
def test_a_local_master_says_how_many_tasks_run(master: str, slots: int | None) -> None:
    assert local_slots(master) == slots


def test_settings_of_a_specification_win() -> None:
    spec = DriverSpec(group="g", bootstrap="b", state_dir="s", pipelines=(), conf={"spark.ui.enabled": "true"})
    settings = session_settings(spec)
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in session_settings(msgspec.structs.replace(spec, master="yarn"))


def test_control_lines_are_commands_and_the_end_stops_everything() -> None:
    control = Control(io.BytesIO(b'{"stop": ["a", "b"]}\nnothing\n{"pause": []}\n{"start": ["a"]}\n'))
    control.start()
    assert control.next_command(10) == Stop(("a", "b"))
    assert control.next_command(10) == Start(("a",))
    assert control.next_command(10) == Stop(None)
    assert control.next_command(0) is None
    control.ended()


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b'{"stop": "a"}', b"\xff"])
def test_a_line_that_is_no_command_is_none(line: bytes) -> None:
    assert command_of(line) is None
