"""The broker is killed under the load of every client with its defaults: messages are stored once and in order."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from agents import CPP_BUILD, TYPESCRIPT, Commands
from programs import ENDED, Program, Programs

import linn.sync
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of the clients is a part of it.

PYTHON_PROGRAM = Path(__file__).parent / "python_counter.py"
CPP_PROGRAM = CPP_BUILD / "tests" / "linn-test-worker"
TYPESCRIPT_PROGRAM = """
import { createInterface } from "node:readline";
import { connect } from "linn-client";

const [url, name, kind, target, partition] = process.argv.slice(2);
const client = await connect(url);
const producer = client.producer({ [kind]: target });
const chunkRecords = 20;

function recordOf(number) {
  const routingKey = number % 2 === 0 ? "number.even" : "number.odd";
  return { value: `${name} ${number}`, key: String(number % 7), routingKey };
}

// A batch for a partition that was chosen, and else single messages.
function publish(numbers) {
  const records = numbers.map(recordOf);
  if (Number(partition) >= 0) return producer.publishBatch(records, { partition: Number(partition) });
  return Promise.all(records.map((record) => producer.publish(record)));
}

let next = 0;
for await (const line of createInterface({ input: process.stdin })) {
  if (line === "flush") {
    await producer.flush();
    console.log("flushed");
    continue;
  }
  while (next < Number(line)) {
    const records = Math.min(chunkRecords, Number(line) - next);
    const end = next + records;
    void publish(Array.from({ length: records }, (_, index) => next + index)).then(() => console.log(end));
    next = end;
    await new Promise(setImmediate);
  }
}
"""
CONFIG = """
[broker]
default_storage = "synced"

[storage.synced]
engine = "segmented-log"
fsync = "always"  # So that much is stored and not confirmed when the broker is killed.

[exchanges.numbers]
type = "topic"

[topics.queue]
bindings = [{ exchange = "numbers", key = "number.*" }]

[topics.stream]
kind = "stream"
bindings = [{ exchange = "numbers", key = "#" }]

[topics.spread]
kind = "stream"
partitions = 4
bindings = [{ exchange = "numbers", key = "*.odd" }, { exchange = "numbers", key = "*.even" }]

[topics.direct]
kind = "stream"
partitions = 4

[topics.chosen]
kind = "stream"
partitions = 4
"""
PARTITIONS = {"queue": 1, "stream": 1, "spread": 4, "direct": 4, "chosen": 4}
CALM = 100
"""Messages of each program after a start of the broker, which are confirmed before the load begins."""
LOAD = 900
"""Messages of each program that are published in a moment, while which the broker is killed."""

Stored = dict[str, list[int]]
"""The numbers that each program published, in the order of a partition's log."""


@pytest.fixture
def broker(command: Commands, tmp_path: Path) -> Iterator[BrokerProcess]:
    command("cpp")
    command("typescript")
    with BrokerProcess(tmp_path, CONFIG) as running:
        yield running


@pytest.fixture
def typescript_program() -> Path:
    """The script, beside the client's modules."""
    script = TYPESCRIPT / "dist" / "counter.mjs"
    script.write_text(TYPESCRIPT_PROGRAM, encoding="utf-8")
    return script


def test_each_message_reaches_all_destinations_of_an_exchange_once_and_in_order(
    broker: BrokerProcess, programs: Programs, typescript_program: Path
) -> None:
    exchange = ("exchange", "numbers", "-1")
    publishers = [
        programs.start("async", sys.executable, PYTHON_PROGRAM, broker.url, "async", "async", "numbers"),
        programs.start("blocking", sys.executable, PYTHON_PROGRAM, broker.url, "blocking", "blocking", "numbers"),
        programs.start("cpp", CPP_PROGRAM, broker.url, "count", "cpp", *exchange),
        programs.start("typescript", "node", typescript_program, broker.url, "typescript", *exchange),
    ]
    count = publish_through_kills(broker, programs, publishers, kills=30)
    names = [publisher.name for publisher in publishers]
    check_stored(broker, dict.fromkeys(("queue", "stream", "spread"), names), count)


