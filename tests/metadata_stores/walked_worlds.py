"""Stores for walks: the simulated one, and a served one, with their faults."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

import trio
from served_world import ADDRESS, VERSION
from sim_store import SimStore
from store_walk import CLIENTS, Opener, Truth

from linn.core.metadata.embedded import EmbeddedMetadata
from linn.core.metadata.served import ServedStore
from linn.core.metadata.store import REMOVED, MetadataStore, Stored
from linn.core.metadata.store_server import StoreServer
from linn.testing.sim_env import SimEnv

SERVER = "node"


class SimulatedWorld:
    """A simulated store."""

    def __init__(self, store: SimStore) -> None:
        self.store = store

    @property
    def truth(self) -> list[Truth]:
        writes = [Truth(0.0, 0, {})]
        for each in self.store.history:
            entries = {k: None if v is REMOVED else Stored(each.revision, v) for k, v in each.changes.items()}
            writes.append(Truth(each.at_s, each.revision, entries))
        return writes

    def client(self, env: SimEnv) -> MetadataStore:
        return self.store.client(env)

    async def fault(self, rng: random.Random, node: str) -> None:
        store = self.store
        match rng.randrange(8):
            case 0:
                store.stop()
                await trio.sleep(rng.uniform(0, 8.0))
                store.start()
            case 1 | 2:
                only = rng.randrange(3)
                store.cut(node, requests=only != 1, answers=only != 2)
                await trio.sleep(rng.uniform(0, 8.0))
                store.heal(node)
            case 3:
                store.end_all_leases()
            case 4:
                store.end_leases(node)
            case 5:
                store.lose_watches(rng.choice((None, node)))
            case 6:
                store.slow_watches(node, (0.0, rng.uniform(0, 3.0)))
            case _:
                store.loss = 0.3
                await trio.sleep(rng.uniform(0, 3.0))
                store.loss = 0.0

    async def end_faults(self) -> None:
        for node in CLIENTS:
            self.store.slow_watches(node, self.store.delay_s)


class ServedWorld:
    """A served store: an embedded one in a process that may be killed."""

    def __init__(
        self, env: SimEnv, client: type[ServedStore], server: type[StoreServer], store: type[EmbeddedMetadata]
    ) -> None:
        self.truth: list[Truth] = []
        self._known: dict[str, Stored] = {}
        self._env = env
        self._client, self._server, self._store = client, server, store
        env.disk.make_dir("/store")

    async def live(self, task_status: trio.TaskStatus[None]) -> None:
        """Serve, and again after each kill."""
        async with trio.open_nursery() as auditors:
            while True:
                await self._env.run_until_death(partial(self._serve, auditors, task_status))
                await trio.sleep(0.5)
                self._env = self._env.restart()
                task_status = trio.TASK_STATUS_IGNORED

    async def _serve(self, auditors: trio.Nursery, task_status: trio.TaskStatus[None], env: SimEnv) -> None:
        async with trio.open_nursery() as nursery:
            store = self._store(env.disk, "/store", env.clock, nursery.start_soon)
            await auditors.start(self._audit, store)
            listener = await env.net.listen(ADDRESS)
            task_status.started()
            await self._server(store, VERSION).serve(listener)

    async def _audit(self, store: EmbeddedMetadata, task_status: trio.TaskStatus[None]) -> None:
        """Note the store's writes, also the last ones before it was killed."""
        async with store.watch() as watch:
            found = watch.snapshot.entries
            changed: dict[str, Stored | None] = {key: None for key in self._known if key not in found}
            changed.update({key: stored for key, stored in found.items() if self._known.get(key) != stored})
            if changed or not self.truth or watch.snapshot.revision != self.truth[-1].revision:
                self._note(watch.snapshot.revision, changed)
            task_status.started()
            while True:
                self._note(*await watch.next())

    def _note(self, revision: int, entries: Mapping[str, Stored | None]) -> None:
        self.truth.append(Truth(trio.current_time(), revision, entries))
        for key, stored in entries.items():
            self._known.pop(key, None)
            if stored is not None:
                self._known[key] = stored

    def client(self, env: SimEnv) -> MetadataStore:
        return self._client(ADDRESS, env.net, VERSION)

    async def fault(self, rng: random.Random, node: str) -> None:
        net = self._env.world
        match rng.randrange(5):
            case 0:
                self._env.kill()
                await trio.sleep(rng.uniform(0.6, 3.0))
            case 1:
                net.cut(SERVER, node)
                await trio.sleep(rng.uniform(0, 8.0))
                net.heal(SERVER, node)
            case 2:
                net.cut_one_way(*rng.choice(((SERVER, node), (node, SERVER))))
                await trio.sleep(rng.uniform(0, 8.0))
                net.heal(SERVER, node)
            case 3:
                net.slow(SERVER, node, delay_s=(0.0, rng.uniform(0, 1.0)))
            case _:
                net.slow(SERVER, node, delay_s=(0.0, 0.3))  # Most severed connections have a call on its way.
                for _ in range(rng.randint(1, 12)):
                    net.sever(SERVER, node)
                    await trio.sleep(rng.uniform(0, 0.3))

    async def end_faults(self) -> None:
        for node in CLIENTS:
            self._env.world.slow(SERVER, node, delay_s=(0.0, 0.002))


async def simulated(env: SimEnv, nursery: trio.Nursery, kind: type[SimStore] = SimStore) -> SimulatedWorld:
    """Open a simulated store."""
    return SimulatedWorld(kind(env.rng.integer(1 << 32), nursery.start_soon))


async def served(
    env: SimEnv,
    nursery: trio.Nursery,
    client: type[ServedStore] = ServedStore,
    server: type[StoreServer] = StoreServer,
    store: type[EmbeddedMetadata] = EmbeddedMetadata,
) -> ServedWorld:
    """Open a served store."""
    world = ServedWorld(env, client, server, store)
    await nursery.start(world.live)
    return world


WORLDS: dict[str, Opener] = {"sim": simulated, "served": served}
