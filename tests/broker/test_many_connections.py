"""Connections that wait cost little, in memory and in work, however they were used before."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from crowd import Crowd, crowd
from raw_client import records

from linn.testing.process import BrokerProcess
from linn.wire import messages as m
from linn.wire.connection import frames_of, hello

CONFIG = """
[broker]
connections_max = 12_000
handshakes_max = 12_000
[topics.queue]
[topics.stream]
kind = "stream"
[topics.silent]
kind = "stream"
"""
BYTES_MAX = 25 << 10
"""Limit of the broker's memory for an idle connection."""
HALF_HELLO_BYTES = 3_000
WARM = 100
"""Connections before the first measurement: what the broker takes once for all of them is not theirs."""
IDLE_S = 5.0
GONE_S_MAX = 30.0
BATCH = records([b"x" * 128] * 400)
"""Far larger than what a connection may keep."""


def use(those: Crowd) -> None:
    """Publish, and read what was published."""
    those.ask(m.Publish("stream"), [BATCH])
    those.ask(m.Fetch("stream", 0, 0, bytes_max=20_000))


def subscribe(those: Crowd) -> None:
    those.ask(m.Subscribe("queue", credit=10))


def say_nothing(those: Crowd) -> None:
    pass


@contextmanager
def half_open(address: str, count: int) -> Iterator[None]:
    """Connections of clients that say the first part of a hello, and no more."""
    host, port = address.split(":")
    part = b"".join(frames_of(hello("x" * 12_000), 1))[:HALF_HELLO_BYTES]
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection((host, int(port)))).sendall(part)
        yield


def rss(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def bytes_each(broker: BrokerProcess, those: Crowd, count: int, then) -> float:  # type: ignore[no-untyped-def]
    """Memory that one connection takes once it waits."""
    those.come(WARM)
    then(those)
    before = rss(broker)
    those.come(count)
    then(those)
    those.ask(m.Ping())
    return (rss(broker) - before) / count


@pytest.mark.parametrize("then", [say_nothing, use, subscribe])
def test_a_connection_that_waits_takes_little_memory(tmp_path: Path, then) -> None:  # type: ignore[no-untyped-def]
    with BrokerProcess(tmp_path, CONFIG) as broker, crowd(broker.address) as those:
        assert bytes_each(broker, those, 1_000, then) < BYTES_MAX


def test_a_connection_with_half_a_hello_takes_little_memory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, CONFIG) as broker, crowd(broker.address) as witness:
        witness.come(1)
        process = psutil.Process(broker.pid)
        with half_open(broker.address, WARM):
            until_read(process, WARM, witness)
            before, count = rss(broker), 500
            with half_open(broker.address, count):
                until_read(process, WARM + count, witness)
                assert (rss(broker) - before) / count < BYTES_MAX


def until_read(process: psutil.Process, count: int, witness: Crowd) -> None:
    """Wait until the broker has taken and read what so many connections say."""
    deadline = time.monotonic() + GONE_S_MAX
    while sum(bool(each.raddr) for each in process.net_connections("tcp")) < count + 1:
        assert time.monotonic() < deadline, "connections are not taken"
        witness.ask(m.Ping())
    for _ in range(10):  # The broker has answered, and so had its turn at the others.
        witness.ask(m.Ping())


@pytest.mark.soak
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 11_000, reason="needs 11,000 descriptors")
@pytest.mark.parametrize("then", [say_nothing, use, subscribe])
def test_ten_thousand_come_wait_and_leave(tmp_path: Path, then) -> None:  # type: ignore[no-untyped-def]
    with BrokerProcess(tmp_path, CONFIG) as broker, crowd(broker.address) as those, crowd(broker.address) as witness:
        process = psutil.Process(broker.pid)
        assert bytes_each(broker, those, 10_000, then) < BYTES_MAX
        witness.come(1)
        worked = processor_s(process)
        # The time is the broker's own: what is fetched never comes.
        witness.ask(m.Fetch("silent", 0, 0, wait_max_ms=int(1000 * IDLE_S)))
        assert processor_s(process) - worked < 0.05 * IDLE_S
        descriptors = process.num_fds()
        after = []
        for _ in range(3):
            those.leave()
            until_let_go(process, descriptors - 10_000, witness)
            after.append(rss(broker))
            those.come(10_100, within_s=30)
        assert after[-1] < 1.2 * after[0], "who comes and leaves again takes no more memory"


def until_let_go(process: psutil.Process, descriptors: int, witness: Crowd) -> None:
    """Wait until the broker has no more descriptors open than these."""
    deadline = time.monotonic() + GONE_S_MAX
    while process.num_fds() > descriptors:
        assert time.monotonic() < deadline, "connections that are gone are still open"
        witness.ask(m.Ping())  # The broker has answered, and so had its turn at the others.


def processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
