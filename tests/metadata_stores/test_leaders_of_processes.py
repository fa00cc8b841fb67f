"""Clients that go to leaders, beside real brokers: `linn bench` passes nothing on, and a leader goes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
from cluster_processes import real_cluster
from tls_world import tls_table

import linn
import linn.sync
from linn.core.security.sasl.scram import make_verifier
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.system

TOPICS = ("one", "two", "three", "four")
FORWARDED = ("linn_cluster_forwarded_published_bytes_total", "linn_cluster_forwarded_delivered_bytes_total")
COUNT = 20_000
VERIFIER = make_verifier("opensesame", b"salt of 16 bytes", 4_096).text()
MESSAGES = 600


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, which the sockets of workers need."""
    with TemporaryDirectory(prefix="linn-", dir="/tmp") as path:
        yield Path(path)


def passed_on(addresses: Sequence[str], scheme: str = "linn", **options: Any) -> float:
    """The bytes that brokers have passed on."""
    total = 0.0
    for address in addresses:
        with linn.sync.connect(f"{scheme}://{address}", **options) as client:
            samples = {metric["name"]: metric["samples"] for metric in client.admin.metrics()}
        total += sum([sample[-1] for name in FORWARDED for sample in samples[name]])
    return total


def addresses_of(url: str) -> list[str]:
    """The addresses of all brokers, as clients are told them."""
    with linn.sync.connect(url) as client:
        return [node.address for node in client.describe().nodes]


def make_topics(url: str, **settings: object) -> None:
    with linn.sync.connect(url) as client:
        for name in TOPICS:
            client.admin.create_topic(name, kind="both", **settings)


def bench(*arguments: str, url: str) -> None:
    command = [sys.executable, "-m", "linn", "bench", *arguments, "--count", str(COUNT), "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def load(url: str) -> None:
    """Publish to each topic, and consume what was published."""
    for name in TOPICS:
        bench("publish", name, "--size", "100", url=url)
        bench("consume", name, url=url)


def test_bench_passes_no_byte_on_at_two_workers(folder: Path) -> None:
    with BrokerProcess(folder, options=("--workers", "2")) as broker:
        make_topics(broker.url)
        addresses = addresses_of(broker.url)
        assert len({*addresses, broker.address}) == 3
        with linn.sync.connect(broker.url) as client:
            leaders = {topic.partitions[0].leader for topic in client.describe(*TOPICS).topics}
        assert leaders == {1, 2}
        load(broker.url)
        assert passed_on(addresses) == 0


def test_bench_passes_no_byte_on_at_three_brokers(tmp_path: Path) -> None:
    with real_cluster(tmp_path) as cluster:
        url = ",".join([cluster.urls[0], *(url.removeprefix("linn://") for url in cluster.urls[1:])])
        make_topics(url)
        cluster.until_whole(*TOPICS)
        load(url)
        assert passed_on([broker.address for broker in cluster.brokers.values()]) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=lambda how: how.name)
def test_nothing_is_lost_repeated_or_reordered_when_a_leader_goes(tmp_path: Path, how: signal.Signals) -> None:
    with real_cluster(tmp_path, tables='[topics.flights]\nkind = "both"\nretention = "forever"\n') as cluster:
        cluster.until_whole("flights")
        url = "linn://" + ",".join(broker.address for broker in cluster.brokers.values())
        acked: dict[int, None] = {}
        maybe: set[int] = set()

        async def publish() -> None:
            async with linn.connect(url, request_timeout_s=60) as client, client.producer("flights") as producer:
                for number in range(MESSAGES):
                    await producer.publish(b"%d" % number)

        async def consume() -> None:
            async with linn.connect(url, request_timeout_s=60) as client, client.consumer("flights") as consumer:
                while len({*acked, *maybe}) < MESSAGES:
                    message = await anext(consumer)
                    assert int(message.text) not in acked
                    try:
                        await message.ack()
                    except (linn.errors.DeliveryNotCurrent, linn.errors.NotLeader):
                        maybe.add(int(message.text))  # It may come again.
                        continue
                    acked[int(message.text)] = None
                    if len(acked) == MESSAGES // 4:
                        await trio.to_thread.run_sync(lambda: cluster.lose(cluster.leader("flights"), how))

        async def stored() -> list[int]:
            async with linn.connect(url) as client, client.consumer("flights", group="check") as reader:
                return [int((await anext(reader)).text) for _ in range(MESSAGES)]

        async def run() -> None:
            with trio.fail_after(120):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(publish)
                    nursery.start_soon(consume)
                assert sorted({*acked, *maybe}) == list(range(MESSAGES))
                assert await stored() == list(range(MESSAGES))

        trio.run(run)


def test_leaders_are_reached_in_tls_and_with_the_same_login(folder: Path) -> None:
    config = f"""
        {tls_table(folder)}
        [listeners.native]
        address = "127.0.0.1:0"
        tls = "edge"
        login = "required"
        [users.ann]
        scram = "{VERIFIER}"
        roles = ["administrator"]
    """

    with BrokerProcess(folder, config, options=("--workers", "2"), listen=()) as broker:
        tls = linn.Tls(ca=folder / "ca.pem")
        options: dict[str, Any] = {"tls": tls, "login": linn.Password("ann", "opensesame")}
        with linn.sync.connect(broker.urls[0], **options) as client:
            for name in TOPICS:
                client.admin.create_topic(name, kind="both")
                with client.producer(name) as producer:
                    producer.publish(b"x")
                with client.consumer(name, group="g") as consumer:
                    assert next(iter(consumer)).value == b"x"
            addresses = [node.address for node in client.describe().nodes]
        assert len(addresses) == 2
        assert passed_on(addresses, "linns", **options) == 0
        for address in addresses:
            with pytest.raises(linn.errors.AuthFailed), linn.sync.connect(f"linns://{address}", tls=tls):
                pass
