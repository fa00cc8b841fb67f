"""Very many bindings of a topic or exchange are made, changed and taken back in turns; nothing is lost meanwhile."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
import trio
from raw_client import ALWAYS, broker_on, records, served, simulated

from linn.core.broker.broker import Broker
from linn.core.errors.tree import ConfigError
from linn.core.loop.long_work import TURNS_OF_OTHERS
from linn.testing.sim_env import SimClock, SimEnv

COUNT = 100
A_TURN_EACH = COUNT * (TURNS_OF_OTHERS + 1)
"""Turns of the loop: those of other tasks, and the task's own."""
CONFIG = ALWAYS + '[exchanges.d]\ntype = "direct"\n[exchanges.p]\ntype = "topic"\n'


class SlowClock(SimClock):
    """A machine on which a millisecond has passed whenever somebody looks: each step of long work is a turn."""

    late_s = 0.0

    def monotonic(self) -> float:
        self.late_s += 0.001
        return super().monotonic() + self.late_s


def keyed(first: int, last: int) -> list[dict[str, object]]:
    return [{"exchange": "d", "key": str(number)} for number in range(first, last)]


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop, and looks at something in each."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.count = 0
        self._look = look

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1
        self._look()


async def turns_of(broker: Broker, verb: str, look: Callable[[], None] = lambda: None, **arguments: object) -> int:
    """Carry out a verb; in how many turns of the loop."""
    turns = Turns(look)
    trio.lowlevel.add_instrument(turns)
    await broker.administration.perform(verb, json.dumps(arguments))
    trio.lowlevel.remove_instrument(turns)
    return turns.count


def on_a_slow_machine(test: Callable[[Broker], Awaitable[None]]) -> Callable[[], None]:
    async def scenario(env: SimEnv) -> None:
        env.clock = SlowClock()
        async with broker_on(env, CONFIG) as broker:
            await test(broker)

    scenario.__name__ = test.__name__
    return simulated(scenario)


def routed(broker: Broker, exchange: str, key: str) -> Sequence[str]:
    return [topic for topic, _ in broker.router(exchange).route(records(["x"], routing_key=key))]


@on_a_slow_machine
async def test_making_changing_and_deleting_a_topic_gives_others_a_turn_for_each_binding(broker: Broker) -> None:
    settings: Mapping[str, Any] = {"bindings": keyed(0, COUNT)}
    assert await turns_of(broker, "topic.create", name="t", settings=settings) > 4 * A_TURN_EACH
    assert routed(broker, "d", "0") == routed(broker, "d", str(COUNT - 1)) == ["t"]
    assert await turns_of(broker, "topic.show", name="t") < COUNT
    # What stays as it is is not decoded, encoded or bound again.
    assert await turns_of(broker, "topic.alter", name="t", settings={"partitions": 2}) < COUNT
    assert await turns_of(broker, "topic.alter", name="t", settings={"bindings": keyed(1, COUNT + 1)}) > 5 * A_TURN_EACH
    assert routed(broker, "d", "0") == []
    assert routed(broker, "d", "1") == routed(broker, "d", str(COUNT)) == ["t"]
    assert await turns_of(broker, "topic.delete", name="t") > A_TURN_EACH
    assert routed(broker, "d", "1") == []
    assert not broker.router("d").bindings()


@on_a_slow_machine
async def test_making_and_deleting_an_exchange_gives_others_a_turn_for_each_binding(broker: Broker) -> None:
    settings = {"type": "fanout", "bindings": keyed(0, COUNT)}
    assert await turns_of(broker, "exchange.create", name="e", settings=settings) > 3 * A_TURN_EACH
    await turns_of(broker, "topic.create", name="t", settings={"bindings": [{"exchange": "e"}]})
    assert routed(broker, "d", "0") == routed(broker, "d", str(COUNT - 1)) == ["t"]
    await turns_of(broker, "topic.delete", name="t")
    assert await turns_of(broker, "exchange.delete", name="e") > A_TURN_EACH
    assert not broker.router("d").bindings()


@on_a_slow_machine
async def test_a_binding_kept_by_a_change_routes_during_the_change(broker: Broker) -> None:
    before = [*keyed(0, COUNT), {"exchange": "p", "key": "a.*"}]
    after = [{"exchange": "p", "key": "a.#"}, *keyed(COUNT // 2, 2 * COUNT)]
    await turns_of(broker, "topic.create", name="t", settings={"bindings": before})
    seen: list[tuple[Sequence[str], ...]] = []

    def look() -> None:
        both, other = routed(broker, "d", str(COUNT - 1)), routed(broker, "p", "a.b")
        seen.append((both, other, routed(broker, "d", "0"), routed(broker, "d", str(2 * COUNT - 1))))

    await turns_of(broker, "topic.alter", look, name="t", settings={"bindings": after})
    look()
    assert {(*both, *other) for both, other, _, _ in seen} == {("t", "t")}
    assert (seen[0][2:], seen[-1][2:]) == ((["t"], []), ([], ["t"]))


@on_a_slow_machine
async def test_an_error_in_one_of_many_bindings_is_named_and_nothing_is_made(broker: Broker) -> None:
    wrong = {
        "bindings[99].key: must be text": {"exchange": "d", "key": 7},
        'bindings[99]: the key "exchange" is missing': {"key": "7"},
        "bindings[99]: must be a table": 7,
    }
    for text, last in wrong.items():
        bindings = [*keyed(0, COUNT - 1), last]
        for verb, path, settings in (
            ("topic.create", "topics.n", {"bindings": bindings}),
            ("exchange.create", "exchanges.n", {"type": "direct", "bindings": bindings}),
        ):
            with pytest.raises(ConfigError) as raised:
                await broker.administration.perform(verb, json.dumps({"name": "n", "settings": settings}))
            assert raised.value.text.startswith(f"{path}.{text}")
    assert "n" not in broker.topics
    assert "n" not in broker.routers
    assert not broker.router("d").bindings()


class Calls:
    """Counts what Python calls, functions in C included."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: object, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


@served(CONFIG + "[topics.t]\n[exchanges.few]\n")
async def test_adding_a_binding_loops_over_no_existing_ones(broker: Broker) -> None:
    async def calls_of(verb: str, key: str, **target: str) -> int:
        calls = Calls()
        sys.setprofile(calls)
        try:
            await broker.administration.perform(verb, json.dumps({"exchange": "d", "key": key, **target}))
        finally:
            sys.setprofile(None)
        return calls.count

    for target in ({"topic": "t"}, {"target_exchange": "few"}):
        few = [await calls_of(verb, "first", **target) for verb in ("exchange.bind", "exchange.unbind")]
        for number in range(1_000):
            asked = json.dumps({"exchange": "d", "key": str(number), **target})
            await broker.administration.perform("exchange.bind", asked)
        many = [await calls_of(verb, "last", **target) for verb in ("exchange.bind", "exchange.unbind")]
        assert max(many) < max(few) + 500
