"""The speed matrix covers what it is to cover, counts latency from the schedule, and reports what was measured."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.line import Line, Mark, Pair, line_of_pairs
from benchmarks.matrix.axis import AXES, Axis
from benchmarks.matrix.chart import CHARTS
from benchmarks.matrix.open_loop import PERCENTILES, Schedule, Waits, keeps_up, percentile
from benchmarks.matrix.point import DEFAULT, Point
from benchmarks.matrix.report import write_report
from benchmarks.matrix.shipment import batch_of, shipment
from benchmarks.matrix.throughput import place_lines
from benchmarks.matrix.working_queue import BATCH_TARGET, SINGLE_TARGET, Work, through_relay
from benchmarks.plan import Plan, quick_plan
from benchmarks.report import result_of
from benchmarks.servers import relay
from linn.core.batch.batch import Codec, RecordBatch
from linn.wire import messages
from linn.wire.connection import Connection, frames_of, hello

MIB = 1 << 20


# --- what is covered -------------------------------------------------------------------------------------------------


def axis(name: str) -> Axis:
    (found,) = [axis for axis in AXES if axis.name == name]
    return found


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
def test_an_axis_varies_one_field_and_includes_the_default(axis: Axis) -> None:
    points = [axis.point(value) for value in axis.values]
    assert DEFAULT in points
    assert all(dataclasses.replace(point, **{axis.field: getattr(DEFAULT, axis.field)}) == DEFAULT for point in points)


def test_every_axis_has_a_chart_and_there_are_no_more_than_twelve() -> None:
    names = [chart.name for chart in CHARTS]
    assert {axis.name for axis in AXES} | {"queue", "latency", "backlog"} == set(names)
    assert len(names) == len(set(names)) <= 12


# --- what is sent ----------------------------------------------------------------------------------------------------


def sent_by(point: Point) -> list[tuple[messages.Publish, RecordBatch]]:
    """The publishes that a broker decodes from one pass of a shipment."""
    connection = Connection()
    connection.allow_frames(16 * MIB)
    data = b"".join(
        [*map(bytes, frames_of(hello("test"), 1)), *(part for send in shipment(point).sends for part in send.buffers)]
    )
    events = []
    while data:
        buffer = connection.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        events += list(connection.received(count))
    return [(event.message, event.batches[0]) for event in events if isinstance(event.message, messages.Publish)]


@pytest.mark.parametrize("record_bytes", axis("record-size").values)
def test_a_batch_holds_records_of_the_requested_size(record_bytes: int) -> None:
    point = Point(record_bytes=record_bytes)
    values = batch_of(point).body().values.to_list()
    assert {len(value) for value in values if value is not None} == {record_bytes}
    assert len(values) == point.records
    assert batch_of(point).size <= max(point.batch_bytes, record_bytes + 512)


def test_a_batch_of_no_size_is_one_record() -> None:
    assert batch_of(Point(batch_bytes=0)).count == 1


def test_zstd_makes_a_batch_smaller_and_keeps_its_records() -> None:
    plain, packed = batch_of(Point()), batch_of(Point(codec="zstd"))
    assert packed.codec == Codec.ZSTD
    assert packed.size < plain.size * 0.8
    assert packed.count == plain.count


def test_every_partition_gets_one_batch_of_a_pass() -> None:
    sent = sent_by(Point(batch_bytes=0, partitions=1_000))
    assert len({(message.target, message.partition) for message, _ in sent}) == len(sent) == 1_000


@pytest.mark.parametrize("acks", ["none", "leader", "all"])
def test_publishes_ask_for_the_acks_of_their_point(acks: Any) -> None:
    sent = sent_by(Point(acks=acks, batch_bytes=0))
    assert {message.acks for message, _ in sent} == {messages.Acks[acks.upper()]}


def test_a_place_is_measured_on_both_sides(tmp_path: Path) -> None:
    lines = list(place_lines(quick_plan(tmp_path), axis("partitions"), 10))
    assert [line.mark for line in lines] == [Mark("partitions", "publish", 10.0), Mark("partitions", "consume", 10.0)]
    for line in lines:
        assert line.floor is not None
        assert line.linn is not None
        assert min(line.floor, line.linn) > 0
    assert list(tmp_path.iterdir()) == []


async def test_the_relay_hands_on_each_batch_once_and_answers_each_ack() -> None:
    goods = shipment(Point(batch_bytes=4096))
    with relay() as bare:
        for _ in range(2):  # What one consumer left is nothing to the next.
            assert await through_relay(bare, Work(goods, 2 * goods.batches, 2, 30)) > 0


# --- latency ---------------------------------------------------------------------------------------------------------


def test_a_latency_counts_from_when_a_message_was_due_not_from_when_it_was_sent() -> None:
    schedule = Schedule(rate=10.0, count=10)
    waits = Waits(schedule)
    # The server stops for a second: the ten messages that are due meanwhile wait for it, the first one longest.
    assert schedule.due(1.0) == 10
    waits.arrived(10, 1.0)
    assert waits.seconds.tolist() == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert waits.is_complete


def test_messages_are_due_by_the_clock_and_no_more_than_there_are() -> None:
    schedule = Schedule(rate=100.0, count=5)
    assert [schedule.due(elapsed) for elapsed in (0.0, 0.009, 0.0101, 0.5)] == [1, 1, 2, 5]
    assert schedule.at(3) == pytest.approx(0.03)


def test_falling_behind_is_distinguished_from_being_late_once() -> None:
    assert keeps_up([0.001] * 90 + [0.01] * 10)
    assert keeps_up([0.5] * 90 + [0.001] * 10), "it stood still once, and caught up"
    assert not keeps_up([number / 100 for number in range(100)])


def test_a_percentile_is_a_value_that_was_measured() -> None:
    seconds = [float(number) for number in range(1, 1001)]
    assert [percentile(seconds, percent) for percent in PERCENTILES] == [500, 990, 999]
    assert percentile([7.0], 99.9) == 7.0


# --- what is written -------------------------------------------------------------------------------------------------


def made_up() -> list[Line]:
    """Lines of every chart, with figures that nobody measured."""
    lines = []
    for axis in AXES:
        for place, value in enumerate(axis.values, 1):
            for series in ("publish", "consume") if axis.consumes else ("publish",):
                pairs = [Pair(1000.0 * place, 777.0 * place, 10.0, 20.0)]
                line = line_of_pairs("matrix", f"{axis.name} {value} {series}", None, pairs, axis.unit)
                line.mark = Mark(axis.name, series, value)
                lines.append(line)
    for name, bound in (("batch acks", BATCH_TARGET), ("single acks", SINGLE_TARGET)):
        queue = Line("matrix", name, "records/s", bound, [54_321.0], floor=99.0, linn=54.321, detail_unit="krecords/s")
        queue.mark = Mark("queue", "all", name)
        lines.append(queue)
    for load in ("1 %", "80 %"):
        for percent in PERCENTILES:
            mark = Mark("latency", f"confirmed p{percent:g}", load)
            lines.append(Line("matrix", "x", "ms", None, [2.5], floor=0.123, linn=2.5, detail_unit="ms", mark=mark))
    return lines


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report of these lines."""
    folder, lines = tmp_path_factory.mktemp("report"), made_up()
    options = {"quick": False} | dataclasses.asdict(Plan(folder)) | {"folder": None}
    write_report(folder, lines, result_of(lines, options, 600.0) | {"load_average_before": [7.5, 0, 0]})
    return folder


