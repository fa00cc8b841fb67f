"""The workers of a supervisor, as simulated programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from linn.cli.exit_code import ExitCode
from linn.cli.workers.crew import RELOAD, Crew, WorkerLost
from linn.cli.workers.restarts import ENDS_MAX
from linn.core.errors.group import raise_once
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.testing.sim_programs import SimProgram

STOP_S = 10.0


class CrewWorld:
    """A crew of two, and the lines that its workers have read and written."""

    def __init__(self, env: SimEnv) -> None:
        self.env = env
        self.written: list[tuple[int, str]] = []
        self.read: list[tuple[str, str | None]] = []
        self.crew = Crew(env, 2, lambda number: ["worker", str(number)], self._write, STOP_S)
        env.programs.install("worker", self.serve)

    def _write(self, number: int, line: str) -> None:
        self.written.append((number, line))

    def running(self, number: int) -> SimProgram:
        """The last process of a worker."""
        return [program for program in self.env.programs.started if program.command[1] == str(number)][-1]

    async def serve(self, program: SimProgram) -> int:
        """A worker that serves until it is ended."""
        number = program.command[1]
        await program.print(f"{number} begins")
        await program.say({"addresses": {"native": "127.0.0.1:1"}})
        while (line := await program.read_line()) is not None:
            self.read.append((number, line))
        return 0


def run(scenario: Callable[[CrewWorld], Awaitable[None]]) -> None:
    """Run a scenario beside a crew, which the scenario stops."""

    async def main(env: SimEnv) -> None:
        world = CrewWorld(env)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.crew.run)
                await scenario(world)
        except BaseExceptionGroup as group:
            raise_once(group)
        assert env.programs.running == 0

    run_simulation(0, main)


def test_it_is_ready_when_all_workers_serve_and_ends_when_all_are_stopped() -> None:
    async def scenario(world: CrewWorld) -> None:
        await world.crew.ready.wait()
        assert world.crew.addresses == {1: {"native": "127.0.0.1:1"}, 2: {"native": "127.0.0.1:1"}}
        await world.crew.reload()
        await trio.testing.wait_all_tasks_blocked()
        world.crew.stop()
        world.crew.stop()
        assert sorted(world.read) == [("1", RELOAD), ("2", RELOAD)]
        assert sorted(world.written) == [(1, "1 begins"), (2, "2 begins")]

    run(scenario)


def test_a_worker_that_is_killed_is_started_again_and_no_other_one() -> None:
    async def scenario(world: CrewWorld) -> None:
        await world.crew.ready.wait()
        world.running(2).kill()
        await trio.sleep(5)
        assert [program.command[1] for program in world.env.programs.started].count("2") == 2
        assert [program.command[1] for program in world.env.programs.started].count("1") == 1
        world.crew.stop()

    run(scenario)


def test_a_worker_that_ends_again_and_again_ends_all_with_its_status() -> None:
    async def scenario(world: CrewWorld) -> None:
        await world.crew.ready.wait()

        async def serve_for_a_moment(program: SimProgram) -> int:
            await program.say({"addresses": {}})
            await trio.sleep(0.5)
            return ExitCode.FAILED

        world.env.programs.install("worker", serve_for_a_moment)
        world.running(2).kill()

    with pytest.raises(WorkerLost, match="worker 2 ended with the status 1, and is not started again") as caught:
        run(scenario)
    assert caught.value.status == ExitCode.FAILED


def test_the_number_of_starts_has_a_limit() -> None:
    worlds = []

    async def scenario(world: CrewWorld) -> None:
        worlds.append(world)
        await world.crew.ready.wait()

        async def end(program: SimProgram) -> int:
            return ExitCode.LISTENER

        world.env.programs.install("worker", end)
        world.running(1).kill()

    with pytest.raises(WorkerLost) as caught:
        run(scenario)
    assert caught.value.status == ExitCode.LISTENER
    assert [program.command[1] for program in worlds[0].env.programs.started].count("1") == ENDS_MAX


def test_a_worker_that_does_not_start_ends_all() -> None:
    async def scenario(world: CrewWorld) -> None:
        async def fail(program: SimProgram) -> int:
            if program.command[1] == "1":
                return await world.serve(program)
            return ExitCode.STORAGE

        world.env.programs.install("worker", fail)

    with pytest.raises(WorkerLost, match="worker 2 ended with the status 5, and did not start") as caught:
        run(scenario)
    assert caught.value.status == ExitCode.STORAGE


def test_a_program_that_is_not_there_ends_all() -> None:
    async def scenario(world: CrewWorld) -> None:
        world.env.programs.remove("worker")

    with pytest.raises(WorkerLost, match="did not start"):
        run(scenario)


def test_a_worker_that_does_not_stop_is_killed() -> None:
    async def scenario(world: CrewWorld) -> None:
        await world.crew.ready.wait()
        world.running(1).ignores_terminate = True
        began_s = trio.current_time()
        world.crew.stop()
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == began_s
        await trio.sleep(STOP_S)

    with pytest.raises(WorkerLost, match="not stopped after 10 s"):
        run(scenario)


def test_a_stop_during_a_pause_starts_nothing() -> None:
    async def scenario(world: CrewWorld) -> None:
        await world.crew.ready.wait()
        world.running(2).kill()
        await trio.testing.wait_all_tasks_blocked()
        world.crew.stop()
        await trio.sleep(5)
        assert len(world.env.programs.started) == 2

    run(scenario)


def test_the_status_of_a_worker_that_ended_badly_while_it_was_stopped_is_kept() -> None:
    async def scenario(world: CrewWorld) -> None:
        await world.crew.ready.wait()
        world.crew.stop()
        await trio.sleep(1)
        assert world.crew.status == ExitCode.FAILED, "SIGTERM has ended the simulated programs"

    run(scenario)
