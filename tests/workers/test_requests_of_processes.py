"""Requests and replies with real processes: over the workers of a broker, and while a broker is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from brokers import several_brokers

import linn
from linn.client import Client, Message
from linn.core.errors.tree import LinnError
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.system

CONFIG = "[topics.jobs]\npartitions = 2\nlease = '5s'\n"
KILLS = 3
END_S = 120.0


async def echo(message: Message) -> None:
    await message.reply(b"you said " + (message.value or b""))


async def work(url: str) -> None:
    async with linn.connect(url, wait_s=END_S) as client, client.consumer("jobs") as consumer:
        await consumer.run(echo, concurrency=20)


async def ask_on(client: Client, name: str, outcomes: Counter[str], is_over: Callable[[], bool]) -> None:
    """Ask, and count the outcomes; a reply is that to the request, and to no other one."""
    number = 0
    while not is_over():
        number += 1
        value = f"{name}-{number}"
        try:
            reply = await client.request("jobs", value.encode(), timeout_s=5)
        except LinnError as error:
            outcomes[error.code] += 1
        else:
            assert reply.text == f"you said {value}"
            outcomes["replied"] += 1


def test_requests_and_replies_cross_the_processes_of_a_broker() -> None:
    async def main(url: str) -> None:
        outcomes: Counter[str] = Counter()
        nodes: set[int] = set()
        with trio.fail_after(END_S):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(work, url)
                async with trio.open_nursery() as asking:
                    for number in range(8):
                        asking.start_soon(ask_some, url, str(number), outcomes, nodes)
                nursery.cancel_scope.cancel()
        assert outcomes == {"replied": 8 * 50}
        assert nodes == {1, 2}, "requesters were connected to both workers"

    async def ask_some(url: str, name: str, outcomes: Counter[str], nodes: set[int]) -> None:
        async with linn.connect(url) as client:
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    left = iter(range(10))
                    nursery.start_soon(ask_on, client, f"{name}.{number}", outcomes, partial(_is_empty, left))
            nodes.add(int(client._requester._address.partition(".")[0]))

    with several_brokers("workers", CONFIG) as broker:
        trio.run(main, broker.url)


def _is_empty(left: object) -> bool:
    return next(left, None) is None  # type: ignore[call-overload]


def test_a_killed_broker_fails_requests_in_time_and_confuses_no_reply(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()

    async def main(broker: BrokerProcess) -> None:
        is_over = False
        with trio.fail_after(END_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, broker.url)
                async with linn.connect(broker.url) as client, trio.open_nursery() as asking:
                    for number in range(10):
                        asking.start_soon(ask_on, client, str(number), outcomes, lambda: is_over)
                    for _ in range(KILLS):
                        await until_more(outcomes)
                        broker.kill()
                        await trio.to_thread.run_sync(broker.start)
                    await until_more(outcomes)
                    is_over = True
                nursery.cancel_scope.cancel()

    async def until_more(outcomes: Counter[str]) -> None:
        before = outcomes["replied"]
        while outcomes["replied"] < before + 200:
            await trio.sleep(0.01)

    with BrokerProcess(tmp_path, CONFIG) as broker:
        trio.run(main, broker)
    failed = outcomes.keys() - {"replied"}
    assert failed, "requests were waiting when the broker was killed"
    assert failed <= {"connection.lost", "request.no_reply", "request.timeout"}
