"""Workers that are killed under load: confirmed records are kept, each is stored once, and service goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from test_worker_processes import TOPICS, TWO, make_topics, until_text, workers_of

from linn.core.errors.tree import LinnError
from linn.sync import connect
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.system

END_S = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, which the sockets of workers need."""
    with TemporaryDirectory(prefix="linn-", dir="/tmp") as path:
        yield Path(path)


class Publisher(threading.Thread):
    """Publishes numbers to one topic, one by one, over a connection of its own."""

    def __init__(self, url: str, topic: str, name: str) -> None:
        super().__init__(name=name)
        self.url = url
        self.topic = topic
        self.confirmed: list[str] = []
        self.failures: Counter[str] = Counter()
        self.stopping = threading.Event()

    def run(self) -> None:
        number = 0
        with connect(self.url) as client, client.producer(topic=self.topic) as producer:
            while not self.stopping.is_set():
                number += 1
                value = f"{self.name}-{number}"
                try:
                    producer.publish(value.encode())
                except LinnError as error:
                    self.failures[error.code] += 1
                    self.stopping.wait(0.05)
                else:
                    self.confirmed.append(value)


def wait_more(publishers: list[Publisher]) -> None:
    """Wait until each publisher has some more confirmations."""
    before = [len(publisher.confirmed) for publisher in publishers]
    end_s = time.monotonic() + END_S
    while any(len(p.confirmed) < b + 5 for p, b in zip(publishers, before, strict=True)):
        assert time.monotonic() < end_s, [dict(publisher.failures) for publisher in publishers]
        assert all(publisher.is_alive() for publisher in publishers)


def consumed(broker: BrokerProcess, topic: str, count: int) -> list[str]:
    """Consume and ack the records of a queue: at least `count`, and as many more as come at once."""
    found: list[str] = []
    end_s = time.monotonic() + END_S
    with connect(broker.url) as client, client.consumer(topic) as consumer:
        while time.monotonic() < end_s:
            message = consumer.get(1.0 if len(found) >= count else END_S)
            if message is None:
                break
            found.append(message.value.decode())
            message.ack()
    return found


def test_workers_that_are_killed_under_load_lose_nothing(folder: Path) -> None:
    with BrokerProcess(folder, options=TWO) as broker:
        make_topics(broker)
        publishers = [Publisher(broker.url, topic, f"{topic}{n}") for topic in TOPICS for n in range(2)]
        for publisher in publishers:
            publisher.start()
        try:
            wait_more(publishers)
            for index in (0, 1, 0):
                starts = broker.log_text().count(" is ready")
                os.kill(workers_of(broker)[index].pid, signal.SIGKILL)
                until_text(broker, " is ready", starts + 1)
                wait_more(publishers)
        finally:
            for publisher in publishers:
                publisher.stopping.set()
            for publisher in publishers:
                publisher.join(END_S)
        for topic in TOPICS:
            confirmed = [value for publisher in publishers if publisher.topic == topic for value in publisher.confirmed]
            found = Counter(consumed(broker, topic, len(confirmed)))
            assert sorted(set(confirmed) - set(found)) == [], "confirmed, and lost"
            assert [value for value, count in found.items() if count > 1] == [], "stored more than once"
        assert broker.stop() == 0
