"""Three `linn serve` beside a real etcd under load: links cut, one way too, a full disk, and a clock that is set."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cluster_load import BATCH, QUEUE, STREAM, TABLES, Load
from cluster_processes import RealCluster, real_cluster, until
from peer_proxies import PeerProxies, peer_proxies
from small_disk import FileSizeQuota

import linn.sync
from linn.core.errors.tree import DiskFull, LogCorrupt
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.system

SILENCE_S = 4.0
"""Time after which a link without a word is closed."""
SILENT_S = 3.0
"""Time for which a follower of which nothing is heard is waited for, at most."""
FILLS_S = 60.0
DAMAGED_AT = 100
"""A byte in the first batch of a log's file."""
BUSY_S = 10.0
"""More time, for a machine that is busy."""


@pytest.fixture
def proxies() -> Iterator[PeerProxies]:
    """A proxy before each broker."""
    with peer_proxies() as proxies:
        yield proxies


@pytest.fixture
def cluster(tmp_path: Path, proxies: PeerProxies) -> Iterator[RealCluster]:
    """Three brokers that are in sync, and reach one another by proxies."""
    with real_cluster(tmp_path, tables=TABLES, proxies=proxies) as cluster:
        cluster.until_whole(QUEUE, STREAM)
        yield cluster


def node_roles(cluster: RealCluster) -> tuple[int, int, int]:
    """The leader of both topics, and two followers."""
    leader = cluster.leader(QUEUE)
    assert cluster.leader(STREAM) == leader, "the first broker, as the others came later"
    first, second = (number for number in (1, 2, 3) if number != leader)
    return leader, first, second


@pytest.mark.parametrize("ways", ["to", "from", "both"])
def test_a_follower_is_cut_off_from_the_leader(cluster: RealCluster, proxies: PeerProxies, ways: str) -> None:
    leader, cut, _ = node_roles(cluster)
    directions = {"to": [(leader, cut)], "from": [(cut, leader)], "both": [(leader, cut), (cut, leader)]}[ways]
    with Load(cluster, cluster.urls_without(cut)) as load:
        at_s = time.monotonic()
        proxies.cut(*directions)
        gap_s = load.longest_gap(at_s)
        until(lambda: not cluster.is_whole(QUEUE, leader))
        proxies.heal()
        cluster.until_whole(QUEUE, STREAM)
    assert load.failures() == []
    load.check()
    print(f"cut {ways} a follower: {gap_s:.2f} s without progress")
    assert gap_s < SILENT_S + BUSY_S


def test_a_leader_is_cut_off_from_both_followers_and_back(cluster: RealCluster, proxies: PeerProxies) -> None:
    """It lives, as the store knows, and nothing is confirmed: no set in sync is smaller than `min_in_sync`."""
    leader, first, second = node_roles(cluster)
    with Load(cluster) as load:
        proxies.cut((leader, first), (first, leader), (leader, second), (second, leader))
        time.sleep(SILENCE_S + SILENT_S)
        proxies.heal()
        load.longest_gap(time.monotonic())
        cluster.until_whole(QUEUE, STREAM)
    assert load.failures() == []
    load.check()


def test_followers_are_cut_off_from_each_other(cluster: RealCluster, proxies: PeerProxies) -> None:
    _, first, second = node_roles(cluster)
    with Load(cluster) as load:
        at_s = time.monotonic()
        proxies.cut((first, second), (second, first))
        time.sleep(SILENCE_S + 1)
        assert load.longest_gap(at_s) < BUSY_S
        proxies.heal()
    assert load.failures() == []
    load.check()


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_disk_is_full_for_a_while(cluster: RealCluster, whose: str) -> None:
    leader, follower, _ = node_roles(cluster)
    number = leader if whose == "leader" else follower
    broker = cluster.brokers[number]
    disk = FileSizeQuota(broker.data_dir)
    with Load(cluster) as load:
        disk.fill(broker.pid)
        until(lambda: DiskFull.code in broker.log_text() or bool(load.failures()), FILLS_S)
        disk.make_room(broker.pid)
        load.longest_gap(time.monotonic())
        cluster.until_whole(QUEUE, STREAM)
    assert {sent.error.code for sent in load.failures() if sent.error is not None} <= {DiskFull.code}
    load.check()


