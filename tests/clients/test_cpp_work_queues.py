"""C++ programs with the client's defaults beside a real broker: work is shared, long jobs run once, outages pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import CPP_BUILD, Commands
from programs import Line, Program, Programs

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
OUTAGE_S = 4.0
"""Longer than the longest wait between two attempts to connect."""


@pytest.fixture
def broker(command: Commands, tmp_path: Path) -> Iterator[BrokerProcess]:
    command("cpp")
    with BrokerProcess(tmp_path, CONFIG) as running:
        yield running


def worker(programs: Programs, name: str, broker: BrokerProcess, topic: str, job_ms: int) -> Program:
    """Start a worker, which has subscribed on return."""
    program = programs.start(name, PROGRAM, broker.url, "work", topic, str(job_ms))
    assert programs.next_line() == (name, "ready")
    return program


def fill(url: str, topic: str, count: int) -> list[str]:
    values = [str(number) for number in range(count)]
    with linn.sync.connect(url) as client, client.producer(topic) as producer:
        producer.publish_many([value.encode() for value in values])
    return values


def unsettled(url: str, topic: str) -> int:
    with linn.sync.connect(url) as client:
        return int(client.admin.topic(topic)["queue"]["unsettled"])


def done_by(programs: Programs, count: int) -> list[Line]:
    """The workers, jobs and attempts of the next `count` jobs that are done."""
    done: list[Line] = []
    while len(done) < count:
        name, line = programs.next_line()
        if line.startswith("done "):
            done.append((name, line.removeprefix("done ")))
    return done


def test_four_workers_share_the_rows_of_a_queue(broker: BrokerProcess, programs: Programs) -> None:
    for name in "abcd":
        worker(programs, name, broker, "rows", job_ms=2)
    values = fill(broker.url, "rows", 2_000)
    done = done_by(programs, 2_000)
    assert sorted(job for _, job in done) == sorted(f"{value} 1" for value in values)
    shares = Counter(name for name, _ in done)
    assert len(shares) == 4
    assert min(shares.values()) > 0.7 * 500, shares


def test_jobs_that_take_three_leases_run_once(broker: BrokerProcess, programs: Programs) -> None:
    values = fill(broker.url, "jobs", 4)
    worker(programs, "a", broker, "jobs", job_ms=3_000)
    assert programs.next_line() == ("a", "begin 0 1")  # It has all four, and gives back what lies behind this one.
    worker(programs, "b", broker, "jobs", job_ms=3_000)
    done = done_by(programs, 4)
    assert sorted(job for _, job in done) == [f"{value} 1" for value in values]
    assert {name for name, _ in done} == {"a", "b"}
    while unsettled(broker.url, "jobs"):
        pass  # The last ack is on its way.
    assert unsettled(broker.url, "dead") == 0
    assert programs.line(0) is None


def test_a_worker_and_a_publisher_go_on_after_the_broker_was_away(broker: BrokerProcess, programs: Programs) -> None:
    consumer = worker(programs, "worker", broker, "rows", job_ms=1_000)
    publisher = programs.start("publisher", PROGRAM, broker.url, "publish", "rows")
    publisher.write("held")
    assert sorted(programs.lines_of(2)) == [("publisher", "held"), ("worker", "begin held 1")]
    broker.kill()
    publisher.write("meanwhile")
    assert programs.next_line() == ("worker", "done held 1")  # Its ack is void.
    assert programs.line(OUTAGE_S) is None
    broker.start()
    publisher.write("after")
    said = programs.lines_of(8)
    assert [line for name, line in said if name == "publisher"] == ["meanwhile", "after"]
    assert [line for name, line in said if name == "worker"] == [
        *["begin held 2", "done held 2"],
        *["begin meanwhile 1", "done meanwhile 1"],
        *["begin after 1", "done after 1"],
    ]
    for program in (consumer, publisher):
        assert program.runs
        lost, again = program.log.read_text().splitlines()
        assert lost.startswith(f"linn: connection to {broker.url} lost, connecting again: ")
        assert again.startswith(f"linn: connected to {broker.url} again after ")
