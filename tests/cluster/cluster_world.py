"""Nodes of a cluster in one simulation, beside a simulated metadata store."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from sim_store import SimStore

from linn.core.cluster.entries import ClusterState
from linn.core.cluster.guarded_store import GuardedStore
from linn.core.cluster.node import ClusterNode
from linn.core.config.configured import ClusterSettings
from linn.core.errors.group import leaves_of
from linn.core.errors.tree import LinnError
from linn.core.metadata.levels import LEVEL
from linn.descriptions import NodeDescription
from linn.testing.sim_env import SimEnv

TIMEOUT_S = 6.0
DATA = "/linn"


def settings_of(number: int, level: int = LEVEL, *, are_workers: bool = False) -> ClusterSettings:
    return ClusterSettings(
        name="test",
        node=number,
        store="simulated",
        store_settings=None,
        listener=None,
        secret=None,
        rack="",
        session_timeout_s=TIMEOUT_S,
        replicas=1,
        min_in_sync=None,
        catch_up_bytes=50_000_000,
        are_workers=are_workers,
        level=level,
    )


class SimMember:
    """One node, and the processes that it has had."""

    def __init__(self, world: ClusterWorld, number: int, env: SimEnv) -> None:
        self.number = number
        self.env = env
        self.start_number = 0
        self.error: BaseException | None = None
        """The error that ended its last process."""
        self.level = LEVEL
        """The greatest that its next process knows."""
        self.are_workers = False
        self._world = world
        self._stop = trio.Event()
        self._ended = trio.Event()
        self.node: ClusterNode

    @property
    def state(self) -> ClusterState:
        return self.node.view.state

    async def start(self, number: int | None = None) -> None:
        """Start a process; return when it has a session. Raises what keeps it from starting."""
        self.number = number or self.number
        if self.env.is_dead:
            self.env = self.env.restart()
        self._stop, self._ended, self.error = trio.Event(), trio.Event(), None
        self.env.disk.make_dir(DATA)
        await self.env.disk.sync_dir("/")
        settings = settings_of(self.number, self.level, are_workers=self.are_workers)
        store = GuardedStore(self._world.store.client(self.env), repr, self.level)
        self.node = ClusterNode(settings, store, self.env, DATA)
        await self._world.nursery.start(self._live)

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        has_started, node, stop, ended = False, self.node, self._stop, self._ended

        async def process(env: SimEnv) -> None:
            nonlocal has_started
            await node.join()
            self.start_number = await node.count_start(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.run, {"native": f"{env.name}:5466"})
                await until(lambda: node.is_registered, math.inf)
                has_started = True
                task_status.started()
                await stop.wait()
                await node.leave()
                await node.stopped(is_synced=True)
                nursery.cancel_scope.cancel()

        try:
            await self.env.run_until_death(process)
        except (LinnError, BaseExceptionGroup) as error:
            found = next(leaves_of(error)) if isinstance(error, BaseExceptionGroup) else error
            if not has_started or not isinstance(found, LinnError):
                raise found from None
            self.error = found
        finally:
            ended.set()

    async def stop(self) -> None:
        """Stop the process in order."""
        self._stop.set()
        await self._ended.wait()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def sees(self, number: int) -> NodeDescription:
        """Return what this node says of another one."""
        return next(node for node in self.node.describe()["nodes"] if node["node"] == number)


class ClusterWorld:
    """A store and its nodes."""

    def __init__(self, env: SimEnv, store: SimStore, nursery: trio.Nursery, seed: int) -> None:
        self.store = store
        self.nursery = nursery
        self._env = env
        self._seed = seed

    def member(self, number: int, name: str = "") -> SimMember:
        """A node on a machine of its own, with an empty disk."""
        env = SimEnv(self._seed, name=name or f"machine{number}", world=self._env.world)
        return SimMember(self, number, env)

    async def members(self, count: int = 3) -> list[SimMember]:
        """Start the nodes 1 to `count`."""
        found = [self.member(number) for number in range(1, count + 1)]
        for member in found:
            await member.start()
        return found


@asynccontextmanager
async def cluster_world(env: SimEnv, seed: int = 0) -> AsyncIterator[ClusterWorld]:
    """A world, whose nodes are cancelled at the end."""
    async with trio.open_nursery() as nursery:
        yield ClusterWorld(env, SimStore(seed, nursery.start_soon), nursery, seed)
        nursery.cancel_scope.cancel()


async def until(holds: Callable[[], bool], within_s: float = 60.0) -> float:
    """Wait until something holds; returns how long it took. Raises trio.TooSlowError."""
    began_s = trio.current_time()
    with trio.fail_after(within_s):
        while not holds():
            await trio.sleep(0.01)
    return trio.current_time() - began_s
