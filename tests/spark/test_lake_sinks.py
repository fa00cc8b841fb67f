"""Delta and Iceberg: each micro-batch adds its rows once, whoever writes it and however often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spark_session import needs_spark

from linn.spark_plugin.errors import CheckpointMissing, CheckpointOutdated, LakeSchemaMismatch, PipelineInvalid
from linn.spark_plugin.sink.batch_identity import BatchIdentity
from linn.spark_plugin.spec import PipelineSpec

needs_spark()
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'linn[delta]'")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install 'linn[iceberg]'")

import duckdb  # noqa: E402
from deltalake import DeltaTable  # noqa: E402
from pyiceberg.catalog import load_catalog  # noqa: E402

from linn.spark_plugin.driver.delta_sink import DeltaSink  # noqa: E402
from linn.spark_plugin.driver.iceberg_sink import IcebergSink  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")


class Lake:
    """A table of either format, and its rows as DuckDB counts them."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        warehouse = folder / "warehouse"
        warehouse.mkdir()
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{warehouse}",
        }

    def pipeline(self, **more: Any) -> PipelineSpec:
        options = more.pop("options", {})
        if self.kind == "iceberg":
            options |= {"table": "lake.flights"} | {f"catalog.{name}": value for name, value in self.catalog.items()}
        given = {"name": "p", "topics": ("flights",), "format": self.kind, "partition_by": ("day",)}
        return PipelineSpec(**{**given, "path": str(self.folder / "table"), "options": options, **more})

    def sink(self, **more: Any) -> Any:
        return (DeltaSink if self.kind == "delta" else IcebergSink)(self.pipeline(**more))

    def rows(self) -> list[tuple[Any, ...]]:
        table = self.table()
        files = table.to_pyarrow_table() if self.kind == "delta" else table.scan().to_arrow()
        assert files.num_rows >= 0
        return duckdb.sql("SELECT id, name, CAST(day AS VARCHAR) FROM files ORDER BY id").fetchall()

    def table(self) -> Any:
        if self.kind == "delta":
            return DeltaTable(str(self.folder / "table"))
        return load_catalog("default", **self.catalog).load_table("lake.flights")


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


def batch(number: int, query: str = "query", digits: str = "abc") -> BatchIdentity:
    return BatchIdentity(query, number, f"{digits:0>15}")


def frame(spark: Any, *numbers: int) -> Any:
    rows = [(number, f"a b/ü{number % 2}", f"2026-01-0{number % 2 + 1}") for number in numbers]
    found = spark.createDataFrame(rows, "id bigint, name string, day string")
    return found.selectExpr("id", "name", "CAST(day AS DATE) AS day", "current_timestamp() AS at").repartition(2)


def expected(*numbers: int) -> list[tuple[Any, ...]]:
    return [(number, f"a b/ü{number % 2}", f"2026-01-0{number % 2 + 1}") for number in numbers]


def test_a_replayed_batch_adds_nothing(spark: Any, lake: Lake) -> None:
    sink = lake.sink()
    sink.check(is_new=True)
    sink.write_once(frame(spark, 1, 2, 3), batch(0))
    lake.sink().write_once(frame(spark, 1, 2, 3), batch(0))  # By a driver that does not know of the first one's commit.
    sink.write_once(frame(spark), batch(1))
    sink.write_once(frame(spark, 4), batch(2))
    sink.write_once(frame(spark, 4), batch(2))
    assert lake.rows() == expected(1, 2, 3, 4)
    sink.write_once(frame(spark, 5), batch(0, "another query"))
    assert lake.rows() == expected(1, 2, 3, 4, 5)


def test_a_batch_that_has_only_the_number_of_one_that_was_committed_is_refused(spark: Any, lake: Lake) -> None:
    sink = lake.sink()
    for number in range(3):
        sink.write_once(frame(spark, number), batch(number))
    for wrong, rows in ((batch(2, digits="def"), (7,)), (batch(1), (1,)), (batch(2, digits="def"), ())):
        with pytest.raises(CheckpointOutdated, match="has micro-batch 2 of this query"):
            lake.sink().write_once(frame(spark, *rows), wrong)
    assert lake.rows() == expected(0, 1, 2)
    sink.write_once(frame(spark, 3), batch(3, digits="def"))
    assert lake.rows() == expected(0, 1, 2, 3)


def test_a_table_is_not_made_by_columns_that_are_not_there(spark: Any, lake: Lake) -> None:
    with pytest.raises(PipelineInvalid, match="partition_by names the column nosuch, and the rows have id, name, day"):
        lake.sink(partition_by=("nosuch",)).write_once(frame(spark, 1), batch(0))


def test_of_two_drivers_that_commit_a_batch_at_once_one_adds_it(
    spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, zombie = lake.sink(partition_by=("name",)), lake.sink(partition_by=("name",))
    first.write_once(frame(spark, 1), batch(0))
    commit = zombie._commit

    def late(*arguments: Any) -> None:
        first.write_once(frame(spark, 2, 3), batch(1))  # After the zombie has looked, and before it commits.
        commit(*arguments)

    monkeypatch.setattr(zombie, "_commit", late)
    zombie.write_once(frame(spark, 2, 3), batch(1))
    assert lake.rows() == expected(1, 2, 3)


def test_another_writer_takes_nothing_away(spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lake.sink(), lake.sink(name="another")
    first.write_once(frame(spark, 1), batch(0))
    commit = second._commit

    def late(*arguments: Any) -> None:
        first.write_once(frame(spark, 2), batch(1))
        commit(*arguments)

    monkeypatch.setattr(second, "_commit", late)
    second.write_once(frame(spark, 3), batch(0, "another query"))
    assert lake.rows() == expected(1, 2, 3)


def test_a_table_whose_checkpoint_is_gone_is_refused(spark: Any, lake: Lake) -> None:
    lake.sink().write_once(frame(spark, 1), batch(0))
    lake.sink().check(is_new=False)
    with pytest.raises(CheckpointMissing, match="newCheckpoint=true"):
        lake.sink().check(is_new=True)
    lake.sink(name="another").check(is_new=True)
    lake.sink(options={"newCheckpoint": "true"}).check(is_new=True)


def test_rows_of_other_columns_are_refused(spark: Any, lake: Lake) -> None:
    lake.sink().write_once(frame(spark, 1), batch(0))
    with pytest.raises(LakeSchemaMismatch, match="id"):
        lake.sink().write_once(frame(spark, 2).selectExpr("CAST(id AS STRING) AS id", "name", "day", "at"), batch(1))
    with pytest.raises(PipelineInvalid, match="is partitioned by day"):
        lake.sink(partition_by=("name",)).check(is_new=False)
    assert lake.rows() == expected(1)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"colour": "red", "table": "a.b"}, "no option 'colour'"), ({"table": "flights"}, "needs the option table")],
)
def test_a_wrong_option_of_iceberg_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(PipelineInvalid, match=text):
        IcebergSink(PipelineSpec(name="p", topics=("t",), format="iceberg", options=options))


def test_a_delta_table_that_asks_more_of_its_writers_is_refused(spark: Any, tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    lake.sink().write_once(frame(spark, 1), batch(0))
    lake.table().alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(PipelineInvalid, match=r"constraints|checkConstraints"):
        lake.sink().check(is_new=False)
