"""Transactions over brokers: their coordinator and their topics are at any of them, and each moves meanwhile."""

from __future__ import annotations

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from simulated_time import simulated
from test_clients_at_leaders import client_of, url

import linn
from linn.client import Client
from linn.core.batch.batch import TRANSACTIONAL
from linn.core.batch.builder import build_single
from linn.core.errors.auth import Forbidden
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import TopicUnknown, TransactionAborted, TransactionFenced, TransactionUnknown
from linn.core.log.transactions import OpenTransaction
from linn.core.transactions.cluster_coordinator import TopicMarks
from linn.core.transactions.participant import ASK_INTERVAL_S, key_of
from linn.core.transactions.producer import Owner, TopicKey
from linn.testing.sim_env import SimEnv
from linn.verbs import TRANSACTIONS_TOPIC

TOPICS = "a", "b", "c"


async def three(world: BrokerWorld, *topics: str, kind: str = "both", replicas: int = 3) -> list[SimBroker]:
    """Three brokers with topics."""
    brokers = await world.brokers(replicas=replicas)
    for topic in topics or TOPICS:
        await (await brokers[0].client()).administer("topic.create", name=topic, settings={"kind": kind})
    await until_led(brokers, *(topics or TOPICS))
    return brokers


async def coordinator_of(brokers: list[SimBroker]) -> SimBroker:
    alive = [broker for broker in brokers if not broker.has_ended]
    await until(lambda: all(TRANSACTIONS_TOPIC in it.broker.topics for it in alive))
    return (await until_led(alive, TRANSACTIONS_TOPIC))[TRANSACTIONS_TOPIC]


async def read(client: Client, topic: str, count: int, group: str) -> list[bytes | None]:
    """Read so many records of a stream, without waiting for long for further ones."""
    found = list[bytes | None]()
    async with client.consumer(topic, group=group, start="earliest") as member:
        with trio.move_on_after(60):
            while len(found) < count:
                message = await anext(member)
                found.append(message.value)
                await message.ack()
        with trio.move_on_after(2):
            found.append((await anext(member)).value)
    return found


