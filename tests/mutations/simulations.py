"""The runs that can find a bug, by name. Each takes a seed and raises where a promise was broken.

Nothing of linn is imported before a run begins: by then a mutation is planted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

Run = Callable[[int], object]

TESTS = Path(__file__).parents[1]


def _module(folder: str, name: str) -> Any:
    """A module of another folder of tests, as pytest would import it."""
    for path in (str(TESTS), str(TESTS / folder)):
        if path not in sys.path:
            sys.path.insert(0, path)
    return importlib.import_module(name)


_RUNS = {
    "broker": ("simulation", "simulated_run", "run_seed"),
    "changes": ("broker", "test_power_loss_of_changes", "change_and_lose_power"),
    "handing over": ("broker", "test_power_loss_of_queues", "hand_over_and_lose_power"),
    "settling": ("broker", "test_power_loss_of_queues", "settle_and_lose_power"),
    "holding": ("broker", "test_held_records", "hold_and_count"),
    "producers": ("broker", "producer_arrows", "walk"),
    "truncation": ("broker", "truncation_walks", "walk"),
    "cut batches": ("broker", "test_idempotent_producers", "cut_and_kill"),
    "producer table": ("storage", "producer_walks", "walk"),
    "replication": ("storage", "test_replication", "run"),
    "producers of a log": ("storage", "producer_walks", "live_and_lose_power"),
    "known ids": ("broker", "test_dedup", "publish_and_lose_power"),
    "ids in transactions": ("broker", "test_dedup", "end_and_publish_again"),
    "ids of lost records": ("broker", "test_message_status", "publish_and_lose_the_end"),
    "statuses": ("broker", "test_message_status", "live_and_lose_power"),
    "trimmed statuses": ("broker", "test_message_status", "trim_and_lose_power"),
    "lost acks": ("broker", "test_message_status", "acknowledge_and_lose_power"),
    "overflow": ("broker", "test_overflow", "overflow_and_lose_power"),
    "queue lives": ("broker", "queue_life", "walk"),
    "sharing": ("broker", "sharing_run", "share"),
    "single active": ("broker", "single_active_walk", "walk"),
    "exactly once": ("simulation", "exactly_once_run", "run_seed"),
    "forging": ("security", "forging_walk", "walk"),
    "transactions": ("simulation", "transactions_run", "run_seed"),
    "arrows of transactions": ("broker", "transaction_arrows", "walk"),
    "arrows of two phases": ("broker", "two_phase_arrows", "walk"),
    "subscription": ("subscription", "subscription_walk", "walk"),
    "keeping": ("broker", "test_kept_records", "keep_and_lose_power"),
    "expiry": ("broker", "ttl_run", "walk"),
    "schedule": ("broker", "schedule_run", "walk"),
    "delays in transactions": ("broker", "test_delays_in_transactions", "commit_and_lose_power"),
    "transfers": ("broker", "transfer_run", "walk"),
    "group": ("group", "group_walk", "walk"),
    "routing": ("exchanges", "routing_walk", "walk"),
}
"""Folder of tests, module and function of those that take the seed as it is."""


def _run_of(folder: str, module: str, function: str) -> Run:
    run: Run = getattr(_module(folder, module), function)
    return run


def _dead_letters() -> Run:
    letters = _module("broker", "test_dead_letters")
    # The schedule, and the change of the disk at which power is lost.
    return lambda seed: letters.die_and_lose_power(*divmod(seed, 1000))


def _log_lives() -> Run:
    lives = _module("storage", "test_crash")
    return lambda seed: lives.run_simulation(seed, lambda _: lives.live_and_die(seed))


def _replica_lives() -> Run:
    lives = _module("storage", "test_crash")
    return lambda seed: lives.run_simulation(seed, lambda _: lives.live_and_die(seed, lives.ReplicaRun))


def _thinned_lives() -> Run:
    lives = _module("storage", "test_crash")
    return lambda seed: lives.run_simulation(seed, lambda _: lives.live_and_die(seed, lives.ThinRun))


def _two_phases() -> Run:
    walks = _module("subscription", "subscription_walk")
    return lambda seed: walks.walk(seed, two_phase=True)


def _ordered(order: str) -> Run:
    walks = _module("subscription", "subscription_walk")
    return lambda seed: walks.walk(seed, order=order)


def _over_brokers(module: str) -> Run:
    _module("broker", "raw_client")  # Clients of clusters are made of it.
    return _run_of("cluster", module, "run_seed")


SIMULATIONS: dict[str, Callable[[], Run]] = {
    **{name: partial(_run_of, *where) for name, where in _RUNS.items()},
    "dead letters": _dead_letters,
    "keys": partial(_ordered, "key"),
    "log lives": _log_lives,
    "priorities": partial(_ordered, "priority"),
    "transactions over brokers": partial(_over_brokers, "transactions_over_brokers_run"),
    "leaders": partial(_over_brokers, "leaders_run"),
    "thinned replicas": partial(_over_brokers, "thinned_replicas_run"),
    "queues over brokers": partial(_over_brokers, "queues_run"),
    "replica lives": _replica_lives,
    "thinned lives": _thinned_lives,
    "subscription in two phases": _two_phases,
}
