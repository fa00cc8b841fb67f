"""Brokers for the tests of clients: one, or with `--brokers` those of a cluster, any of which a connection meets.

Rules for a cluster: tests that start brokers of their own are left out, as they would test nothing else, and so are
those in `DIFFERENT`.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from etcd_process import running_etcd

from linn.testing.process import BrokerProcess

KINDS = ("one", "three", "workers")
FIXTURES = ("broker", "own_broker")
"""Fixtures that are a cluster where that is asked for, if they are those of the folder's conftest.py."""
DIFFERENT = {
    "test_without_acks_the_flush_waits_for_the_broker_to_have_read": "a reader has to wait for the replicas",
    "test_a_pause_outlasts_a_reconnection": "each broker lists its own connections",
    "test_acks_that_a_lost_connection_made_void_interrupt_nothing": "each broker lists its own connections",
    "test_a_member_that_gains_a_partition_starts_at_the_requested_time": "two members hear of it at different times",
    "test_a_member_reads_two_topics_with_two_consumers_of_its_name": "each leader has a member of that name",
    "test_descriptions_of_transactions": "the coordinator counts topics; their leaders know what is held there",
    "test_examples_of_the_async_client_run": "a role made at one broker is used at another at once",
    "test_examples_of_the_blocking_client_run": "a role made at one broker is used at another at once",
}
"""Tests of something that several brokers do not promise, and why."""
COUNT = 3
WORKERS = 2
_READ_BYTES = 1 << 16


class Door:
    """An address whose connections are passed on, each to one of some brokers, drawn at random."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """`addresses`: HOST:PORT of each broker."""
        self._addresses = addresses
        self._drawn = random.Random(34)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"linn://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Door:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        host, _, port = self._drawn.choice(self._addresses).rpartition(":")
        try:
            broker = socket.create_connection((host, int(port)))
        except OSError:
            client.close()
            return
        for each in (client, broker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        both = threading.Barrier(2)
        for source, target in ((client, broker), (broker, client)):
            threading.Thread(target=_pump, args=(source, target, both), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, both: threading.Barrier) -> None:
    with suppress(OSError):
        while data := source.recv(_READ_BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    both.wait()
    source.close()


class ThreeBrokers:
    """Three processes of one cluster beside etcd, behind one door. Used as the `BrokerProcess` that tests expect."""

    def __init__(self, folder: Path, config: str) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._config = config
        self._brokers: list[BrokerProcess] = []
        self.url = ""

    @property
    def urls(self) -> list[str]:
        """URLs of the brokers, and of the door to any of them."""
        return [self.url, *(url for broker in self._brokers for url in broker.urls)]

    def __enter__(self) -> ThreeBrokers:
        with ExitStack() as stack:
            etcd = stack.enter_context(running_etcd(self._folder / "etcd"))
            secret = self._folder / "secret"
            secret.touch(0o600)
            secret.write_text("5f" * 32)
            for number in range(1, COUNT + 1):
                place = self._folder / f"broker-{number}"
                place.mkdir()
                self._brokers.append(BrokerProcess(place, self._config + _tables(number, etcd.urls[0], secret)))
                stack.callback(self._brokers[-1].kill)
            self.start()
            door = stack.enter_context(Door([broker.address for broker in self._brokers]))
            self.url = door.url
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start all brokers."""
        with ThreadPoolExecutor(COUNT) as pool:
            list(pool.map(BrokerProcess.start, self._brokers))

    def kill(self) -> None:
        """Kill all brokers."""
        for broker in self._brokers:
            broker.kill()


def _tables(number: int, etcd: str, secret: Path) -> str:
    return f"""
[listeners.peers]
protocol = "peers"
address = "127.0.0.1:0"
[cluster]
name = "test"
node = {number}
store = "etcd"
endpoints = ["{etcd}"]
session_timeout = "20s"
listener = "peers"
secret = {{ file = "{secret}" }}
"""


@contextmanager
def several_brokers(kind: str, config: str) -> Iterator[ThreeBrokers | BrokerProcess]:
    """Run the brokers of a cluster. `kind`: "three" or "workers"."""
    # The sockets of workers need a short path.
    with TemporaryDirectory(prefix="linn-", dir="/tmp") as name:
        folder = Path(name)
        options = ("--workers", str(WORKERS))
        with (
            ThreeBrokers(folder, config) if kind == "three" else BrokerProcess(folder, config, options=options) as all_
        ):
            yield all_


# --- for conftest.py -------------------------------------------------------------------------------------------------


def keep_shared(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that start brokers of their own, where a cluster is asked for."""
    if config.option.brokers == "one":
        return
    left = [item for item in items if not _uses_shared(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


def _uses_shared(item: pytest.Item) -> bool:
    known: dict[str, Any] = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009  Not in pytest's types.
    if getattr(item, "originalname", item.name) in DIFFERENT:
        return False
    return any(known[name][-1].func.__module__ == "conftest" for name in FIXTURES if name in known)
