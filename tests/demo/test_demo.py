"""The demo: a short run is right, a wrong count makes it fail, and nothing is left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

FLIGHTS = 20_000
RUN_S_MAX = 800
"""Far more than a run takes: with Spark two minutes on a busy machine."""
DEMO = [sys.executable, "-m", "linn", "demo"]


def demo(folder: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"TMPDIR": str(folder)} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_S_MAX)


def test_a_short_run_is_right_and_leaves_nothing(tmp_path: Path) -> None:
    done = demo(tmp_path, *DEMO, "--flights", str(FLIGHTS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "counts are right" in done.stdout.splitlines()[-1]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    counts = {row[0]: row[1:] for row in rows}
    assert counts["published"] == ["20,000", "20,000", "ok"]
    assert counts["stream: partition 3 read twice the same"] == ["1", "1", "ok"]
    assert int(counts["queue: held by the killed worker, came again"][1].replace(",", "")) > 0
    assert counts["payments: booked"] == ["20,000", "20,000", "ok"]
    assert counts["payments: booked more than once"] == ["0", "0", "ok"]
    assert counts["Spark: driver killed, started again and done"] == ["1", "1", "ok"]
    assert counts["Parquet: departures"] == ["19,822", "19,822", "ok"]
    assert counts["late by hour: late departures"] == ["3,364", "3,364", "ok"]
    assert counts["three brokers: killed under load"] == ["3", "3", "ok"]
    assert counts["three brokers: records in the log"] == ["20,000", "20,000", "ok"]
    assert counts["three brokers: unsettled at the end"] == ["0", "0", "ok"]
    for word in (
        "SIGKILL to the broker",
        "worker 1 is killed with",
        "SIGKILL to clerk 1",
        "at least once: ",
        ", the leader, after ",
    ):
        assert word in done.stdout
    assert "SIGKILL to the Spark driver (process " in done.stdout
    assert list(tmp_path.iterdir()) == []


def without_java(folder: Path) -> dict[str, str]:
    """Variables of an environment in which no Java is found."""
    (folder / "programs").mkdir()
    return {"PATH": str(folder / "programs"), "JAVA_HOME": ""}


def test_without_java_it_says_so_and_the_other_acts_stand(tmp_path: Path) -> None:
    variables = without_java(tmp_path)
    done = demo(tmp_path, *DEMO, "--flights", "5000", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "the act with Spark is left out" in line]
    assert "Spark pipelines need Java 17 or newer, and there is none: install it, or set JAVA_HOME" in line
    assert "Parquet" not in done.stdout
    assert "payments: booked " in done.stdout
    assert "counts are right" in done.stdout.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


PLANTED = """
import sys
from linn.cli.demo.tally import Tally
from linn.cli.main import main

count = Tally.add_event
Tally.add_event = lambda tally, flight: None if flight.number == 4_000 else count(tally, flight)
sys.argv = ["linn", "demo", "--flights", "5000"]
main()
"""
"""The demo with a consumer that overlooks one flight."""


def test_one_flight_that_is_lost_makes_it_fail(tmp_path: Path) -> None:
    done = demo(tmp_path, sys.executable, "-c", PLANTED, **without_java(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout
    assert "counts are wrong: stream: departed" in done.stdout.splitlines()[-1]


def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(DEMO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for line in running.stdout:
            if "publishing" in line:
                break
        children = psutil.Process(running.pid).children(recursive=True)
        assert len(children) >= 4, "a broker and three workers"
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        assert running.stderr.read() == ""
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_three_brokers_run_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)} | without_java(tmp_path)
    command = [*DEMO, "--flights", "5000"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for line in running.stdout:
            if "SIGKILL to broker " in line:
                break
        children = psutil.Process(running.pid).children(recursive=True)
        assert len(children) >= 4, "a supervisor and its brokers"
        words = [child.info["cmdline"] or [] for child in psutil.process_iter(["cmdline"]) if child in children]
        (supervisor,) = [line for line in words if "--workers" in line]  # That of a zombie is None.
        (place,) = {Path(word).parent for word in supervisor if word.endswith("linn.toml")}
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        assert running.stderr.read() == ""
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []
    assert not place.exists()


def test_a_worker_that_fails_is_named_and_ends_the_demo(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(DEMO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for line in running.stdout:
            if "publishing" in line:
                break
        workers = [
            child for child in psutil.Process(running.pid).children() if "linn.cli.demo.worker" in child.cmdline()
        ]
        # The one that was started last is not the one that the demo itself kills.
        max(workers, key=lambda worker: worker.pid).kill()
        assert running.wait(30) == 1
        assert "[demo.worker_failed]" in running.stderr.read()
    assert list(tmp_path.iterdir()) == []
