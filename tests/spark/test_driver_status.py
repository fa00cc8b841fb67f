"""Status lines of a driver."""

from __future__ import annotations

import json
import os

import pytest

from linn.spark_plugin.driver.status import STATUS_FD, StatusWriter, logged_offsets, offsets_of, progress_fields

SOURCE = {"endOffset": {"flights": {"id": "x", "offsets": {"0": 5, "1": 7}}}}
PROGRESS = {
    "batchId": 3,
    "numInputRows": 12,
    "inputRowsPerSecond": float("inf"),
    "processedRowsPerSecond": 6.5,
    "durationMs": {"addBatch": 20, "triggerExecution": 40},
    "sources": [SOURCE],
}


def test_a_progress_line_has_the_offsets_that_are_in_the_sink() -> None:
    fields = progress_fields(PROGRESS)
    assert fields == {
        "batch": 3,
        "rows": 12,
        "input_rows_per_s": 0.0,
        "processed_rows_per_s": 6.5,
        "duration_ms": 40,
        "durations": {"addBatch": 20, "triggerExecution": 40},
        "end": {"flights": {"0": 5, "1": 7}},
    }
    json.dumps(fields, allow_nan=False)


def test_a_topic_that_is_read_twice_counts_by_the_slower_reader() -> None:
    slower = {"endOffset": {"flights": {"offsets": {"0": 2}}}}
    assert progress_fields({**PROGRESS, "sources": [SOURCE, slower]})["end"] == {"flights": {"0": 2, "1": 7}}


def test_a_checkpoint_has_the_offsets_of_each_source_below_two_lines() -> None:
    log = 'v1\n{"batchWatermarkMs":0}\n{"flights": {"id": "x", "offsets": {"0": 5, "1": -1}}}\n-\n{"logOffset":7}'
    assert logged_offsets(log) == {"flights": {"0": 5}}


@pytest.mark.parametrize(
    "found", [None, 7, "7", "nothing", {"flights": 3}, {"a": {"b": 3}}, [], {"flights": {"offsets": None}}]
)
def test_offsets_of_a_source_without_topics_are_none(found: object) -> None:
    assert not any(offsets_of(found).values())


def test_offsets_that_are_not_known_yet_are_left_out() -> None:
    assert offsets_of({"flights": {"offsets": {"0": -1, "1": 4}}}) == {"flights": {"1": 4}}


def test_lines_are_written_to_the_named_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(STATUS_FD, str(writing))
    status = StatusWriter.from_environment()
    assert STATUS_FD not in os.environ
    status.write("idle", "flights", batch=3)
    assert json.loads(os.read(reading, 1000)) == {"event": "idle", "pipeline": "flights", "batch": 3}
    os.close(reading)
    status.write("idle", "flights", batch=4)
    assert status.is_broken
    os.close(writing)
