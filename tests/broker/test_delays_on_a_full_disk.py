"""Delayed messages on a full disk: publishes are refused, what is due waits, other topics go on, nothing is lost."""

from __future__ import annotations

import pytest
import trio
from raw_client import ALWAYS, RawClient, Refused, after_power_loss, broker_on, connected, records

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = ALWAYS + '[topics.t]\nkind = "stream"\n[topics.u]\n[storage.dram]\n[topics.memory]\nstorage = "dram"\n'
ROOM_BYTES = 1 << 30


async def publish(client: RawClient, value: str, delay_ms: int = 1_000, topic: str = "t") -> str:
    """Publish a delayed message; returns the code of the error, "" if there is none."""
    return await client.code_of(await client.send(m.Publish(topic), [records([value], delay_ms=delay_ms)]))


async def settle_down(env: SimEnv, client: RawClient, confirmed: list[str], maybe: list[str]) -> None:
    """Check that, once there is room, each confirmed message comes once, and delayed messages are taken again."""
    env.disk.capacity_bytes = ROOM_BYTES
    await trio.sleep(30)
    found = await client.fetch("t")
    assert [value for value in found if value not in maybe] == confirmed
    assert len(set(found)) == len(found), "each comes once"
    assert await publish(client, "afterwards") == ""
    await trio.sleep(2)
    assert (await client.fetch("t"))[-1] == "afterwards"


def fill_the_disk(room_bytes: int, end: str) -> bool:
    """Publish and let messages come where there is so much room; whether anything was refused."""
    confirmed, refused = list[str](), list[str]()

    async def process(env: SimEnv) -> None:
        async with broker_on(env, TEXT):
            client = await connected(env)
            for number in range(12):
                if number == 8:
                    env.disk.capacity_bytes = env.disk.used_bytes + room_bytes
                code = await publish(client, str(number), 1_000 + 50 * number)
                assert code in ("", "storage.disk_full")
                (refused if code else confirmed).append(str(number))
            assert await publish(client, "memory", topic="memory") == "", "topics in memory need no disk"
            await trio.sleep(3)
            assert await client.fetch("memory") == ["memory"]
            come = await client.fetch("t")
            assert come == confirmed[: len(come)]
            if end == "is killed":
                env.kill()
            elif end == "loses power":
                env.disk.crash_at = len(env.disk.operations) + 1
            await settle_down(env, client, confirmed, refused)

    async def scenario(env: SimEnv) -> None:
        if await env.run_until_death(process):
            restarted = env.restart() if end == "is killed" else await after_power_loss(env, TEXT)
            restarted.disk.capacity_bytes = restarted.disk.used_bytes
            async with broker_on(restarted, TEXT):
                client = await connected(restarted)
                await trio.sleep(3)
                await settle_down(restarted, client, confirmed, refused)

    run_simulation(room_bytes, scenario)
    return bool(refused)


@pytest.mark.parametrize("end", ["goes on", "is killed", "loses power"])
def test_each_delayed_message_comes_once_however_little_room_there_is(end: str) -> None:
    assert {fill_the_disk(room_bytes, end) for room_bytes in range(0, 6_000, 500)} == {False, True}


@pytest.mark.parametrize("room_bytes", [0, 100, 1_000])
def test_a_first_delayed_message_that_finds_no_room_is_refused_and_taken_later(room_bytes: int) -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, TEXT) as broker:
            client = await connected(env)
            env.disk.capacity_bytes = env.disk.used_bytes + room_bytes
            assert await publish(client, "first") == "storage.disk_full"
            assert broker.topics["t"].timing.waiting_count == 0
            env.disk.capacity_bytes = ROOM_BYTES
            assert await publish(client, "first") == ""
            await trio.sleep(2)
            assert await client.fetch("t") == ["first"]

    run_simulation(0, scenario)


def test_messages_are_cancelled_and_moved_again_once_there_is_room() -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, TEXT):
            client = await connected(env)
            for value in "abc":
                await publish(client, value, 20_000)
            env.disk.capacity_bytes = env.disk.used_bytes
            for verb, asked in (("cancel", {"ids": ["0/0"]}), ("move", {"ids": ["0/1"], "due_ms": 1})):
                with pytest.raises(Refused, match=r"storage\.disk_full"):
                    await client.administer(f"scheduled.{verb}", topic="t", **asked)
            await trio.sleep(1)
            env.disk.capacity_bytes = ROOM_BYTES
            await trio.sleep(30)
            assert await client.fetch("t") == ["b", "c"]

    run_simulation(0, scenario)
