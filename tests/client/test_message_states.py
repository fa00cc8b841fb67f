"""A client asks what became of messages, and waits until they have ended."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio
from test_request_and_reply import URL

import linn
from linn.client import Client
from linn.core.broker.broker import running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.errors.messages import StatusUnsupported
from linn.core.errors.tree import LimitExceeded, MessageInvalid, TopicUnknown
from linn.core.plugins.manager import PluginManager, installed
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

TOML = """
[broker]
data_dir = "data"
[listeners.native]
address = "127.0.0.1:5466"
[topics.jobs]
status = "7d"
[topics.plain]
"""


async def work_on(env: SimEnv, count: int, pause_s: float) -> None:
    """Ack the next messages, one after each pause, and reject the last one."""
    async with linn.connect(URL, env=env) as client, client.consumer("jobs", prefetch=1) as consumer:
        for number in range(count):
            message = await anext(consumer)
            await trio.sleep(pause_s)
            await (message.ack() if number < count - 1 else message.reject("no"))


async def states(client: Client, ids: list[UUID], wait_s: float = 0.0) -> list[tuple[str, str]]:
    return [(each["state"], each["reason"]) for each in await client.status("jobs", ids, wait_s=wait_s)]


def test_a_client_waits_for_the_end_of_a_message_that_another_one_has_published() -> None:
    async def scenario(env: SimEnv) -> None:
        node = SimEnv(1, name="broker", world=env.world)
        source = TomlSource(TOML, "test.toml")
        plugins = PluginManager(plugin_settings(source), installed())
        async with running_broker(load_config(source, plugins), node, plugins), trio.open_nursery() as nursery:
            async with linn.connect(URL, env=env) as other, other.producer("jobs") as producer:
                ids = [(await producer.publish(b"%d" % number)).id for number in range(3)]
            async with linn.connect(URL, env=env) as client:
                assert await states(client, ids) == [("stored", "")] * 3
                nursery.start_soon(work_on, env, 3, 5.0)
                began = trio.current_time()
                found = await states(client, ids, wait_s=60)
                assert found == [("settled", ""), ("settled", ""), ("dead", "rejected")]
                assert 15 <= trio.current_time() - began < 16, "it returns soon after the end"
                assert await states(client, ids, wait_s=60) == found
                assert trio.current_time() - began < 16.5
                began = trio.current_time()
                assert await states(client, [*ids, UUID(int=7)], wait_s=3) == [*found, ("unknown", "")]
                assert 3 <= trio.current_time() - began < 3.1
                assert [each["id"] for each in await client.status("jobs", [str(ids[1]).upper()])] == [str(ids[1])]
                await refuses(client)

    run_simulation(0, scenario)


async def refuses(client: Client) -> None:
    for ids in (["no uuid"], [7], [b"x" * 16], [None]):
        with pytest.raises(MessageInvalid):
            await client.status("jobs", ids)  # type: ignore[arg-type]
    with pytest.raises(LimitExceeded, match="1,000,000,000 ids in one request, more than 1,000"):
        await client.status("jobs", range(10**9))  # type: ignore[arg-type]
    for wait_s in (-1, float("nan"), "soon"):
        with pytest.raises(MessageInvalid):
            await client.status("jobs", [], wait_s=wait_s)  # type: ignore[arg-type]
    with pytest.raises(StatusUnsupported):
        await client.status("plain", [])
    with pytest.raises(TopicUnknown):
        await client.status("absent", [])
    assert await client.status("jobs", []) == []
