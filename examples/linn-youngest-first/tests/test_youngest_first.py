"""The youngest record is next, in a queue of a broker as well."""

from __future__ import annotations

import pytest
from linn_youngest_first.plugin import YoungestFirst

import linn
from linn.testing.deterministic import run_simulation
from linn.testing.orders import OrderConformance, OrderHarness, OrderUser, mixed_batch
from linn.testing.plugin_broker import URL, plugin_broker
from linn.testing.sim_env import SimEnv

TOML = """
[topics.thumbnails]
order = "youngest"
"""


class TestYoungestFirst(OrderConformance):
    @pytest.fixture
    def harness(self) -> OrderHarness:
        return OrderHarness(make=YoungestFirst)


def test_what_comes_back_keeps_its_place() -> None:
    user = OrderUser(YoungestFirst())
    user.arrive(mixed_batch(6, 0))
    assert user.take(2) == [5, 4]
    user.arrive(mixed_batch(1, 0))
    user.come_back([4])
    assert user.take(3) == [6, 4, 3]


def test_a_queue_delivers_what_was_published_last() -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, TOML, "linn_youngest_first.plugin"), linn.connect(URL, env=env) as client:
            async with client.producer("thumbnails") as producer:
                for number in range(5):
                    await producer.publish(b"%d" % number)
                async with client.consumer("thumbnails", prefetch=1) as consumer:
                    message = await anext(consumer)
                    assert message.value == b"4"
                    await producer.publish(b"5")
                    await message.nack()
                    found = []
                    for _ in range(6):
                        message = await anext(consumer)
                        found.append(message.value)
                        await message.ack()
        assert found == [b"5", b"4", b"3", b"2", b"1", b"0"]

    run_simulation(0, scenario)
