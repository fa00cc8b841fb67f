"""Values as JSON: what parses, and the dead letters of what does not, on real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spark_session import needs_spark

needs_spark()

from linn.spark_plugin.driver.frames import _valued  # noqa: E402
from linn.spark_plugin.driver.json_values import CORRUPT, dead_letters, good_rows, parsed  # noqa: E402
from linn.spark_plugin.spec import PipelineSpec  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")

SCHEMA = "a INT, name STRING, offset BIGINT"
GOOD: list[tuple[bytes | None, int | None, str | None]] = [
    (b'{"a": 1, "name": "x"}', 1, "x"),
    (b' {"a": 2}\n', 2, None),
    (b'{"a": null, "name": null, "more": [1]}', None, None),
    (b"{}", None, None),
    (b'{"a": 3, "name": "]"} \t\r\n', 3, "]"),
    (b'{"name": "\\"],[0]//"}', None, '"],[0]//'),
    (b'{"]": [[1], {"]": "]"}]}', None, None),
    (b"null", None, None),
    (b" null ", None, None),
    (b"\nnull\n", None, None),
    (b"\r\tnull", None, None),
    (None, None, None),
]
MALFORMED = [
    b"",
    b"  ",
    b"\t\r\n",
    b"{",
    b'{"a": 1',
    b'{"a": 1} junk',
    b'{"a": 1}{"a": 2}',
    b'{"a": 1}, {"a": 2}',
    b'{"a": 1}]',
    b'{"a": 1} ] junk',
    b'{"a": 1}],[{"a": 2}',
    b'{"a": 1}],0]',
    b'{"a": 1},0]',
    b'{"a": 1}]//',
    b'{"a": 1}]\x00',
    b"null]",
    b"null,null",
    b"\x0bnull",
    b"],[",
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


def read_by_another(rows: Any, folder: Path, column: str) -> list[str | None]:
    """Write rows as Parquet and read a column with a reader that, unlike Spark, checks that texts are UTF-8."""
    rows.coalesce(1).write.parquet(str(folder))
    (file,) = folder.glob("*.parquet")
    texts: list[str | None] = pytest.importorskip("pyarrow.parquet").ParquetFile(file).read()[column].to_pylist()
    return texts


def test_the_text_of_a_malformed_row_is_utf8_in_a_file(frame: Any, tmp_path: Path) -> None:
    texts = read_by_another(good_rows(frame, keeps_malformed=True), tmp_path / "lake", CORRUPT)
    assert texts[len(GOOD) :] == [value.decode(errors="replace") for value in MALFORMED]


def test_a_value_as_a_string_is_utf8_in_a_file(spark: Any, tmp_path: Path) -> None:
    values = [b"one", b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", "ü😀".encode(), b"", None]
    pipeline = PipelineSpec(name="p", topics=("flights",), format="parquet", path="lake", value="string")
    rows = _valued(spark.createDataFrame([(value,) for value in values], "value binary"), pipeline)
    texts = read_by_another(rows, tmp_path / "lake", "value")
    assert texts == [value if value is None else value.decode(errors="replace") for value in values]


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
