"""Whole brokers of one cluster in a simulation, beside a simulated metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from textwrap import dedent
from typing import Any

import msgspec
import trio
from cluster_world import until
from raw_client import RawClient
from sim_store import SimStore

from linn.cli.commands.recover import damaged_logs
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import Config, load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.env.env import Env
from linn.core.metadata.levels import LEVEL
from linn.core.metadata.store import MetadataStore, MetadataStoreKind
from linn.core.plugins.hookspecs import hookimpl
from linn.core.plugins.manager import PluginManager, installed
from linn.testing.sim_env import SimEnv

SECRET = "CLUSTER_SECRET"


class NoSettings(msgspec.Struct, frozen=True):
    """The settings of the simulated store: there are none."""


class SimStorePlugin:
    """An entry point, and the plugin behind it, for one simulated store."""

    name = value = "simulated-store"
    dist = None

    def load(self) -> SimStorePlugin:
        return self

    def __init__(self, store: SimStore) -> None:
        self._store = store

    @hookimpl
    def linn_register_metadata_store(self) -> MetadataStoreKind:
        return MetadataStoreKind("simulated", NoSettings, self._make)

    def _make(self, name: str, settings: Any, env: Env) -> MetadataStore:
        assert isinstance(env, SimEnv)
        return self._store.client(env)


class SimBroker:
    """One broker of a cluster, and the machine on which it runs."""

    def __init__(
        self, world: BrokerWorld, number: int, toml: str, broker_toml: str, replicas: int, cluster_toml: str = ""
    ) -> None:
        self.number = number
        self.replicas = replicas
        self.secret = "0123456789abcdef" * 2
        self.toml = toml
        self.broker_toml = broker_toml
        self.cluster_toml = cluster_toml
        self.level = LEVEL
        """The greatest level that its next process knows."""
        self.env = SimEnv(world.seed, name=f"machine{number}", world=world.env.world)
        self.broker: Broker
        self.world = world
        self._stop = trio.Event()
        self._ended = trio.Event()

    @property
    def address(self) -> str:
        return f"10.0.0.{self.number}:5466"

    async def start(self) -> None:
        """Start a process; return when it serves."""
        if self.env.is_dead:
            self.env = self.env.restart()
        self._stop, self._ended = trio.Event(), trio.Event()
        await self.world.nursery.start(self._live)

    def _configured(self) -> tuple[Config, PluginManager]:
        self.env.process.variables[SECRET] = self.secret
        head = f"""
            [broker]
            data_dir = "data"
            drain_timeout = "2s"
            {self.broker_toml}
            [cluster]
            name = "test"
            node = {self.number}
            store = "simulated"
            listener = "peers"
            secret = {{ env = "{SECRET}" }}
            replicas = {self.replicas}
            {self.cluster_toml}
            [listeners.native]
            address = "{self.address}"
            plaintext = true
            login = "none"
            [listeners.peers]
            protocol = "peers"
            address = "10.0.0.{self.number}:5467"
            plaintext = true
        """
        source = TomlSource(dedent(head) + self.toml, "test.toml")
        manager = PluginManager(plugin_settings(source), [*installed(), self.world.plugin])
        config = load_config(source, manager)
        assert config.cluster is not None
        return replace(config, cluster=replace(config.cluster, level=self.level)), manager

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        config, manager = self._configured()

        async def process(env: SimEnv) -> None:
            async with running_broker(config, env, manager) as self.broker:
                task_status.started()
                await self._stop.wait()

        try:
            await self.env.run_until_death(process)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Stop the process in order."""
        self._stop.set()
        await self._ended.wait()

    async def lose_power(self) -> None:
        """Lose power. Once it is back, cut off the ends of logs that a start would refuse, as an operator has to."""
        if self.env.is_dead:
            self.env = self.env.restart()  # It was off already: what was not synced is lost all the same.
        self.env.crash()
        await self.ended()
        self.env = self.env.restart()
        await damaged_logs(*self._configured(), self.env, cut=True)

    def replace_disk(self) -> None:
        """Give the machine, which is off, an empty disk."""
        self.env = self.env.restart(on_new_disk=True)

    async def ended(self) -> None:
        await self._ended.wait()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def client(self) -> RawClient:
        """A client of this broker, on a machine of its own."""
        client = RawClient(await self.world.env.net.connect(self.address))
        await client.greet()
        return client


class BrokerWorld:
    """A metadata store and brokers."""

    def __init__(self, env: SimEnv, store: SimStore, nursery: trio.Nursery, seed: int) -> None:
        self.env = env
        self.store = store
        self.nursery = nursery
        self.seed = seed
        self.plugin = SimStorePlugin(store)
        self._count = 0

    async def brokers(
        self,
        count: int = 3,
        toml: str = "",
        broker_toml: str = "",
        *,
        replicas: int = 1,
        cluster_toml: str = "",
        level: int = LEVEL,
        prepare: Callable[[SimBroker], None] = lambda broker: None,
    ) -> list[SimBroker]:
        """Start further brokers, all with the same tables; topics have this many replicas. `broker_toml` and
        `cluster_toml`: more lines of these tables. `level`: the greatest that they know. `prepare` is called with each
        broker before its start."""
        numbers = range(self._count + 1, self._count + count + 1)
        found = [SimBroker(self, number, toml, broker_toml, replicas, cluster_toml) for number in numbers]
        self._count += count
        for broker in found:
            broker.level = level
            prepare(broker)
            await broker.start()
        return found


@asynccontextmanager
async def broker_world(env: SimEnv, seed: int = 0) -> AsyncIterator[BrokerWorld]:
    """A world, whose brokers are cancelled at the end."""
    async with trio.open_nursery() as nursery:
        yield BrokerWorld(env, SimStore(seed, nursery.start_soon), nursery, seed)
        nursery.cancel_scope.cancel()


async def until_led(brokers: list[SimBroker], *topics: str) -> dict[str, SimBroker]:
    """Wait until all brokers have the topics, and one has each open; returns it by topic."""

    def open_at(topic: str) -> list[SimBroker]:
        return [it for it in brokers if it.broker.topic(topic).led_by is None]

    def all_led() -> bool:
        known = all(topic in it.broker.topics for it in brokers for topic in topics)
        return known and all(len(open_at(topic)) == 1 for topic in topics)

    try:
        await until(all_led)
    except trio.TooSlowError as error:
        raise AssertionError(
            [{n: t.led_by and t.led_by() for n, t in it.broker.topics.items()} for it in brokers]
        ) from error
    return {topic: open_at(topic)[0] for topic in topics}
