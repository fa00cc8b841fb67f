"""C++ programs with the client's defaults beside a real broker: work is shared, long jobs run once, outages pass."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from agents import CPP_BUILD, Commands

import linn.sync
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of the client is a part of it.

PROGRAM = CPP_BUILD / "tests" / "linn-test-worker"
CONFIG = """
[topics.rows]

[topics.jobs]
lease = "1s"
max_deliveries = 2
dead_letter = "dead"

[topics.dead]
"""
WAIT_S = 30.0
OUTAGE_S = 4.0
"""Longer than the longest wait between two attempts to connect."""


class Program:
    """A program that runs until `end`; the lines that it prints go to `lines`, with its name."""

    def __init__(self, name: str, lines: queue.Queue[tuple[str, str]], log: Path, *arguments: str) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        self._reader = threading.Thread(target=self._read, args=(lines,))
        self._reader.start()

    def _read(self, lines: queue.Queue[tuple[str, str]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.put((self.name, line.decode().rstrip("\n")))

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()


class Programs:
    """The programs of one test, and what they print."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self._url = url
        self._folder = folder
        self._stack = stack
        self._lines: queue.Queue[tuple[str, str]] = queue.Queue()

    def worker(self, name: str, topic: str, job_ms: int) -> Program:
        """A worker that has subscribed."""
        started = self._start(name, "work", topic, str(job_ms))
        assert self.next_line() == (name, "ready")
        return started

    def publisher(self, topic: str) -> Program:
        return self._start("publisher", "publish", topic)

    def _start(self, name: str, *arguments: str) -> Program:
        started = Program(name, self._lines, self._folder / f"{name}.log", self._url, *arguments)
        self._stack.callback(started.end)
        return started

    def next_line(self) -> tuple[str, str]:
        return self._lines.get(timeout=WAIT_S)

    def lines_of(self, count: int) -> list[tuple[str, str]]:
        return [self.next_line() for _ in range(count)]

    @property
    def is_silent(self) -> bool:
        return self._lines.empty()


@pytest.fixture
def broker(command: Commands, tmp_path: Path) -> Iterator[BrokerProcess]:
    command("cpp")
    with BrokerProcess(tmp_path, CONFIG) as running:
        yield running


@pytest.fixture
def programs(broker: BrokerProcess, tmp_path: Path) -> Iterator[Programs]:
    with ExitStack() as stack:
        yield Programs(broker.url, tmp_path, stack)


def fill(url: str, topic: str, count: int) -> list[str]:
    values = [str(number) for number in range(count)]
    with linn.sync.connect(url) as client, client.producer(topic) as producer:
        producer.publish_many([value.encode() for value in values])
    return values


def unsettled(url: str, topic: str) -> int:
    with linn.sync.connect(url) as client:
        return int(client.admin.topic(topic)["queue"]["unsettled"])


def done_by(programs: Programs, count: int) -> list[tuple[str, str]]:
    """The workers, jobs and attempts of the next `count` jobs that are done."""
    done: list[tuple[str, str]] = []
    while len(done) < count:
        name, line = programs.next_line()
        if line.startswith("done "):
            done.append((name, line.removeprefix("done ")))
    return done


def test_four_workers_share_the_rows_of_a_queue(broker: BrokerProcess, programs: Programs) -> None:
    for name in "abcd":
        programs.worker(name, "rows", job_ms=2)
    values = fill(broker.url, "rows", 2_000)
    done = done_by(programs, 2_000)
    assert sorted(job for _, job in done) == sorted(f"{value} 1" for value in values)
    shares = Counter(name for name, _ in done)
    assert len(shares) == 4
    assert min(shares.values()) > 0.7 * 500, shares


def test_jobs_that_take_three_leases_run_once(broker: BrokerProcess, programs: Programs) -> None:
    values = fill(broker.url, "jobs", 4)
    programs.worker("a", "jobs", job_ms=3_000)
    assert programs.next_line() == ("a", "begin 0 1")  # It has all four, and gives back what lies behind this one.
    programs.worker("b", "jobs", job_ms=3_000)
    done = done_by(programs, 4)
    assert sorted(job for _, job in done) == [f"{value} 1" for value in values]
    assert {name for name, _ in done} == {"a", "b"}
    while unsettled(broker.url, "jobs"):
        pass  # The last ack is on its way.
    assert unsettled(broker.url, "dead") == 0
    assert programs.is_silent


def test_a_worker_and_a_publisher_go_on_after_the_broker_was_away(broker: BrokerProcess, programs: Programs) -> None:
    worker, publisher = programs.worker("worker", "rows", job_ms=1_000), programs.publisher("rows")
    publisher.write("held")
    assert sorted(programs.lines_of(2)) == [("publisher", "held"), ("worker", "begin held 1")]
    broker.kill()
    publisher.write("meanwhile")
    assert programs.next_line() == ("worker", "done held 1")  # Its ack is void.
    time.sleep(OUTAGE_S)
    assert programs.is_silent
    broker.start()
    publisher.write("after")
    said = programs.lines_of(8)
    assert [line for name, line in said if name == "publisher"] == ["meanwhile", "after"]
    assert [line for name, line in said if name == "worker"] == [
        *["begin held 2", "done held 2"],
        *["begin meanwhile 1", "done meanwhile 1"],
        *["begin after 1", "done after 1"],
    ]
    for program in (worker, publisher):
        assert program.runs
        lost, again = program.log.read_text().splitlines()
        assert lost.startswith(f"linn: connection to {broker.url} lost, connecting again: ")
        assert again.startswith(f"linn: connected to {broker.url} again after ")
