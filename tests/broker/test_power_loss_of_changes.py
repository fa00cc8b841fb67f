"""Topics, exchanges, bindings and groups that are changed live.

Whatever write power is lost at, all of a change is there or nothing.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from raw_client import ALWAYS, RawClient, after_power_loss, broker_on, connected

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TOML = ALWAYS + '[exchanges.e]\ntype = "topic"\n[topics.s]\nkind = "stream"\n'
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("exchange.create", {"name": "rest", "settings": {"type": "fanout"}}),
    (
        "exchange.create",
        {"name": "x", "settings": {"type": "direct", "alternate": "rest", "bindings": [{"exchange": "e", "key": "#"}]}},
    ),
    ("exchange.bind", {"exchange": "x", "topic": "s", "key": "k"}),
    ("exchange.bind", {"exchange": "e", "target_exchange": "rest", "key": "r"}),
    ("commit", {"end": 3}),
    ("group.reset", {"topic": "s", "group": "g", "offset": 1}),
    ("exchange.unbind", {"exchange": "e", "target_exchange": "rest", "key": "r"}),
    ("commit", {"end": 2}),
    ("group.delete", {"topic": "s", "group": "g"}),
    ("exchange.unbind", {"exchange": "x", "topic": "s", "key": "k"}),
    ("exchange.delete", {"name": "x"}),
    ("commit", {"end": 4}),
    ("exchange.delete", {"name": "rest"}),
    ("topic.create", {"name": "a", "settings": {"kind": "stream", "partitions": 2}}),
    ("topic.alter", {"name": "a", "settings": {"partitions": 3}}),
    ("topic.create", {"name": "b"}),
    ("topic.delete", {"name": "a"}),
    ("topic.create", {"name": "a"}),
]


async def commit(client: RawClient, end: int) -> None:
    subscription = (await client.call(m.Subscribe("s", group="g"))).subscription
    assert await client.commit(subscription, "s", {0: end}) == []
    await client.call(m.Unsubscribe(subscription))


async def state_of(client: RawClient) -> dict[str, Any]:
    groups = await client.administer("group.list", topic="s")
    return {
        "exchanges": await client.administer("exchange.list"),
        "topics": {each["name"]: len(each["partitions"]) for each in await client.administer("topic.list")},
        "bindings": (await client.administer("topic.show", name="s"))["settings"]["bindings"],
        "groups": [(await client.administer("group.show", group=group["group"]))["offsets"] for group in groups],
    }


class Changed(NamedTuple):
    done: int
    """The number of steps that were answered; -1: not even the publish before them."""
    states: list[dict[str, Any]]
    """The state before each step, and after the last."""
    operations: int


async def change(env: SimEnv, looking: bool) -> Changed:
    """Take all steps, as far as the disk lets them; `looking` keeps the states."""
    done, states = -1, []

    async def process(env: SimEnv) -> None:
        nonlocal done
        async with broker_on(env, TOML):
            client = await connected(env)
            await client.publish("s", ["a", "b", "c", "d"])
            done = 0
            for verb, arguments in STEPS:
                if looking:
                    states.append(await state_of(client))
                await (commit(client, **arguments) if verb == "commit" else client.administer(verb, **arguments))
                done += 1
            if looking:
                states.append(await state_of(client))

    await env.run_until_death(process)
    return Changed(done, states, len(env.disk.operations))


@functools.cache
def undisturbed() -> Changed:
    return run_simulation(0, lambda env: change(env, looking=True))


def change_and_lose_power(crash_at: int) -> None:
    """Lose power at one change of the disk, and start again."""
    states = undisturbed().states

    async def scenario(env: SimEnv) -> None:
        env.disk.crash_at = crash_at
        done = (await change(env, looking=False)).done
        async with broker_on(await after_power_loss(env, TOML) if env.is_dead else env, TOML) as broker:
            found = await state_of(await connected(broker.env))  # type: ignore[arg-type]
        begun = min(done + 1, len(STEPS))
        if done >= 0:
            for part, now in found.items():
                assert now in (states[done][part], states[begun][part]) or (
                    part == "groups" and STEPS[done][0] == "commit"
                ), f"all of a change or nothing; power lost at {crash_at}, after {done} changes"

    run_simulation(crash_at, scenario)


def test_a_change_is_atomic_and_the_broker_starts() -> None:
    for crash_at in range(1, undisturbed().operations, 4):
        change_and_lose_power(crash_at)


async def delete(env: SimEnv, crash_at: int | None = None) -> range:
    """Delete the topic of the file, which has a record; the operations on the disk that this takes."""
    async with broker_on(env, TOML):
        client = await connected(env)
        await client.publish("s", ["old"])
        env.disk.crash_at, first = crash_at, len(env.disk.operations)
        await client.administer("topic.delete", name="s")
        return range(first, len(env.disk.operations))


def delete_and_lose_power(crash_at: int) -> None:
    """Lose power at one change of the disk; the next start makes the topic anew, the third knows no table of it."""

    async def process(env: SimEnv) -> None:
        await delete(env, crash_at)

    async def scenario(env: SimEnv) -> None:
        if not await env.run_until_death(process):
            return
        env = await after_power_loss(env, TOML)
        async with broker_on(env, TOML):
            await (await connected(env)).publish("s", ["new"])
        async with broker_on(env, ALWAYS):
            assert (await (await connected(env)).fetch("s"))[-1] == "new"

    run_simulation(crash_at, scenario)


def test_a_topic_recreated_after_an_interrupted_deletion_outlives_its_table() -> None:
    for crash_at in run_simulation(0, delete)[::2]:
        delete_and_lose_power(crash_at)
