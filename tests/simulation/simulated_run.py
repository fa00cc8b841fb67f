"""A whole broker with producers and consumers, in a simulated world: one seed is one run.

    python tests/simulation/simulated_run.py SEED [SEED ...] [--trace]

runs seeds by hand; `--trace` prints the whole history. `sim_plan` says what a seed means.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))

import trio
from sim_consumers import RawConsumer
from sim_faults import ROOM_BYTES, Faults
from sim_plan import FLUSH_INTERVAL_S, NODES, Death, LifePlan, Plan
from sim_producers import PythonProducer, RawProducer
from sim_python_consumers import PythonConsumer
from sim_reading import Watcher, drain, read_through, tell_recovered
from sim_world import World

from linn.cli.commands.recover import damaged_logs
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.errors.tree import LogCorrupt, SyncFailed
from linn.core.plugins.manager import PluginManager, installed
from linn.testing.deterministic import run_simulation
from linn.testing.history import Ended, How
from linn.testing.invariants import check
from linn.testing.sim_env import SimEnv

DRAIN_S_MAX = 600.0
"""Virtual: each lease, delay and retry of a run takes a small part of it."""
START_S_MAX = 60.0
STOP_S_MAX = 60.0
SYNC_FAILS_WITHIN_S = 30.0
"""The time in which a broker whose sync has failed must have ended."""
VIRTUAL_S_MAX = 4000.0


@functools.cache
def _plugins() -> PluginManager:
    """The plugins, found once: none of them keeps anything of a broker."""
    return PluginManager(plugin_settings(TomlSource("", "simulated.toml")), installed())


class SimulatedRun:
    """One run of one seed."""

    def __init__(self, seed: int) -> None:
        self.plan = Plan(seed)
        self.seed = seed
        self.world: World
        self.ended: How | None = None
        """The end of the broker's present process."""
        self._operations: list[str] = []
        """Every change of the disk, in all lives."""
        self._lost_power = False
        """Whether the machine lost power since a broker last started on its disk."""
        self._broker: Broker | None = None
        self._troubled_s: float | None = None
        """The time since when a sync may have failed."""

    async def run(self, env: SimEnv) -> None:
        """The whole of it."""
        self.world = world = World(self.plan, env)
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as actors:
                self._start_actors(actors)
                for life in self.plan.lives:
                    await self._live(nursery, life)
                await self._last_life(nursery)
                world.is_over = True
                for name in NODES:  # Who waits for an answer learns that there will be none.
                    env.world.sever("node", name)
                actors.cancel_scope.cancel()
            if self.plan.ends_with_restart:
                await self._end("stopped")
                await self._start(nursery)
            client, _ = await world.connect("probe")
            await read_through(world, client)
            await self._end("stopped")

    def _start_actors(self, nursery: trio.Nursery) -> None:
        world, plan = self.world, self.plan
        for producer in plan.producers:
            nursery.start_soon((PythonProducer if producer.is_python else RawProducer)(world, producer).run)
        for consumer in plan.consumers:
            nursery.start_soon((PythonConsumer if consumer.mode == "python" else RawConsumer)(world, consumer).run)
        nursery.start_soon(Watcher(world, plan.rng.choice(NODES)).run)

    def trace(self) -> list[str]:
        """All events with their times, and all changes of the disk."""
        return [*self.world.history.lines(), *self._operations]

    # --- lives ---

    async def _live(self, nursery: trio.Nursery, life: LifePlan) -> None:
        env = self.world.broker
        if life.dies_early and life.death == "lost power in an operation":
            env.disk.crash_at = life.dies_at
        if await self._start(nursery):
            rng = self.world.rng(f"faults/{self.world.life}")
            with trio.move_on_after(life.lasts_s):
                async with trio.open_nursery() as going_wrong:
                    going_wrong.start_soon(Faults(self.world, env, rng).run, life.faults)
                    await self._wait_ended()
            await self._die(life)
        self._calm()
        await trio.sleep(life.down_s)

    async def _last_life(self, nursery: trio.Nursery) -> None:
        plan, world = self.plan, self.world
        await self._start(nursery)
        faults = Faults(world, world.broker, world.rng("faults/last"))
        with trio.move_on_after(plan.last_s + 5):
            await faults.run(plan.last_faults)
            await trio.sleep(plan.last_s)
        self._calm()
        for topic in plan.topics:
            if topic.kinds:
                await faults.alter(topic.name, {"kind": topic.kind})
        world.is_closing = True
        client, _ = await world.connect("probe")
        await drain(world, client, DRAIN_S_MAX)
        await trio.sleep(plan.late_s_max())  # Who is late reads what came meanwhile.

    def _calm(self) -> None:
        """End what faults left."""
        world = self.world
        for name in NODES:
            world.broker.world.heal("node", name)
            world.broker.world.slow("node", name, delay_s=(0.0, 0.002))
        world.broker.disk.capacity_bytes = ROOM_BYTES
        world.broker.disk.sync_delay_s_max = self.plan.sync_delay_s

    async def _start(self, nursery: trio.Nursery) -> bool:
        """Start the next life; what it found is told before any client gets through. False: it died on the way."""
        world = self.world
        if world.broker.is_dead:
            world.broker = world.broker.restart()
        world.life += 1
        self.ended = self._troubled_s = None
        self._calm()
        for name in NODES:
            world.broker.world.cut("node", name)
        with trio.fail_after(START_S_MAX):
            await nursery.start(self._serve)
        if self._broker is not None:
            tell_recovered(world, self._broker)
        for name in NODES:
            world.broker.world.heal("node", name)
        return self.ended is None

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        env, life, is_started = self.world.broker, self.world.life, False

        async def process(env: SimEnv) -> None:
            nonlocal is_started
            source, plugins = TomlSource(self.plan.toml(life), "simulated.toml"), _plugins()
            config = load_config(source, plugins)
            while not is_started:
                try:
                    async with running_broker(config, env, plugins) as self._broker:
                        is_started, self._lost_power = True, False
                        task_status.started()
                        await self._broker.wait_stopped()
                except LogCorrupt:
                    assert self._lost_power, "only power loss may leave a log that has to be cut"
                    assert await damaged_logs(config, plugins, env, cut=True)

        how: How = "stopped"
        try:
            if await env.run_until_death(process):
                how = "killed" if env.disk.death == "was killed" else "lost power"
        except SyncFailed:
            how = "sync failed"
        self._lost_power = self._lost_power or how == "lost power"
        self._broker = None
        env.kill()  # What an ended process leaves open, the system closes.
        self.ended = how
        self.world.history.add(Ended(life, how, self._troubled_s))
        self._operations += [f"{life} {operation} {path}" for operation, path in env.disk.operations]
        if not is_started:
            task_status.started()

    async def _wait_ended(self) -> None:
        while self.ended is None:
            await trio.sleep(0.05)

    async def _die(self, life: LifePlan) -> None:
        """End the life as planned, if it did not come to it before."""
        disk = self.world.broker.disk
        if self.ended is None and life.death == "lost power in an operation":
            disk.crash_at = len(disk.operations) + life.dies_at
        elif self.ended is None and life.death.startswith("sync"):
            self._troubled_s = trio.current_time()
            disk.fail_sync_at = disk.sync_count + life.dies_at // 10
        elif self.ended is None:
            await self._end(life.death)
            return
        with trio.move_on_after(2 + FLUSH_INTERVAL_S):
            await self._wait_ended()
        if self.ended is None and disk.fail_sync_at is not None and disk.sync_count > disk.fail_sync_at:
            with trio.fail_after(SYNC_FAILS_WITHIN_S):
                await self._wait_ended()
        if self.ended is None:
            await self._end("killed")
        elif self.ended == "sync failed":
            self._lose_power()

    def _lose_power(self) -> None:
        """Turn the machine off on which the process ended before."""
        self._lost_power = True
        self.world.broker = self.world.broker.restart()
        self.world.broker.crash()

    async def _end(self, death: Death) -> None:
        """End the process."""
        if death == "stopped":
            assert self._broker is not None
            self._broker.stop()
        elif death == "killed":
            self.world.broker.kill()
        else:
            self.world.broker.crash()
        with trio.fail_after(STOP_S_MAX):
            await self._wait_ended()


