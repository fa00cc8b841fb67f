"""Delayed messages of transactions: scheduled by the commit, gone with an abort, all or none after a loss of power."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
import trio
from raw_client import ALWAYS, RawClient, Refused, after_power_loss, broker_on, connected, records, served, simulated
from seeds import tiered
from test_message_status import QUEUE, status
from test_transactions import A, Owner

from linn.core.batch.batch import TRANSACTIONAL
from linn.core.broker.broker import Broker
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = ALWAYS + QUEUE


async def publish(owner: Owner, *ids: int, delay_ms: int = 10_000) -> None:
    """Publish messages of the transaction with these ids, which are their values as well."""
    for id in ids:
        batch = records([str(id)], delay_ms=delay_ms, id=UUID(int=id))
        first = owner.sequences.get((A, "t"), 0)
        batch.number(A, 0, first, TRANSACTIONAL, owner.number)
        await owner.client.call(m.Publish("t", partition=0), [batch])
        owner.sequences[A, "t"] = first + 1


async def listed(client: RawClient) -> list[str]:
    return [each["id"] for each in (await client.administer("scheduled.list", topic="t"))["first"]]


@pytest.mark.parametrize("commit", [True, False])
def test_a_delayed_message_is_scheduled_when_its_transaction_is_committed(commit: bool) -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, TEXT) as broker:
            client = await connected(env)
            owner = await Owner.open(client)
            await publish(owner, 1, 2)
            assert await status(client, 1) == ["in_doubt"]
            assert await listed(client) == []
            shown = await client.administer("transaction.show", name="billing")
            assert [each["partition"] for each in shown["wrote"]] == [0]
            await owner.end(commit=commit)
            assert await status(client, 1, 2) == ["scheduled" if commit else "unknown"] * 2
            assert await listed(client) == (["0/0", "0/1"] if commit else [])
            await trio.sleep(9)
            assert await client.fetch("t") == []
            await trio.sleep(2)
            assert await client.fetch("t") == (["1", "2"] if commit else [])
            assert broker.topics["t"].timing.waiting_count == 0

    run_simulation(1, scenario)


@served(TEXT)
async def test_a_message_that_is_due_before_the_commit_comes_with_it(client: RawClient) -> None:
    owner = await Owner.open(client)
    await publish(owner, 1, delay_ms=1_000)
    await client.call(m.Publish("t", partition=0), [records(["behind"], delay_ms=1_000)])
    await trio.sleep(20)
    assert await client.fetch("t") == [], "records behind an open transaction do not count yet"
    await owner.end(commit=True)
    await trio.sleep(0.5)
    assert await client.fetch("t") == ["1", "behind"]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("killed", [True, False])
@simulated
async def test_a_transaction_goes_on_over_a_restart(env: SimEnv, commit: bool, killed: bool) -> None:
    owners = list[Owner]()

    async def process(env: SimEnv) -> None:
        async with broker_on(env, TEXT):
            owners.append(await Owner.open(await connected(env)))
            await publish(owners[0], 1, 2, delay_ms=1_000)
            if killed:
                env.kill()
            await trio.sleep(0)

    assert await env.run_until_death(process) == killed
    async with broker_on(env.restart() if killed else env, TEXT) as broker:
        await trio.sleep(10)
        client = owners[0].client = await connected(broker.env)  # type: ignore[arg-type]
        assert await client.fetch("t") == []
        await owners[0].end(commit=commit)
        await trio.sleep(2)
        assert await client.fetch("t") == (["1", "2"] if commit else [])


def commit_and_lose_power(seed: int) -> None:
    """Transactions of delayed messages over losses of power: all of one come, or none, and each once."""
    rng, known, parts, count = Random(seed), dict[int, bool | None](), dict[int, list[int]](), 0

    async def work(env: SimEnv) -> None:
        nonlocal count
        env.disk.crash_at = len(env.disk.operations) + rng.randrange(60, 500)
        async with broker_on(env, TEXT):
            client = await connected(env)
            for _ in range(6):
                number, commit = len(parts), rng.random() < 0.7
                parts[number], known[number] = [], None if commit else False
                owner = await Owner.open(client, f"name {rng.randrange(3)}", branch=A + number)
                for sequence in range(rng.randint(1, 4)):
                    batch = records([str(count)], delay_ms=rng.choice([1, 300, 5_000]), id=UUID(int=count))
                    batch.number(A + number, 0, sequence, TRANSACTIONAL, owner.number)
                    parts[number].append(count)
                    count += 1
                    await client.call(m.Publish("t", partition=0), [batch])
                    await trio.sleep(rng.choice([0, 0, 0.4]))
                await owner.end(commit=commit, branches=[A + number])
                known[number] = commit

    async def scenario(env: SimEnv) -> None:
        for _ in range(4):
            if not await env.run_until_death(work):
                env.crash()
            env = await after_power_loss(env, TEXT)
        async with broker_on(env, TEXT):
            await trio.sleep(120)  # Open transactions are over.
            client = await connected(env)
            found = list(map(int, await client.taken("t")))
            assert len(found) == len(set(found)), "each comes once"
            for number, ids in parts.items():
                come = [id for id in ids if id in found]
                assert come in ([], ids), f"transaction {number} came in part"
                assert known[number] is None or bool(come) == known[number], f"transaction {number}: {known[number]}"

    run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", tiered(range(8), 2))
def test_all_delayed_messages_of_a_transaction_come_or_none_whatever_crashes(seed: int) -> None:
    commit_and_lose_power(seed)


@served(TEXT + "records_max = 4\n")
async def test_a_refused_message_leaves_nothing_in_the_transaction(client: RawClient, broker: Broker) -> None:
    owner = await Owner.open(client)
    wrong = records(["1"], due_ms=-1)
    wrong.number(A, 0, 0, TRANSACTIONAL, owner.number)
    with pytest.raises(Refused, match=r"message\.invalid"):
        await client.call(m.Publish("t", partition=0), [wrong])
    await publish(owner, 2, delay_ms=500)
    await owner.end(commit=True)
    await trio.sleep(1)
    assert await client.fetch("t") == ["2"]
