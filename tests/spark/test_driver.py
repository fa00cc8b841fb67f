"""The driver as a process, with a real broker and real Spark."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from driver_process import WAIT_S, Driver, driver
from spark_session import needs_spark

import linn.sync
from linn.cli.demo.lake import committed_files
from linn.spark_plugin.spec import PipelineSpec
from linn.testing.process import BrokerProcess

needs_spark()
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'linn[delta]'")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install 'linn[iceberg]'")

import duckdb  # noqa: E402
from deltalake import DeltaTable  # noqa: E402
from pyiceberg.catalog import load_catalog  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")

CONFIG = """
[topics.flights]
kind = "stream"
partitions = 2

[topics.airports]
kind = "stream"
"""
COUNT = 3_000
EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), CONFIG) as broker:
        url = broker.urls[0]
        with linn.sync.connect(url) as client:
            with client.producer("flights") as producer:
                for number in range(COUNT):
                    producer.publish(b'{"number": %d, "to": "A%d"}' % (number, number % 3))
            with client.producer("airports") as producer:
                for number in range(3):
                    producer.publish(b'{"code": "A%d", "city": "city %d"}' % (number, number))
        yield url


def distinct(files: str | list[str], column: str = '(partition, "offset")') -> tuple[int, int]:
    """Rows in Parquet files, and distinct ones, as DuckDB counts them."""
    (found,) = duckdb.execute(f"SELECT count(*), count(DISTINCT {column}) FROM read_parquet($1)", [files]).fetchall()
    return found


def reads_to_the_end(running: Driver, name: str) -> None:
    """Wait until a pipeline has written everything."""
    end = running.next_event("started", name)["end"]
    while sum(end.get("flights", {}).values()) < COUNT:
        end = running.next_event("progress", name)["end"]


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=300)
    return alive == []


def test_each_record_is_written_once_whenever_the_driver_is_killed(url: str, tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "topics": ("flights",),
        "source_options": {**EARLIEST, "maxOffsetsPerTrigger": "500"},
        "trigger_ms": 0,
    }
    files, table = tmp_path / "files", tmp_path / "table"
    (tmp_path / "warehouse").mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    of_iceberg = {"table": "lake.flights"} | {f"catalog.{name}": value for name, value in catalog.items()}
    pipelines = [
        PipelineSpec(name="files", format="parquet", path=str(files), partition_by=("partition",), **common),
        PipelineSpec(name="table", format="delta", path=str(table), partition_by=("partition",), **common),
        PipelineSpec(name="ice", format="iceberg", options=of_iceberg, partition_by=("partition",), **common),
    ]
    names = [each.name for each in pipelines]
    with driver(tmp_path, url, *pipelines) as first:
        for name in names:
            first.next_event("progress", name)
        first.next_event("progress", "table")
        children = first.children()
        assert children
        first.process.kill()
        assert gone(children)
    assert distinct([*map(str, committed_files(files))])[0] < COUNT

    with driver(tmp_path, url, *pipelines) as second:
        for name in names:
            reads_to_the_end(second, name)
        second.send({"stop": ["table"]})
        second.next_event("stopped", "table")
        assert second.finish() == 0
        events = second.read_all()
        assert sorted(each["pipeline"] for each in events if each["event"] == "stopped") == ["files", "ice"]
    with driver(tmp_path, url, *pipelines) as third:
        for name in names:
            assert sum(third.next_event("started", name)["end"]["flights"].values()) == COUNT
    assert distinct([*map(str, committed_files(files))]) == (COUNT, COUNT)
    assert distinct(DeltaTable(str(table)).file_uris()) == (COUNT, COUNT)
    ice = load_catalog("default", **catalog).load_table("lake.flights")
    assert distinct([task.file.file_path for task in ice.scan().plan_files()]) == (COUNT, COUNT)


def test_pipelines_that_can_not_run_say_why_and_the_others_go_on(url: str, tmp_path: Path) -> None:
    def pipeline(name: str, **more: Any) -> PipelineSpec:
        given = {"format": "parquet", "path": str(tmp_path / name), "source_options": EARLIEST, "available_now": True}
        return PipelineSpec(**{"name": name, "topics": ("flights",), **given, **more})

    values = {"value": "json", "schema": "number INT, to STRING, code STRING, city STRING"}
    both = ("flights", "airports")
    first = [
        pipeline("kept", transform="transforms:of_one", **values),
        pipeline(
            "joined",
            topics=both,
            sql="SELECT f.number, a.city FROM flights f JOIN airports a ON f.to = a.code",
            **values,
        ),
        pipeline("mapped", topics=both, transform="transforms:of_both"),
        pipeline("nowhere", topics=("nowhere",)),
        pipeline("wrong_sql", sql="SELECT colour FROM flights"),
        pipeline("wrong_schema", value="json", schema="number NUMBER"),
        pipeline("missing", transform="no_such_module:f"),
        pipeline("failing", transform="transforms:failing"),
        pipeline("wrong", transform="transforms:wrong"),
    ]
    with driver(tmp_path, url, *first) as running:
        for name in ("kept", "joined", "mapped"):
            running.next_event("stopped", name)
        classes = {
            "nowhere": "spark.option_invalid",
            "wrong_sql": "UNRESOLVED_COLUMN",
            "wrong_schema": "spark.pipeline_invalid",
            "missing": "spark.pipeline_invalid",
            "wrong": "spark.pipeline_invalid",
        }
        for name, error_class in classes.items():
            ended = running.next_event("terminated", name)
            assert (ended["error_class"], ended["fatal"]) == (error_class, True), ended
            assert "\n" not in ended["error"]
        ended = running.next_event("terminated", "failing")
        assert (ended["error_class"], ended["fatal"]) == ("ConnectionError", False), ended
        assert running.process.wait(WAIT_S) == 1
    names = {"kept": "number", "joined": "number", "mapped": '(topic, partition, "offset")'}
    counts = {name: distinct(str(tmp_path / name / "*.parquet"), column) for name, column in names.items()}
    assert counts == {"kept": (COUNT // 3, COUNT // 3), "joined": (COUNT, COUNT), "mapped": (COUNT + 3, COUNT + 3)}

    shutil.rmtree(tmp_path / "state" / "kept")
    with driver(tmp_path, url, first[0]) as running:
        ended = running.next_event("terminated", "kept")
        assert (ended["error_class"], ended["fatal"]) == ("spark.checkpoint_missing", True)
        assert running.process.wait(WAIT_S) == 1


def test_a_pipeline_that_has_failed_is_started_again_in_the_same_driver(url: str, tmp_path: Path) -> None:
    pipelines = [
        PipelineSpec(name=name, topics=("flights",), format="parquet", path=str(tmp_path / name), trigger_ms=0, **more)
        for name, more in {"steady": {}, "late": {"transform": "transforms:failing_once"}}.items()
    ]
    for each in pipelines:
        each.source_options.update(EARLIEST)
    with driver(tmp_path, url, *pipelines) as running:
        running.next_event("terminated", "late", fatal=False, error="out of reach")
        running.next_event("progress", "steady")
        running.send({"start": ["late", "steady"]})
        running.next_event("progress", "late")
        running.next_event("idle", "late")
        assert running.finish() == 0
        events = [(each["event"], each["pipeline"]) for each in running.read_all()]
        assert events.count(("started", "steady")) == 1, "the one that runs is left alone"
    for each in pipelines:
        assert distinct([*map(str, committed_files(tmp_path / each.name))]) == (COUNT, COUNT)


PARENT = """
import sys
from pathlib import Path
from driver_process import Driver
from linn.spark_plugin.spec import PipelineSpec

folder, url = sys.argv[1:]
pipeline = PipelineSpec(name="p", topics=("flights",), format="console", trigger_ms=0)
running = Driver(Path(folder), url, pipeline)
running.next_event("started", "p")
print(running.process.pid, flush=True)
sys.stdin.read()
"""


def test_a_driver_and_its_children_are_gone_soon_after_its_parent_was_killed(url: str, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent.stdin, parent.stdout:
        running = psutil.Process(int(parent.stdout.readline()))
        everybody = [running, *running.children(recursive=True)]
        assert len(everybody) >= 2
        parent.send_signal(signal.SIGKILL)
        parent.wait(WAIT_S)
        assert gone(everybody)


def test_a_driver_whose_jvm_does_not_start_says_so(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    running = Driver(tmp_path, url)
    failed = running.next_event("failed")
    assert (failed["error_class"], failed["fatal"]) == ("JAVA_GATEWAY_EXITED", False)
    assert running.process.wait(WAIT_S) == 3
    running.kill()
