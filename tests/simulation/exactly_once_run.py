"""Two-phase delivery in a simulated world in which anything may fail at any time: one seed is one run.

To what `two_phase_arrows` does to single messages come power losses in the middle of a disk operation, failed syncs, a
full and a slow disk, cut and severed networks, jumps of the wall clock, orderly stops, and a second process with the
name and the store of a consumer. The stores survive; transactions do not.

    python tests/simulation/exactly_once_run.py SEED [SEED ...]
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))

import trio
from two_phase_arrows import DONE_S_MAX, FAULTS, Run, Taker

from linn.testing.deterministic import run_simulation

HOUR_MS = 3_600_000
LINKS = [("proxy", "broker"), ("ann", "proxy"), ("bob", "proxy")]


class SimulatedRun(Run):
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.faults.clear()
        for arrow, what in self.rng.choices(FAULTS, k=self.rng.choice([0, 1, 3])):
            self.add_fault(arrow, what)
        self.oversleeps_at = self.rng.choice([0.0, 0.0, 0.05])
        self.has_zombie = self.rng.random() < 0.4
        self.disturbances = self.rng.choices(DISTURBANCES, k=self.rng.choice([2, 4, 8]))

    async def disturb(self) -> None:
        """Make what the seed has planned, one after the other and sometimes on top of one another."""
        async with trio.open_nursery() as nursery:
            if self.has_zombie:
                nursery.start_soon(self._live_as_zombie)
            for disturbance in self.disturbances:
                await trio.sleep(self.rng.choice([0.02, 0.1, 0.3, 1.0]))
                nursery.start_soon(disturbance, self)

    async def _live_as_zombie(self) -> None:
        """Run a process with a consumer's name and store beside it, now and then."""
        zombie = Taker(self, self.consumers[0].name, "zombie")
        zombie.store = self.consumers[0].store
        for _ in range(3):
            await trio.sleep(self.rng.uniform(0, 3))
            with trio.move_on_after(self.rng.uniform(0.05, 2)):
                await zombie.run()

    # --- the broker ends ---

    async def die_in_an_operation(self) -> None:
        disk = self.broker.disk
        disk.crash_at = len(disk.operations) + self.rng.randint(0, 25)

    async def fail_a_sync(self) -> None:
        disk = self.broker.disk
        disk.fail_sync_at = disk.sync_count + self.rng.randint(0, 10)

    async def stop(self) -> None:
        self.running.stop()

    async def kill_the_broker(self) -> None:
        self.kill("kill the broker")

    async def lose_power(self) -> None:
        self.kill("lose power")

    async def kill_a_consumer(self) -> None:
        self.kill("kill the consumer")

    # --- it lives on ---

    async def have_no_room(self) -> None:
        self.kill("fill the disk")

    async def slow_down(self) -> None:
        self.broker.disk.sync_delay_s_max = 0.4
        await trio.sleep(self.rng.uniform(0.1, 2))
        self.broker.disk.sync_delay_s_max = self.sync_delay_s

    async def cut(self) -> None:
        link = self.rng.choice(LINKS)
        self.broker.world.cut(*link)
        await trio.sleep(self.rng.uniform(0.05, 12))
        self.broker.world.heal(*link)

    async def cut_one_way(self) -> None:
        one, other = self.rng.choice(LINKS)
        pair = (one, other) if self.rng.random() < 0.5 else (other, one)
        self.broker.world.cut_one_way(*pair)
        await trio.sleep(self.rng.uniform(0.05, 12))
        self.broker.world.heal(one, other)

    async def sever(self) -> None:
        self.broker.world.sever(*self.rng.choice(LINKS))

    async def jump(self) -> None:
        self.broker.clock.jump(self.rng.choice([-24, -1, 1, 24 * 400]) * HOUR_MS)


DISTURBANCES: list[Callable[[SimulatedRun], Awaitable[None]]] = [
    SimulatedRun.die_in_an_operation,
    SimulatedRun.die_in_an_operation,
    SimulatedRun.fail_a_sync,
    SimulatedRun.stop,
    SimulatedRun.kill_the_broker,
    SimulatedRun.lose_power,
    SimulatedRun.kill_a_consumer,
    SimulatedRun.kill_a_consumer,
    SimulatedRun.have_no_room,
    SimulatedRun.slow_down,
    SimulatedRun.cut,
    SimulatedRun.cut_one_way,
    SimulatedRun.sever,
    SimulatedRun.jump,
]


def run_seed(seed: int) -> None:
    """Run a seed. Raises what went wrong, with a note that says how to replay it."""
    try:
        run_simulation(seed, SimulatedRun(seed).run, virtual_s_max=2 * DONE_S_MAX)
    except BaseException as error:
        error.add_note(f"seed {seed}: python tests/simulation/exactly_once_run.py {seed}")
        raise


if __name__ == "__main__":
    for text in sys.argv[1:]:
        run_seed(int(text))
        print(f"seed {text} holds")
