"""Three `linn serve` beside three etcd members under load, while any one of them is killed or frozen."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_load import QUEUE, STREAM, TABLES, Load
from cluster_processes import TIMEOUT_S, RealCluster, real_cluster, until

pytestmark = pytest.mark.system

SERVED_AGAIN_S = TIMEOUT_S + 2.0
"""Time from the loss of a leader to the first confirmation by the next one, on a machine with nothing else to do."""
HELD_UP_S = 3.0
"""Time for which a follower that dies or freezes holds `acks = all` up: nothing is heard of it for 2 s, and then the
set shrinks."""
AWAY_S = float(os.environ.get("ETCD_AWAY_S", 4 * TIMEOUT_S))
"""Time for which etcd is away; more of it by hand."""
BUSY_S = 10.0
"""More time, for a machine that is busy."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    """Three brokers that are in sync, and three etcd members."""
    with real_cluster(tmp_path, members=3, tables=TABLES) as cluster:
        cluster.until_whole(QUEUE, STREAM)
        yield cluster


def lost_under_load(cluster: RealCluster, lost: int, how: signal.Signals) -> float:
    """Lose a broker under load and let it come back; returns the longest time without progress of a client."""
    with Load(cluster, cluster.urls_without(lost)) as load:
        at_s = time.monotonic()
        cluster.lose(lost, how)
        gap_s = load.longest_gap(at_s)
        cluster.recover(lost)
        cluster.until_whole(QUEUE, STREAM)
    assert load.failures() == []
    load.check()
    count = sum(len(outcomes) for outcomes in load.sent.values())
    print(f"{how.name} of node {lost}: {gap_s:.2f} s without progress, {count} confirmations")
    return gap_s


HARD = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])


@HARD
def test_a_leader_is_lost_under_load(cluster: RealCluster, how: signal.Signals) -> None:
    assert lost_under_load(cluster, cluster.leader(QUEUE), how) < SERVED_AGAIN_S + BUSY_S


@HARD
def test_a_follower_is_lost_under_load(cluster: RealCluster, how: signal.Signals) -> None:
    leaders = {cluster.leader(QUEUE), cluster.leader(STREAM)}
    lost = next(number for number in (3, 2, 1) if number not in leaders)
    assert lost_under_load(cluster, lost, how) < HELD_UP_S + BUSY_S


@HARD
def test_the_controller_is_lost_under_load(cluster: RealCluster, how: signal.Signals) -> None:
    lost = cluster.controller(1)
    assert lost is not None
    assert lost_under_load(cluster, lost, how) < SERVED_AGAIN_S + BUSY_S
    others = [number for number in (1, 2, 3) if number != lost]
    assert cluster.controller(others[0]) in others


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_etcd_is_away_under_load(cluster: RealCluster, how: str) -> None:
    """No publish fails and no delivery stops, though all sessions would have ended several times."""
    members = cluster.etcd.members
    with Load(cluster) as load:
        at_s = time.monotonic()
        for member in members:
            if how == "killed":
                member.kill()
            else:
                member.pause()
        time.sleep(AWAY_S)
        gap_s = load.longest_gap(at_s)
        assert not any(cluster.status(number)["is_registered"] for number in (1, 2, 3))
        for member in members if how == "frozen" else ():
            member.resume()
        cluster.etcd.start()
        until(lambda: all(cluster.status(number)["is_registered"] for number in (1, 2, 3)))
        gap_s = max(gap_s, load.longest_gap(time.monotonic()))
    assert load.failures() == []
    load.check()
    print(f"etcd was {how} for {AWAY_S:g} s: {gap_s:.2f} s without progress")
    assert gap_s < BUSY_S


@HARD
def test_the_leader_of_etcd_is_lost_under_load(cluster: RealCluster, how: signal.Signals) -> None:
    sessions = [cluster.node(1, number)["session"] for number in (1, 2, 3)]
    with Load(cluster) as load:
        member = cluster.etcd.leader()
        at_s = time.monotonic()
        if how is signal.SIGKILL:
            member.kill()
        else:
            member.pause()
        time.sleep(2 * TIMEOUT_S)
        gap_s = load.longest_gap(at_s)
        # Before it goes on: etcd before 3.4.31 and 3.5.13 lets a leader of old end leases.
        kept = [cluster.node(1, number)["session"] for number in (1, 2, 3)] == sessions
        if how is signal.SIGKILL:
            cluster.etcd.start()
        else:
            member.resume()
    assert load.failures() == []
    load.check()
    stayed = [cluster.node(1, number)["session"] for number in (1, 2, 3)] == sessions
    print(f"{how.name} of etcd's leader: {gap_s:.2f} s without progress; kept: {kept}, and once it was back: {stayed}")
    assert gap_s < BUSY_S
    assert kept, "no broker was given up"
