"""C++ programs publish while the broker is killed: each message is stored once and in order, with the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from agents import CPP_BUILD, Commands
from programs import Programs

import linn.sync
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of the client is a part of it.

PROGRAM = CPP_BUILD / "tests" / "linn-test-worker"
CONFIG = """
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
COUNT = 20_000
KILLS = 5
PUBLISHERS = {
    "exchange": ("exchange", "numbers", "-1"),
    "direct": ("topic", "direct", "-1"),
    "chosen": ("topic", "chosen", "2"),
}


@pytest.fixture
def broker(command: Commands, tmp_path: Path) -> Iterator[BrokerProcess]:
    command("cpp")
    with BrokerProcess(tmp_path, CONFIG) as running:
        yield running


def stored(client: linn.sync.Client, topic: str, partition: int) -> list[int]:
    """The numbers in a partition, in the order of its log."""
    numbers: list[int] = []
    while True:
        fetched = client.fetch(topic, partition, len(numbers))
        for batch in fetched.batches:
            numbers += [int(value) for value in batch.values]
        if len(numbers) == fetched.high_watermark:
            return numbers


def until_each_has_confirmed(programs: Programs, count: int) -> None:
    behind = set(PUBLISHERS)
    while behind:
        name, line = programs.next_line()
        if int(line) >= count:
            behind.discard(name)


def test_each_message_is_stored_once_and_in_order_while_the_broker_is_killed(
    broker: BrokerProcess, programs: Programs
) -> None:
    publishers = [programs.start(name, PROGRAM, broker.url, "count", *target) for name, target in PUBLISHERS.items()]
    share = COUNT // KILLS
    for number in range(KILLS):
        for publisher in publishers:
            publisher.write(str((number + 1) * share))
        until_each_has_confirmed(programs, number * share + share // 2)
        broker.kill()
        broker.start()
    for publisher in publishers:
        publisher.write("flush")
        programs.until("flushed", publisher.name)
        assert publisher.log.read_text().count("lost, connecting again") == KILLS
    with linn.sync.connect(broker.url) as client:
        for topic, partitions in {"queue": 1, "stream": 1, "spread": 4, "direct": 4, "chosen": 4}.items():
            found = [stored(client, topic, partition) for partition in range(partitions)]
            assert all(numbers == sorted(numbers) for numbers in found), f"{topic} is out of order"
            assert sorted(chain.from_iterable(found)) == list(range(COUNT)), topic
