"""Random changes at all brokers of a cluster, under faults of brokers, of their store, and between them.

Afterwards, without faults: the catalogs of all brokers are that of the store, each topic is open at one broker, every
confirmed record is where it was stored, and each change was made if its client was told so.

    SIM_SEEDS=1000-2000 python -m pytest -m soak tests/cluster/test_catalog_under_faults.py

runs the seeds from 1000 up to 1999; without it, a first seed is drawn and printed.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "broker")]

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world
from cluster_world import until
from raw_client import RawClient, Refused
from seeds import failures
from trouble import OF_PROCESSES, OF_STORE, Trouble, run_named

from linn.core.errors.tree import ConnectFailed, ConnectionLost
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

SEEDS = (1, 2, 3, 5, 6, 10, 11, 15, 22, 24, 25, 26, 29, 31, 35)
"""Seeds that take each branch of linn which any seed below 36 takes (tests/branches_of_seeds.py)."""
NAMES = ("a", "b", "c")
CLIENTS = 3
STEPS = 40
FAULTS = 15
QUIET_S = 120.0


class Changes:
    """Clients that change the catalog, and what they were told."""

    def __init__(self, brokers: list[SimBroker], rng: random.Random) -> None:
        self.brokers = brokers
        self.rng = rng
        self.confirmed: dict[str, list[str]] = {}
        """Values by the id of the topic in which they were stored."""
        self.told = 0
        self.refused: dict[str, int] = {}

    async def run(self) -> None:
        for number in range(STEPS):
            broker = self.rng.choice(self.brokers)
            with trio.move_on_after(20):
                try:
                    client = await broker.client()
                    await self.rng.choice([self.change, self.publish])(broker, client, number)
                except Refused as refused:
                    self.refused[refused.code] = self.refused.get(refused.code, 0) + 1
                except (EOFError, ConnectFailed, ConnectionLost) as e:
                    self.refused[type(e).__name__] = self.refused.get(type(e).__name__, 0) + 1
            await trio.sleep(self.rng.uniform(0, 2))

    def choices(self, number: int) -> list[tuple[str, dict[str, object] | None]]:
        """Verbs with their settings."""
        kind = {"kind": self.rng.choice(["stream", "both"]), "partitions": self.rng.randint(1, 3)}
        return [
            *[("topic.create", kind)] * 4,
            *[("topic.alter", {"retention": f"{number + 1}h"})] * 2,
            ("topic.alter", {"partitions": 4}),
            ("topic.delete", None),
            *[("exchange.create", {"type": "fanout"})] * 2,
            ("exchange.delete", None),
            *[("exchange.bind", None)] * 2,
        ]

    async def change(self, broker: SimBroker, client: RawClient, number: int) -> None:
        name = self.rng.choice(NAMES)
        verb, settings = self.rng.choice(self.choices(number))
        if verb == "exchange.bind":
            await client.administer(verb, exchange=self.rng.choice(NAMES), topic=name)
        elif settings is None:
            await client.administer(verb, name=name)
        else:
            await client.administer(verb, name=name, settings=settings)
        self.told += 1

    async def publish(self, broker: SimBroker, client: RawClient, number: int) -> None:
        name = self.rng.choice(NAMES)
        topic = broker.broker.topics.get(name)
        await client.publish(name, [str(number)], partition=0)
        if topic is not None and topic is broker.broker.topics.get(name):
            self.confirmed.setdefault(str(topic.id), []).append(str(number))


class TransientChanges(Changes):
    """Clients that make transient topics and exchanges beside others, of the same names."""

    def choices(self, number: int) -> list[tuple[str, dict[str, object] | None]]:
        """Verbs with their settings."""
        transient = self.rng.choice([{"lifetime": "broker"}, {"lifetime": "broker", "delete_when": "unused"}])
        ends = self.rng.choice([{"delete_when": "unused"}, {"lifetime": "broker"}])
        return [
            *super().choices(number),
            *[("topic.create", transient)] * 6,
            *[("topic.alter", {"lease": f"{number + 1}s"})] * 2,
            *[("exchange.create", {"type": "fanout", **ends})] * 4,
            *[("exchange.bind", None)] * 4,
        ]


def catalog_of(broker: SimBroker) -> dict[str, object]:
    """Settings and bindings by key, as one broker has them."""
    found: dict[str, object] = {}
    for name, topic in broker.broker.topics.items():
        bound = sorted((it.exchange, it.key) for it in (*topic.settings.bindings, *topic.live_bindings))
        found[f"topics/{name}"] = (str(topic.id), topic.settings, bound)
    for name, router in broker.broker.routers.items():
        found[f"exchanges/{name}"] = (router.kind, sorted(binding.target.name for binding in router.bindings()))
    return found


async def change_under_faults(env: SimEnv, seed: int, kind: type[Changes]) -> None:
    """Change the catalog of three brokers under faults, and compare it with the store's when they have come to rest."""
    rng = random.Random(f"catalog {seed}")
    async with broker_world(env, seed) as world:
        brokers = await world.brokers()
        changes = kind(brokers, rng)
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(changes.run)
            trouble = Trouble(world, brokers, rng, pause_s=4, hold_s=8)
            await trouble.run((*OF_STORE, *OF_PROCESSES), FAULTS)
        await until(lambda: is_settled(world, brokers), QUIET_S)
        assert changes.told
        for id, values in changes.confirmed.items():
            leader = next((it for it in brokers for topic in open_topics(it) if str(topic.id) == id), None)
            if leader is not None:
                name = next(name for name, topic in leader.broker.topics.items() if str(topic.id) == id)
                found = await (await leader.client()).fetch(name)
                assert [value for value in values if value not in found] == [], "confirmed records are lost"


def run_seed(seed: int) -> None:
    """Run an even seed with changes of what is kept alone, and an odd one with changes of what is transient, too."""
    run_simulation(
        seed // 2, lambda env: change_under_faults(env, seed // 2, TransientChanges if seed % 2 else Changes)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_all_brokers_have_the_catalog_of_the_store_after_faults(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak(seeds=5_000, chunk=50)
def test_all_brokers_have_the_catalog_of_the_store_after_faults_in_many_more_runs(seeds: range) -> None:
    assert failures(run_seed, seeds, "tests/cluster/test_catalog_under_faults.py") == {}


def open_topics(broker: SimBroker) -> list[object]:
    return [topic for topic in broker.broker.topics.values() if topic.led_by is None]


def is_settled(world: BrokerWorld, brokers: list[SimBroker]) -> bool:
    stored = {key for key in world.store.content() if key.startswith(("topics/", "exchanges/"))}
    first = catalog_of(brokers[0])
    if any(catalog_of(it) != first for it in brokers) or first.keys() != stored:
        return False
    opened = [str(topic.id) for it in brokers for topic in open_topics(it)]
    return sorted(opened) == sorted(str(topic.id) for topic in brokers[0].broker.topics.values())


if __name__ == "__main__":
    run_named(run_seed)
