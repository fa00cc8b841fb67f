"""Three `linn serve` beside a real etcd with a replicated topic: the leader killed, frozen and stopped under load."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest
from etcd_process import Etcd, running_etcd

import linn
import linn.sync
from linn.descriptions import ReplicasDescription
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.system

TIMEOUT_S = 3.0
SERVED_AGAIN_S = TIMEOUT_S + 2.0
"""Time from the loss of a leader to the first confirmation by the next one, on a machine with nothing else to do."""
BUSY_S = 10.0
SLACK_S = 20.0
"""Time for what has no limit of its own, on a busy machine."""
POLL_S = 0.05


def until(holds: Callable[[], bool], within_s: float = SLACK_S) -> float:
    """Wait until something holds; returns how long it took."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < within_s, f"not within {within_s:g} s"
        time.sleep(POLL_S)
    return time.monotonic() - began_s


class Cluster:
    """Brokers by their numbers."""

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        self.etcd = etcd
        self.brokers: dict[int, BrokerProcess] = {}
        self._folder = folder

    def broker(self, number: int) -> BrokerProcess:
        place = self._folder / f"broker-{number}"
        place.mkdir()
        return BrokerProcess(place, self.config(number))

    def config(self, number: int) -> str:
        return f"""
[listeners.peers]
protocol = "peers"
address = "127.0.0.1:0"
[topics.flights]
kind = "both"
retention = "forever"
[cluster]
name = "test"
node = {number}
store = "etcd"
endpoints = ["{self.etcd.urls[0]}"]
session_timeout = "{TIMEOUT_S:g}s"
listener = "peers"
secret = {{ file = "{self._folder}/secret" }}
"""

    def replicas(self, seen_by: int) -> ReplicasDescription | None:
        try:
            with linn.sync.connect(self.brokers[seen_by].url) as client:
                return client.admin.topic("flights").get("replicas")
        except linn.errors.LinnError:
            return None

    def leader(self, seen_by: int) -> int:
        replicas = self.replicas(seen_by)
        return replicas["leader"] if replicas is not None else 0

    def is_whole(self, seen_by: int) -> bool:
        replicas = self.replicas(seen_by)
        return replicas is not None and replicas["in_sync"] == [1, 2, 3]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("5f" * 32)
    with running_etcd(tmp_path / "etcd") as etcd, ExitStack() as stack:
        cluster = Cluster(tmp_path, etcd)
        for number in (1, 2, 3):
            cluster.brokers[number] = stack.enter_context(cluster.broker(number))
        until(lambda: all(cluster.is_whole(number) for number in (1, 2, 3)))
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
def test_a_leader_is_lost_under_load_and_nothing_confirmed_with_it(cluster: Cluster, how: signal.Signals) -> None:
    lost = cluster.leader(1)
    others = [number for number in (1, 2, 3) if number != lost]
    with Load(cluster.brokers[others[0]].url) as load:
        at_s = time.monotonic()
        cluster.brokers[lost].signal(how)
        gap_s = load.gap_after(at_s)
    assert load.error is None
    assert gap_s < SERVED_AGAIN_S + BUSY_S
    leader = cluster.leader(others[0])
    assert leader in others
    numbers = [number for _, number in load.confirmed]
    assert read_all(cluster.brokers[leader].url, len(numbers)) == numbers
    print(f"{how.name}: {gap_s:.2f} s without a confirmation, {len(numbers)} confirmed")
    if how is signal.SIGSTOP:
        cluster.brokers[lost].signal(signal.SIGCONT)
    else:
        cluster.brokers[lost].wait()
        cluster.brokers[lost].start()
    until(lambda: cluster.is_whole(others[0]))
