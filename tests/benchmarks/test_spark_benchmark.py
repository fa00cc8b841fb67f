"""The Spark lines run from end to end, and are left out without Spark. What they measure is no test's business."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import spark as spark_group
from benchmarks import spark_session
from benchmarks.line import Line
from benchmarks.plan import quick_plan

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(spark_session.spark_missing() is not None, reason="needs PySpark and Java")
def test_the_lines_are_measured_and_judged(tmp_path: Path) -> None:
    result, work = tmp_path / "result.json", tmp_path / "work"
    work.mkdir()
    command = [sys.executable, "-m", "benchmarks", "--quick", "spark"]
    command += ["--json", str(result), "--folder", str(work)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    assert list(work.iterdir()) == []
    lines = {line["name"]: line for line in json.loads(result.read_text())["lines"]}
    assert all((line["met"] is None) == (line["target"] is None) and line["value"] > 0 for line in lines.values())
    assert len([line for line in lines.values() if line["target"]]) >= 7
    of_kafka = [name for name in lines if "Kafka" in name]
    assert of_kafka or "Spark's Kafka source is skipped: " in done.stderr


def test_without_spark_the_group_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_session, "find_spec", lambda name: None)
    assert [*spark_group.spark_lines(quick_plan(tmp_path))] == []
    (said,) = capsys.readouterr().err.splitlines()
    assert said.strip() == "spark is skipped: PySpark is not installed: pip install 'linn[spark]'"


def test_without_java_the_group_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert spark_session.spark_missing() == "Java 17 or newer is not installed"


def test_the_first_round_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    class Jobs(spark_group.Jobs):
        def prepare(self) -> None: ...

        def run_round(self) -> None:
            rounds.append(len(rounds))
            self.figures.setdefault("noop", []).append(float(rounds[-1]))

        def lines(self) -> list[Line]:
            return [Line("spark", "noop", "records/s", None, self.figures["noop"])]

    nothing = SimpleNamespace()
    (line,) = spark_group.counted(Jobs(nothing, quick_plan(tmp_path), nothing, None, tmp_path), 3)
    assert (rounds, line.values) == ([0, 1, 2, 3], [1.0, 2.0, 3.0])


def test_generated_rows_are_those_of_the_source() -> None:
    pa = pytest.importorskip("pyarrow")
    from linn.spark_plugin.source.arrow_columns import arrow_schema

    made = spark_group.generated([b"a", b"b", b"c"], count=3, rows=8)
    batches = [*made(iter([pa.RecordBatch.from_pydict({"id": [0, 1]})]))]
    assert all(batch.schema.equals(arrow_schema(includes_headers=False, includes_id=False)) for batch in batches)
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [*range(8)] * 2
