"""`linn dump`: whole and damaged segments, by themselves and under a broker that runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import linn.sync
from linn.cli.exit_code import ExitCode
from linn.core.batch.batch import Codec, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.storage_engines.segmented_log.segment import SCAN_BYTES
from linn.testing.process import BrokerProcess

FIRST = 100
NAME = f"{FIRST:020d}.log"


def stored(offset: int, values: Sequence[bytes | None], codec: Codec = Codec.NONE, **more: Any) -> bytes:
    """A batch as a log stores it."""
    records = [Record(value=value, timestamp_ms=1_700_000_000_000, **more) for value in values]
    batch = RecordBatch(bytearray(build_from_records(records, base_id=1, codec=codec).message))
    batch.stamp(offset, 1_700_000_000_500)
    return bytes(batch.message)


BATCHES = [
    stored(FIRST, [b"a", b"b"]),
    stored(FIRST + 2, [b"x" * 200] * 3, Codec.ZSTD, key=b"k", routing_key="a.b"),
    stored(FIRST + 5, [None, b"\xff\x00", '{"é":\n1}'.encode()]),
    stored(FIRST + 8, [b"a\x1bb"]),
]
STARTS = [sum(map(len, BATCHES[:place])) for place in range(len(BATCHES) + 1)]


def segment(folder: Path, content: bytes | bytearray, name: str = NAME) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def dumped(within, *arguments: str | Path) -> list[dict[str, Any]]:
    done = within("dump", "--json", *map(str, arguments))
    assert done.stderr == ""
    parts = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == (1 if any(part["damage"] for part in parts) else 0)
    for one, other in pairwise(parts):
        if one["file"] == other["file"]:
            assert one["byte"] + one["bytes"] == other["byte"], "no byte is passed over in silence"
    return parts


def test_whole_batches_are_a_line_each(within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = segment(tmp_path, b"".join(BATCHES))
    parts = dumped(within, path)
    assert [part["byte"] for part in parts] == STARTS[:-1]
    assert [(part["offset"], part["count"]) for part in parts] == [(100, 2), (102, 3), (105, 3), (108, 1)]
    assert [part["codec"] for part in parts] == [0, 1, 0, 0]
    assert {(part["first_timestamp_ms"], part["append_time_ms"]) for part in parts} == {
        (1_700_000_000_000, 1_700_000_000_500)
    }
    assert all(part["stamp_ok"] and part["body_ok"] for part in parts)
    done = within("dump", str(path))
    lines = done.stdout.splitlines()
    assert lines[0] == f"{path}:"
    assert [line.split()[:3] for line in lines[2:6]] == [
        [str(at), str(part["offset"]), str(part["count"])] for at, part in zip(STARTS, parts, strict=False)
    ]
    assert all(line.endswith("ok") and len(line) <= 80 for line in lines[2:6])
    assert lines[6] == f"9 records in 4 batches, {STARTS[-1]:,} bytes, no damage"


def test_records_are_shown_with_offset_keys_and_a_short_value(within, tmp_path: Path) -> None:
    path = segment(tmp_path, b"".join(BATCHES))
    done = within("dump", "--records", str(path))
    shown = [line.strip() for line in done.stdout.splitlines() if re.match(r" {4}\d", line)]
    long = '"' + "x" * 60 + '"... (200 bytes)'
    assert shown == [
        '100  "a"',
        '101  "b"',
        *(f'{offset}  key "k"  routing key "a.b"  {long}' for offset in (102, 103, 104)),
        "105  none",
        "106  0xff00",
        '107  "{"é":\\n1}"',
        "108  0x611b62",
    ]
    records = [record for part in dumped(within, "--records", path) for record in part["records"]]
    assert [record["offset"] for record in records] == list(range(100, 109))
    assert records[2] == {"offset": 102, "key": "k", "routing_key": "a.b", "value": "x" * 200}
    assert [record["value"] for record in records[5:7]] == [None, {"base64": "/wA="}]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    ("within_batch", "stamp_ok", "body_ok"),
    [(16, False, True), (44, False, True), (48, True, False), (-1, True, False), (0, True, False), (5, True, False)],
)
def test_one_wrong_bit_costs_one_batch_and_is_named(
    within, tmp_path: Path, place: int, within_batch: int, stamp_ok: bool, body_ok: bool
) -> None:
    content = bytearray(b"".join(BATCHES))
    content[(STARTS[place + 1] if within_batch < 0 else STARTS[place]) + within_batch] ^= 1
    parts = dumped(within, segment(tmp_path, content))
    assert [part["byte"] for part in parts] == STARTS[:-1]
    assert [place for place, part in enumerate(parts) if part["damage"]] == [place]
    if within_batch not in (0, 5):  # These say how large the batch is: there may be nothing that looks like one.
        assert (parts[place]["stamp_ok"], parts[place]["body_ok"]) == (stamp_ok, body_ok)
    done = within("dump", str(tmp_path / NAME))
    assert done.returncode == 1
    assert f"damaged at byte {STARTS[place]}: " in done.stdout
    assert f"going on at byte {STARTS[place + 1]}" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("1 damaged place")


def test_batches_with_only_a_wrong_stamp_are_distinguished(within, tmp_path: Path) -> None:
    content = bytearray(b"".join(BATCHES))
    for start in STARTS[:-1]:
        content[start + 16] ^= 1
    parts = dumped(within, "--records", segment(tmp_path, content))
    assert [part["byte"] for part in parts] == STARTS[:-1]
    assert [(part["stamp_ok"], part["body_ok"], len(part["records"])) for part in parts] == [
        (False, True, count) for count in (2, 3, 3, 1)
    ]


def test_bytes_that_are_no_batch_are_passed_over_up_to_the_next_one(within, tmp_path: Path) -> None:
    content = BATCHES[0] + bytes(800) + BATCHES[2][:-16] + BATCHES[3]
    parts = dumped(within, segment(tmp_path, content))
    assert [(part["byte"], part["offset"]) for part in parts if part["damage"] is None] == [
        (0, 100),
        (len(content) - len(BATCHES[3]), 108),
    ]


@pytest.mark.parametrize("before_boundary", [-8, 0, 8, 40, 80, 200])
def test_the_next_batch_is_found_wherever_the_pieces_end_that_are_read(
    within, tmp_path: Path, before_boundary: int
) -> None:
    damaged = bytes(8 + SCAN_BYTES - before_boundary)
    parts = dumped(within, segment(tmp_path, BATCHES[0] + damaged + BATCHES[3]))
    assert [(part["offset"], part["bytes"]) for part in parts] == [
        (100, len(BATCHES[0])),
        (None, len(damaged)),
        (108, len(BATCHES[3])),
    ]


def test_a_batch_in_a_message_is_no_batch_of_the_log(within, tmp_path: Path) -> None:
    inner = stored(3, [b"inner"])
    outer = bytearray(stored(FIRST + 2, [inner]))
    outer[48] ^= 1
    outer[5] ^= 1
    parts = dumped(within, segment(tmp_path, BATCHES[0] + outer + stored(FIRST + 3, [b"c"])))
    assert [part["offset"] for part in parts if part["damage"] is None] == [100, 103]


@pytest.mark.parametrize("missing", [1, 8, 60, 160, len(BATCHES[3]) - 3])
def test_a_torn_tail_is_damage(within, tmp_path: Path, missing: int) -> None:
    content = b"".join(BATCHES)[:-missing]
    parts = dumped(within, segment(tmp_path, content))
    assert [part["byte"] for part in parts if part["damage"]] == [STARTS[3]]
    assert "cut short" in parts[3]["damage"]
    assert parts[3]["bytes"] == len(content) - STARTS[3]


def test_a_segment_that_is_missing_or_in_a_wrong_place_is_damage(within, tmp_path: Path) -> None:
    segment(tmp_path, BATCHES[0] + BATCHES[1])
    segment(tmp_path, BATCHES[3], f"{FIRST + 8:020d}.log")
    (gap,) = [part for part in dumped(within, tmp_path) if part["damage"]]
    assert (gap["byte"], gap["damage"]) == (0, "its offset is 108, and 105 was to come")
    segment(tmp_path, BATCHES[2], f"{FIRST + 5:020d}.log")
    assert [part["damage"] for part in dumped(within, tmp_path)] == [None] * 4
    (named,) = dumped(within, segment(tmp_path, BATCHES[3], f"{7:020d}.log"))
    assert named["damage"] == "its offset is 108, and 7 was to come"
    assert dumped(within, segment(tmp_path, BATCHES[3], "whatever.cut"))[0]["damage"] is None


def test_an_empty_segment_is_whole(within, tmp_path: Path) -> None:
    done = within("dump", str(segment(tmp_path, b"")))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 records in 0 batches, 0 bytes, no damage")


def test_a_file_that_is_no_segment_is_a_usage_error(within, tmp_path: Path) -> None:
    for path, said in ((tmp_path, "holds no segment"), (tmp_path / "nothing", "does not exist")):
        done = within("dump", str(path))
        assert done.returncode == ExitCode.USAGE
        assert said in " ".join(done.stderr.replace("│", " ").split())


def test_the_log_of_a_broker_that_runs_is_read_and_left_as_it_was(within, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, '[topics.prices]\nkind = "stream"\nstorage = "segmented-log"\n') as broker:
        with linn.sync.connect(broker.url) as client, client.producer("prices") as producer:
            for number in range(20):
                producer.publish_many([b"%d" % (10 * number + one) for one in range(10)])
        (path,) = broker.data_dir.rglob("prices/0/*.log")
        before = {inner.name: (inner.read_bytes(), os.stat(inner).st_mtime_ns) for inner in path.parent.iterdir()}
        parts = dumped(within, "--records", path.parent)
        after = {inner.name: (inner.read_bytes(), os.stat(inner).st_mtime_ns) for inner in path.parent.iterdir()}
    assert after == before
    records = [record for part in parts for record in part["records"]]
    assert [(record["offset"], record["value"]) for record in records] == [(n, str(n)) for n in range(200)]
