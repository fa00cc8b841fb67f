"""A graph of exchanges and its model on one long way that follows from a seed, without Hypothesis choosing."""

from __future__ import annotations

import random
from typing import Any

from test_routing_model import EXCHANGES, KEYS, RULES, RoutingMachine

from linn.core.batch.record import Record
from linn.core.routing.exchange import Target

STEPS = 200
_NAMES = sorted(EXCHANGES)
_KEYS_OF = {"direct": KEYS, "fanout": [""], "topic": ["a", "*", "#", "a.#", "#.b", "*.*", "b.*"], "field": RULES}


class Chosen:
    """Stands where a rule would draw."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def draw(self, strategy: object) -> Any:
        return self._value


def walk(seed: int) -> None:
    """Compare the router and the model over random steps. Raises AssertionError where the two differ."""
    rng = random.Random(seed)
    machine = RoutingMachine()
    machine.choose_alternates([(rng.choice(_NAMES), rng.choice(_NAMES)) for _ in range(3)])
    for _ in range(STEPS):
        name, deed = rng.choice(_NAMES), rng.randrange(5)
        if deed == 0:
            machine.bind(name, _target(rng), Chosen(rng.choice(_KEYS_OF[EXCHANGES[name]])))
        elif deed == 1 and machine.rules[name]:
            machine.unbind(name, Chosen(rng.choice(machine.rules[name])))
        else:
            machine.route(name, [_record(rng) for _ in range(rng.randint(1, 8))], rng.random() < 0.5)
        machine.bindings_are_in_the_order_made()


def _target(rng: random.Random) -> Target:
    if rng.random() < 0.6:
        return Target(f"q{rng.randint(1, 4)}")
    return Target(rng.choice(_NAMES), is_exchange=True)


def _record(rng: random.Random) -> Record:
    return Record(
        value=rng.choice([b"", b"xx", b"xxxx", None]),
        routing_key=rng.choice(KEYS),
        key=rng.choice([None, b"k1", b"k2"]),
        labels=rng.choice([{}, {"l": "x"}, {"l": "y"}]),
        headers=rng.choice([(), (("h", b"1"),)]),
    )
