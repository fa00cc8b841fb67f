"""Clients of other languages beside three brokers: they publish at the leader of a topic, and follow it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from agents import Commands
from cluster_processes import RealCluster, real_cluster, until
from counters import build_counter, check_stored, line_of, publish_all, start_counter, tell
from programs import Program, Programs

import linn.sync

pytestmark = pytest.mark.timeout(1_200)  # A first build of the clients is a part of it.

LANGUAGES = ("cpp", "typescript")
TOPICS = ("one", "two", "three")
PARTITIONS = dict.fromkeys(TOPICS, 2)
TABLES = "".join(f'[topics.{topic}]\nkind = "stream"\npartitions = 2\n' for topic in TOPICS)
FORWARDED = "linn_cluster_forwarded_published_bytes_total"
CALM = 100
"""Messages of each program that are confirmed before something happens, or after it."""
LOAD = 2_000
"""Messages of each program that are published while something happens."""
FOLLOWED_WITHIN_S = 30.0
"""Less than the age at which a description is asked for in any case, which would hide that nothing else makes it."""


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest, command: Commands) -> str:
    build_counter(command, request.param)
    return str(request.param)


@pytest.fixture
def cluster(language: str, tmp_path: Path) -> Iterator[RealCluster]:
    with real_cluster(tmp_path, tables=TABLES) as running:
        running.until_whole(*TOPICS)
        yield running


@pytest.fixture
def programs(cluster: RealCluster, tmp_path: Path) -> Iterator[Programs]:
    """Programs of the test, which end before the brokers do."""
    with Programs(tmp_path) as running:
        yield running


class Load:
    """Programs that publish to a cluster."""

    def __init__(self, cluster: RealCluster, programs: Programs, publishers: Sequence[Program]) -> None:
        self.count = 0
        """Messages that each of them has published."""
        self._cluster = cluster
        self._programs = programs
        self._publishers = publishers

    def rest(self) -> None:
        """Publish some messages, and wait until all are confirmed."""
        self.count += CALM
        publish_all(self._programs, self._publishers, self.count)

    def begin(self) -> None:
        """Publish many messages; returns when some of them are confirmed, of the first program."""
        moment = self.count + LOAD // 4
        self.count += LOAD
        tell(self._publishers, str(self.count))
        while int(line_of(self._programs, self._publishers[0])) <= moment:
            pass

    def until_followed(self, *lost: int) -> None:
        """Publish until nothing is passed on any more, and check that it stays so."""

        def passes_nothing_on() -> bool:
            before = self.passed_on(*lost)
            self.rest()
            return self.passed_on(*lost) == before

        until(passes_nothing_on, FOLLOWED_WITHIN_S)
        assert passes_nothing_on()

    def passed_on(self, *lost: int) -> float:
        """The bytes of publishes that the brokers but these have passed on."""
        total = 0.0
        for url in self._cluster.urls_without(*lost):
            with linn.sync.connect(url) as client:
                samples = {metric["name"]: metric["samples"] for metric in client.admin.metrics()}
            total += sum([sample[-1] for sample in samples[FORWARDED]])
        return total


def all_urls(cluster: RealCluster, first: int) -> str:
    """A URL of all brokers that begins with one."""
    others = [broker.address for number, broker in cluster.brokers.items() if number != first]
    return ",".join([cluster.brokers[first].url, *others])


def elect(cluster: RealCluster, topic: str, leader: int) -> None:
    """Let a broker lead a topic; returns when another one knows of it."""
    other = leader % len(cluster.brokers) + 1
    command = [sys.executable, "-m", "linn", "cluster", "elect", topic, "--leader", str(leader)]
    subprocess.run([*command, "--url", cluster.brokers[other].url], check=True, capture_output=True, timeout=120)
    until(lambda: cluster.leader(topic, other) == leader)


def test_publishes_go_to_the_leaders_and_none_is_passed_on(
    cluster: RealCluster, programs: Programs, language: str
) -> None:
    for leader, topic in enumerate(TOPICS, 1):
        elect(cluster, topic, leader)
    names = {(topic, partition): f"{topic}-{partition}" for topic in TOPICS for partition in (-1, 1)}
    publishers = [
        start_counter(programs, language, cluster.urls[0], name, "topic", topic, partition)
        for (topic, partition), name in names.items()
    ]
    load = Load(cluster, programs, publishers)
    load.rest()
    load.rest()
    assert load.passed_on() == 0
    with linn.sync.connect(cluster.urls[0]) as client:
        stored = {topic: [names[topic, -1], names[topic, 1]] for topic in TOPICS}
        check_stored(client, stored, PARTITIONS, load.count)


def test_an_exchange_is_published_to_through_the_broker_at_hand(
    cluster: RealCluster, programs: Programs, language: str
) -> None:
    with linn.sync.connect(cluster.urls[0]) as client:
        client.admin.create_exchange("numbers", type="fanout")
        client.admin.bind("numbers", "one")
    leader = cluster.leader("one")
    url = cluster.urls_without(leader)[0]
    load = Load(cluster, programs, [start_counter(programs, language, url, "all", "exchange", "numbers")])
    load.rest()
    assert load.passed_on() > 0
    with linn.sync.connect(url) as client:
        check_stored(client, {"one": ["all"]}, PARTITIONS, load.count)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=lambda how: how.name)
def test_nothing_is_lost_doubled_or_out_of_order_when_a_leader_goes(
    cluster: RealCluster, programs: Programs, language: str, how: signal.Signals
) -> None:
    lost = cluster.leader("one")
    other = cluster.urls_without(lost)[0]
    publishers = [
        start_counter(programs, language, other, "any", "topic", "one"),
        start_counter(programs, language, other, "chosen", "topic", "one", 1),
        start_counter(programs, language, all_urls(cluster, lost), "at-hand", "topic", "one", 1),
    ]
    load = Load(cluster, programs, publishers)
    load.rest()
    load.begin()
    cluster.lose(lost, how)
    load.until_followed(lost)
    with linn.sync.connect(other) as client:
        check_stored(client, {"one": [publisher.name for publisher in publishers]}, PARTITIONS, load.count)


def test_nothing_is_lost_doubled_or_out_of_order_when_a_leader_is_moved(
    cluster: RealCluster, programs: Programs, language: str
) -> None:
    first = cluster.leader("one")
    others = [number for number in cluster.brokers if number != first]
    publishers = [
        start_counter(programs, language, cluster.brokers[others[0]].url, "any", "topic", "one"),
        start_counter(programs, language, all_urls(cluster, first), "chosen", "topic", "one", 1),
    ]
    load = Load(cluster, programs, publishers)
    load.rest()
    for leader in [*others, first]:
        cluster.until_whole("one")
        load.begin()
        elect(cluster, "one", leader)
        load.until_followed()
    with linn.sync.connect(cluster.urls[0]) as client:
        check_stored(client, {"one": [publisher.name for publisher in publishers]}, PARTITIONS, load.count)
