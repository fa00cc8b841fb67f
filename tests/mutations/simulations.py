"""The runs that can find a bug, by name. Each takes a seed and raises where a promise was broken.

Nothing of linn is imported before a run begins: by then a mutation is planted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[[int], object]

TESTS = Path(__file__).parents[1]


def _module(folder: str, name: str) -> Any:
    """A module of another folder of tests, as pytest would import it."""
    path = str(TESTS / folder)
    if path not in sys.path:
        sys.path.insert(0, path)
    return importlib.import_module(name)


def _broker() -> Run:
    run: Run = _module("simulation", "simulated_run").run_seed
    return run


def _clients() -> Run:
    run: Run = _module("broker", "test_simulation").test_nothing_confirmed_is_lost_and_nothing_settled_comes_back
    return run


def _changes() -> Run:
    run: Run = _module("broker", "test_power_loss_of_changes").change_and_lose_power
    return run


def _handing_over() -> Run:
    run: Run = _module("broker", "test_power_loss_of_queues").hand_over_and_lose_power
    return run


def _settling() -> Run:
    run: Run = _module("broker", "test_power_loss_of_queues").settle_and_lose_power
    return run


def _sharing() -> Run:
    run: Run = _module("broker", "sharing_run").share
    return run


def _dead_letters() -> Run:
    letters = _module("broker", "test_dead_letters")
    # The schedule, and the change of the disk at which power is lost.
    return lambda seed: letters.die_and_lose_power(*divmod(seed, 1000))


def _log_lives() -> Run:
    lives = _module("storage", "test_crash")
    return lambda seed: lives.run_simulation(seed, lambda _: lives.live_and_die(seed))


def _subscription() -> Run:
    run: Run = _module("subscription", "subscription_walk").walk
    return run


def _group() -> Run:
    run: Run = _module("group", "group_walk").walk
    return run


def _routing() -> Run:
    run: Run = _module("exchanges", "routing_walk").walk
    return run


SIMULATIONS: dict[str, Callable[[], Run]] = {
    "broker": _broker,
    "clients": _clients,
    "changes": _changes,
    "handing over": _handing_over,
    "settling": _settling,
    "sharing": _sharing,
    "dead letters": _dead_letters,
    "log lives": _log_lives,
    "subscription": _subscription,
    "group": _group,
    "routing": _routing,
}
