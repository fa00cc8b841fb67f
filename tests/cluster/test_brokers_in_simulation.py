"""Three whole brokers in simulated time, as their clients see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import trio
from cluster_world import TIMEOUT_S
from sim_store import SimStore

import linn
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import load_config
from linn.core.config.toml_source import TomlSource
from linn.core.env.env import Env
from linn.core.metadata.store import MetadataStore, MetadataStoreKind
from linn.core.plugins.manager import PluginManager, built_in
from linn.descriptions import ClusterDescription
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

CONFIG = """
[broker]
data_dir = "/linn"
[listeners.native]
address = "127.0.0.1:546{number}"
advertise = "broker{number}.example:5466"
[topics.jobs]
kind = "both"
[cluster]
name = "test"
node = {number}
store = "simulated"
rack = "rack {number}"
"""
URL = "linn://127.0.0.1:546{number}"


class NoSettings(msgspec.Struct, frozen=True):
    """Settings of the simulated store."""


class Cluster:
    """A store and three brokers, each on a machine of its own."""

    config = CONFIG

    def __init__(self, env: SimEnv, nursery: trio.Nursery) -> None:
        self.store = SimStore(0, nursery.start_soon)
        self.envs = {number: SimEnv(0, name=f"machine{number}", world=env.world) for number in (1, 2, 3)}
        self.brokers: dict[int, Broker] = {}
        self.numbers: list[int] = []
        """The numbers of all starts."""
        self._nursery = nursery

    async def start(self, number: int) -> None:
        if self.envs[number].is_dead:
            self.envs[number] = self.envs[number].restart()
        await self._nursery.start(self._serve, number, self.envs[number])

    async def _serve(self, number: int, env: SimEnv, task_status: trio.TaskStatus[None]) -> None:
        async def process(env: SimEnv) -> None:
            config = load_config(TomlSource(self.config.format(number=number), "linn.toml"), self._plugins())
            async with running_broker(config, env, self._plugins()) as broker:
                self.brokers[number] = broker
                self.numbers.append(broker.producer_ids.start)
                task_status.started()
                await broker.wait_stopped()

        await env.run_until_death(process)

    def _plugins(self) -> PluginManager:
        plugins = built_in()
        plugins.metadata_stores["simulated"] = MetadataStoreKind("simulated", NoSettings, self._store)
        return plugins

    def _store(self, name: str, settings: NoSettings, env: Env) -> MetadataStore:
        assert isinstance(env, SimEnv)
        return self.store.client(env)

    async def status(self, number: int) -> ClusterDescription:
        """Return what a broker tells a client."""
        async with linn.connect(URL.format(number=number), env=self.envs[number]) as client:
            return await client.admin.cluster()

    async def states(self, number: int) -> dict[int, str]:
        return {node["node"]: node["state"] for node in (await self.status(number))["nodes"]}

    async def until_states(self, number: int, states: dict[int, str], within_s: float = 30.0) -> None:
        with trio.fail_after(within_s):
            while await self.states(number) != states:
                await trio.sleep(0.1)


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main(env: SimEnv) -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(env, nursery)
            for number in (1, 2, 3):
                await cluster.start(number)
            await cluster.until_states(1, {1: "alive", 2: "alive", 3: "alive"})
            await scenario(cluster)
            nursery.cancel_scope.cancel()

    run_simulation(0, main)


def test_each_broker_tells_its_clients_the_same() -> None:
    async def scenario(cluster: Cluster) -> None:
        await trio.sleep(3)
        seen = [await cluster.status(number) for number in (1, 2, 3)]
        assert [status["node"] for status in seen] == [1, 2, 3]
        assert seen[0]["nodes"] == seen[1]["nodes"] == seen[2]["nodes"]
        assert len({(status["controller"], status["controller_epoch"], status["id"]) for status in seen}) == 1
        assert seen[0]["nodes"][1]["addresses"] == {"native": "broker2.example:5466"}
        assert (seen[0]["nodes"][1]["host"], seen[0]["nodes"][1]["rack"]) == ("machine2", "rack 2")
        assert seen[0]["problem"] is None
        assert [status["is_registered"] for status in seen] == [True] * 3
        assert len({*cluster.numbers}) == 3, "producer ids are unique over nodes"

    run(scenario)


def test_a_stopped_broker_has_left_and_a_killed_one_was_given_up() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.brokers[2].stop()
        await cluster.until_states(1, {1: "alive", 2: "left", 3: "alive"}, 3)
        cluster.envs[3].kill()
        await cluster.until_states(1, {1: "alive", 2: "left", 3: "given up"}, TIMEOUT_S + 2)
        assert (await cluster.status(1))["controller"] == 1
        await cluster.start(2)
        await cluster.start(3)
        await cluster.until_states(2, {1: "alive", 2: "alive", 3: "alive"})
        ends = {node["node"]: [end["reason"] for end in node["ends"]] for node in (await cluster.status(3))["nodes"]}
        assert ends == {1: [], 2: ["left"], 3: ["given up"]}
        assert len({*cluster.numbers}) == 5

    run(scenario)


def test_without_the_store_brokers_serve_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with (
            linn.connect(URL.format(number=1), env=cluster.envs[1]) as client,
            client.producer("jobs") as producer,
        ):
            await producer.publish(b"before")
            cluster.store.stop()
            for _ in range(60):
                await producer.publish(b"during")
                await trio.sleep(1)
            status = await client.admin.cluster()
            assert not status["is_registered"]
            assert status["view_age_s"] > 50
            assert status["problem"] is not None
            samples = {metric["name"]: metric["samples"] for metric in await client.admin.metrics("linn_cluster")}
            samples = {name: found[0][1] for name, found in samples.items() if found}
            assert samples["linn_cluster_view_age_seconds"] > 50
            assert samples["linn_cluster_is_registered"] == 0
            assert samples["linn_cluster_nodes_alive"] == 3
            async with client.consumer("jobs") as consumer:
                assert (await anext(consumer)).value == b"before"
            cluster.store.start()
            with trio.fail_after(10):
                while not (await client.admin.cluster())["is_registered"]:
                    await trio.sleep(0.1)
        await cluster.until_states(1, {1: "alive", 2: "alive", 3: "alive"})

    run(scenario)


def test_a_broker_without_the_table_says_that_it_is_alone() -> None:
    async def main(env: SimEnv) -> None:
        config = load_config(TomlSource('[broker]\ndata_dir = "/linn"\n', "linn.toml"), built_in())
        async with running_broker(config, env), linn.connect(URL.format(number=6), env=env) as client:
            status = await client.admin.cluster()
            assert (status["node"], status["nodes"], status["controller"]) == (None, [], None)
            assert all(not metric["samples"] for metric in await client.admin.metrics("linn_cluster"))
        assert not env.disk.exists("/linn/node")

    run_simulation(0, main)