@simulated
async def test_a_commit_is_read_in_all_topics_and_an_abort_in_none(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        leaders = await until_led(brokers, *TOPICS)
        assert len(set(leaders.values())) > 1, "the topics have several leaders"
        async with client_of(world, *brokers) as client:
            for number in range(3):
                async with client.transaction("billing") as tx:
                    for topic in TOPICS:
                        await tx.publish(topic, b"%d" % number)
            async with client.transaction("billing") as tx:
                for topic in TOPICS:
                    await tx.publish(topic, b"never")
                await tx.abort()
            async with client.transaction("billing") as tx:
                for topic in TOPICS:
                    await tx.publish(topic, b"last")
            for topic in TOPICS:
                assert await read(client, topic, 4, "g") == [b"0", b"1", b"2", b"last"]


@simulated
async def test_delayed_messages_of_a_transaction_come_in_all_topics_or_in_none(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        async with client_of(world, *brokers) as client:
            for value in (b"never", b"0", b"1"):
                async with client.transaction("billing") as tx:
                    for topic in TOPICS:
                        await tx.publish(topic, value, delay_ms=2_000)
                    if value == b"never":
                        await tx.abort()
                    elif value == b"1":
                        leader = (await until_led(brokers, TOPICS[0]))[TOPICS[0]]
                        leader.env.kill()
                        await leader.ended()
            for topic in TOPICS:
                assert await read(client, topic, 2, "g") == [b"0", b"1"]


@simulated
async def test_a_coordinator_that_does_not_know_a_topic_yet_marks_a_commit_there_later(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        async with client_of(world, *brokers) as client:
            async with client.transaction("billing") as tx:
                await tx.publish("a", b"0")
            coordinator = await coordinator_of(brokers)
            elsewhere = [it for it in TOPICS if coordinator.broker.topics[it].led_by is not None]
            async with client.transaction("billing") as tx:
                for topic in elsewhere:
                    await tx.publish(topic, b"1")
                missing = {it: coordinator.broker.topics.pop(it) for it in elsewhere}
            await trio.sleep(2 * ASK_INTERVAL_S)
            coordinator.broker.topics.update(missing)
            for topic in elsewhere:
                assert (await read(client, topic, 1 + (topic == "a"), "g"))[-1] == b"1"


@simulated
async def test_acks_and_offsets_take_effect_with_a_transaction_whose_coordinator_is_elsewhere(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, tasks = await three(world, "work", "log", "bills", kind="both"), list[bytes | None]()
        async with client_of(world, *brokers) as client:
            for topic in ("work", "log"):
                async with client.producer(topic) as producer:
                    await producer.publish_many([b"%d" % number for number in range(4)])
            async with client.consumer("work") as queue, client.consumer("log", group="g", start="earliest") as member:
                for ends in (False, True):
                    task, line = await anext(queue), await anext(member)
                    assert line.value == b"0"
                    tasks.append(task.value)
                    async with client.transaction("billing") as tx:
                        await tx.publish("bills", b"%d" % ends)
                        tx.ack(task)
                        tx.commit(line)
                        if not ends:
                            await tx.abort()
            async with client.consumer("work") as queue, client.consumer("log", group="g") as member:
                assert (await anext(member)).value == b"1"
                left = [await anext(queue) for _ in range(3)]
                assert sorted([tasks[1], *[message.value for message in left]]) == [b"0", b"1", b"2", b"3"]
            assert await read(client, "bills", 1, "h") == [b"1"]


@simulated
async def test_a_transaction_that_is_open_for_too_long_is_aborted_at_all_leaders(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        async with client_of(world, *brokers) as client:

            async def too_long() -> None:
                async with client.transaction("billing", timeout_s=10) as tx:
                    for topic in TOPICS:
                        await tx.publish(topic, b"late")
                    await trio.sleep(12)

            with pytest.raises(TransactionAborted, match="timeout"):
                await too_long()
            async with client.transaction("billing") as tx:
                for topic in TOPICS:
                    await tx.publish(topic, b"next")
            for topic in TOPICS:
                assert await read(client, topic, 1, "g") == [b"next"]


@simulated
async def test_a_client_that_takes_over_a_name_fences_the_one_before(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        other_env = SimEnv(world.seed + 1, name="another client", world=world.env.world)
        async with client_of(world, *brokers) as old, linn.connect(url(*brokers[::-1]), env=other_env) as new:

            async def fenced() -> None:
                async with old.transaction("billing") as tx:
                    await tx.publish("a", b"old")
                    async with new.transaction("billing") as other:
                        await other.publish("a", b"new")
                        await other.publish("b", b"new")

            with pytest.raises(TransactionFenced):
                await fenced()
            for topic in ("a", "b"):
                assert await read(new, topic, 1, "g") == [b"new"]


async def _coordinator_dies(env: SimEnv, step: str) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        async with client_of(world, *brokers, request_timeout_s=60) as client:

            async def lose_coordinator() -> None:
                broker = await coordinator_of(brokers)
                await broker.lose_power()
                await broker.start()

            async with client.transaction("billing") as tx:
                await tx.publish("a", b"first")
                if step == "opened":
                    await lose_coordinator()
                await tx.publish("b", b"second")
                await tx.publish("c", b"third")
                if step == "written":
                    await lose_coordinator()
            if step == "committed":
                await lose_coordinator()
            async with client.transaction("billing") as tx:
                for topic in TOPICS:
                    await tx.publish(topic, b"next")
            for topic, value in zip(TOPICS, (b"first", b"second", b"third"), strict=True):
                assert await read(client, topic, 2, "g") == [value, b"next"]


@simulated
async def test_a_transaction_goes_on_when_its_coordinator_dies_after_the_first_write(env: SimEnv) -> None:
    await _coordinator_dies(env, "opened")


@simulated
async def test_a_transaction_is_committed_when_its_coordinator_dies_after_the_last_write(env: SimEnv) -> None:
    await _coordinator_dies(env, "written")


@simulated
async def test_a_commit_is_marked_when_its_coordinator_dies_after_the_answer(env: SimEnv) -> None:
    await _coordinator_dies(env, "committed")


async def _leader_dies(env: SimEnv, step: str) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        async with client_of(world, *brokers, request_timeout_s=60) as client:
            for topic in TOPICS:
                async with client.transaction("billing") as tx:
                    for each in TOPICS:
                        await tx.publish(each, f"before {topic}".encode())
                    if step == "written":
                        leader = (await until_led(brokers, topic))[topic]
                        await leader.lose_power()
                        await leader.start()
                        await tx.publish(topic, f"after {topic}".encode())
                if step == "committed":
                    leader = (await until_led(brokers, topic))[topic]
                    await leader.lose_power()
                    await leader.start()
            for topic in TOPICS:
                wanted = [f"before {each}".encode() for each in TOPICS]
                if step == "written":
                    wanted.insert(TOPICS.index(topic) + 1, f"after {topic}".encode())
                assert await read(client, topic, len(wanted), "g") == wanted


@simulated
async def test_a_transaction_goes_on_when_the_leader_of_a_topic_dies(env: SimEnv) -> None:
    await _leader_dies(env, "written")


@simulated
async def test_a_commit_is_marked_by_the_next_leader_of_a_topic(env: SimEnv) -> None:
    await _leader_dies(env, "committed")


@simulated
async def test_marks_and_joins_of_unknown_transactions_change_nothing(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        async with client_of(world, *brokers) as client:
            async with client.transaction("billing") as tx:
                await tx.publish("a", b"first")
                coordinator, leader = await coordinator_of(brokers), (await until_led(brokers, "a"))["a"]
                other = next(it for it in brokers if it is not leader)
                key, (name,) = key_of(leader.broker.topic("a")), coordinator.broker.transactions.names.values()
                (branch,) = name.joined[key]
                gone = TopicKey("a", "0" * 32)
                participant, led = leader.broker.cluster_transactions, coordinator.broker.cluster_transactions
                assert participant is not None
                assert led is not None
                for number in (name.number - 1, name.number + 1):
                    await participant.participant.mark(TopicMarks(key, name.producer_id, number, [branch], []))
                await participant.participant.mark(TopicMarks(key, 1, name.number, [], [2]))
                with pytest.raises(TopicUnknown):
                    await participant.participant.mark(TopicMarks(gone, name.producer_id, name.number, [branch], []))
                away = other.broker.cluster_transactions
                assert away is not None
                with pytest.raises(NotLeader):
                    await away.participant.mark(TopicMarks(key, name.producer_id, name.number, [branch], []))
                for wrong, number in ((1, name.number), (branch, name.number + 1), (branch, name.number - 1)):
                    with pytest.raises(TransactionUnknown):
                        await led.coordinator.join(wrong, number, key)
                with pytest.raises(TransactionFenced):
                    await led.coordinator.join(name.producer_id, name.number, key, Owner(name.producer_id, 9, "eve"))
                with pytest.raises(NotLeader):
                    await led.coordinator.join(branch, name.number, gone)
                assert name.joined == {key: {branch: None}}
                assert [it.number for it in open_in(leader, "a")] == [name.number]
            assert await read(client, "a", 1, "g") == [b"first"]


@simulated
async def test_what_no_coordinator_knows_is_aborted(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        async with client_of(world, *brokers) as client:
            async with client.transaction("billing") as tx:
                await tx.publish("a", b"first")
            leader = (await until_led(brokers, "a"))["a"]
            partition = leader.broker.topic("a").partitions[0]
            batch = build_single(b"of nobody", 1, 0)
            batch.number(77, 0, 0, TRANSACTIONAL, 5)
            partition.append(batch)
            assert [it.number for it in open_in(leader, "a")] == [5]
            await until(lambda: not open_in(leader, "a"), 3 * ASK_INTERVAL_S)
            assert await read(client, "a", 1, "g") == [b"first"]


def open_in(broker: SimBroker, topic: str) -> list[OpenTransaction]:
    """The open transactions in the only partition of a topic."""
    return list(broker.broker.topic(topic).partitions[0].open_transactions().values())


@simulated
async def test_verbs_are_answered_by_the_coordinator_whichever_broker_is_asked(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        async with client_of(world, *brokers) as client:

            async def aborted() -> None:
                async with client.transaction("billing") as tx:
                    for topic in TOPICS:
                        await tx.publish(topic, b"x")
                    for broker in brokers:
                        async with client_of(world, broker) as operator:
                            shown = await operator.admin.transaction("billing")
                            assert (shown["state"], shown["partitions"]) == ("open", 3)
                            told = {row["topic"] for row in shown["wrote"]} | {*shown["elsewhere"]}
                            assert told == {*TOPICS}
                            (listed,) = (await operator.admin.transactions())["transactions"]
                            assert listed["name"] == "billing"
                    async with client_of(world, brokers[0]) as operator:
                        await operator.admin.abort_transaction("billing")

            with pytest.raises(TransactionAborted, match="operator"):
                await aborted()


@simulated
async def test_nobody_alters_the_log_of_transactions(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, kind="stream")
        async with client_of(world, *brokers) as client:
            async with client.transaction("billing") as tx:
                await tx.publish("a", b"x")
            with pytest.raises(Forbidden):
                await client.admin.delete_topic(TRANSACTIONS_TOPIC)
            async with client.producer(TRANSACTIONS_TOPIC) as producer:
                with pytest.raises(Forbidden):
                    await producer.publish(b"forged")