def test_each_message_for_a_topic_is_stored_once_and_in_order(
    broker: BrokerProcess, programs: Programs, typescript_program: Path
) -> None:
    publishers = []
    for target in (("topic", "direct", "-1"), ("topic", "chosen", "2")):
        cpp, typescript = f"cpp-{target[1]}", f"typescript-{target[1]}"
        publishers += [
            programs.start(cpp, CPP_PROGRAM, broker.url, "count", cpp, *target),
            programs.start(typescript, "node", typescript_program, broker.url, typescript, *target),
        ]
    count = publish_through_kills(broker, programs, publishers, kills=8)
    check_stored(broker, {topic: [f"cpp-{topic}", f"typescript-{topic}"] for topic in ("direct", "chosen")}, count)


# --- load ------------------------------------------------------------------------------------------------------------


def publish_through_kills(
    broker: BrokerProcess, programs: Programs, publishers: Sequence[Program], *, kills: int
) -> int:
    """Let each program publish, and kill the broker meanwhile; returns how many messages each has published.

    Each kill comes when one of them, another each time, has had an answer: to its first batch, or to later ones.
    """
    count = 0
    for number in range(kills):
        count += CALM
        publish_all(programs, publishers, count)
        turn, observed = divmod(number, len(publishers))
        moment = count + turn % 8 * LOAD // 16
        count += LOAD
        tell(publishers, str(count))
        while int(line_of(programs, publishers[observed])) <= moment:
            pass
        broker.kill()
        broker.start()
    publish_all(programs, publishers, count)
    for publisher in publishers:
        assert publisher.log.read_text().count("connecting again") == kills, publisher.name
    return count


def publish_all(programs: Programs, publishers: Sequence[Program], count: int) -> None:
    """Let each program publish up to this number, and wait until all is confirmed."""
    tell(publishers, str(count))
    tell(publishers, "flush")
    waiting = {publisher.name for publisher in publishers}
    while waiting:
        name, line = programs.next_line()
        assert line != ENDED, f"{name} has ended"
        if line == "flushed":
            waiting.remove(name)


def tell(publishers: Sequence[Program], line: str) -> None:
    for publisher in publishers:
        publisher.write(line)


def line_of(programs: Programs, publisher: Program) -> str:
    """Take lines until there is one of this program."""
    while True:
        name, line = programs.next_line()
        assert line != ENDED, f"{name} has ended"
        if name == publisher.name:
            return line


# --- outcome ---------------------------------------------------------------------------------------------------------


def check_stored(broker: BrokerProcess, topics: Mapping[str, Sequence[str]], count: int) -> None:
    """Check that each topic has each of so many messages of these programs once, and in order in each partition."""
    with linn.sync.connect(broker.url) as client:
        for topic, names in topics.items():
            found: dict[str, list[int]] = {name: [] for name in names}
            for partition in range(PARTITIONS[topic]):
                for name, numbers in stored(client, topic, partition).items():
                    assert numbers == sorted(numbers), f"{topic} {partition} is out of order for {name}"
                    found[name] += numbers
            for name, numbers in found.items():
                assert sorted(numbers) == list(range(count)), f"{topic} has {len(numbers)} of {count} of {name}"


def stored(client: linn.sync.Client, topic: str, partition: int) -> Stored:
    """Read a partition, whose offsets must be dense."""
    numbers: Stored = defaultdict(list)
    offset = 0
    while True:
        fetched = client.fetch(topic, partition, offset)
        for batch in fetched.batches:
            for message in batch:
                assert message.offset == offset, f"{topic} {partition} has a gap"
                offset += 1
                name, number = bytes(message.value).split()
                numbers[name.decode()].append(int(number))
        if offset == fetched.high_watermark:
            return numbers
