"""Programs with the TypeScript client and its defaults: work is shared, long jobs run once, outages need no action."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import trio
from agents import TYPESCRIPT, Commands

import linn
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of the client is a part of it.

WORKER = """
import { connect } from "linn-client";

const [url, topic, jobMs, options] = process.argv.slice(2);
const client = await connect(url);
const consumer = await client.consumer(topic, JSON.parse(options ?? "{}"));
console.log("ready");
for await (const message of consumer) {
  const job = `${Buffer.from(message.value)} ${message.attempt}`;
  console.log(`begin ${job}`);
  await new Promise((resolve) => setTimeout(resolve, Number(jobMs)));
  message.ack();
  console.log(`done ${job}`);
}
"""
PUBLISHER = """
import { connect } from "linn-client";

const [url, topic] = process.argv.slice(2);
const producer = (await connect(url)).producer({ topic });
for (let number = 0; ; number++) {
  await producer.publish({ value: String(number) });
  console.log(`published ${number}`);
}
"""
LEAVER = """
import { connect } from "linn-client";

const [url, topic] = process.argv.slice(2);
const client = await connect(url);
const consumer = await client.consumer(topic, { prefetch: 50 });
await consumer.next();
await consumer.close();
await client.close();
"""
WAIT_S = 60.0
"""For what must come: far beyond what it takes."""
OUTAGE_S = 4.0


class Programs:
    """Programs that run beside one another, and the lines that they print. Use it with `with`; leaving ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._lines: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def start(self, name: str, source: str, *arguments: str) -> None:
        script = self._folder / f"{name}.mjs"
        script.write_text(source, encoding="utf-8")
        process = subprocess.Popen(
            ["node", str(script), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        reader = threading.Thread(target=self._read, args=(name, process))
        self._processes.append(process)
        self._readers.append(reader)
        reader.start()

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put((name, line.rstrip()))
        self._lines.put((name, "ended"))

    def line(self, timeout_s: float = WAIT_S) -> tuple[str, str] | None:
        """The next line and the program that printed it; None where there is none in time."""
        try:
            return self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def until(self, line: str, name: str | None = None) -> list[tuple[str, str]]:
        """All lines up to the one that begins with `line`, of the program with this name or of any."""
        seen = []
        while (found := self.line()) is not None:
            seen.append(found)
            if found[1].startswith(line) and name in (None, found[0]):
                return seen
        raise AssertionError(f"{name} did not print {line!r}, but {seen[-20:]}")

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for reader in self._readers:
            reader.join()
        for process in self._processes:
            process.communicate()


@pytest.fixture
def programs(command: Commands) -> Iterator[Programs]:
    command("typescript")
    with Programs(TYPESCRIPT / "dist") as running:
        yield running


def publish(url: str, topic: str, *values: bytes, **settings: Any) -> None:
    """Publish to a topic, which is made where settings are given."""

    async def run() -> None:
        async with linn.connect(url) as client, client.producer(topic) as producer:
            if settings:
                await client.admin.create_topic(topic, **settings)
            if values:
                await producer.publish_many(list(values))

    trio.run(run)


def test_four_workers_share_a_backlog(programs: Programs, broker: BrokerProcess, topic: str) -> None:
    workers = [f"worker-{number}" for number in range(4)]
    for worker in workers:
        programs.start(worker, WORKER, broker.url, topic, "20")
        programs.until("ready")
    rows = 400
    publish(broker.url, topic, *[b"%d" % row for row in range(rows)])
    done = dict.fromkeys(workers, 0)
    seen = set()
    while len(seen) < rows:
        found = programs.line()
        assert found is not None, done
        worker, line = found
        verb, _, job = line.partition(" ")
        assert verb in ("begin", "done"), found
        if verb == "done":
            done[worker] += 1
            seen.add(job)
    assert sum(done.values()) == rows
    assert min(done.values()) > rows / 8, done


def test_a_job_of_several_leases_runs_once(programs: Programs, broker: BrokerProcess, topic: str) -> None:
    jobs = f"{topic}-jobs"
    publish(broker.url, jobs, lease="1s")
    programs.start("long", WORKER, broker.url, jobs, "4000")
    programs.until("ready")
    publish(broker.url, jobs, b"job")
    programs.until("begin job 1")
    programs.start("idle", WORKER, broker.url, jobs, "0")
    assert programs.until("done job 1") == [("idle", "ready"), ("long", "done job 1")]
    publish(broker.url, jobs, b"next")
    assert all("job" not in line for _, line in programs.until("done next 1"))


def test_without_renewal_a_job_of_several_leases_goes_to_another_worker(
    programs: Programs, broker: BrokerProcess, topic: str
) -> None:
    jobs = f"{topic}-jobs"
    publish(broker.url, jobs, lease="1s")
    programs.start("long", WORKER, broker.url, jobs, "60000", '{"renewalMaxMs": 0}')
    programs.until("ready")
    publish(broker.url, jobs, b"job")
    programs.until("begin job 1")
    programs.start("idle", WORKER, broker.url, jobs, "0")
    programs.until("done job 2", "idle")


def test_what_a_consumer_has_not_read_goes_back_without_an_attempt(
    programs: Programs, broker: BrokerProcess, topic: str
) -> None:
    publish(broker.url, topic, *[b"%d" % row for row in range(20)])
    programs.start("leaver", LEAVER, broker.url, topic)
    assert programs.until("ended") == [("leaver", "ended")]
    programs.start("worker", WORKER, broker.url, topic, "0")
    done: set[str] = set()
    while len(done) < 20:
        done |= {line for _, line in programs.until("done ") if line.startswith("done ")}
    assert done == {"done 0 2", *(f"done {row} 1" for row in range(1, 20))}


def test_consumer_and_producer_go_on_after_an_outage(programs: Programs, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "[topics.jobs]\n") as broker:
        programs.start("worker", WORKER, broker.url, "jobs", "1")
        programs.start("publisher", PUBLISHER, broker.url, "jobs")
        seen = programs.until("done 20 ")
        broker.kill()
        while (found := programs.line(OUTAGE_S)) is not None:  # Until nobody has anything to do.
            seen.append(found)
        confirmed = numbers(seen, "published")
        broker.start()
        seen += programs.until(f"done {max(confirmed) + 50} ")
    assert ("worker", "ended") not in seen
    assert ("publisher", "ended") not in seen
    assert {name for name, line in seen if line.startswith("the connection to ")} == {"worker", "publisher"}
    assert {name for name, line in seen if line.startswith("connected to ")} == {"worker", "publisher"}
    assert numbers(seen, "done") >= confirmed


def numbers(seen: list[tuple[str, str]], verb: str) -> set[int]:
    return {int(line.split()[1]) for _, line in seen if line.startswith(f"{verb} ")}
