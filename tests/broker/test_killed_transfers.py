"""A broker that is killed twice in each step of a transfer: one copy of each record is there in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio
from raw_client import broker_on, connected
from simulated_time import simulated
from transfer_run import RECORDS, TARGETS, TEXT, copies_in, work

from linn.core.queue.dead_letter_source import DeadLetterSource
from linn.testing.sim_env import SimEnv

STEPS = {
    "before it is intended": (DeadLetterSource, "intend", True),
    "after it was intended": (DeadLetterSource, "intend", False),
    "before its intent is committed": (DeadLetterSource, "until_committed", True),
    "after its intent was committed": (DeadLetterSource, "until_committed", False),
    "before it is published": (DeadLetterSource, "check_led", False),
    "after it was published": (DeadLetterSource, "settle", True),
    "after it was settled": (DeadLetterSource, "settle", False),
}
"""Class, method, and whether the kill comes before its call."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("at", [1, 2])
@simulated
async def test_a_kill_in_each_step_leaves_one_copy_of_each_record(
    env: SimEnv, step: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name, is_before = STEPS[step]
    killed = list[int]()
    with monkeypatch.context() as patched:
        for _ in range(2):
            plant(patched, place, name, at, is_before=is_before, kill=lambda env=env: kill(env, killed))
            assert await env.run_until_death(lambda env: work(env, Random(at)))
            patched.undo()
            env = env.restart()
    assert len(killed) == 2
    assert not await env.run_until_death(lambda env: work(env, Random(at)))
    async with broker_on(env, TEXT):
        client = await connected(env)
        assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 0
        for topic, partitions in TARGETS.items():
            copies = Counter(record.labels["linn.dead.offset"] for record in await copies_in(client, topic, partitions))
            assert copies == dict.fromkeys(range(RECORDS), 1), f"{topic} has one copy of each"


def kill(env: SimEnv, killed: list[int]) -> None:
    """Kill the process, and note it."""
    killed.append(1)
    env.kill()


def plant(
    patched: pytest.MonkeyPatch, place: type, name: str, at: int, *, is_before: bool, kill: Callable[[], None]
) -> None:
    """Have the process killed at the call of a method with this number, the first is 1."""
    called, original = list[int](), getattr(place, name)

    def is_due() -> bool:
        called.append(1)
        return len(called) == at

    def stopped(self: Any, *arguments: Any) -> Any:
        due = is_due()
        if due and is_before:
            kill()
        result = original(self, *arguments)
        if due and not is_before:
            kill()
        return result

    async def stopped_later(self: Any, *arguments: Any) -> Any:
        due = is_due()
        if due and is_before:
            kill()
            await trio.sleep_forever()
        result = await original(self, *arguments)
        if due and not is_before:
            kill()
            await trio.sleep_forever()
        return result

    patched.setattr(place, name, stopped_later if name.startswith("until") else stopped)