def test_a_leader_whose_disk_is_full_for_long_lets_another_broker_lead(cluster: RealCluster) -> None:
    """Publishing goes on while it is full, without the broker whose disk it is."""
    leader, other, _ = node_roles(cluster)
    broker = cluster.brokers[leader]
    disk = FileSizeQuota(broker.data_dir)
    with Load(cluster, cluster.urls_without(leader)) as load:
        disk.fill(broker.pid)
        until(lambda: leader not in (cluster.leader(QUEUE, other), cluster.leader(STREAM, other)), 2 * FILLS_S)
        load.longest_gap(time.monotonic())
        assert DiskFull.code in broker.log_text()
        disk.make_room(broker.pid)
        cluster.until_whole(QUEUE, STREAM)
    assert {sent.error.code for sent in load.failures() if sent.error is not None} <= {DiskFull.code}
    load.check()


def damage(broker: BrokerProcess, topic: str) -> None:
    """Flip a bit in the first batch of a topic's log."""
    path = min((broker.data_dir / "segmented-log" / topic / "0").glob("*.log"))
    with path.open("r+b") as file:
        file.seek(DAMAGED_AT)
        (byte,) = file.read(1)
        file.seek(DAMAGED_AT)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_log_is_damaged_while_its_broker_is_down(cluster: RealCluster, whose: str) -> None:
    leader, follower, other = node_roles(cluster)
    number = leader if whose == "leader" else follower
    broker = cluster.brokers[number]
    with Load(cluster, cluster.urls_without(number)) as load:
        until(lambda: all(len(outcomes) > 20 for outcomes in list(load.sent.values())))
        cluster.lose(number)
        broker.wait()
        load.longest_gap(time.monotonic())
        for topic in (QUEUE, STREAM):
            damage(broker, topic)
        cluster.recover(number)
        for topic in (QUEUE, STREAM):
            until(partial(is_noted, broker, f"topic {topic} is copied anew"))
            until(partial(cluster.is_whole, topic, other))
    assert load.failures() == []
    load.check()


def test_a_log_is_damaged_under_its_leader(cluster: RealCluster) -> None:
    """A leader that reads a damaged batch lets another broker lead, which has it whole."""
    leader, other, _ = node_roles(cluster)
    broker = cluster.brokers[leader]
    with Load(cluster) as load:
        until(lambda: all(len(outcomes) > 20 for outcomes in list(load.sent.values())))
        damage(broker, STREAM)
        with linn.sync.connect(cluster.brokers[other].url) as client:
            with pytest.raises(LogCorrupt), client.consumer(STREAM, start="earliest") as late:
                next(late)
            until(lambda: cluster.leader(STREAM, other) not in (0, leader))
            with client.consumer(STREAM, start="earliest") as late:
                read = {message.value for message in itertools.islice(late, 3 * BATCH)}
        cluster.until_whole(STREAM)
        assert load.confirmed(STREAM)[0][0] in read
    assert load.failures() == []
    load.check()


CLOCK = """
import os, time
_now_ns, _path = time.time_ns, os.environ["CLOCK_OFFSET"]
def _offset_s():
    with open(_path) as file:
        return int(file.read() or 0)
time.time_ns = lambda: _now_ns() + _offset_s() * 10**9
time.time = lambda: time.time_ns() / 1e9
"""
"""A module that Python loads by itself at its start: it sets the wall clock of one process, and no other clock."""


class WallClock:
    """The wall clock of a broker's process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(CLOCK)
        self._offset = folder / "offset"
        self._offset.write_text("0")
        self.environment = {"PYTHONPATH": str(folder), "CLOCK_OFFSET": str(self._offset)}

    def set(self, offset_s: int) -> None:
        """Set it to so many seconds from the machine's."""
        new = self._offset.with_suffix(".new")
        new.write_text(str(offset_s))
        new.rename(self._offset)


def is_noted(broker: BrokerProcess, text: str) -> bool:
    """Whether a broker has written this to its log."""
    return text in broker.log_text()


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_clock_is_set_forward_and_back(tmp_path: Path, whose: str) -> None:
    clocks = {number: WallClock(tmp_path / f"clock-{number}") for number in (1, 2, 3)}
    environments = {number: clock.environment for number, clock in clocks.items()}
    with real_cluster(tmp_path, tables=TABLES, environments=environments) as cluster:
        cluster.until_whole(QUEUE, STREAM)
        leader, follower, _ = node_roles(cluster)
        number = leader if whose == "leader" else follower
        with Load(cluster) as load:
            at_s = time.monotonic()
            for offset_s, noted in ((7200, "jumped forward"), (-7200, "jumped back")):
                clocks[number].set(offset_s)
                until(partial(is_noted, cluster.brokers[number], noted))
            clocks[number].set(0)
            gap_s = load.longest_gap(at_s)
        assert load.failures() == []
        load.check()
        print(f"the {whose}'s clock was set: {gap_s:.2f} s without progress")
        assert gap_s < BUSY_S
        assert cluster.states(leader)[number] == "alive"
        assert cluster.leader(QUEUE) == leader
