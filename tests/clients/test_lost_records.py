"""Readers in other languages whose broker lost what they have read are told so, and are given nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import CPP_BUILD, TYPESCRIPT, Commands
from programs import Line, Programs

import linn.sync
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of the clients is a part of it.

TYPESCRIPT_READER = """
import { connect } from "linn-client";

const [url, topic] = process.argv.slice(2);
const consumer = await (await connect(url)).consumer(topic);
try {
  for await (const message of consumer) console.log(`read ${Buffer.from(message.value)}`);
} catch (error) {
  console.log(`refused ${error.code}`);
  process.exit(0);
}
"""
CONFIG = """
[topics.memory]
kind = "stream"
storage = "dram"

[topics.disk]
kind = "stream"
storage = "segmented-log"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path) as running:
        yield running


@pytest.mark.parametrize("language", ["cpp", "typescript"])
def test_a_reader_is_told_of_lost_records(language: str, command: Commands, programs: Programs, tmp_path: Path) -> None:
    command(language)
    reader: list[str | Path] = [CPP_BUILD / "tests" / "linn-test-worker"]
    if language == "typescript":
        script = TYPESCRIPT / "dist" / "reader.mjs"
        script.write_text(TYPESCRIPT_READER, encoding="utf-8")
        reader = ["node", script]
    with BrokerProcess(tmp_path, CONFIG) as broker:
        for topic in ("memory", "disk"):
            arguments = [broker.url, "read", topic] if language == "cpp" else [broker.url, topic]
            programs.start(topic, *reader, *arguments)
        publish(broker, 0)
        until(programs, {("memory", "read 2"), ("disk", "read 2")})
        broker.kill()
        broker.start()
        publish(broker, 10)
        lines = until(programs, {("memory", "refused log.truncated"), ("disk", "read 12")})
    assert [text for name, text in lines if name == "memory"] == []
    assert [text for name, text in lines if name == "disk"] == ["read 10", "read 11", "read 12"]


def until(programs: Programs, wanted: set[Line]) -> list[Line]:
    """Take lines until all of these have come; returns those with records."""
    seen: list[Line] = []
    while not wanted <= set(seen):
        seen.append(programs.next_line())
    return [line for line in seen if line[1].startswith("read")]


def publish(broker: BrokerProcess, first: int) -> None:
    """Publish three numbers to each topic."""
    with linn.sync.connect(broker.url) as client:
        for topic in ("memory", "disk"):
            with client.producer(topic) as producer:
                for number in range(first, first + 3):
                    producer.publish(b"%d" % number)
