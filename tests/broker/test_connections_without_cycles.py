"""A connection that has ended is let go of at once: nothing of it waits for Python's collector, which seldom looks."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
from raw_client import ADDRESS, broker_on, connected, records, served, simulated

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.core.env.env import Stream
from linn.core.publish.request import PublishRequest
from linn.core.security.access import FullAccess
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import frames_of, hello

TOPICS = '[topics.q]\n[topics.s]\nkind = "stream"\npartitions = 4\n'
HELLO = bytes(frames_of(hello("half"), 1)[0])
ENDED_S = 2.0


async def _silent(env: SimEnv) -> Stream:
    return await env.net.connect(ADDRESS)


async def _half_a_hello(env: SimEnv) -> Stream:
    stream = await _silent(env)
    await stream.send([HELLO[: len(HELLO) // 2]])
    return stream


async def _no_hello(env: SimEnv) -> Stream:
    stream = await _silent(env)
    await stream.send([b"\xff" * 64])
    return stream


async def _malformed(env: SimEnv) -> Stream:
    client = await connected(env)
    await client.stream.send([b"\xff" * 64])
    return client.stream


def _asking(*requests: tuple[m.Message, int]) -> Callable[[SimEnv], Awaitable[Stream]]:
    """`requests`: each with the number of batches behind it."""

    async def ask(env: SimEnv) -> Stream:
        client = await connected(env)
        for request, batches in requests:
            await client.send(request, [records("x")] * batches)
        await client.call(m.Ping())
        return client.stream

    return ask


PUBLISHED = (m.Publish("q"), 1)
WAITS = (m.Fetch("s", 0, 0, bytes_min=100, wait_max_ms=1_000_000), 0)
CONNECTIONS: dict[str, Callable[[SimEnv], Awaitable[Stream]]] = {
    "silent": _silent,
    "half a hello": _half_a_hello,
    "no hello": _no_hello,
    "greeted": _asking(),
    "malformed": _malformed,
    "published": _asking(PUBLISHED, (m.Publish("nowhere"), 1)),
    "waits": _asking(WAITS),
    "consumes": _asking(PUBLISHED, (m.Subscribe("q", credit=10), 0)),
    "reads": _asking((m.Subscribe("s", credit=10), 0)),
    "is a member": _asking((m.Subscribe("s", group="g", credit=10), 0)),
    "has unsubscribed": _asking((m.Subscribe("s", group="g", credit=10), 0), (m.Unsubscribe(1), 0)),
}


@contextmanager
def collected() -> Iterator[list[str]]:
    """linn's objects that only the collector frees after the block, by the names of their types."""
    found: list[str] = []
    while gc.collect():  # What earlier tests have left may take several: a finalizer lets go of more.
        pass
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += sorted({type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("linn.")})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("connection", CONNECTIONS)
@served(TOPICS)
async def test_a_connection_that_has_ended_leaves_no_cycle(env: SimEnv, broker: Broker, connection: str) -> None:
    with collected() as found:
        await _come_and_go(env, connection)
        await trio.sleep(ENDED_S)
        assert broker.listening.connections == 0
    assert found == []


@simulated
async def test_a_publish_that_is_given_up_leaves_no_cycle(env: SimEnv) -> None:
    exchange = '[exchanges.d]\ntype = "direct"\n'
    binding = '[[topics.%s.bindings]]\nexchange = "d"\nkey = "k"\n'
    async with broker_on(env, exchange + TOPICS + binding % "q" + binding % "s") as broker:
        with collected() as found:
            batches = [build_from_records([Record(value=b"x", routing_key="k")], base_id=1) for _ in range(9)]
            plan, steps = broker.publisher.begin(PublishRequest("d", batches, to_exchange=True), FullAccess("test"))
            next(steps)
            del plan, steps, batches
        assert found == []


async def _come_and_go(env: SimEnv, connection: str) -> None:
    for _ in range(3):
        stream = await CONNECTIONS[connection](env)
        await trio.sleep(ENDED_S)
        await stream.aclose()
