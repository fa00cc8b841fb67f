"""Transactions by hand: what readers and queues see, what fences, what a restart and a power loss make of them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
import trio
from raw_client import (
    ALWAYS,
    HAND_ID,
    RawClient,
    Refused,
    after_power_loss,
    broker_on,
    connected,
    records,
    served,
    simulated,
    values,
)

from linn.core.batch.batch import CONTROL, TRANSACTIONAL, RecordBatch
from linn.core.broker.broker import Broker
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

A, B = HAND_ID, HAND_ID + 1
TOPICS = '[topics.s]\nkind = "stream"\n[topics.q]\nkind = "queue"\n[topics.both]\nkind = "both"\n'


class Owner:
    """A client that has opened a name."""

    def __init__(self, client: RawClient, opened: m.OpenedTransactions) -> None:
        self.client = client
        self.id, self.epoch, self.number, self.key = (
            opened.producer_id,
            opened.epoch,
            opened.number,
            opened.producer_key,
        )
        self.sequences: dict[tuple[int, str], int] = {}

    @classmethod
    async def open(cls, client: RawClient, name: str = "billing", timeout_ms: int = 60_000, branch: int = A) -> Owner:
        owner = cls(client, await client.call(m.OpenTransactions(name, timeout_ms)))
        await owner.add(branch)
        return owner

    async def add(self, branch: int) -> None:
        await self.client.call(m.AddBranch(self.id, self.epoch, branch, self.key))

    async def publish(
        self, topic: str, texts: Sequence[str], branch: int = A, number: int | None = None, id: UUID | None = None
    ) -> None:
        batch = records(texts, id=id)
        first = self.sequences.get((branch, topic), 0)
        batch.number(branch, 0, first, TRANSACTIONAL, self.number if number is None else number)
        await self.client.call(m.Publish(topic, partition=0), [batch])
        self.sequences[branch, topic] = first + len(texts)

    async def end(self, *, commit: bool, branches: Sequence[int] = (A,), number: int | None = None) -> None:
        number = self.number if number is None else number
        named = list(branches) if commit else []
        await self.client.call(m.EndTransaction(self.id, self.epoch, number, commit, named, producer_key=self.key))
        self.number = number + 1

    def opening_again(self) -> m.OpenTransactions:
        """The request to open its name, unless another client has opened it since."""
        return m.OpenTransactions("billing", 60_000, self.id, self.epoch, producer_key=self.key)

    async def settle(self, subscription: int, delivery: m.Deliver, batches: Sequence[RecordBatch]) -> None:
        first, end = batches[0].base_offset, batches[-1].end_offset
        entry = m.Settlement(delivery.partition, delivery.delivery_id, first, end)
        await self.client.call(m.SettleInTransaction(self.id, self.epoch, self.number, subscription, [entry], self.key))


async def refused(code: str, request: object) -> None:
    with pytest.raises(Refused) as error:
        await request  # type: ignore[misc]
    assert error.value.code == code


async def states(client: RawClient, topic: str = "q") -> tuple[int, int]:
    """(ready, leased) records of a queue."""
    shown = await client.administer("subscription.show", topic=topic)
    return shown["ready"], shown["leased"]


async def uncommitted(client: RawClient, topic: str = "s", offset: int = 0) -> list[str]:
    answer = await client.send(m.Fetch(topic, 0, offset, uncommitted=True))
    event = await client.answer(answer)
    return values(event.batches)


@served(TOPICS)
async def test_what_a_transaction_publishes_is_seen_when_it_is_committed_and_not_before(
    broker: Broker, client: RawClient
) -> None:
    owner = await Owner.open(client)
    for topic in ("s", "q", "both"):
        await owner.publish(topic, ["a", "b"])
    await client.publish("s", ["plain"])
    assert await client.fetch("s") == [], "a later record waits for the open transaction as well"
    assert await states(client) == (0, 0)
    partition = broker.topics["s"].partitions[0]
    assert (partition.stable_offset, partition.high_watermark) == (0, 3)
    await owner.end(commit=True)
    assert await client.fetch("s") == ["a", "b", "plain"]
    assert await client.fetch("both") == ["a", "b"]
    assert await states(client) == (2, 0), "the marker is no record"
    assert partition.stable_offset == 4


@served(TOPICS)
async def test_nothing_of_an_aborted_transaction_is_ever_seen(client: RawClient) -> None:
    owner = await Owner.open(client)
    for topic in ("s", "q"):
        await client.publish(topic, ["before"])
        await owner.publish(topic, ["never", "ever"])
        await client.publish(topic, ["after"])
    await owner.end(commit=False)
    assert await client.fetch("s") == ["before", "after"]
    assert await client.fetch("s", offset=2) == ["after"], "also from the middle of it"
    assert await states(client) == (2, 0)
    queue = (await client.call(m.Subscribe("q"))).subscription
    found = values((await client.pull(queue, 10)).batches) + values((await client.pull(queue, 10)).batches)
    assert found == ["before", "after"]
    assert await client.fetch("s", offset=4) == [], "at the end of the log is a marker, and the answer comes"


@served(TOPICS)
async def test_a_reader_that_asks_for_it_sees_open_and_aborted_transactions_but_no_markers(client: RawClient) -> None:
    owner = await Owner.open(client)
    await owner.publish("s", ["a"])
    await owner.end(commit=False)
    await owner.publish("s", ["b"])
    fetched = await client.call(m.Fetch("s", 0, 0, uncommitted=True))
    assert fetched.next_offset == 3
    reader = (await client.call(m.Subscribe("s", credit=10, uncommitted=True))).subscription
    assert values((await client.delivery()).batches) == ["a", "b"]
    assert reader
    assert await client.fetch("s") == []


@served(TOPICS)
async def test_a_commit_names_the_branches_that_count(client: RawClient) -> None:
    owner = await Owner.open(client)
    await owner.add(B)
    await owner.publish("s", ["a1"], A)
    await owner.publish("s", ["b1"], B)
    await owner.publish("s", ["a2"], A)
    await refused("transaction.invalid", owner.end(commit=True, branches=[A, 77]))
    await owner.end(commit=True, branches=[A])
    assert await client.fetch("s") == ["a1", "a2"]
    other = await Owner.open(client, "other", branch=B + 1)
    await refused("transaction.invalid", other.add(A))


@served(TOPICS)
async def test_acks_take_effect_with_the_commit_and_an_abort_returns_the_records(client: RawClient) -> None:
    await client.publish("q", ["job"])
    queue = (await client.call(m.Subscribe("q"))).subscription
    owner = await Owner.open(client)
    for attempt in (1, 2):
        event = await client.pull(queue, 1)
        assert event.message.attempt == attempt
        await owner.settle(queue, event.message, event.batches)
        await trio.sleep(45)  # Longer than the lease, which counts no more.
        assert await states(client) == (0, 0)
        if attempt == 1:
            await owner.end(commit=False)
            assert await states(client) == (1, 0)
    await owner.end(commit=True)
    assert await states(client) == (0, 0)
    assert (await client.pull(queue, 1)).batches == []


@served(TOPICS)
async def test_a_groups_offset_moves_with_the_commit_and_the_next_owner_waits_for_it(
    broker: Broker, client: RawClient, other: RawClient
) -> None:
    await client.publish("s", ["a", "b"])
    member = (await client.call(m.Subscribe("s", "g", credit=10))).subscription
    assert isinstance((await client.push()).message, m.Assigned)
    event = await client.delivery()
    owner = await Owner.open(client)
    group = broker.groups.groups["g"]
    await owner.settle(member, event.message, event.batches)
    assert group.position("s", 0) is None
    await owner.end(commit=False)
    assert group.position("s", 0) is None
    await owner.settle(member, event.message, event.batches)
    await owner.end(commit=True)
    assert group.position("s", 0) == 2
    await owner.publish("both", ["made of it"])
    await owner.settle(member, event.message, event.batches)
    await client.call(m.Unsubscribe(member))
    await client.publish("s", ["c"])
    await other.call(m.Subscribe("s", "g", credit=10))
    with trio.move_on_after(5) as waiting:
        await other.push()
    assert waiting.cancelled_caught, "the offset may move"
    await owner.end(commit=True)
    assert isinstance((await other.push()).message, m.Assigned)
    assert values((await other.delivery()).batches) == ["c"]
    assert await client.fetch("both") == ["made of it"]


@served(TOPICS)
async def test_who_takes_over_a_name_fences_the_one_before_and_aborts_what_it_has_open(
    client: RawClient, other: RawClient
) -> None:
    zombie = await Owner.open(client)
    await zombie.publish("s", ["from the zombie"])
    owner = await Owner.open(other, branch=B)
    assert (owner.id, owner.epoch) == (zombie.id, zombie.epoch + 1)
    assert owner.number > zombie.number
    await refused("transaction.unknown", zombie.publish("s", ["late"]))
    await refused("transaction.fenced", zombie.end(commit=True))
    await refused("transaction.fenced", zombie.add(A))
    await refused("transaction.fenced", client.call(zombie.opening_again()))
    await owner.publish("s", ["from the owner"], B)
    await owner.end(commit=True, branches=[B])
    assert await client.fetch("s") == ["from the owner"]


@served(TOPICS)
async def test_a_batch_of_another_number_is_refused(client: RawClient) -> None:
    owner = await Owner.open(client)
    await refused("transaction.unknown", owner.publish("s", ["early"], number=owner.number + 1))
    await owner.publish("s", ["a"])
    await owner.end(commit=True)
    await refused("transaction.unknown", owner.publish("s", ["late"], number=owner.number - 1))
    await refused("transaction.unknown", owner.end(commit=True, number=owner.number + 5))
    assert await client.fetch("s") == ["a"]


@served(TOPICS)
async def test_the_end_may_be_asked_for_again(client: RawClient) -> None:
    owner = await Owner.open(client)
    number = owner.number
    await owner.publish("s", ["a"])
    for _ in range(2):
        await owner.end(commit=True, number=number)
    await refused("transaction.invalid", owner.end(commit=False, number=number))
    await owner.publish("s", ["b"])
    for _ in range(2):
        await owner.end(commit=False, number=number + 1)
    assert await client.fetch("s") == ["a"]


@served(TOPICS)
async def test_a_transaction_that_outlives_its_timeout_is_aborted_and_its_owner_is_told_why(client: RawClient) -> None:
    owner = await Owner.open(client, timeout_ms=5_000)
    await owner.publish("s", ["a"])
    await client.publish("s", ["plain"])
    await trio.sleep(4)
    assert await client.fetch("s") == []
    await trio.sleep(2)
    assert await client.fetch("s") == ["plain"]
    with pytest.raises(Refused, match="timeout") as error:
        await owner.publish("s", ["b"])
    assert error.value.code == "transaction.aborted"
    with pytest.raises(Refused, match="timeout"):
        await owner.end(commit=True)
    owner.number += 1
    await owner.publish("s", ["c"])
    await owner.end(commit=True)
    assert await client.fetch("s") == ["plain", "c"]


@pytest.mark.parametrize(
    ("attributes", "number", "producer"),
    [(TRANSACTIONAL, 0, A), (0, 1, A), (TRANSACTIONAL | CONTROL, 1, A), (CONTROL, 0, A), (TRANSACTIONAL, 1, 0)],
)
@served(TOPICS)
async def test_a_batch_that_says_half_of_it_is_refused(
    client: RawClient, attributes: int, number: int, producer: int
) -> None:
    batch = records(["a"])
    batch.number(producer, 0, 0, attributes, number)
    await refused("batch.malformed", client.call(m.Publish("s", partition=0), [batch]))
    assert await uncommitted(client) == []


async def _job(client: RawClient) -> tuple[int, m.Deliver, Sequence[RecordBatch]]:
    """A record of the queue, and the subscription that has it under a lease."""
    await client.publish("q", ["job"])
    queue = (await client.call(m.Subscribe("q"))).subscription
    event = await client.pull(queue, 1)
    return queue, event.message, event.batches


@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
@pytest.mark.parametrize("storage", ["", ALWAYS], ids=["os", "always"])
@simulated
async def test_a_transaction_goes_on_after_a_restart_and_a_power_loss_aborts_it(
    env: SimEnv, storage: str, end: str
) -> None:
    text, owners = storage + TOPICS, list[Owner]()

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            job = await _job(client)
            owner = await Owner.open(client)
            owners.append(owner)
            await owner.add(B)
            await owner.publish("s", ["committed"])
            await owner.end(commit=True)
            await owner.publish("s", ["before"])
            await owner.publish("both", ["before"])
            await owner.publish("s", ["does not count"], B)
            await owner.settle(*job)
            if end != "stop":
                getattr(env, end)()
                await trio.sleep(1)

    if await env.run_until_death(process):
        env = await after_power_loss(env, text) if end == "crash" else env.restart()
    async with broker_on(env, text):
        client = await connected(env)
        owner = owners[0]
        owner.client = client
        kept = ["committed"] if storage or end != "crash" else []
        assert await client.fetch("s") == kept
        if end == "crash" and not kept:  # The log of the names is gone as well.
            await refused("transaction.aborted", owner.end(commit=True))
        elif end == "crash":
            await refused("transaction.aborted", owner.publish("s", ["late"]))
            await refused("transaction.aborted", owner.end(commit=True))
            assert await states(client) == (1, 0), "the job waits for the next"
        else:
            await owner.publish("s", ["after"])
            await owner.end(commit=True)
            kept = ["committed", "before", "after"]
            assert await client.fetch("s") == kept
            assert await client.fetch("both") == ["before"]
            assert await states(client) == (0, 0)
            await owner.publish("s", ["next"])
            await owner.end(commit=True)
            kept.append("next")
        await client.publish("s", ["last"])
        assert await client.fetch("s") == [*kept, "last"], "nothing holds readers back"


@simulated
async def test_what_was_told_of_a_transaction_holds_after_a_restart(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        client = await connected(env)
        owner = await Owner.open(client, timeout_ms=1_000)
        await owner.publish("s", ["too slow"])
        number = owner.number
        await trio.sleep(2)
        await refused("transaction.aborted", owner.publish("s", ["late"]))
        for commit in (False, True):
            await owner.publish("s", [str(commit)], number=number + 1 + commit)
            await owner.end(commit=commit, number=number + 1 + commit)
    async with broker_on(env, TOPICS):
        client = owner.client = await connected(env)
        await refused("transaction.aborted", owner.end(commit=True, number=number))
        await refused("transaction.unknown", owner.end(commit=True, number=number + 1))
        await owner.end(commit=False, number=number + 1)
        await refused("transaction.invalid", owner.end(commit=False, number=number + 2))
        await owner.end(commit=True, number=number + 2)
        assert await client.fetch("s") == ["True"]
        await owner.publish("s", ["next"])
        await owner.end(commit=True)
        assert await client.fetch("s") == ["True", "next"]


@simulated
async def test_the_timeout_begins_anew_at_a_restart(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        owner = await Owner.open(await connected(env), timeout_ms=2_000)
        await owner.publish("s", ["open"])
        await trio.sleep(1.5)
    async with broker_on(env, TOPICS):
        client = owner.client = await connected(env)
        await client.publish("s", ["behind"])
        await trio.sleep(1.5)
        assert await client.fetch("s") == []
        await trio.sleep(1)
        assert await client.fetch("s") == ["behind"]
        await refused("transaction.aborted", owner.end(commit=True))


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("storage", ["", ALWAYS], ids=["os", "always"])
@simulated
async def test_an_offset_of_a_transaction_is_kept_over_a_restart_and_the_next_owner_waits_for_it(
    env: SimEnv, storage: str, end: str, commit: bool
) -> None:
    owners = list[Owner]()

    async def process(env: SimEnv) -> None:
        async with broker_on(env, storage + TOPICS):
            client = await connected(env)
            await client.publish("s", ["read"])
            member = (await client.call(m.Subscribe("s", "g", credit=10))).subscription
            assert isinstance((await client.push()).message, m.Assigned)
            read = await client.delivery()
            owner = await Owner.open(client)
            owners.append(owner)
            await owner.settle(member, read.message, read.batches)
            await owner.publish("both", ["made"])
            if end == "kill":
                env.kill()
                await trio.sleep(1)

    if await env.run_until_death(process):
        env = env.restart()
    async with broker_on(env, storage + TOPICS) as broker:
        owner, client, other = owners[0], await connected(env), await connected(env)
        owner.client = client
        with pytest.raises(Refused, match="an open transaction"):
            await client.administer("group.reset", group="g", topic="s", to="earliest")
        await client.publish("s", ["behind"])
        await other.call(m.Subscribe("s", "g", credit=10))
        with trio.move_on_after(5) as waiting:
            await other.push()
        assert waiting.cancelled_caught
        await owner.end(commit=commit)
        assert isinstance((await other.push()).message, m.Assigned)
        assert values((await other.delivery()).batches)[0] == ("behind" if commit else "read")
        assert await client.fetch("both") == (["made"] if commit else [])
        assert broker.groups.groups["g"].position("s", 0) == (1 if commit else None)
        assert not broker.groups.groups["g"].pending


@simulated
async def test_another_owner_fences_the_one_before_also_after_a_restart(env: SimEnv) -> None:
    async with broker_on(env, TOPICS):
        first = await Owner.open(await connected(env))
        await first.publish("s", ["lost"])
    async with broker_on(env, TOPICS):
        client = first.client = await connected(env)
        again = await Owner.open(client)
        assert again.number > first.number
        await refused("transaction.fenced", first.end(commit=True))
        again.sequences = {(A, "s"): 1}
        await again.publish("s", ["kept"])
        await again.end(commit=True)
        assert await client.fetch("s") == ["kept"]
        await refused("transaction.fenced", client.call(first.opening_again()))


@pytest.mark.parametrize("is_aborted", [False, True])
@simulated
async def test_an_end_that_is_not_durable_is_not_marked_and_after_a_power_loss_all_is_aborted(
    env: SimEnv, is_aborted: bool
) -> None:
    """The disk is slow: what the log has of the end is lost, and nobody was told."""
    owners = list[Owner]()

    async def process(env: SimEnv) -> None:
        async with broker_on(env, ALWAYS + TOPICS) as broker:
            owner = await Owner.open(await connected(env))
            owners.append(owner)
            await owner.publish("s", ["open"])
            env.disk.sync_delay_s_max = 1_000
            await owner.client.send(m.EndTransaction(owner.id, owner.epoch, owner.number, not is_aborted, [A]))
            await trio.sleep(0.5)
            assert broker.topics["s"].partitions[0].open_transactions(), "marked before it is durable"
            env.crash()
            await trio.sleep(1)

    assert await env.run_until_death(process)
    env = await after_power_loss(env, ALWAYS + TOPICS)
    async with broker_on(env, ALWAYS + TOPICS):
        client = owners[0].client = await connected(env)
        await refused("transaction.aborted", owners[0].end(commit=True))
        assert await client.fetch("s") == []


@pytest.mark.parametrize("end", ["kill", "crash"])
@simulated
async def test_a_decision_is_carried_out_after_a_restart_that_came_before_the_markers(env: SimEnv, end: str) -> None:
    text = ALWAYS + TOPICS

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text) as broker:
            client = await connected(env)
            job = await _job(client)
            await client.publish("s", ["read"])
            member = (await client.call(m.Subscribe("s", "g", credit=10))).subscription
            assert isinstance((await client.push()).message, m.Assigned)
            read = await client.delivery()
            owner = await Owner.open(client)
            await owner.add(B)
            await owner.publish("s", ["yes"], A)
            await owner.publish("both", ["no"], B)
            await owner.settle(*job)
            await owner.settle(member, read.message, read.batches)
            each = broker.transactions.names["billing"]
            broker.transactions.log.write(each.decided([A]))
            await broker.transactions.log.until_committed()
            getattr(env, end)()
            await trio.sleep(1)

    assert await env.run_until_death(process)
    env = await after_power_loss(env, text) if end == "crash" else env.restart()
    for _ in range(2):
        async with broker_on(env, text) as broker:
            client = await connected(env)
            assert await client.fetch("s") == ["read", "yes"]
            assert await client.fetch("both") == []
            assert await states(client) == (0, 0)
            assert broker.groups.groups["g"].position("s", 0) == 1
            assert [each.subscription.decided_count for each in broker.topics["q"].partition_queues()] == [0]


@served(ALWAYS + TOPICS)
async def test_a_full_disk_refuses_the_commit_or_delays_its_markers_and_loses_nothing(
    env: SimEnv, client: RawClient
) -> None:
    owner = await Owner.open(client)
    for text in ("a", "b"):
        await owner.publish("s", [text])
        room_bytes, env.disk.capacity_bytes = env.disk.capacity_bytes, env.disk.used_bytes
        correlation = await client.send(m.EndTransaction(owner.id, owner.epoch, owner.number, True, [A]))
        await trio.sleep(3)
        env.disk.capacity_bytes = room_bytes
        if (await client.code_of(correlation)) == "storage.disk_full":
            await owner.end(commit=True)
        else:
            owner.number += 1
        await trio.sleep(3)
    assert await client.fetch("s") == ["a", "b"]
