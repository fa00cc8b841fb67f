"""Two-phase delivery in a simulated world in which anything may fail at any time: one seed is one run.

To what `two_phase_arrows` does to single messages come power losses in the middle of a disk operation, failed syncs, a
full and a slow disk, cut and severed networks, jumps of the wall clock, orderly stops, and a second process with the
name and the store of a consumer. The stores survive; transactions do not.

    python tests/simulation/exactly_once_run.py SEED [SEED ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))

import trio
from arrow_world import DONE_S_MAX
from disturbed import Disturbed
from two_phase_arrows import FAULTS, Run, Taker

from linn.testing.deterministic import run_simulation


class SimulatedRun(Disturbed, Run):
    """The world of one seed."""

    links = (("proxy", "broker"), ("ann", "proxy"), ("bob", "proxy"))

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.faults.clear()
        for arrow, what in self.rng.choices(FAULTS, k=self.rng.choice([0, 1, 3])):
            self.add_fault(arrow, what)
        self.oversleeps_at = self.rng.choice([0.0, 0.0, 0.05])
        self.has_zombie = self.rng.random() < 0.4
        self.choose_disturbances()

    async def disturb(self) -> None:
        """Make what the seed has planned, one after the other and sometimes on top of one another."""
        async with trio.open_nursery() as nursery:
            if self.has_zombie:
                nursery.start_soon(self._live_as_zombie)
            await self.make_disturbances()

    async def _live_as_zombie(self) -> None:
        """Run a process with a consumer's name and store beside it, now and then."""
        zombie = Taker(self, self.consumers[0].name, "zombie")
        zombie.store = self.consumers[0].store
        for _ in range(3):
            await trio.sleep(self.rng.uniform(0, 3))
            with trio.move_on_after(self.rng.uniform(0.05, 2)):
                await zombie.run()


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
