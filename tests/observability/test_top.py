"""`linn top`: what two readings say, how it looks, and the command on pipes, terminals and across restarts."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from linn.cli.render import top_view
from linn.cli.render.top_screen import _TOPIC_COLUMNS, screen
from linn.cli.render.top_view import NAMES, Reading, View, view_of
from linn.cli.top_watch import _keys
from linn.core.metrics.registry import METRICS
from linn.core.plugins.manager import built_in
from linn.testing.process import BrokerProcess

Samples = Mapping[str, Mapping[tuple[str, ...], Any]]
INFO = {"linn_broker_info": {("shop", "9.9"): 1}, "linn_broker_uptime_seconds": {(): 100_000.0}}


def reading(taken_s: float, samples: Samples) -> Reading:
    report = [
        {"name": name, "samples": [[list(labels), value] for labels, value in found.items()]}
        for name, found in (INFO | dict(samples)).items()
    ]
    return Reading(taken_s, report)


def of_topics(published: Mapping[str, int], **more: Mapping[tuple[str, ...], Any]) -> Samples:
    return {
        "linn_topic_records": {(topic,): 7 for topic in published},
        "linn_topic_published_records_total": {(topic,): count for topic, count in published.items()},
        **more,
    }


def test_a_rate_is_what_was_added_by_the_second() -> None:
    before = reading(10.0, of_topics({"a": 100, "b": 5}))
    view = view_of(reading(12.0, of_topics({"a": 150, "b": 5})), before)
    assert [(topic.topic, topic.in_records_per_s) for topic in view.topics] == [("a", 25.0), ("b", 0.0)]


def test_the_busiest_comes_first() -> None:
    before = reading(0.0, of_topics({"a": 0, "b": 0, "c": 0}))
    view = view_of(reading(1.0, of_topics({"a": 0, "b": 2, "c": 9})), before)
    assert [topic.topic for topic in view.topics] == ["c", "b", "a"]


def test_there_is_no_rate_without_two_readings_of_one_broker() -> None:
    now = of_topics({"a": 50, "new": 5})
    assert [topic.in_records_per_s for topic in view_of(reading(1.0, now), None).topics] == [None, None]
    view = view_of(reading(2.0, now), reading(1.0, of_topics({"a": 100})))
    assert [topic.in_records_per_s for topic in view.topics] == [None, None], "restarted, and new"


def test_only_a_queue_has_depths() -> None:
    depths: Samples = {
        "linn_queue_unsettled_records": {("q", ""): 3},
        "linn_queue_ready_records": {("q", ""): 2},
        "linn_queue_leased_records": {("q", ""): 1},
        "linn_queue_decided_records": {("q", ""): 4},
    }
    queue, stream = view_of(reading(1.0, of_topics({"q": 1, "s": 1}, **depths)), None).topics
    assert (queue.ready, queue.leased, queue.decided, queue.unsettled, queue.dead_letters) == (2, 1, 4, 3, 0)
    of_stream = stream.ready, stream.leased, stream.decided, stream.unsettled, stream.dead_letters
    assert of_stream == (None,) * 5


def test_pipelines_in_trouble_come_first_with_rates_and_lags() -> None:
    def of_pipelines(rows: int) -> Samples:
        states = {(name, state): 0 for name in "abc" for state in ("running", "failed")}
        return {
            "linn_spark_pipeline_state": states | {("a", "running"): 1, ("b", "failed"): 1, ("c", "running"): 1},
            "linn_spark_pipeline_rows_total": {(name,): rows for name in "abc"},
            "linn_spark_pipeline_lag_records": {("a",): 5, ("c",): 50},
            "linn_spark_pipeline_batch_seconds": {("a",): 0.25},
            "linn_spark_pipeline_restarts_total": {(name,): 2 for name in "abc"},
        }

    view = view_of(reading(2.0, of_pipelines(300)), reading(0.0, of_pipelines(100)))
    assert [(each.pipeline, each.state, each.lag) for each in view.pipelines] == [
        ("b", "failed", None),
        ("c", "running", 50),
        ("a", "running", 5),
    ]
    assert (view.pipelines[2].rows_per_s, view.pipelines[2].batch_s, view.pipelines[2].restarts) == (100.0, 0.25, 2)
    lines = [" ".join(line.split()) for line in shown(view).splitlines()]
    assert any("Spark pipelines" in line for line in lines)
    assert any(all(word in line for word in ("a", "running", "100", "300", "0.25")) for line in lines)
    assert view_of(reading(1.0, {}), None).pipelines == []


def test_the_loop_lag_is_the_mean_since_the_reading_before() -> None:
    before = reading(1.0, {"linn_loop_lag_seconds": {(): {"count": 10, "sum": 5.0}}})
    now = reading(2.0, {"linn_loop_lag_seconds": {(): {"count": 12, "sum": 5.5}}})
    assert view_of(now, before).broker.loop_lag_ms == 250
    assert view_of(now, now).broker.loop_lag_ms is None


def wide(topics: int, groups: int, connections: int) -> View:
    samples = of_topics({f"topic-{number:03}": number for number in range(topics)}) | {
        "linn_group_lag_records": {("t", f"group-{number:03}"): number for number in range(groups)},
        "linn_connection_received_bytes_total": {
            (str(number), f"peer-{number:03}", "native", "capnp"): number for number in range(connections)
        },
    }
    return view_of(reading(1.0, samples), None)


def shown(view: View, lines: int | None = None, width: int = 160) -> str:
    console = Console(record=True, width=width, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(screen(view, width, lines))
    console.file.close()
    return console.export_text()


def test_everything_is_on_the_screen() -> None:
    view = wide(3, 2, 1)
    text = shown(view)
    assert text.startswith("shop 9.9  up 1 d 03:46:40, memory 0 B")
    for word in ("topic-000", "topic-002", "group-001", "peer-000", "Topics", "Groups", "Connections"):
        assert word in text


@pytest.mark.parametrize(("count", "said"), [(0, ""), (1, ", 1 open transaction"), (2000, ", 2,000 open transactions")])
def test_open_transactions_are_in_the_first_line(count: int, said: str) -> None:
    view = view_of(reading(1.0, {"linn_transactions_open": {(): count}}), None)
    assert view.data()["broker"]["open_transactions"] == count
    assert shown(view).splitlines()[0].rstrip().endswith(f"connections 0{said}")


def test_copied_dead_letters_do_not_count_as_dead() -> None:
    """`dead` are records that are not copied yet: of `linn_queue_dead_records`, and of `subscription.show`."""
    heads = [str(column.head) for column, _ in _TOPIC_COLUMNS]
    assert [head for head in heads if "dead" in head] == ["dead letters"]


@pytest.mark.parametrize("counts", [(1, 0, 1), (200, 0, 1), (5, 100, 100), (200, 200, 200), (2, 2, 300)])
@pytest.mark.parametrize("lines", [30, 50])
def test_it_fits_the_terminal_and_names_omitted_lines(counts: tuple[int, int, int], lines: int) -> None:
    text = shown(wide(*counts), lines)
    assert text.count("\n") <= lines
    for word, count in zip(("topic-", "group-", "peer-"), counts, strict=True):
        rows = text.count(word)
        assert count == 0 or rows >= 1
        assert rows == count or f"({rows:,} of {count:,})" in text


@pytest.mark.parametrize("lines", range(3, 40))
@pytest.mark.parametrize("counts", [(10, 3, 5), (1, 0, 300), (9, 0, 0)])
def test_no_row_is_left_out_above_empty_lines(counts: tuple[int, int, int], lines: int) -> None:
    """Only a table that has no room for one row is left out; the others fill the screen."""
    text = shown(wide(*counts), lines, width=80)
    rows = [text.count(word) for word in ("topic-", "group-", "peer-")]
    free = lines - 1 - text.count("\n")
    assert free >= 0 or sum(rows) == 0
    absent = [place for place, count in enumerate(counts) if count and not rows[place]]
    assert free < 1 or rows == [*counts] or absent
    assert not absent or free < 4, "title, two lines of heads, and a row"


def test_a_terminal_of_24_lines_shows_every_table() -> None:
    text = shown(wide(10, 3, 5), 24, width=80)
    assert min(text.count(word) for word in ("topic-", "group-", "peer-")) >= 2
    assert text.count("\n") == 23


@pytest.mark.parametrize("width", [80, 100, 120, 140, 160])
def test_names_and_numbers_are_whole_on_any_terminal(width: int) -> None:
    samples: Samples = {"linn_topic_records": {("topic-name",): 123_456_789}}
    for name in ("unsettled", "ready", "leased"):
        samples[f"linn_queue_{name}_records"] = {("topic-name", ""): 123_456_789}
    text = shown(view_of(reading(1.0, samples), None), width=width)
    assert "topic-name" in text
    assert text.count("123,456,789") == (2 if width < 90 else 4)
    assert max(map(len, text.splitlines())) <= width


def test_names_are_shown_as_they_are() -> None:
    samples: Samples = {"linn_group_lag_records": {("t", "[bold red]x[/]\x1b[2J\n"): 1}}
    text = shown(view_of(reading(1.0, samples), None))
    assert "[bold red]x[/]\\x1b[2J\\n" in text


def test_problems_come_first() -> None:
    view = View(wide(1, 0, 0).broker, trouble="the connection is lost: trying again")
    assert shown(view).splitlines()[1].startswith("the connection is lost")


def test_it_requests_the_metrics_that_it_shows_and_the_broker_has_them() -> None:
    source = Path(top_view.__file__).read_text(encoding="utf-8")
    shown_names = set(re.findall(r'"(linn_\w+[a-z])"', source.partition("\nLabels = ")[2]))
    of_services = [metric for kind in built_in().services.values() for metric in kind.metrics]
    assert shown_names <= {metric.name for metric in [*METRICS, *of_services]}
    assert len(shown_names) > 20
    assert [name for name in sorted(shown_names) if not name.startswith(NAMES)] == []
    assert [name for name in NAMES if not any(each.startswith(name) for each in shown_names)] == []


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, '[topics.jobs]\n[topics.events]\nkind = "stream"\n') as process:
        yield process


def top(*arguments: str, url: str) -> list[str]:
    return [sys.executable, "-m", "linn", "top", *arguments, "--url", url]


@pytest.mark.system
def test_once_in_tables_and_in_json(broker: BrokerProcess) -> None:
    for arguments in ((), ("--json",)):
        command = top("--once", "--interval", "0.2", *arguments, url=broker.url)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")
        if arguments:
            data = json.loads(done.stdout)
            assert [topic["topic"] for topic in data["topics"]] == ["events", "jobs"]
            assert data["topics"][1]["in_records_per_s"] == 0
            assert data["connections"][0]["protocol"] == "capnp"
            assert data["trouble"] is None
        else:
            assert "events" in done.stdout
            assert "\x1b" not in done.stdout


@pytest.mark.system
@pytest.mark.parametrize("arguments", [("--once",), ("--json",), ()])
def test_a_broker_that_is_not_there_is_an_error(arguments: tuple[str, ...]) -> None:
    command = top(*arguments, url="linn://127.0.0.1:1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.count("\n") == 1
    assert "[connection.failed]" in done.stderr


@pytest.mark.system
@pytest.mark.parametrize("interval", ["0", "-1", "soon", "nan"])
def test_a_wrong_interval_is_refused(interval: str) -> None:
    command = top("--interval", interval, url="linn://127.0.0.1:1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.system
def test_it_goes_on_when_the_broker_was_restarted(broker: BrokerProcess) -> None:
    command = top("--json", "--interval", "0.2", url=broker.url)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            views = (json.loads(line) for line in process.stdout)
            assert next(views)["trouble"] is None
            broker.kill()
            away = next(view for view in views if view["trouble"])
            assert [topic["topic"] for topic in away["topics"]] == ["events", "jobs"], "the last that was seen"
            broker.start()
            back = next(view for view in views if not view["trouble"])
            assert back["broker"]["uptime_s"] < 30
        finally:
            process.terminate()


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, command: list[str]) -> None:
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        environment = os.environ | {"TERM": "xterm"}
        self.process = subprocess.Popen(
            command, stdin=self.theirs, stdout=self.theirs, stderr=self.theirs, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.seen = b""

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def read_until(self, word: bytes) -> None:
        deadline = time.monotonic() + 20
        while word not in self.seen:
            assert select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0], self.seen[-500:]
            self.seen += os.read(self._ours, 65536)

    def ended(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        deadline = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self._ours], [], [], 0.1)[0]:
                self.seen += os.read(self._ours, 65536)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.theirs)
        os.close(self._ours)


def test_reading_keys_never_waits_for_one() -> None:
    # Ctrl-C throws away keys that were pressed just before it.
    ours, theirs = pty.openpty()
    with _keys(theirs) as keys:
        assert keys is not None
        assert os.read(keys, 1) == b""
        os.write(ours, b"q")
        assert os.read(keys, 1) == b"q"
    os.close(ours)
    os.close(theirs)


@pytest.mark.system
@pytest.mark.parametrize(("keys", "code"), [(b"q", 0), (b"Q", 0), (b"\x03", 130)])
def test_q_and_ctrl_c_end_it_and_leave_the_terminal_as_it_was(broker: BrokerProcess, keys: bytes, code: int) -> None:
    terminal = Terminal(top("--interval", "0.2", url=broker.url))
    try:
        terminal.read_until(b"jobs")
        assert termios.tcgetattr(terminal.theirs) != terminal.before
        terminal.press(b"x")
        terminal.press(keys)
        assert terminal.ended() == code
        assert termios.tcgetattr(terminal.theirs) == terminal.before
        terminal.read_until(b"\x1b[?1049l")
        assert b"Traceback" not in terminal.seen
    finally:
        terminal.close()
