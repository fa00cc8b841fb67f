"""The demo's act with Spark: what its counts are, which files belong to the lake, and whatever is off shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from linn.cli.demo.broker_config import toml_with_spark
from linn.cli.demo.lake import Written, committed_files, read_lake
from linn.cli.demo.spark_counts import Expected, SparkOutcome, counts_of_spark, expected_of_file
from linn.core.config.config import check_config
from linn.core.config.toml_source import TomlSource
from linn.core.plugins.manager import built_in

LIMIT = 3_000


@pytest.fixture(scope="module")
def expected() -> Expected:
    return expected_of_file(LIMIT)


def good(expected: Expected) -> SparkOutcome:
    """Every departure once, and each count in two steps where it can have two."""
    outcome = SparkOutcome(written=sorted(expected.departures), has_restarted=True)
    for key, late in expected.late.items():
        for count in sorted({(late + 1) // 2, late}):
            outcome.updates[len(outcome.updates)] = key, count
    return outcome


def wrong(outcome: SparkOutcome, expected: Expected) -> list[str]:
    return [count.what for count in counts_of_spark(outcome, expected) if not count.right]


def test_what_the_file_says_is_right(expected: Expected) -> None:
    assert wrong(good(expected), expected) == []
    assert {row.origin for row in expected.departures} == {"EWR", "JFK", "LGA"}
    assert "EWR 2013-01-01 05:00" not in expected.late
    assert expected.late["EWR 2013-01-01 06:00"] > 0


def one_row_twice(outcome: SparkOutcome) -> None:
    outcome.written.append(outcome.written[7])


def one_row_missing(outcome: SparkOutcome) -> None:
    del outcome.written[7]


def one_row_of_another_origin(outcome: SparkOutcome) -> None:
    origin, number = outcome.written[0]
    outcome.written[0] = Written("JFK" if origin == "EWR" else "EWR", number)


def one_value_that_did_not_parse(outcome: SparkOutcome) -> None:
    outcome.written[0] = Written(outcome.written[0].origin, None)


def one_change_twice(outcome: SparkOutcome) -> None:
    outcome.updates[len(outcome.updates)] = outcome.updates[len(outcome.updates) - 1]


def one_late_departure_more(outcome: SparkOutcome) -> None:
    key, late = outcome.updates[len(outcome.updates) - 1]
    outcome.updates[len(outcome.updates)] = key, late + 1


def one_hour_missing(outcome: SparkOutcome) -> None:
    key = outcome.updates[0][0]
    outcome.updates = {offset: update for offset, update in outcome.updates.items() if update[0] != key}


def one_message_left(outcome: SparkOutcome) -> None:
    outcome.unsettled = 1


def no_restart(outcome: SparkOutcome) -> None:
    outcome.has_restarted = False


@pytest.mark.parametrize(
    ("slip", "what"),
    [
        (one_row_twice, "Parquet: departures written more than once"),
        (one_row_missing, "Parquet: departures"),
        (one_row_of_another_origin, "Parquet: departures missing, or not in the file"),
        (one_value_that_did_not_parse, "Parquet: departures missing, or not in the file"),
        (one_change_twice, "late by hour: changes that came twice"),
        (one_late_departure_more, "late by hour: counts that are off"),
        (one_hour_missing, "late by hour: origins and hours"),
        (one_message_left, "late by hour: unsettled in the end"),
        (no_restart, "Spark: driver killed, started again and done"),
    ],
)
def test_being_off_by_one_anywhere_shows(expected: Expected, slip: Callable[[SparkOutcome], None], what: str) -> None:
    outcome = good(expected)
    slip(outcome)
    assert what in wrong(outcome, expected)


def write(lake: Path, name: str, numbers: list[int]) -> str:
    path = lake / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"number": numbers}), path)
    return '{"path":"' + path.as_uri() + '","size":1,"isDir":false,"action":"add"}'


def test_files_that_sparks_log_does_not_name_are_not_read(tmp_path: Path) -> None:
    lake = tmp_path / "a lake"
    log = lake / "_spark_metadata"
    entries = [write(lake, f"origin=JFK/part-{number}.parquet", [number]) for number in range(4)]
    write(lake, "origin=JFK/part-of-a-task-that-failed.parquet", [99])
    log.mkdir()
    (log / "0").write_text("v1\n" + entries[0])
    (log / "1.compact").write_text("\n".join(["v1", *entries[:2]]))
    (log / "2").write_text("v1")
    (log / "10").write_text("\n".join(["v1", *entries[2:]]))
    (log / ".11.crc").write_bytes(b"crc")
    assert len(committed_files(lake)) == 4
    assert read_lake(lake) == [Written("JFK", number) for number in range(4)]


def test_a_lake_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert read_lake(tmp_path / "lake") == []


def test_the_act_needs_no_import_of_spark_or_pyarrow() -> None:
    code = "import sys, linn.cli.demo.story; print([m for m in ('pyspark', 'pyarrow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_brokers_configuration_with_spark_is_good_and_keeps_what_a_path_has(tmp_path: Path) -> None:
    lake = tmp_path / 'a "lake"'
    for enabled in (True, False):
        source = TomlSource(toml_with_spark(lake, 20_000, enabled=enabled), "linn.toml")
        config, problems = check_config(source, built_in())
        assert [problems.describe(problem) for problem in problems.in_order()] == []
        assert config is not None
