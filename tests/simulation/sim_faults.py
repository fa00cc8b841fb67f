"""Faults during a life: of the network, the disk, the wall clock; and an operator who changes topics."""

from __future__ import annotations

import random
from contextlib import suppress

import trio
from raw_client import Refused
from sim_plan import NODES
from sim_world import World

from linn.core.errors.tree import LinnError
from linn.testing.history import Altered, Calmed, Disturbed
from linn.testing.sim_env import SimEnv

BROKER = "node"
ROOM_BYTES = 1 << 30
HOUR_MS = 3_600_000
_DELAY_S = (0.0, 0.002)


class Faults:
    """Makes the faults of one life, and ends them all."""

    def __init__(self, world: World, env: SimEnv, rng: random.Random) -> None:
        self._world = world
        self._env = env
        self._rng = rng

    async def run(self, faults: list[tuple[float, str]]) -> None:
        """Make each fault when it is due; several may be there at a time."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for when, name in faults:
                await trio.sleep(max(0.0, began + when - trio.current_time()))
                nursery.start_soon(getattr(self, "_" + name.replace(" ", "_")))

    async def _hold(self, what: str, longest_s: float) -> None:
        add = self._world.history.add
        add(Disturbed(what, is_disk_full="full" in what))
        await trio.sleep(self._rng.uniform(0.05, longest_s))
        add(Calmed(what))

    async def _cut(self) -> None:
        node, net = self._rng.choice(NODES), self._env.world
        net.cut(BROKER, node)
        await self._hold(f"{node} is cut off", 3)
        net.heal(BROKER, node)

    async def _cut_one_way(self) -> None:
        node, net = self._rng.choice(NODES), self._env.world
        net.cut_one_way(*self._rng.sample([BROKER, node], 2))
        await self._hold(f"{node} is cut off one way", 3)
        net.heal(BROKER, node)

    async def _slow(self) -> None:
        node, net = self._rng.choice(NODES), self._env.world
        net.slow(BROKER, node, delay_s=(0.0, self._rng.choice([0.1, 1.0])), bytes_per_s=20_000)
        await self._hold(f"{node} is slow", 2)
        net.slow(BROKER, node, delay_s=_DELAY_S)

    async def _sever(self) -> None:
        node = self._rng.choice(NODES)
        self._world.history.add(Disturbed(f"connections of {node} break"))
        self._env.world.sever(BROKER, node)
        self._world.history.add(Calmed(f"connections of {node} break"))

    async def _jump(self) -> None:
        hours = self._rng.choice([-24, -1, 1, 24, 24 * 400])
        self._world.history.add(Disturbed(f"the wall clock jumps by {hours} h"))
        self._env.clock.jump(hours * HOUR_MS)

    async def _full_disk(self) -> None:
        disk = self._env.disk
        disk.capacity_bytes = disk.used_bytes + self._rng.choice([0, 200, 2000])
        await self._hold("the disk is full", 2)
        disk.capacity_bytes = ROOM_BYTES

    async def _slow_disk(self) -> None:
        disk, before = self._env.disk, self._env.disk.sync_delay_s_max
        disk.sync_delay_s_max = 0.3
        await self._hold("the disk is slow", 2)
        disk.sync_delay_s_max = before

    async def _alter(self) -> None:
        topic = self._rng.choice(self._world.plan.topics)
        settings: dict[str, object] = {}
        if topic.kinds:
            settings["kind"] = self._rng.choice(topic.kinds)
        if topic.grows:
            topic.partitions += 1  # Also in TOML from now on: it may say more than there is, never less.
            settings["partitions"] = topic.partitions
        if settings:
            await self.alter(topic.name, settings)

    async def alter(self, topic: str, settings: dict[str, object]) -> None:
        """Change a topic, if the broker is there and lets it."""
        self._world.history.add(Altered(topic, str(sorted(settings.items()))))
        with suppress(LinnError, EOFError, Refused, trio.TooSlowError):
            client, _ = await self._world.connect("probe")
            with trio.fail_after(10):
                await client.administer("topic.alter", name=topic, settings=settings)
            await client.stream.aclose()
