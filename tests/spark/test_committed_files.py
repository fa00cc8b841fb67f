"""The committed files of a pipeline's output: DuckDB reads exactly what was committed from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from spark_session import needs_spark

needs_spark()

from linn.spark_plugin.driver.committed_files import committed_files  # noqa: E402
from linn.spark_plugin.errors import PipelineInvalid  # noqa: E402
from linn.spark_plugin.spec import PipelineSpec  # noqa: E402


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def numbers_in(pipeline: PipelineSpec) -> list[int]:
    """The rows of the committed files, as DuckDB reads them."""
    files = committed_files(pipeline)
    return [n for (n,) in duckdb.execute("SELECT n FROM read_parquet(?) ORDER BY n", [files]).fetchall()]


def pipeline(format: Any, **more: Any) -> PipelineSpec:
    return PipelineSpec(name="orders", topics=("orders",), format=format, **more)


@pytest.mark.parametrize("folder", ["lake", "a lake, 100%"])
def test_files_of_spark_are_those_that_its_log_names(tmp_path: Path, folder: str) -> None:
    lake = tmp_path / folder
    log = lake / "_spark_metadata"
    log.mkdir(parents=True)
    (lake / "region=a%2Fb").mkdir()
    for number, name in enumerate(("one", "region=a%2Fb/two", "failed")):
        pq.write_table(rows(number), lake / f"{name}.parquet")
    for number, name in enumerate(("one", "region=a%2Fb/two")):
        entry = {"path": (lake / f"{name}.parquet").as_uri(), "size": 1, "isDir": False, "action": "add"}
        (log / str(number)).write_text(f"v1\n{json.dumps(entry)}")
    (log / ".2.crc").write_bytes(b"\0")
    assert numbers_in(pipeline("parquet", path=str(lake))) == [0, 1]
    assert committed_files(pipeline("parquet", path=lake.as_uri())) == committed_files(pipeline("json", path=str(lake)))


def test_a_relative_path_is_that_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "_spark_metadata" / "0").write_text('v1\n{"path": "s3a://bucket/one.parquet"}')
    assert committed_files(pipeline("parquet", path=".")) == ["s3://bucket/one.parquet"]


def test_files_of_delta_are_those_of_its_last_version(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    assert committed_files(pipeline("delta", path=lake)) == []
    write_deltalake(lake, rows(1, 2))
    write_deltalake(lake, rows(3), mode="overwrite")
    write_deltalake(lake, rows(4), mode="append")
    assert numbers_in(pipeline("delta", path=lake)) == [3, 4]


def test_files_of_iceberg_are_those_of_its_last_snapshot(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    options = {"table": "lake.orders"} | {f"catalog.{name}": value for name, value in catalog.items()}
    opened = load_catalog("default", **catalog)
    opened.create_namespace("lake")
    assert committed_files(pipeline("iceberg", options=options)) == []
    table = opened.create_table("lake.orders", rows().schema)
    table.append(rows(1, 2))
    table.overwrite(rows(3))
    table.append(rows(4))
    assert numbers_in(pipeline("iceberg", options=options)) == [3, 4]


def test_a_format_without_files_says_so() -> None:
    with pytest.raises(PipelineInvalid, match="format console writes no files"):
        committed_files(pipeline("console"))


def test_a_folder_that_nobody_has_written_to_has_none(tmp_path: Path) -> None:
    assert committed_files(pipeline("json", path=str(tmp_path / "nothing"))) == []
