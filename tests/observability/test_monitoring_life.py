"""A listener for metrics over a broker's life, in simulated time: recovery, a stop, and clients that don't read."""

from __future__ import annotations

import trio
from metric_samples import value
from raw_client import ALWAYS, HEAD, broker_on, configured, connected, served, simulated

from linn.core.broker.broker import Broker, running_broker
from linn.core.env.env import Stream
from linn.protocols.http.plugin import MetricsSettings
from linn.protocols.http.server import SEND_S_MAX
from linn.testing.sim_env import SimEnv
from linn.testing.sim_pipe import PIPE_BYTES_MAX
from linn.wire import messages as m

WATCH = '[listeners.watch]\nprotocol = "metrics"\naddress = "127.0.0.1:9466"\n'
TOPICS = "".join(f"[topics.t{number}]\n" for number in range(20))
WIDE = "".join(f'[topics.t{number}]\nstorage = "dram"\n' for number in range(200))
"""The number of topics with which the metrics page does not fit into a connection of the simulation."""


async def asked(env: SimEnv, path: str, head: bytes = b"") -> Stream:
    stream = await env.net.connect("127.0.0.1:9466")
    await stream.send([b"GET " + path.encode() + b" HTTP/1.1\r\nHost: linn\r\n" + head + b"\r\n"])
    return stream


async def rest_of(stream: Stream) -> bytes:
    buffer = memoryview(bytearray(1 << 16))
    received = b""
    while count := await stream.receive_into(buffer):
        received += buffer[:count]
    return received


async def answer(env: SimEnv, path: str) -> str:
    received = await rest_of(await asked(env, path, b"Connection: close\r\n"))
    head, _, body = received.partition(b"\r\n\r\n")
    return f"{head.split()[1].decode()} {body.decode().strip()}"


@simulated
async def test_it_is_alive_and_not_ready_while_the_broker_recovers(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        client = await connected(env)
        for number in range(20):
            await client.publish(f"t{number}", ["a log that there is something to recover of"])
    config, plugins = configured(ALWAYS + TOPICS + WATCH)
    env.disk.sync_delay_s_max = 5
    async with trio.open_nursery() as nursery:
        stop = trio.Event()

        async def serve() -> None:
            async with running_broker(config, env, plugins):
                await stop.wait()

        nursery.start_soon(serve)
        await trio.sleep(10)
        assert await answer(env, "/health") == "200 alive"
        assert await answer(env, "/ready") == "503 not ready"
        assert "linn_broker_ready 0.0" in await answer(env, "/metrics")
        await trio.sleep(1000)
        assert await answer(env, "/ready") == "200 ready"
        stop.set()


@simulated
async def test_it_says_that_it_is_stopping_until_the_clients_are_gone(env: SimEnv) -> None:
    config, plugins = configured('[topics.t]\nlease = "60s"\n' + WATCH, HEAD.replace("2s", "30s"))
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        ended = trio.Event()

        async def serve() -> None:
            async with running_broker(config, env, plugins):
                await stop.wait()
            ended.set()

        nursery.start_soon(serve)
        await trio.sleep(1)
        client = await connected(env)
        await client.publish("t", ["a"])
        worker = (await client.call(m.Subscribe("t", credit=1))).subscription
        delivery = await client.delivery()
        stop.set()
        await trio.sleep(5)
        assert await answer(env, "/ready") == "503 not ready"
        assert await answer(env, "/health") == "200 alive"
        idle = await asked(env, "/health")
        await client.settle(worker, delivery)
        with trio.fail_after(0.5):
            assert b"200" in await rest_of(idle)
            await ended.wait()


@simulated
async def test_an_answer_that_is_under_way_is_sent_to_its_end(env: SimEnv) -> None:
    config, plugins = configured(WIDE + WATCH)
    async with trio.open_nursery() as nursery:
        stop = trio.Event()

        async def serve() -> None:
            async with running_broker(config, env, plugins):
                await stop.wait()

        nursery.start_soon(serve)
        await trio.sleep(1)
        scrape = await asked(env, "/metrics")
        await trio.sleep(0.5)
        stop.set()
        page = await rest_of(scrape)
        assert len(page) > 2 * PIPE_BYTES_MAX
        assert page.endswith(b"0\r\n\r\n")


@served(WIDE + WATCH)
async def test_a_client_that_does_not_read_is_given_up(env: SimEnv, broker: Broker) -> None:
    streams = [await asked(env, "/metrics") for _ in range(3)]
    await trio.sleep(SEND_S_MAX / 2)
    assert value(broker, "linn_listener_connections", "watch", "metrics") == 3
    await trio.sleep(SEND_S_MAX)
    assert value(broker, "linn_listener_connections", "watch", "metrics") == 0
    assert await answer(env, "/ready") == "200 ready"
    for stream in streams:
        await stream.aclose()


@simulated
async def test_a_client_that_does_not_read_does_not_hold_up_a_stop(env: SimEnv) -> None:
    async with broker_on(env, WIDE + WATCH):
        stuck = await asked(env, "/metrics")
        await trio.sleep(1)
        started = trio.current_time()
    assert trio.current_time() - started < 3
    await stuck.aclose()


@served(WATCH)
async def test_no_connection_lasts_for_ever(env: SimEnv, broker: Broker) -> None:
    stream = await env.net.connect("127.0.0.1:9466")
    await stream.send([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
    await trio.sleep(MetricsSettings().connection_age_max_s + 1)
    assert value(broker, "linn_listener_connections", "watch", "metrics") == 0


@served(TOPICS + WATCH)
async def test_a_client_that_goes_away_is_let_go_at_once(env: SimEnv, broker: Broker) -> None:
    for path in ("/health", "/metrics"):
        stream = await asked(env, path)
        await stream.aclose()
        await trio.sleep(1)
        assert value(broker, "linn_listener_connections", "watch", "metrics") == 0


@simulated
async def test_watchers_are_no_clients(env: SimEnv) -> None:
    async with broker_on(env, WATCH, HEAD + "connections_max = 1\n") as broker:
        await connected(env)
        assert await answer(env, "/ready") == "200 ready"
        assert broker.listening.connections == 1
        assert list(broker.addresses) == ["native", "watch"]
