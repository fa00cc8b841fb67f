"""Programs with the TypeScript client and its defaults: work is shared, long jobs run once, outages need no action."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from agents import TYPESCRIPT, Commands
from programs import ENDED, Line, Program, Programs

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
OUTAGE_S = 4.0


@pytest.fixture
def programs(command: Commands, tmp_path: Path) -> Iterator[Programs]:
    command("typescript")
    with Programs(tmp_path) as running:
        yield running


def start(programs: Programs, name: str, source: str, *arguments: str) -> Program:
    """Start a program of this source, beside the client's modules."""
    script = TYPESCRIPT / "dist" / f"{name}.mjs"
    script.write_text(source, encoding="utf-8")
    return programs.start(name, "node", script, *arguments)


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
        start(programs, worker, WORKER, broker.url, topic, "20")
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
    start(programs, "long", WORKER, broker.url, jobs, "4000")
    programs.until("ready")
    publish(broker.url, jobs, b"job")
    programs.until("begin job 1")
    start(programs, "idle", WORKER, broker.url, jobs, "0")
    assert programs.until("done job 1") == [("idle", "ready"), ("long", "done job 1")]
    publish(broker.url, jobs, b"next")
    assert all("job" not in line for _, line in programs.until("done next 1"))


def test_without_renewal_a_job_of_several_leases_goes_to_another_worker(
    programs: Programs, broker: BrokerProcess, topic: str
) -> None:
    jobs = f"{topic}-jobs"
    publish(broker.url, jobs, lease="1s")
    start(programs, "long", WORKER, broker.url, jobs, "60000", '{"renewalMaxMs": 0}')
    programs.until("ready")
    publish(broker.url, jobs, b"job")
    programs.until("begin job 1")
    start(programs, "idle", WORKER, broker.url, jobs, "0")
    programs.until("done job 2", "idle")


def test_what_a_consumer_has_not_read_goes_back_without_an_attempt(
    programs: Programs, broker: BrokerProcess, topic: str
) -> None:
    publish(broker.url, topic, *[b"%d" % row for row in range(20)])
    start(programs, "leaver", LEAVER, broker.url, topic)
    assert programs.until(ENDED) == [("leaver", ENDED)]
    start(programs, "worker", WORKER, broker.url, topic, "0")
    done: set[str] = set()
    while len(done) < 20:
        done |= {line for _, line in programs.until("done ") if line.startswith("done ")}
    assert done == {"done 0 2", *(f"done {row} 1" for row in range(1, 20))}


def test_consumer_and_producer_go_on_after_an_outage(programs: Programs, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "[topics.jobs]\n") as broker:
        worker = start(programs, "worker", WORKER, broker.url, "jobs", "1")
        publisher = start(programs, "publisher", PUBLISHER, broker.url, "jobs")
        seen = programs.until("done 20 ")
        broker.kill()
        while (found := programs.line(OUTAGE_S)) is not None:  # Until nobody has anything to do.
            seen.append(found)
        confirmed = numbers(seen, "published")
        broker.start()
        seen += programs.until(f"done {max(confirmed) + 50} ")
        for program in (worker, publisher):
            assert program.runs
            lost, again = program.log.read_text().splitlines()
            assert lost.startswith("the connection to ")
            assert again.startswith("connected to ")
    assert numbers(seen, "done") >= confirmed


def numbers(seen: list[Line], verb: str) -> set[int]:
    return {int(line.split()[1]) for _, line in seen if line.startswith(f"{verb} ")}
