"""The client in a simulated world, with a real broker at the other end of a simulated network."""

from __future__ import annotations

import pytest
import trio

import linn
from linn.client import Client
from linn.core.broker.broker import running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.plugins.manager import PluginManager, installed
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

TOML = """
[broker]
data_dir = "data"
[storage.segmented-log]
fsync = "always"
[listeners.native]
address = "127.0.0.1:5466"
[topics.log]
kind = "stream"
"""


async def serve(env: SimEnv) -> None:
    source = TomlSource(TOML, "test.toml")
    plugins = PluginManager(plugin_settings(source), installed())
    async with running_broker(load_config(source, plugins), env, plugins):
        await trio.sleep_forever()


async def publish(client: Client, confirmed: list[int], count: int) -> None:
    async with client.producer("log") as producer:
        for number in range(count):
            await producer.publish(b"%d" % number)
            confirmed.append(number)
            await trio.sleep(0.01)


async def crash_and_read(env: SimEnv) -> list[int]:
    """Publish while the broker's machine crashes and comes back, then read everything."""
    node = SimEnv(1, name="broker", world=env.world)
    confirmed: list[int] = []

    async def live_twice() -> None:
        async def crash() -> None:
            await trio.sleep(0.35)
            node.crash()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            await node.run_until_death(serve)
        await serve(node.restart())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live_twice)
        await trio.sleep(0.1)
        async with linn.connect("linn://127.0.0.1:5466", env=env, retries_max=50) as client:
            await publish(client, confirmed, 60)
            fetched = await client.fetch("log", 0, 0)
            nursery.cancel_scope.cancel()
    stored = [int(value or b"") for batch in fetched.batches for value in batch.values]
    assert node.is_dead
    assert confirmed == list(range(60))
    return stored


@pytest.mark.parametrize("seed", range(10))
def test_what_was_confirmed_is_there_in_order_after_a_crash(seed: int) -> None:
    stored = run_simulation(seed, crash_and_read)
    assert list(dict.fromkeys(stored)) == list(range(60))
    assert stored == sorted(stored)
