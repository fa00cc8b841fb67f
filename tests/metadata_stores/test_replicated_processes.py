"""Three `linn serve` beside a real etcd with a replicated topic: the leader killed, frozen and stopped under load."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from cluster_processes import SLACK_S, TIMEOUT_S, RealCluster, real_cluster, until

import linn
import linn.sync

pytestmark = pytest.mark.system

SERVED_AGAIN_S = TIMEOUT_S + 2.0
"""Time from the loss of a leader to the first confirmation by the next one, on a machine with nothing else to do."""
BUSY_S = 10.0
STOPPED_S = 1.0
"""Time without a confirmation when a leader stops in order; it was 0.1 to 0.35 s on a busy machine."""
FLIGHTS = """
[topics.flights]
kind = "both"
retention = "forever"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    """Three brokers that are in sync."""
    with real_cluster(tmp_path, tables=FLIGHTS) as cluster:
        cluster.until_whole("flights")
        yield cluster


class Load:
    """A producer in a thread, at one broker: a number at a time, each confirmed by all replicas."""

    def __init__(self, url: str) -> None:
        self.confirmed: list[tuple[float, int]] = []
        """(time, number)."""
        self.error: BaseException | None = None
        self._url = url
        self._is_over = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        until(lambda: bool(self.confirmed) or self.error is not None)
        assert self.error is None
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(SLACK_S)

    def _run(self) -> None:
        try:
            with linn.sync.connect(self._url) as client, client.producer("flights", acks="all") as producer:
                number = 0
                while not self._is_over.is_set():
                    producer.publish(str(number).encode(), timeout_s=60)
                    self.confirmed.append((time.monotonic(), number))
                    number += 1
        except BaseException as error:
            self.error = error

    def gap_after(self, at_s: float) -> float:
        """Time from a moment to the first confirmation that came more than a moment after it."""
        until(lambda: self.confirmed[-1][0] > at_s + 0.5, SERVED_AGAIN_S + SLACK_S)
        times = [at for at, _ in self.confirmed if at >= at_s] + [time.monotonic()]
        gaps = [later - earlier for earlier, later in zip([at_s, *times], times, strict=False)]
        return max(gaps)


def read_all(url: str, count: int) -> list[int]:
    with linn.sync.connect(url) as client:
        found: list[int] = []
        offset = 0
        while len(found) < count:
            fetched = client.fetch("flights", 0, offset)
            found += [int(record.value or b"") for batch in fetched.batches for record in batch]
            offset = fetched.next_offset
        return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_leader_is_lost_under_load_and_nothing_confirmed_with_it(cluster: RealCluster, how: signal.Signals) -> None:
    lost = cluster.leader("flights")
    others = [number for number in (1, 2, 3) if number != lost]
    with Load(cluster.brokers[others[0]].url) as load:
        at_s = time.monotonic()
        cluster.lose(lost, how)
        gap_s = load.gap_after(at_s)
    assert load.error is None
    assert gap_s < (STOPPED_S if how is signal.SIGTERM else SERVED_AGAIN_S + BUSY_S)
    leader = cluster.leader("flights", others[0])
    assert leader in others
    numbers = [number for _, number in load.confirmed]
    assert read_all(cluster.brokers[leader].url, len(numbers)) == numbers
    print(f"{how.name}: {gap_s:.2f} s without a confirmation, {len(numbers)} confirmed")
    cluster.recover(lost)
    cluster.until_whole("flights")
