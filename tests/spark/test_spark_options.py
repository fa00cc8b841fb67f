"""Options of the Spark source, and the ranges that its tasks read."""

from __future__ import annotations

import subprocess
import sys
from uuid import UUID

import pytest

from linn.spark_plugin.errors import SparkOptionInvalid
from linn.spark_plugin.place import BrokerPlace
from linn.spark_plugin.source.options import EARLIEST, LATEST, Bound, ReadLimits, ReadOptions, checked_options
from linn.spark_plugin.source.ranges import OffsetRange, split, tasks

GIVEN = {"linn.bootstrap.servers": "127.0.0.1:5466", "subscribe": "flights"}


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("flights", UUID(int=1), at, 100, 100 + size) for at, size in enumerate(sizes)]


def test_the_defaults_read_everything_there_is() -> None:
    assert checked_options(GIVEN) == ReadOptions(BrokerPlace("linn://127.0.0.1:5466"), ("flights",))


def test_each_option_is_read_whatever_its_case() -> None:
    more = {"startingoffsets": '{"flights": {"0": 7, "1": -2}}', "ENDINGTIMESTAMP": "1000", "failOnDataLoss": "False"}
    more |= {"minPartitions": "4", "maxRecordsPerPartition": "100", "includeHeaders": "true", "includeId": "true"}
    found = checked_options(GIVEN | more)
    assert found.start == Bound(EARLIEST, "startingOffsets", offsets={"flights": {0: 7, 1: EARLIEST}})
    assert found.end == Bound(LATEST, "endingTimestamp", timestamp_ms=1000)
    assert (found.partitions_min, found.records_per_partition_max) == (4, 100)
    assert (found.fails_on_data_loss, found.includes_headers, found.includes_id) == (False, True, True)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"subscrbe": "x"}, "no option 'subscrbe'"),
        ({"linn.bootstrap.servers": ""}, "linn.bootstrap.servers is missing"),
        ({"subscribe": " , "}, "names no topic"),
        ({"assign": '{"flights": [0]}'}, "subscribe and assign contradict"),
        ({"startingOffsets": "latest"}, 'startingOffsets of a batch read is "earliest" or JSON'),
        ({"endingOffsets": "earliest"}, 'endingOffsets of a batch read is "latest" or JSON'),
        ({"startingOffsets": "soon"}, "startingOffsets is JSON such as"),
        ({"startingOffsets": '{"flights": {"0": -1}}'}, "can't be -1"),
        ({"endingOffsets": '{"flights": {"0": -2}}'}, "can't be -2"),
        ({"startingTimestamp": "today"}, "a time in milliseconds"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is true or false"),
        ({"minPartitions": "0"}, "minPartitions is a number from 1 on"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "more than maxOffsetsPerTrigger"),
        ({"where": "label.kind ="}, "where: "),
        ({"where": 'key = "x"'}, "where: "),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is a duration such as 15m"),
        ({"startingOffsetsByTimestamp": '{"flights": {"0": -1}}'}, "in milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "is error or latest"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_that_names_it(more: dict[str, str], text: str) -> None:
    with pytest.raises(SparkOptionInvalid) as refused:
        checked_options(GIVEN | more)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_start_that_counts_is_the_one_that_counts_in_sparks_own_source() -> None:
    offsets, times = {"startingOffsets": "earliest"}, {"startingOffsetsByTimestamp": '{"flights": {"0": 5}}'}
    found = checked_options(GIVEN | offsets | times)
    assert (found.start.option, found.start.is_strict) == ("startingOffsetsByTimestamp", True)
    lax = {"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": "7"}
    found = checked_options(GIVEN | offsets | times | lax)
    assert (found.start.timestamp_ms, found.start.is_strict) == (7, False)


def test_a_stream_starts_at_the_end_and_has_none() -> None:
    assert checked_options(GIVEN, is_stream=True).start == Bound(LATEST)
    assert checked_options(GIVEN | {"startingOffsets": "EARLIEST"}, is_stream=True).start.default == EARLIEST
    offsets = {"startingOffsets": '{"flights": {"0": -1, "1": -2}}'}
    assert checked_options(GIVEN | offsets, is_stream=True).start.offsets == {"flights": {0: LATEST, 1: EARLIEST}}
    with pytest.raises(SparkOptionInvalid, match="endingTimestamp is for batch reads"):
        checked_options(GIVEN | {"endingTimestamp": "5"}, is_stream=True)


def test_the_option_that_took_filters_over_is_refused() -> None:
    for is_stream in (False, True):
        with pytest.raises(SparkOptionInvalid, match="no option 'pushfilters'"):
            checked_options(GIVEN | {"pushFilters": "true"}, is_stream=is_stream)


def test_limits_are_read() -> None:
    more = {"maxOffsetsPerTrigger": "500", "minOffsetsPerTrigger": "50", "maxTriggerDelay": "2 min"}
    assert checked_options(GIVEN | more).limits == ReadLimits(500, 50, 120_000)


@pytest.mark.parametrize(
    "more",
    [
        {"startingOffsets": '{"flights": {"0": 5}}', "endingOffsets": '{"flights": {"0": 4}}'},
        {"startingOffsetsByTimestamp": '{"flights": {"0": 5}}', "endingOffsetsByTimestamp": '{"flights": {"0": 4}}'},
    ],
)
def test_an_end_before_the_start_is_refused(more: dict[str, str]) -> None:
    with pytest.raises(SparkOptionInvalid, match="after ending"):
        checked_options(GIVEN | more)
    assert checked_options(GIVEN | {name: text.replace("4", "5") for name, text in more.items()})


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(SparkOptionInvalid, match="subscribePattern is empty"):
        checked_options({"linn.bootstrap.servers": "127.0.0.1:5466", "subscribePattern": " "})


def test_small_ranges_share_a_task() -> None:
    found = tasks(ranges(400, 500, 200, 5_000, 1), None, None)
    assert [[len(each) for each in task] for task in found] == [[400, 500], [200], [5_000], [1]]
    assert len(tasks(ranges(1, 1), 2, None)) == 2


def test_a_job_without_a_topic_is_refused() -> None:
    with pytest.raises(SparkOptionInvalid, match="no topic is named"):
        checked_options({"linn.bootstrap.servers": "127.0.0.1:5466"})


def test_ranges_are_left_whole_and_empty_ones_left_out() -> None:
    assert split(ranges(5, 0, 3), None, None) == [ranges(5)[0], ranges(0, 0, 3)[2]]


@pytest.mark.parametrize(("partitions_min", "records_max", "count"), [(4, None, 4), (None, 10, 12), (4, 10, 12)])
def test_ranges_are_split_and_nothing_is_read_twice_or_never(
    partitions_min: int | None, records_max: int | None, count: int
) -> None:
    whole = ranges(60, 60)
    found = split(whole, partitions_min, records_max)
    assert len(found) == count
    offsets = [(each.partition, offset) for each in found for offset in range(each.start, each.end)]
    assert offsets == [(each.partition, offset) for each in whole for offset in range(each.start, each.end)]


def test_small_ranges_stay_whole_and_the_others_have_the_rest_of_the_tasks() -> None:
    found = split(ranges(40, 7, 1), 9, None)
    assert [(each.partition, len(each)) for each in found] == [
        *((0, size) for size in (5, 5, 6, 6, 6, 6, 6)),
        (1, 7),
        (2, 1),
    ]


def test_ranges_are_cut_for_the_records_of_a_task_before_they_are_for_the_number_of_tasks() -> None:
    assert [len(each) for each in split(ranges(10), 3, 4)] == [3, 3, 4]
    assert [len(each) for each in split(ranges(10), 4, 6)] == [2, 3, 2, 3]


def test_importing_linn_and_the_package_imports_no_pyspark() -> None:
    modules = "sys, linn.sync, linn.spark_plugin.source.stream_planner"
    code = f"import {modules}\nprint({{'pyspark', 'pyarrow', 'py4j'}} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip() == "set()"


def test_the_source_without_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import linn.spark_plugin

    monkeypatch.delitem(sys.modules, "linn.spark_plugin.data_source", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    with pytest.raises(ImportError, match=r"pip install 'linn\[spark\]'"):
        _ = linn.spark_plugin.LinnDataSource
