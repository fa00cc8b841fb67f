"""Programs that count: each publishes numbers with a client and its defaults, while a test kills brokers.

For each line of standard input a program publishes the numbers below it that were not published before, and prints how
many are confirmed, again and again. For the line "flush" it waits for all, and prints "flushed". `python_counter.py` is
another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from agents import CPP_BUILD, TYPESCRIPT, Commands
from programs import ENDED, Program, Programs

import linn.sync

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
Stored = dict[str, list[int]]
"""The numbers that each program published, in the order of a partition's log."""


def build_counter(command: Commands, language: str) -> None:
    """Build the program of a client; skips the test if that can't be done."""
    command(language)
    if language == "typescript":  # The script is beside the client's modules.
        _typescript_script().write_text(TYPESCRIPT_PROGRAM, encoding="utf-8")


def start_counter(
    programs: Programs,
    language: str,
    url: str,
    name: str,
    kind: Literal["topic", "exchange"],
    target: str,
    partition: int = -1,
) -> Program:
    """Start the program of a client with this name; `partition` -1: the broker chooses."""
    place = (kind, target, str(partition))
    if language == "cpp":
        return programs.start(name, CPP_PROGRAM, url, "count", name, *place)
    return programs.start(name, "node", _typescript_script(), url, name, *place)


def _typescript_script() -> Path:
    return TYPESCRIPT / "dist" / "counter.mjs"


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


def check_stored(
    client: linn.sync.Client, topics: Mapping[str, Sequence[str]], partitions: Mapping[str, int], count: int
) -> None:
    """Check that each topic has each of so many messages of these programs once, and in order in each partition."""
    for topic, names in topics.items():
        found: dict[str, list[int]] = {name: [] for name in names}
        for partition in range(partitions[topic]):
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
