"""Folders of files and the checkpoints that they belong to, with real queries of Spark."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from spark_session import needs_spark

from linn.cli.demo.lake import committed_files
from linn.spark_plugin.errors import CheckpointMissing, CheckpointOutdated, PipelineInvalid

needs_spark()
duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")

from linn.spark_plugin.driver.checkpoint import check_output  # noqa: E402

ANOTHER = "is the output of another query: give the pipeline a path of its own"


class Query:
    """A query of lines of text to Parquet, with a checkpoint and a place to write to, as a driver runs it."""

    def __init__(self, spark: Any, folder: Path, name: str) -> None:
        self.spark = spark
        self.lines, self.checkpoint, self.path = (str(folder / each / name) for each in ("lines", "state", "lake"))
        Path(self.lines).mkdir(parents=True)

    def check(self) -> None:
        check_output(self.spark, self.checkpoint, self.path)

    def run(self, *lines: str) -> None:
        """Write each line as a micro-batch of its own, after the check."""
        for line in lines:
            self.check()
            Path(self.lines, line).write_text(line)
            writer = self.spark.readStream.schema("value STRING").text(self.lines).writeStream.format("parquet")
            writer = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
            writer.start(self.path).awaitTermination(60)

    def written(self) -> list[str]:
        files = [*map(str, committed_files(Path(self.path)))]
        return sorted(value for (value,) in duckdb.execute("SELECT value FROM read_parquet($1)", [files]).fetchall())


@pytest.fixture
def first(spark: Any, tmp_path: Path) -> Query:
    return Query(spark, tmp_path, "first")


@pytest.fixture
def second(spark: Any, tmp_path: Path) -> Query:
    return Query(spark, tmp_path, "second")


def test_readers_pass_over_what_says_whose_the_folder_is(first: Query) -> None:
    first.run("a", "b")
    assert first.written() == ["a", "b"]
    assert sorted(row.value for row in first.spark.read.parquet(first.path).collect()) == ["a", "b"]
    for pattern in ("*.parquet", "**/*.parquet"):
        count = duckdb.execute("SELECT count(*) FROM read_parquet($1)", [f"{first.path}/{pattern}"]).fetchone()
        assert count == (2,)
    shutil.rmtree(Path(first.path, "_spark_metadata"))
    assert first.spark.read.parquet(first.path).count() == 2


def test_the_folder_of_another_query_is_refused_before_a_micro_batch_is_left_out(first: Query, second: Query) -> None:
    first.run("a", "b", "c")
    second.run("d")
    own, second.path = second.path, first.path
    with pytest.raises(PipelineInvalid, match=ANOTHER):
        second.run("e")
    second.path = own
    second.run("f")
    assert (first.written(), second.written()) == (["a", "b", "c"], ["d", "f"])


def test_a_folder_that_another_query_is_about_to_write_to_is_refused(first: Query, second: Query) -> None:
    first.run("a")
    first.path = second.path
    second.check()
    with pytest.raises(PipelineInvalid, match=ANOTHER):
        first.check()
    second.run("b")
    assert second.written() == ["b"]


def test_output_that_says_of_no_query_is_refused(first: Query) -> None:
    first.run("a")
    shutil.rmtree(Path(first.path, "_linn_query"))
    with pytest.raises(PipelineInvalid, match=ANOTHER):
        first.check()


def test_a_query_goes_on_in_an_empty_folder_and_back_in_its_old_one(first: Query, tmp_path: Path) -> None:
    first.run("a", "b")
    old, first.path = first.path, str(tmp_path / "new")
    first.run("c")
    assert first.written() == ["c"]
    first.path = old
    first.run("d")
    assert first.written() == ["a", "b", "d"]


def test_a_new_checkpoint_is_refused_until_the_folder_is_empty(first: Query) -> None:
    first.run("a", "b")
    shutil.rmtree(first.checkpoint)
    with pytest.raises(CheckpointMissing, match="of this pipeline or another one, and there is no checkpoint"):
        first.check()
    for each in Path(first.path).glob("[!.]*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    first.run("c")
    assert first.written() == ["a", "b", "c"]


def test_a_checkpoint_that_has_lost_all_but_the_token_is_missing(first: Query) -> None:
    first.run("a")
    for each in Path(first.checkpoint).iterdir():
        if each.is_dir() and each.name != "linn-output":
            shutil.rmtree(each)
        elif each.is_file():
            each.unlink()
    with pytest.raises(CheckpointMissing, match="there is no checkpoint"):
        first.check()


def test_a_checkpoint_that_is_older_than_the_output_is_refused(first: Query, tmp_path: Path) -> None:
    first.run("a", "b")
    shutil.copytree(first.checkpoint, tmp_path / "backup")
    first.run(*"cdefghijkl")
    Path(first.checkpoint).rename(tmp_path / "newest")
    shutil.copytree(tmp_path / "backup", first.checkpoint)
    with pytest.raises(CheckpointOutdated, match="is older than the output"):
        first.check()
    logs = sorted(Path(first.path, "_spark_metadata").glob("[0-9]*"))
    for each in logs[:-1]:
        each.unlink()
    assert logs[-1].name == "9.compact"
    with pytest.raises(CheckpointOutdated, match="is older than the output"):
        first.check()


def test_a_micro_batch_that_is_in_the_output_and_not_in_the_checkpoint_yet_is_no_reason(first: Query) -> None:
    first.run("a", "b")
    for each in Path(first.checkpoint, "commits").glob("*1*"):
        each.unlink()
    first.run("c")
    assert first.written() == ["a", "b", "c"]


@pytest.mark.parametrize("left", ["_linn_query", "_spark_metadata"])
def test_a_crash_before_the_query_begins_leaves_nothing_in_the_way(first: Query, left: str) -> None:
    first.check()
    if left == "_spark_metadata":
        # Spark makes the folder before it writes the checkpoint.
        Path(first.path, left).mkdir()
    else:
        shutil.rmtree(Path(first.path, left))
    first.run("a")
    assert first.written() == ["a"]


def test_of_two_queries_that_begin_at_once_at_most_one_gets_the_folder(spark: Any, tmp_path: Path) -> None:
    for number in range(40):
        queries = [Query(spark, tmp_path, f"{number}-{each}") for each in "ab"]
        queries[1].path = queries[0].path
        together = threading.Barrier(2)
        refused: list[Exception] = []

        def begin(query: Query, together: threading.Barrier = together, refused: list[Exception] = refused) -> None:
            together.wait()
            try:
                query.check()
            except (CheckpointMissing, PipelineInvalid) as error:
                refused.append(error)

        threads = [threading.Thread(target=begin, args=(query,)) for query in queries]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert refused, number
