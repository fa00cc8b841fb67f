"""Transactions in a simulated world in which anything may fail at any time: one seed is one run.

To what `transaction_arrows` does to single messages come power losses in the middle of a disk operation, failed syncs,
a full and a slow disk, cut and severed networks, jumps of the wall clock, orderly stops, and a second process with the
name of a worker.

    python tests/simulation/transactions_run.py SEED [SEED ...]

In two seeds of three, transactions of one or two partitions are long ones, which are marked in turns with other work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))

import trio
from arrow_world import DONE_S_MAX
from disturbed import Disturbed
from transaction_arrows import FAULTS, TAKE_OVER, TransactionWorld

from linn.core.transactions import ending
from linn.testing.deterministic import run_simulation

MARKED_AT_ONCE = ending.MARKED_AT_ONCE, 1, 2


class SimulatedTransactions(Disturbed, TransactionWorld):
    """The world of one seed."""

    links = (("proxy", "broker"), ("ann", "proxy"), ("bob", "proxy"))

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.faults.clear()
        for arrow, what in self.rng.choices(FAULTS, k=self.rng.choice([0, 1, 3])):
            self.add_fault(arrow, what)
        self.aborts_at = self.rng.choice([0.05, 0.1, 0.4])
        self.oversleeps_at = self.rng.choice([0.0, 0.05, 0.1])
        self.compacts = self.rng.random() < 0.2
        self.has_zombie = self.rng.random() < 0.4
        self.choose_disturbances()

    async def disturb(self) -> None:
        """Make what the seed has planned, one after the other and sometimes on top of one another."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().disturb)
            if self.has_zombie:
                nursery.start_soon(self._live_as_zombie)
            await self.make_disturbances()

    async def _live_as_zombie(self) -> None:
        """Have another process take over a worker's name, now and then."""
        for _ in range(3):
            await trio.sleep(self.rng.uniform(0, 3))
            self.do_else(TAKE_OVER)


def run_seed(seed: int) -> None:
    """Run a seed. Raises what went wrong, with a note that says how to replay it."""
    try:
        with patch.object(ending, "MARKED_AT_ONCE", MARKED_AT_ONCE[seed % 3]):
            run_simulation(seed, SimulatedTransactions(seed).run, virtual_s_max=2 * DONE_S_MAX)
    except BaseException as error:
        error.add_note(f"seed {seed}: python tests/simulation/transactions_run.py {seed}")
        raise


if __name__ == "__main__":
    for text in sys.argv[1:]:
        run_seed(int(text))
        print(f"seed {text} holds")
