"""The broker is killed under the load of every client with its defaults: messages are stored once and in order."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from agents import Commands
from counters import build_counter, check_stored, line_of, publish_all, start_counter, tell
from programs import Program, Programs

import linn.sync
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of the clients is a part of it.

PYTHON_PROGRAM = Path(__file__).parent / "python_counter.py"
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


@pytest.fixture
def broker(command: Commands, tmp_path: Path) -> Iterator[BrokerProcess]:
    build_counter(command, "cpp")
    build_counter(command, "typescript")
    with BrokerProcess(tmp_path, CONFIG) as running:
        yield running


def test_each_message_reaches_all_destinations_of_an_exchange_once_and_in_order(
    broker: BrokerProcess, programs: Programs
) -> None:
    publishers = [
        *[
            programs.start(kind, sys.executable, PYTHON_PROGRAM, broker.url, kind, kind, "numbers")
            for kind in ("async", "blocking")
        ],
        *[
            start_counter(programs, language, broker.url, language, "exchange", "numbers")
            for language in ("cpp", "typescript")
        ],
    ]
    count = publish_through_kills(broker, programs, publishers, kills=30)
    names = [publisher.name for publisher in publishers]
    with linn.sync.connect(broker.url) as client:
        check_stored(client, dict.fromkeys(("queue", "stream", "spread"), names), PARTITIONS, count)


def test_each_message_for_a_topic_is_stored_once_and_in_order(broker: BrokerProcess, programs: Programs) -> None:
    publishers = [
        start_counter(programs, language, broker.url, f"{language}-{topic}", "topic", topic, partition)
        for topic, partition in (("direct", -1), ("chosen", 2))
        for language in ("cpp", "typescript")
    ]
    count = publish_through_kills(broker, programs, publishers, kills=8)
    topics = {topic: [f"cpp-{topic}", f"typescript-{topic}"] for topic in ("direct", "chosen")}
    with linn.sync.connect(broker.url) as client:
        check_stored(client, topics, PARTITIONS, count)


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
