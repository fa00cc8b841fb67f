"""Whole brokers of a cluster, linked by what the metadata store says of them, in simulated time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
import trio
from peer_world import ANN, until
from test_brokers_in_simulation import Cluster

from linn.core.config.config import load_config
from linn.core.config.toml_source import TomlSource
from linn.core.errors.group import leaves_of
from linn.core.errors.peers import PeerError, PeerUnknown, PeerUnreachable
from linn.core.errors.tree import ConfigError, LinnError, SecretUnusable
from linn.core.plugins.manager import built_in
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

SECRET = "a secret of this cluster, 32 byt"
CONFIG = """
[broker]
data_dir = "/linn"
[listeners.native]
address = "127.0.0.1:546{number}"
[listeners.peers]
protocol = "peers"
address = "127.0.0.1:556{number}"
[cluster]
name = "test"
node = {number}
store = "simulated"
listener = "peers"
secret = {{ env = "SECRET" }}
"""


class LinkedCluster(Cluster):
    """Three brokers with a listener for one another."""

    config = CONFIG

    def __init__(self, env: SimEnv, nursery: trio.Nursery) -> None:
        super().__init__(env, nursery)
        for machine in self.envs.values():
            machine.process.variables["SECRET"] = SECRET

    async def start(self, number: int) -> None:
        if self.envs[number].is_dead:
            self.envs[number] = self.envs[number].restart()
            self.envs[number].process.variables["SECRET"] = SECRET
        await super().start(number)

    async def ask(self, asks: int, node: int, verb: str = "topic.list", arguments: str = "{}") -> str:
        links = self.brokers[asks].gateway.links
        assert links is not None
        return await links.perform(node, verb, arguments, ANN)

    async def ask_until_answered(self, asks: int, node: int, within_s: float = 30.0) -> str:
        with trio.fail_after(within_s):
            while True:
                try:
                    return await self.ask(asks, node)
                except PeerError as error:
                    if not error.retriable:
                        raise
                    await trio.sleep(0.1)


def simulate(scenario: Callable[[LinkedCluster], Awaitable[None]], seed: int = 0) -> None:
    async def main(env: SimEnv) -> None:
        async with trio.open_nursery() as nursery:
            cluster = LinkedCluster(env, nursery)
            for number in (1, 2, 3):
                await cluster.start(number)
            for asks in (1, 2, 3):
                for node in (1, 2, 3):
                    if asks != node:
                        await cluster.ask_until_answered(asks, node)
            await scenario(cluster)
            nursery.cancel_scope.cancel()

    run_simulation(seed, main, virtual_s_max=900)


@pytest.mark.parametrize("seed", range(3))
def test_each_broker_reaches_each_other_one(seed: int) -> None:
    async def scenario(cluster: LinkedCluster) -> None:
        created = json.dumps({"name": "orders", "settings": {"kind": "queue"}})
        await cluster.ask(1, 3, "topic.create", created)
        assert [topic["name"] for topic in json.loads(await cluster.ask(2, 3))] == ["orders"]
        for broker in cluster.brokers.values():
            assert len(broker.connections.traffic["peers"].open) == 2

    simulate(scenario, seed)


def test_a_broker_that_was_killed_is_reached_again_in_its_next_session() -> None:
    async def scenario(cluster: LinkedCluster) -> None:
        cluster.envs[2].kill()
        with pytest.raises(PeerUnreachable):
            await cluster.ask(1, 2)
        await cluster.start(2)
        await cluster.ask_until_answered(1, 2, within_s=15)
        await cluster.ask_until_answered(2, 1, within_s=15)

    simulate(scenario)


def test_links_outlive_the_store_and_follow_new_sessions() -> None:
    async def scenario(cluster: LinkedCluster) -> None:
        opened = cluster.brokers[1].connections.traffic["peers"].opened
        cluster.store.stop()
        await trio.sleep(60)
        await cluster.ask(2, 1)
        assert cluster.brokers[1].connections.traffic["peers"].opened == opened, "a store that is away ends no link"
        cluster.store.start()
        await cluster.ask_until_answered(2, 1)

    simulate(scenario)


def test_a_cut_that_outlasts_the_session_is_survived() -> None:
    async def scenario(cluster: LinkedCluster) -> None:
        world = cluster.envs[1].world
        world.cut("machine1", "machine2")
        with pytest.raises((PeerUnreachable, PeerUnknown)):
            await cluster.ask(1, 2)
        await cluster.ask(1, 3)
        await cluster.ask(3, 2)
        await trio.sleep(20)
        world.heal("machine1", "machine2")
        await cluster.ask_until_answered(1, 2)
        await cluster.ask_until_answered(2, 1)

    simulate(scenario)


def test_a_broker_that_stops_in_order_ends_its_links() -> None:
    async def scenario(cluster: LinkedCluster) -> None:
        cluster.brokers[3].stop()
        await until(lambda: all(_linked(cluster, number) == 1 for number in (1, 2)), 30)
        with pytest.raises(PeerUnreachable):
            await cluster.ask(1, 3)
        await cluster.ask(1, 2)

    simulate(scenario)


def _linked(cluster: LinkedCluster, number: int) -> int:
    return len(cluster.brokers[number].connections.traffic["peers"].open)


# --- configuration ---------------------------------------------------------------------------------------------------


def refused(change: Callable[[str], str]) -> LinnError:
    text = change(CONFIG.format(number=1).replace('"simulated"', '"etcd"'))
    with pytest.raises(ConfigError) as raised:
        load_config(TomlSource(text, "linn.toml"), built_in())
    return raised.value


def test_a_listener_for_brokers_speaks_peers_and_needs_a_secret() -> None:
    error = refused(lambda text: text.replace('listener = "peers"', 'listener = "native"'))
    assert 'listeners.native speaks "capnp": brokers need protocol = "peers"' in error.text
    error = refused(lambda text: text.replace('secret = { env = "SECRET" }', ""))
    assert "cluster.listener: needs a secret" in error.text


def test_a_listener_for_brokers_that_others_reach_needs_tls_and_no_login() -> None:
    def beyond(text: str) -> str:
        return text.replace("127.0.0.1:5561", "10.0.0.1:5561").replace('"simulated"', '"etcd"')

    text = beyond(CONFIG.format(number=1))
    with pytest.raises(ConfigError, match="TLS"):
        load_config(TomlSource(text, "linn.toml"), built_in())
    text = text.replace('protocol = "peers"', 'protocol = "peers"\nplaintext = true')
    assert load_config(TomlSource(text, "linn.toml"), built_in()).cluster is not None


def test_a_short_secret_is_refused_at_the_start() -> None:
    async def main(env: SimEnv) -> None:
        async with trio.open_nursery() as nursery:
            cluster = LinkedCluster(env, nursery)
            cluster.envs[1].process.variables["SECRET"] = "short"
            await cluster.start(1)

    with pytest.raises(BaseExceptionGroup) as raised:
        run_simulation(0, main, virtual_s_max=900)
    (error,) = leaves_of(raised.value)
    assert isinstance(error, SecretUnusable)
    assert "less than 16 bytes" in error.text
