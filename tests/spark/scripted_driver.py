"""A driver of Spark pipelines that a test scripts, in virtual time; and a world with a broker that runs it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import PurePath
from typing import Any

import trio

from linn.testing.sim_programs import SimProgram
from linn.testing.virtual_world import VirtualWorld

STREAM = '[topics.orders]\nkind = "stream"\nspark_sink = { path = "lake/orders" }\n'
LIVE = '[spark]\nlive = true\npaths = ["."]\n'
"""Requests may give topics sinks in any folder."""
_PYTHON = PurePath(sys.executable).name


class ScriptedDriver:
    """Drivers that start in `start_s`, run, and drain in `drain_s`, unless a test says otherwise."""

    def __init__(self) -> None:
        self.start_s = 5.0
        self.drain_s = 1.0
        self.specs: list[dict[str, Any]] = []
        """The specification of each process."""
        self.started_s: list[float] = []
        self.drained = 0
        """The number of processes that have drained to their end."""
        self.told: list[Any] = []
        self.running: SimProgram | None = None
        """The process that runs."""
        self.committed: dict[str, dict[str, int]] = {}
        """The offsets in the checkpoint of each pipeline, by topic and partition."""
        self.life: Callable[[SimProgram, dict[str, Any]], Awaitable[int]] = self.run
        """The life of a process, after it has read its specification."""
        self.list_files: Callable[[SimProgram], Awaitable[int]] = self.run_no_listing
        """The process that lists the committed files of a pipeline."""

    @property
    def names(self) -> list[str]:
        """The pipelines of the last process."""
        return [each["name"] for each in self.specs[-1]["pipelines"]]

    async def main(self, program: SimProgram) -> int:
        """The programs that run in the drivers' Python."""
        if program.command[-1].endswith("committed_files"):
            return await self.list_files(program)
        self.started_s.append(trio.current_time())
        self.running = program
        spec = await program.read_json()
        self.specs.append(spec)
        return await self.life(program, spec)

    async def run(self, program: SimProgram, spec: dict[str, Any]) -> int:
        """Start all pipelines, and run until told to stop."""
        await program.print("Spark begins")
        await trio.sleep(self.start_s)
        await program.say({"event": "session", "spark": "4.3.0", "application": "local-1", "ui": None})
        for each in spec["pipelines"]:
            await program.say({"event": "started", "pipeline": each["name"], "query": "q", "end": self.committed})
        while (line := await program.read_json()) is not None:
            self.told.append(line)
            for name in line.get("start", ()):
                await program.say({"event": "started", "pipeline": name, "query": "q", "end": self.committed})
            for name in line.get("stop", ()):
                await trio.sleep(self.drain_s)
                await program.say({"event": "stopped", "pipeline": name})
        await trio.sleep(self.drain_s)
        self.drained += 1
        return 0

    async def commit(self, end: int, name: str = "orders") -> None:
        """Report that the sink has everything up to an offset of the topic's one partition."""
        assert self.running is not None
        self.committed = {"orders": {"0": end}}
        await self.running.say({"event": "progress", "pipeline": name, "rows": end, "end": self.committed})

    async def run_no_listing(self, program: SimProgram) -> int:
        """End as a Python without a package does."""
        await program.print("ModuleNotFoundError: No module named 'pyarrow'")
        return 1

    async def exit_1(self, program: SimProgram, spec: dict[str, Any]) -> int:
        """Fail at once."""
        return 1


async def java(program: SimProgram) -> int:
    await program.print("Picked up JAVA_TOOL_OPTIONS: -Xmx1g")
    await program.print('openjdk version "17.0.9" 2023-10-17')
    return 0


def spark_world(driver: ScriptedDriver, config: str = STREAM, *, seed: int = 0) -> VirtualWorld:
    """A world in which drivers are scripted, and Java is there."""
    world = VirtualWorld(config, seed=seed)
    world.programs.install("java", java)
    world.programs.install(_PYTHON, driver.main)
    return world


def in_spark_world(config: str = STREAM) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """A test that runs in such a world, with the fixture `driver`. Its other parameters are pytest's."""

    def decorate(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def run(driver: ScriptedDriver, **given: Any) -> None:
            spark_world(driver, config).run(lambda world: scenario(world, driver, **given))

        run.__name__, run.__doc__, run.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
        kept = list(inspect.signature(scenario).parameters.values())[1:]
        run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        return run

    return decorate


async def pipelines(world: VirtualWorld) -> dict[str, dict[str, Any]]:
    """The pipelines as `linn spark status` gets them, by name."""
    async with world.connect() as client:
        (spark,) = await client.admin.perform("service.list")
    return {each["name"]: each for each in spark["status"]["pipelines"]}


async def state(world: VirtualWorld, name: str = "orders") -> str:
    """The state of one pipeline."""
    return str((await pipelines(world))[name]["state"])


async def ask(world: VirtualWorld, action: str, **arguments: Any) -> Any:
    """Perform an action of the Spark service."""
    async with world.connect() as client:
        return await client.admin.perform("service.perform", service="spark", action=action, arguments=arguments)
