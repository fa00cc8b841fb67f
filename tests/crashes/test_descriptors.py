"""Descriptors that run out, in a broker that is a process: by connections, and by the files of topics."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import trio

import linn
from linn.core.errors.tree import DescriptorsExhausted
from linn.testing.process import BrokerProcess

LEFT = 48
"""Descriptors that a broker may still open, in these tests."""
WITHIN_S = 200.0
SMALL_SEGMENTS = """
[storage.segmented-log]
segment_bytes_max = "64KiB"
fsync = "always"

[topics.events]
kind = "stream"
"""


def limit(broker: BrokerProcess, left: int) -> None:
    """Let the broker open only so many more."""
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (psutil.Process(broker.pid).num_fds() + left, hard))


@contextlib.contextmanager
def crowd_at(broker: BrokerProcess, count: int) -> Iterator[None]:
    """Connections that say nothing; in the end the broker has closed each of them."""
    host, port = broker.address.split(":")
    with contextlib.ExitStack() as stack:
        crowd: list[socket.socket] = []
        for _ in range(count):
            with contextlib.suppress(ConnectionError):
                crowd.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=WITHIN_S)))
        yield
        for one in crowd:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_WR)
        for one in crowd:
            with contextlib.suppress(ConnectionError):
                while one.recv(1 << 16):
                    pass


async def test_a_crowd_of_connections_does_not_harm_existing_ones(tmp_path: Path) -> None:
    values = [b"%04d " % number + bytes(10_000) for number in range(200)]
    with BrokerProcess(tmp_path, SMALL_SEGMENTS) as broker:
        async with linn.connect(broker.url, request_timeout_s=10) as client, client.producer("events") as producer:
            await producer.publish(values[0])
            limit(broker, LEFT)
            with crowd_at(broker, 2 * LEFT):
                # Every few of them begin a file, and have its folder synced.
                for value in values[1:]:
                    await producer.publish(value)
                before_s = psutil.Process(broker.pid).cpu_times()
                # A second by the broker's clock: there is no such record.
                assert not (await client.fetch("events", 0, len(values), wait_s=1)).batches
                after_s = psutil.Process(broker.pid).cpu_times()
                assert after_s.user + after_s.system - before_s.user - before_s.system < 0.1, "it runs in a circle"
            async with linn.connect(broker.url) as newcomer:
                await newcomer.describe("events")
            fetched = [batch async for batch in everything(client)]
        assert fetched == values
        assert "storage." not in broker.log_text()
        assert "Traceback" not in broker.log_text()
        assert "refused" in broker.log_text()


async def everything(client: linn.Client):  # type: ignore[no-untyped-def]
    offset = 0
    while batches := (await client.fetch("events", 0, offset)).batches:
        for batch in batches:
            for value in batch.values:
                yield bytes(value)
        offset = batches[-1].end_offset


async def test_idle_partitions_need_no_descriptors_and_the_others_continue(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SMALL_SEGMENTS) as broker:
        async with linn.connect(broker.url, retries_max=0) as client, client.producer("events") as producer:
            limit(broker, LEFT)
            before = psutil.Process(broker.pid).num_fds()
            await client.admin.create_topic("wide", kind="both", partitions=4 * LEFT)
            assert psutil.Process(broker.pid).num_fds() <= before
            refused = 0
            async with client.producer("wide") as wide:
                for number in range(4 * LEFT):
                    try:
                        await wide.publish(b"x", key=b"%d" % number)
                    except DescriptorsExhausted:
                        refused += 1
            assert refused < 4 * LEFT, "as many as there are descriptors are written to at once; others have to wait"
            limit(broker, LEFT)
            await producer.publish(bytes(10_000))
        broker.kill()
        broker.start()
        limit(broker, LEFT)
        assert psutil.Process(broker.pid).num_fds() < LEFT
        async with linn.connect(broker.url) as client:
            (topic,) = [each for each in await client.admin.topics() if each["name"] == "wide"]
            assert sum(partition["end"] for partition in topic["partitions"]) == 4 * LEFT - refused
            await client.admin.delete_topic("wide")
        assert "Traceback" not in broker.log_text()


async def has_logged(broker: BrokerProcess) -> None:
    """Have it write a line: for its first one it loads a library."""
    host, port = broker.address.split(":")
    with trio.fail_after(WITHIN_S):
        async with await trio.open_tcp_stream(host, int(port)) as stranger:
            await stranger.send_all(b"GET / HTTP/1.1\r\n\r\n")
            await stranger.send_eof()
            while await stranger.receive_some():
                pass
    assert "protocol." in broker.log_text(), "the line comes before the close"


async def test_publishing_waits_for_a_descriptor_and_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SMALL_SEGMENTS) as broker:
        async with linn.connect(broker.url, retries_max=100, backoff_max_s=0.1) as client:
            async with client.producer("events") as producer:
                await producer.publish(b"first")
                await has_logged(broker)
                limit(broker, 0)
                for _ in range(20):
                    producer.publish_nowait(bytes(50_000))
                # Carried out behind the publishes: a broker does what one connection asks for in order.
                (refused,) = await client.admin.metrics("linn_publish_errors_total")
                codes = {labels[0] for labels, _ in refused["samples"]}
                assert codes == {"storage.descriptors_exhausted", "producer.out_of_order"}
                assert "Traceback" not in broker.log_text()
                limit(broker, LEFT)
                with trio.fail_after(WITHIN_S):
                    await producer.flush()
            (topic,) = await client.admin.topics()
            assert topic["partitions"][0]["end"] == 21


async def test_a_broker_may_open_files_up_to_its_hard_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        broker = BrokerProcess(tmp_path).start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        assert broker.stop() == 0
        assert f"{hard} files and connections may be open" in broker.log_text()
    finally:
        broker.kill()