class _Unforeseen(logging.Handler):
    """Keeps what linn logs with a traceback: errors that it did not foresee."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.texts.append(self.format(record))


def run_once(seed: int) -> SimulatedRun:
    """Do one run without a verdict on its history. Raises the first failure."""
    run, unforeseen = SimulatedRun(seed), _Unforeseen()
    logger = logging.getLogger("linn")
    level = logger.level
    logger.addHandler(unforeseen)
    logger.setLevel(logging.ERROR)
    try:
        run_simulation(seed, run.run, virtual_s_max=VIRTUAL_S_MAX)
    except BaseException:
        if hasattr(run, "world"):
            check(run.world.history)
        raise
    finally:
        logger.removeHandler(unforeseen)
        logger.setLevel(level)
    assert not unforeseen.texts, unforeseen.texts[0]
    return run


def run_seed(seed: int) -> None:
    """Run a seed. Raises InvariantBroken, or what else went wrong, with a note that says how to replay it."""
    try:
        check(run_once(seed).world.history)
    except BaseException as error:
        error.add_note(f"seed {seed}: python tests/simulation/simulated_run.py {seed} --trace")
        raise


def main() -> None:
    """Run the seeds of the command line."""
    for text in sys.argv[1:]:
        if text == "--trace":
            continue
        run = run_once(int(text))
        trace = run.trace()
        if "--trace" in sys.argv:
            print("\n".join(trace))
        check(run.world.history)
        digest = hashlib.sha256("\n".join(trace).encode()).hexdigest()
        print(f"seed {text}: {len(run.world.history)} events, {digest}")


if __name__ == "__main__":
    main()
