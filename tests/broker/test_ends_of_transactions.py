"""Transactions whose requests overlap, are repeated, or meet a full disk, where the log has to say what holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from raw_client import ALWAYS, RawClient, Refused, broker_on, connected, records, served, simulated, values
from test_transactions import TOPICS, A, B, Owner, refused, states

from linn.core.batch.batch import TRANSACTIONAL
from linn.core.broker.broker import Broker
from linn.core.errors.tree import LinnError
from linn.core.transactions import coordinator, ending
from linn.core.transactions.producer import UNUSED_S
from linn.protocols.capnp import transacting
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

SLOW_S = 0.5


async def code_of(client: RawClient, correlation: int) -> str:
    with trio.fail_after(30):
        return await client.code_of(correlation)


@served(ALWAYS + TOPICS)
async def test_requests_to_end_a_transaction_whose_decision_is_not_durable_yet_change_nothing(
    env: SimEnv, broker: Broker, client: RawClient
) -> None:
    owner = await Owner.open(client)
    await owner.publish("s", ["a"])
    env.disk.sync_delay_s_max = SLOW_S
    ends = [m.EndTransaction(owner.id, owner.epoch, owner.number, commit, [A]) for commit in (True, False, True)]
    sent = [await client.send(end) for end in ends]
    assert await code_of(client, sent[1]) == "transaction.invalid"
    assert await code_of(client, sent[2]) == ""
    assert broker.transactions.log.is_committed, "told again, and not durable"
    assert await code_of(client, sent[0]) == ""
    owner.number += 1
    await owner.publish("s", ["b"])
    await owner.end(commit=True)
    assert await client.fetch("s") == ["a", "b"]


@served(ALWAYS + TOPICS)
async def test_of_two_clients_that_open_a_name_together_one_is_fenced(env: SimEnv) -> None:
    clients = [await connected(env) for _ in range(2)]
    for _ in range(2):  # The first opening makes the log.
        sent = [await client.send(m.OpenTransactions("billing", 60_000)) for client in clients]
        opened = [(await client.answer(each)).message for client, each in zip(clients, sent, strict=True)]
        owners = [Owner(client, each) for client, each in zip(clients, opened, strict=True)]
        assert owners[0].id == owners[1].id
        assert owners[0].epoch != owners[1].epoch
        first, last = sorted(owners, key=lambda owner: owner.epoch)
        await refused("transaction.fenced", first.add(A))
        await last.add(A)


@simulated
async def test_a_client_that_opens_its_name_again_may_ask_twice_and_does_not_fence_itself(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        client, late = await connected(env), await connected(env)
        owner = await Owner.open(client)
        again = owner.opening_again()
        lost, got = await client.call(again), await late.call(again)
        assert lost == got
        owner = Owner(late, got)
        await owner.add(A)
        await owner.publish("s", ["a"])
        await refused("transaction.fenced", client.call(again))
        await owner.end(commit=True)
        assert await client.fetch("s") == ["a"]
    async with broker_on(env, TOPICS):
        client = await connected(env)
        lost = await client.call(owner.opening_again())
    async with broker_on(env, TOPICS):
        client = await connected(env)
        opened = await client.call(owner.opening_again())
        assert (opened.epoch, opened.number) == (lost.epoch, lost.number)


@served(TOPICS)
async def test_an_opening_that_arrives_again_takes_nothing_over(client: RawClient, late: RawClient) -> None:
    first, second = (m.OpenTransactions("billing", 60_000, opening=number) for number in (7, 8))
    opened = await client.call(first)
    owner = Owner(client, opened)
    await owner.add(A)
    await owner.publish("s", ["a"])
    assert await late.call(first) == opened
    await owner.end(commit=True)
    zombie, owner = owner, Owner(client, await client.call(second))
    await owner.add(A)
    owner.sequences = zombie.sequences
    await owner.publish("s", ["b"])
    await refused("transaction.fenced", late.call(first))
    assert (await late.call(second)).epoch == owner.epoch
    await owner.end(commit=True)
    assert await client.fetch("s") == ["a", "b"]
    await client.call(m.OpenTransactions("billing", 60_000))
    assert (await late.call(m.OpenTransactions("billing", 60_000))).epoch == owner.epoch + 2


@simulated
async def test_an_aborted_number_is_not_used_again_after_a_restart(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        zombie = await Owner.open(await connected(env))
        for _ in range(3):
            await zombie.publish("s", ["never"])
            await zombie.end(commit=False)
        await zombie.publish("s", ["never"])
    async with broker_on(env, TOPICS):
        client = await connected(env)
        owner = await Owner.open(client, branch=B)
        for number in range(5):
            await owner.publish("s", [str(number)], B)
            await owner.end(commit=True, branches=[B])
            zombie.client = client
            await refused("transaction.fenced", zombie.end(commit=True))
        assert await client.fetch("s") == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("config", ["", ALWAYS])
@pytest.mark.parametrize("commit", [True, False])
def test_the_marks_of_a_long_transaction_take_turns_with_others(
    commit: bool, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = []

    def watched(*arguments: Any) -> Iterator[None]:
        for _ in ending.marking(*arguments):
            yield
            turns.append(arguments)

    monkeypatch.setattr(ending, "MARKED_AT_ONCE", 1)
    monkeypatch.setattr(coordinator, "marking", watched)

    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, config + TOPICS):
            client = await connected(env)
            owner = await Owner.open(client)
            for topic in ("s", "both"):
                await owner.publish(topic, ["a"])
            await owner.end(commit=commit)
            if commit:
                assert [await client.fetch(topic) for topic in ("s", "both")] == [["a"], ["a"]], "it is answered"
            await owner.publish("s", ["b"])
            await owner.end(commit=True)
            assert await client.fetch("s") == (["a", "b"] if commit else ["b"])
            assert turns, "others had a turn between the two"

    run_simulation(1, scenario)


@served(ALWAYS + TOPICS)
async def test_who_joins_while_a_transaction_is_being_ended_is_not_given_that_one(
    env: SimEnv, client: RawClient, other: RawClient
) -> None:
    joining = m.OpenTransactions("billing", 60_000, opening=7)
    owner = Owner(client, await client.call(joining))
    await owner.add(A)
    await owner.publish("s", ["a"])
    env.disk.sync_delay_s_max = SLOW_S
    commit = await client.send(m.EndTransaction(owner.id, owner.epoch, owner.number, True, [A]))
    await trio.sleep(0.01)
    assert await code_of(other, await other.send(joining)) == "transaction.busy"
    assert await code_of(client, commit) == ""
    assert (await other.call(joining)).number == owner.number + 1


@served(ALWAYS + TOPICS)
async def test_a_record_whose_hold_a_full_disk_refuses_is_returned_by_the_abort(env: SimEnv, client: RawClient) -> None:
    await client.publish("q", ["job"])
    queue = (await client.call(m.Subscribe("q"))).subscription
    event = await client.pull(queue, 1)
    owner = await Owner.open(client)
    room_bytes, env.disk.capacity_bytes = env.disk.capacity_bytes, env.disk.used_bytes
    with pytest.raises(Refused, match="disk"):
        await owner.settle(queue, event.message, event.batches)
    with pytest.raises(Refused, match="disk"):
        await owner.end(commit=True)
    env.disk.capacity_bytes = room_bytes
    await owner.end(commit=False)
    await trio.sleep(1)
    assert await states(client) == (1, 0)


@pytest.mark.parametrize("seed", range(4))
@served(ALWAYS + TOPICS)
async def test_a_commit_that_a_full_disk_refuses_leaves_the_timeout_in_force(
    env: SimEnv, broker: Broker, client: RawClient, seed: int
) -> None:
    owner = await Owner.open(client, timeout_ms=2_000)
    await client.publish("s", ["first"])
    room_bytes = env.disk.capacity_bytes

    def fill(_: LinnError | None) -> None:
        env.disk.capacity_bytes = env.disk.used_bytes

    env.disk.sync_delay_s_max = 12.0
    batch = records(["a"])
    batch.number(A, 0, 0, TRANSACTIONAL, owner.number)
    await client.send(m.Publish("s", partition=0), [batch])
    await trio.sleep(0.01)
    broker.topics["s"].partitions[0].committed.when_passed(2, fill)
    commit = await client.send(m.EndTransaction(owner.id, owner.epoch, owner.number, True, [A]))
    assert await code_of(client, commit) == "storage.disk_full"
    env.disk.capacity_bytes, env.disk.sync_delay_s_max = room_bytes, 0.0
    await trio.sleep(5)
    await client.publish("s", ["plain"])
    assert await client.fetch("s") == ["first", "plain"]


@pytest.mark.parametrize("seed", [0, 1, 46, 51, 54])
@served(ALWAYS + TOPICS)
async def test_who_gains_a_partition_begins_behind_what_was_decided_before(
    env: SimEnv, client: RawClient, other: RawClient, seed: int
) -> None:
    await client.publish("s", ["a", "b"])
    member = (await client.call(m.Subscribe("s", "g", credit=10))).subscription
    assert isinstance((await client.push()).message, m.Assigned)
    event = await client.delivery()
    owner = await Owner.open(client)
    await owner.publish("both", ["made of a and b"])
    await owner.settle(member, event.message, event.batches)
    env.disk.sync_delay_s_max = SLOW_S
    end = await client.send(m.EndTransaction(owner.id, owner.epoch, owner.number, True, [A]))
    await trio.sleep(0.01)
    await client.send(m.Unsubscribe(member))
    await other.call(m.Subscribe("s", "g", credit=10))
    assert isinstance((await other.push()).message, m.Assigned)
    assert await code_of(client, end) == ""
    await client.publish("s", ["c"])
    while isinstance((event := await other.push()).message, m.Assigned):
        pass
    assert values(event.batches) == ["c"]


@simulated
async def test_names_that_were_not_used_for_an_hour_make_room_and_others_do_not(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "NAMES_MAX", 3)
    async with broker_on(env, TOPICS):
        client = await connected(env)
        first, *_ = [await Owner.open(client, name, branch=A + at) for at, name in enumerate("abc")]
        await refused("limit.exceeded", client.call(m.OpenTransactions("d", 60_000)))
        await trio.sleep(UNUSED_S)
        client = first.client = await connected(env)
        await first.publish("s", ["one"])
        await first.end(commit=True)
        await trio.sleep(1)
        await Owner.open(client, "d", branch=A + 3)
        assert [each["name"] for each in (await client.administer("transaction.list"))["transactions"]] == [
            "a",
            "d",
        ]
        await first.end(commit=True, number=first.number - 1)  # It is known what was committed.


@simulated
async def test_one_connection_opens_so_many_names_and_the_broker_knows_so_many_branches(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transacting, "NAMES_MAX", 2)
    monkeypatch.setattr(coordinator, "ALL_BRANCHES_MAX", 3)
    async with broker_on(env, TOPICS):
        client, other = await connected(env), await connected(env)
        for at, name in enumerate(("a", "b", "a")):
            owner = await Owner.open(client, name, branch=A + at)
        await refused("limit.exceeded", client.call(m.OpenTransactions("c", 60_000)))
        third = await Owner.open(other, "c", branch=A + 3)
        await refused("limit.exceeded", third.add(A + 4))
        await third.add(A + 3)
        await owner.publish("s", ["one"], branch=A + 2)
        await owner.end(commit=True, branches=[A + 2])