def test_a_report_has_a_plot_for_each_chart_that_has_figures_and_small_files(report: Path) -> None:
    plots = {path.stem: path for path in report.glob("*.png")}
    assert set(plots) == {chart.name for chart in CHARTS} - {"backlog"}
    for path in plots.values():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 100_000
    page = (report / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\S+)\.png\)", page) == [chart.name for chart in CHARTS if chart.name in plots]


def test_a_report_shows_the_figures_beside_the_floors_and_says_what_was_missed(report: Path) -> None:
    page = (report / "index.md").read_text(encoding="utf-8")
    assert "| none | 1,000 | **777** | 0.78 | 0.50 |" in page
    assert "**54.3** (target 1,000, missed)" in page
    assert "**54.3** (target 40, met)" in page
    assert "| 80 % | confirmed p99.9 | 0.12 ms | **2.50** ms |" in page
    assert "by others: 7.5." in page
    assert "from the moment when it was **due**" in page
    assert "--quick" not in page


def test_a_reports_figures_are_in_its_json_with_their_places(report: Path) -> None:
    found = json.loads((report / "matrix.json").read_text())
    assert len(found["lines"]) == len(made_up())
    line = next(line for line in found["lines"] if line["name"] == "partitions 10000 consume")
    assert (line["chart"], line["series"], line["at"]) == ("partitions", "consume", 10_000)
    assert (line["floor"], line["linn"]) == (5000.0, 3885.0)


def test_without_matplotlib_nothing_is_measured_and_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert benchmarks.main(["matrix", "--report", str(tmp_path / "report")]) == benchmarks.FAILED
    assert capsys.readouterr().err == (
        "benchmarks: plots need matplotlib: pip install 'linn[bench]', or leave --report out\n"
    )
    assert not (tmp_path / "report").exists()


def test_a_report_that_has_no_place_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "report"
    place.write_text("a file")
    assert benchmarks.main(["matrix", "--report", str(place)]) == benchmarks.FAILED
    assert capsys.readouterr().err == f"benchmarks: {place} can't be a folder for a report: File exists\n"


def test_a_report_of_anything_but_the_matrix_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["start", "--report", str(tmp_path)]) == benchmarks.FAILED
    assert "name it as well" in capsys.readouterr().err
