"""A broker and its Spark drivers as real processes: none outlives what it belongs to, and `linn spark` at work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from reference_pages.json_shapes import SHAPES

from linn.testing.process import BrokerProcess
from tests.spark.stand_in import Alive, stand_in

SINK = '[topics.orders]\nkind = "stream"\nspark_sink = { path = "lake/orders" }\n'
LOOKS_MAX = 200
Linn = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[Alive]:
    pipe = Alive(tmp_path / "alive")
    yield pipe
    pipe.close()


@pytest.fixture
def start(tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., BrokerProcess]]:
    """A function that starts a broker with one pipeline, which runs when it returns."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "programs"))
    started: list[BrokerProcess] = []

    def begin(*, hangs: bool = False, **spark: object) -> BrokerProcess:
        conf = {"stand-in.alive": str(alive.path)} | ({"stand-in.hangs": "yes"} if hangs else {})
        broker = BrokerProcess(tmp_path, stand_in(tmp_path / "programs", conf=conf, **spark) + SINK)
        started.append(broker.start())
        assert alive.word() == "running"
        return broker

    yield begin
    for each in started:
        each.kill()


def linn(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "linn", *arguments]
    environment = {**os.environ, "LINN_URL": broker.url}
    environment.pop("COLUMNS", None)  # The width of a test runner's terminal would fold tables.
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def wait_for(broker: BrokerProcess, state: str) -> dict[str, object]:
    """Look until the pipeline is in a state; returns its status."""
    for _ in range(LOOKS_MAX):
        (found,) = json.loads(linn(broker, "spark", "status", "--json").stdout)["pipelines"]
        if found["state"] == state:
            return dict(found)
    raise AssertionError(f"it is {found['state']}, not {state}")


def children_of(broker: BrokerProcess) -> str:
    """The children of a broker's process, the dead that nobody has buried included."""
    return "".join(path.read_text() for path in Path(f"/proc/{broker.pid}/task").glob("*/children"))


def test_a_broker_that_is_killed_takes_its_drivers_and_their_children_with_it(
    start: Callable[..., BrokerProcess], alive: Alive
) -> None:
    broker = start()
    assert children_of(broker) != ""
    broker.kill()
    assert [alive.word(), alive.word()] == ["drained", ""]


def test_a_broker_that_stops_lets_them_drain(start: Callable[..., BrokerProcess], alive: Alive) -> None:
    assert start().stop() == 0
    assert [alive.word(), alive.word()] == ["drained", ""]


def test_a_broker_that_stops_kills_what_hangs(start: Callable[..., BrokerProcess], alive: Alive) -> None:
    assert start(hangs=True, drain_timeout="300ms").stop() == 0
    assert alive.word() == ""


def test_a_stop_that_takes_too_long_kills_the_whole_process_group_and_leaves_no_zombie(
    start: Callable[..., BrokerProcess], alive: Alive
) -> None:
    broker = start(hangs=True, drain_timeout="300ms")
    assert linn(broker, "spark", "stop", "orders").stdout == "orders is draining\n"
    assert alive.word() == ""
    wait_for(broker, "stopped")
    assert children_of(broker) == ""
    assert linn(broker, "publish", "orders", "the topic works on").returncode == 0


def test_the_command_line_shows_stops_starts_and_prints_logs(start: Callable[..., BrokerProcess], alive: Alive) -> None:
    broker = start()
    found = wait_for(broker, "running")
    assert found["progress"] | {"time_ms": 0} == {  # type: ignore[operator]
        "batches": 1,
        "rows": 7,
        "rows_per_s": 70.5,
        "lag": 0,
        "duration_ms": 100,
        "batch": 0,
        "time_ms": 0,
        "offsets": {"orders": {"0": 7}},
    }
    assert set(found) == set(SHAPES["linn spark status"]["pipelines"][0])
    shown = linn(broker, "spark").stdout
    assert all(word in shown for word in ("orders", "running", "parquet lake/orders"))
    top = json.loads(linn(broker, "top", "--once", "--interval", "0.1", "--json").stdout)
    assert [(each["pipeline"], each["state"], each["rows"]) for each in top["pipelines"]] == [("orders", "running", 7)]
    stopped = json.loads(linn(broker, "spark", "stop", "orders", "--json").stdout)
    assert stopped == {"pipelines": [{"name": "orders", "state": "draining"}]}
    assert [alive.word(), alive.word()] == ["drained", ""]
    wait_for(broker, "stopped")
    assert "orders: was stopped by an operator\n" in linn(broker, "spark", "status", "orders").stdout
    assert linn(broker, "spark", "start", "orders").stdout == "orders is starting\n"
    while alive.word() != "running":
        pass
    assert linn(broker, "spark", "restart", "orders").returncode == 0
    lines = linn(broker, "spark", "logs", "orders", "--lines", "1").stdout
    assert lines.endswith(" default Spark stands in\n")
    line = json.loads(linn(broker, "spark", "logs", "--lines", "1", "--json").stdout)
    assert set(line) == set(SHAPES["linn spark logs"])
    assert linn(broker, "spark", "files", "orders").stdout == "lake/orders/one.parquet\n"
    for verb in ("status", "stop", "logs", "files"):
        wrong = linn(broker, "spark", verb, "order")
        # The list of pipelines comes with the status, so that the command can suggest one; the broker names no others.
        meant = '; did you mean "orders"?' if verb == "status" else ""
        assert wrong.stderr == f'linn: there is no Spark pipeline "order"{meant} [spark.pipeline_unknown]\n'
        assert wrong.returncode == 1
