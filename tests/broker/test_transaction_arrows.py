"""Each message and log record of transactions goes wrong in each way: they take effect whole, once, or not at all.

SIM_SEEDS=1000-2000 python -m pytest -m soak tests/broker/test_transaction_arrows.py
"""

from __future__ import annotations

from typing import get_args

import pytest
from seeds import failures, some_faults, tiered
from transaction_arrows import ARROWS, FAULTS, LOGGED, REQUESTS, walk

from linn.core.transactions.event import TransactionEvent
from linn.protocols.capnp.conversation import _HANDLERS

QUICK_SEEDS = 12


def test_the_table_has_every_request_and_every_event() -> None:
    assert set(REQUESTS) == {kind for kind, (room, _) in _HANDLERS.items() if room == "_transacting"}
    assert set(LOGGED) == {kind.__name__ for kind in get_args(TransactionEvent)}
    assert {arrow for arrow, _ in FAULTS} == set(ARROWS), "something goes wrong with each of them"


@pytest.mark.parametrize("seed", tiered(some_faults(FAULTS), QUICK_SEEDS))
def test_whatever_goes_wrong_each_transaction_takes_effect_whole_or_not_at_all(seed: int) -> None:
    world = walk(seed)
    assert world.made[FAULTS[seed]], f"{FAULTS[seed]} did not come about"


@pytest.mark.soak(seeds=20_000, chunk=250)
def test_the_same_in_many_more_runs(seeds: range) -> None:
    assert failures(walk, seeds, "tests/broker/transaction_arrows.py") == {}
