"""Values as JSON: what parses, and the dead letters of what does not, on real Spark."""

from __future__ import annotations

from typing import Any

import pytest
from spark_session import needs_spark

needs_spark()

from linn.spark_plugin.driver.json_values import CORRUPT, dead_letters, good_rows, parsed  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")

SCHEMA = "a INT, name STRING, offset BIGINT"
GOOD: list[tuple[bytes | None, int | None, str | None]] = [
    (b'{"a": 1, "name": "x"}', 1, "x"),
    (b' {"a": 2}\n', 2, None),
    (b'{"a": null, "name": null, "more": [1]}', None, None),
    (b"{}", None, None),
    (b"null", None, None),
    (None, None, None),
]
MALFORMED = [
    b"",
    b"  ",
    b"{",
    b'{"a": 1',
    b'{"a": 1} junk',
    b'{"a": 1}{"a": 2}',
    b'{"a": 1}, {"a": 2}',
    b'{"a": "one"}',
    b'{"a": 1.5}',
    b'{"a": 99999999999}',
    b'{"a": NaN}',
    b"{'a': 1}",
    b"12",
    b"[1]",
    b'[{"a": 1}]',
    b"\xff\xfe",
    b'{"name": "\xff"}',
]
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, routing_key string, "
    "labels map<string,string>, headers array<struct<key:string,value:binary>>"
)


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    values = [value for value, _, _ in GOOD] + MALFORMED
    rows = [
        (b"k", value, "flights", 1, offset, None, "r", {"l": "1"}, [("h", b"v")]) for offset, value in enumerate(values)
    ]
    return parsed(spark.createDataFrame(rows, COLUMNS), SCHEMA).cache()


def test_good_rows_are_parsed_and_legitimate_nulls_are_good(frame: Any) -> None:
    rows = good_rows(frame, keeps_malformed=False).collect()
    assert [(row.a, row.name) for row in rows] == [(number, name) for _, number, name in GOOD]
    columns = ["key", "topic", "partition", "record_offset", "timestamp", "a", "name", "offset"]
    assert rows[0].__fields__ == columns
    assert [row.record_offset for row in rows] == list(range(len(GOOD)))


def test_without_a_dead_letter_topic_malformed_rows_keep_their_text(frame: Any) -> None:
    rows = good_rows(frame, keeps_malformed=True).collect()
    texts = [row[CORRUPT] for row in rows]
    assert texts[: len(GOOD)] == [None] * len(GOOD)
    assert texts[len(GOOD) :] == [value.decode(errors="replace") for value in MALFORMED]


def test_dead_letters_are_the_malformed_rows_and_say_why_and_whence(frame: Any) -> None:
    rows = dead_letters(frame, "p", SCHEMA).collect()
    assert [bytes(row.value) for row in rows] == MALFORMED
    assert (bytes(rows[0].key), rows[0].routing_key, rows[0].labels) == (b"k", "r", {"l": "1"})
    headers = [(each.key, bytes(each.value).decode()) for each in rows[0].headers]
    assert headers == [
        ("h", "v"),
        ("linn.dead.reason", "malformed"),
        ("linn.dead.error", f"the value is not JSON of the schema {SCHEMA}"),
        ("linn.dead.pipeline", "p"),
        ("linn.dead.topic", "flights"),
        ("linn.dead.partition", "1"),
        ("linn.dead.offset", str(len(GOOD))),
    ]
