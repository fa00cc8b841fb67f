"""The subscription and its model on one long way that follows from a seed, without Hypothesis choosing."""

from __future__ import annotations

import random
from collections.abc import Callable

from test_subscription_model import SubscriptionMachine

STEPS = 250


def walk(seed: int, *, two_phase: bool = False, order: str = "fifo") -> None:
    """Compare the subscription and the model over random steps. Raises AssertionError where the two differ."""
    rng = random.Random(seed)
    machine = SubscriptionMachine()
    machine.begin(
        max_deliveries=rng.choice([None, 1, 2, 3]),
        delay_ms=rng.choice([0, 500, 1_000]),
        backoff=rng.choice(["fixed", "linear", "exponential"]),
        two_phase=two_phase,
        order=order,
    )
    deeds, weights = zip(*_DEEDS, *_DEEDS_IN_TWO_PHASES * two_phase, strict=True)
    for deed in rng.choices(deeds, weights, k=STEPS):
        if order != "fifo" and rng.random() < 0.01:
            machine.change_order(rng.choice(["priority", "key"]))
        deed(machine, rng)
        machine.same_state()
        machine.same_dead_letters()


def _parts(rng: random.Random) -> list[tuple[int, int]] | None:
    """A part of a lease: mostly all of it, or one record."""
    spans = [(rng.randrange(4), rng.randrange(4)) for _ in range(rng.randrange(3))]
    return rng.choice([None, None, None, [(0, 1)], [(1, 1)], spans])


def _ack(machine: SubscriptionMachine, rng: random.Random) -> None:
    if machine.given:
        machine.ack(rng.randrange(10), rng.random() < 0.2, rng.choice([None] * 6 + [1, 2]), _parts(rng))


def _nack_or_reject(machine: SubscriptionMachine, rng: random.Random) -> None:
    if machine.given:
        how, delay_ms = rng.choice(["nack", "nack", "reject", "later"]), rng.choice([None, 0, 1_500])
        forger = rng.choice([None] * 6 + [1, 2])
        machine.nack_or_reject(rng.randrange(10), rng.random() < 0.2, forger, _parts(rng), how, delay_ms)


def _extend(machine: SubscriptionMachine, rng: random.Random) -> None:
    if machine.given:
        machine.extend(rng.randrange(10), rng.random() < 0.2, None, rng.choice([500, 2_000, 9_000]))


def _end_leases(machine: SubscriptionMachine, rng: random.Random) -> None:
    what = rng.choice(["time passes", "time passes", "expire", "expire", "consumer gone", "consumer lost"])
    machine.leases_end(what, rng.randint(1, 3), rng.randint(1, 5))


def _lose_records(machine: SubscriptionMachine, rng: random.Random) -> None:
    machine.records_go(rng.choice(["expired", "overflow", "purge", "skip"]), rng.randrange(7), rng.randint(1, 3))


def _move_dead_letters(machine: SubscriptionMachine, rng: random.Random) -> None:
    if machine.subscription.dead():
        place = rng.randrange(4), rng.randrange(4)
        machine.dead_letters_move(rng.random() < 0.5, rng.randrange(4), rng.randint(1, 4), place)


def _restart(machine: SubscriptionMachine, rng: random.Random) -> None:
    # Of another source, so that the way is the same whatever the clock does.
    jump = random.Random(machine.now).choice([0.0, 0.5, -0.5, 1e7, -1e7])
    machine.event_log(rng.choice(["flush", "snapshot", "trim", "crash", "stop"]), jump)


def _end_decision(machine: SubscriptionMachine, rng: random.Random) -> None:
    if machine.model.offsets("decided"):
        how = rng.choice(["done", "done", "done", "give up", "reject"])
        forger = rng.choice([None] * 6 + [1, 2])
        machine.decision_ends(rng.randrange(10), rng.randint(-1, 3), rng.randrange(7), how, forger, rng.random() < 0.2)


def _resolve(machine: SubscriptionMachine, rng: random.Random) -> None:
    if machine.given:
        forger, begin, count = rng.choice([None] * 6 + [1, 2]), rng.randint(-1, 3), rng.randrange(7)
        machine.resolve(rng.randrange(10), rng.random() < 0.2, forger, begin, count)


_DEEDS: list[tuple[Callable[[SubscriptionMachine, random.Random], None], int]] = [
    (lambda machine, rng: machine.publish(rng.randint(1, 10)), 2),
    (lambda machine, rng: machine.acquire(rng.randint(1, 3), rng.randint(1, 4), skips=rng.random() < 0.2), 8),
    (_ack, 6),
    (_nack_or_reject, 3),
    (_extend, 1),
    (_end_leases, 3),
    (_lose_records, 1),
    (_move_dead_letters, 1),
    (_restart, 1),
]
"""(what happens, how often as compared with the others)."""
_DEEDS_IN_TWO_PHASES: list[tuple[Callable[[SubscriptionMachine, random.Random], None], int]] = [
    (_end_decision, 5),
    (_resolve, 1),
]
