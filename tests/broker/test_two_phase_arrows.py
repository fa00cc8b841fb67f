"""Each message and log record of two-phase delivery goes wrong in each way: each record has its effect exactly once.

SIM_SEEDS=1000-2000 python -m pytest -m soak tests/broker/test_two_phase_arrows.py
"""

from __future__ import annotations

from typing import get_args

import pytest
from seeds import failures, some_faults, tiered
from two_phase_arrows import ARROWS, FAULTS, LOGGED, PHASES, VERDICTS, walk

from linn.core.queue.event import SingleEvent
from linn.wire import messages as m

QUICK_SEEDS = 12


def test_the_table_has_every_verdict_every_phase_and_every_row_of_the_state_log() -> None:
    assert set(VERDICTS) == set(m.Verdict)
    assert set(PHASES) == set(m.Phase)
    assert set(LOGGED) == {kind.__name__ for kind in get_args(SingleEvent)}
    arrows = {*VERDICTS.values(), *PHASES.values(), *LOGGED.values()} - {""}
    assert arrows <= set(ARROWS)
    assert {arrow for arrow, _ in FAULTS} == set(ARROWS), "something goes wrong with each of them"


@pytest.mark.parametrize("seed", tiered(some_faults(FAULTS), QUICK_SEEDS))
def test_whatever_goes_wrong_each_record_has_its_effect_once(seed: int) -> None:
    run = walk(seed)
    assert run.made[FAULTS[seed]], f"{FAULTS[seed]} did not come about"


@pytest.mark.soak(seeds=20_000, chunk=250)
def test_the_same_in_many_more_runs(seeds: range) -> None:
    assert failures(walk, seeds, "tests/broker/two_phase_arrows.py") == {}
