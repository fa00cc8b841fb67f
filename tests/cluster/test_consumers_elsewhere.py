"""Consumers at brokers that do not lead the topic: all that a consumer does goes on to the one that does."""

from __future__ import annotations

from typing import Any, TypeVar

import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, records, values
from simulated_time import simulated

from linn.cluster.channel import SILENCE_S
from linn.cluster.window import LANE_REQUESTS_MAX
from linn.core.batch.steps import run_steps
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.messages import Verdict

M = TypeVar("M", bound=m.Message)
PUBLISHER = '[roles.r]\n"topic:t" = ["see", "publish"]\n[users.anonymous]\nroles = ["r"]\n'


async def apart(world: BrokerWorld, toml: str = "", **settings: object) -> tuple[SimBroker, list[SimBroker]]:
    """The broker that leads a new topic "t", and the others."""
    brokers = await world.brokers(toml=toml)
    await (await brokers[0].client()).administer("topic.create", name="t", settings=settings)
    return await led(brokers)


async def led(brokers: list[SimBroker]) -> tuple[SimBroker, list[SimBroker]]:
    (leader,) = (await until_led(brokers, "t")).values()
    return leader, [it for it in brokers if it is not leader]


async def subscribed(client: RawClient, topic: str = "t", **options: Any) -> m.Subscribed:
    answer = await client.call(m.Subscribe(topic, **options))
    assert isinstance(answer, m.Subscribed)
    return answer


async def message_of(client: RawClient, kind: type[M]) -> M:
    """The next push of a kind; others are dropped."""
    while not isinstance(message := (await client.push(60)).message, kind):
        pass
    return message


async def refusal_of(client: RawClient, message: m.Message) -> str:
    return await client.code_of(await client.send(message))


# --- queues ----------------------------------------------------------------------------------------------------------


@simulated
async def test_consumers_at_two_doors_and_at_the_leader_compete_for_the_records_of_a_queue(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, others = await apart(world, kind="queue", lease="1s")
        consumers = [await broker.client() for broker in (leader, *others)]
        publisher = await others[0].client()
        for client in consumers:
            made = await subscribed(client, credit=2)
            assert (made.subscription, made.kind, made.lease_ms) == (1, m.ConsumerKind.SHARED, 1000)
        found = []
        for number in range(12):
            await publisher.publish("t", [f"{number}"])
        for _ in range(4):
            for client in consumers:
                event = await client.delivery()
                assert event.message.attempt == 1
                assert await client.settle(1, event) == []
                found += values(event.batches)
        assert sorted(found, key=int) == [f"{number}" for number in range(12)]
        for client in consumers:
            assert await client.is_silent(3)
            assert client.lost == []


@simulated
async def test_nacks_lost_leases_and_rejects_are_counted_at_the_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="queue", lease="1s", max_deliveries=3)
        client = await door.client()
        await client.publish("t", ["x"])
        await subscribed(client, credit=1)
        first = await client.delivery()
        assert await client.settle(1, first, Verdict.NACK) == []
        second = await client.delivery()
        assert second.message.attempt == 2
        lost = await client.push()
        assert isinstance(lost.message, m.LeaseEnded)
        assert lost.message.delivery_id == second.message.delivery_id
        (refusal,) = await client.settle(1, second)
        assert refusal.code == "delivery.not_current"
        last = await client.delivery()
        assert last.message.attempt == 3
        assert await client.settle(1, last, Verdict.EXTEND, 5000) == []
        assert await client.is_silent(3)
        assert client.lost == []
        assert await client.settle(1, last, Verdict.NACK) == []
        assert await client.is_silent(3), "it was the last attempt"
        await subscribed(await third.client(), credit=1)
        assert await client.is_silent(3)


@simulated
async def test_a_client_that_is_gone_gives_its_leases_back(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="queue", lease="1h")
        client, other = await door.client(), await third.client()
        await client.publish("t", ["x"])
        await subscribed(client, credit=1)
        await client.delivery()
        await subscribed(other, credit=1)
        assert await other.is_silent(3)
        await client.stream.aclose()
        event = await other.delivery()
        assert (values(event.batches), event.message.attempt) == (["x"], 2)
        assert await other.settle(1, event) == []


@simulated
async def test_pulls_wait_end_early_and_name_an_offset(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="queue", lease="1h")
        client, publisher = await door.client(), await third.client()
        await subscribed(client)
        assert (await client.pull(1, wait_max_ms=2000)).batches == []
        waiting = await client.send(m.Pull(1, 10, 60_000))
        await publisher.publish("t", ["a", "b", "c"])
        event = await client.answer(waiting)
        assert values(event.batches) == ["a", "b", "c"]
        assert event.message.subscription == 1
        whole = m.Settlement(0, event.message.delivery_id, m.WHOLE_LEASE, m.WHOLE_LEASE, Verdict.RELEASE)
        assert (await client.call(m.Settle(1, [whole]))).refused == []
        assert values((await client.ask(m.Pull(1, 1, 0, True, 0, 1))).batches) == ["b"]
        rest = values((await client.pull(1)).batches) + values((await client.pull(1)).batches)
        assert rest == ["a", "c"]
        # An unsubscribe ends it at once.
        waiting = await client.send(m.Pull(1, 10, 60_000))
        with trio.fail_after(5):
            assert isinstance(await client.call(m.Unsubscribe(1)), m.Done)
            assert (await client.answer(waiting)).batches == []
        assert await refusal_of(client, m.Pull(1, 1)) == "delivery.subscription_unknown"
        assert values((await client.pull((await subscribed(client)).subscription)).batches) == ["a", "b", "c"]


@simulated
async def test_more_requests_wait_than_a_lane_takes(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="queue", lease="1h")
        client = await door.client()
        await subscribed(client)
        waiting = [await client.send(m.Pull(1, 1, 5_000)) for _ in range(2 * LANE_REQUESTS_MAX)]
        publisher = await third.client()
        for number in range(20):
            await publisher.publish("t", [f"{number}"])
        found = [value for ticket in waiting for value in values((await client.answer(ticket)).batches)]
        assert sorted(found, key=int) == [f"{number}" for number in range(20)]


@simulated
async def test_a_settle_of_many_entries_and_later_requests_keep_their_order(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, _) = await apart(world, kind="queue", lease="1h")
        client = await door.client()
        await client.publish("t", [f"{number}" for number in range(1000)])
        await subscribed(client)
        event = await client.pull(1)
        id = event.message.delivery_id
        entries = [m.Settlement(0, id, at, at + 1, Verdict.RELEASE) for at in range(0, 1000, 2)]
        settle = await client.send(m.Settle(1, entries))
        pull = await client.send(m.Pull(1, 1000, 0))
        again = await client.send(m.Settle(1, [m.Settlement(0, id, 0, 1, Verdict.ACK)]))
        assert (await client.answer(settle)).message.refused == []
        assert values((await client.answer(pull)).batches) == ["0"]
        assert [refusal.code for refusal in (await client.answer(again)).message.refused] == ["delivery.not_current"]


@simulated
async def test_credit_that_is_taken_back_holds_for_a_waiting_push(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="queue", lease="1h")
        client, publisher = await door.client(), await third.client()
        await subscribed(client, credit=10)
        assert isinstance(await client.call(m.Credit(1, 0)), m.Done)
        await publisher.publish("t", ["x"])
        assert await client.is_silent(3)
        await client.tell(m.Credit(1, 1))
        assert values((await client.delivery()).batches) == ["x"]


# --- streams ---------------------------------------------------------------------------------------------------------


@simulated
async def test_a_shared_subscription_is_made_through_any_door(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, (door, third) = await apart(world, kind="stream", partitions=2)
        client, other = await door.client(), await third.client()
        for partition in range(2):
            await client.publish("t", ["a", "b"], partition=partition)
        await subscribed(client, shared="s", credit=2)
        await subscribed(other, shared="s", credit=2)
        assert [*leader.broker.topic("t").subscriptions] == ["s"]
        found = []
        for each in (client, other):
            event = await each.delivery()
            found.append((event.message.partition, values(event.batches)))
            assert await each.settle(1, event) == []
        assert sorted(found) == [(0, ["a", "b"]), (1, ["a", "b"])]


@simulated
async def test_a_missing_topic_is_made_by_a_subscribe_at_any_broker(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(broker_toml="auto_create_topics = true")
        for number, broker in enumerate(brokers):
            await subscribed(await broker.client(), f"new{number}")
        leaders = await until_led(brokers, "new0", "new1", "new2")
        assert len(set(leaders.values())) == 3, "at least two of them were not made where they are led"


@simulated
async def test_a_reader_filters_seeks_and_pauses(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="stream")
        client, publisher = await door.client(), await third.client()
        for number in range(10):
            await publisher.call(
                m.Publish("t"), [records([f"{number}"], routing_key="even" if number % 2 == 0 else "odd")]
            )
        made = await subscribed(client, start=4, credit=1000)
        assert made.kind == m.ConsumerKind.READER
        found: list[str] = []
        while len(found) < 6:
            found += values((await client.delivery()).batches)
        assert found == ["4", "5", "6", "7", "8", "9"]
        assert isinstance(await client.call(m.Seek(1, 0, 8)), m.Done)
        assert values((await client.delivery()).batches) == ["8", "9"]
        assert isinstance(await client.call(m.Seek(1, 0, m.WHERE_IT_IS, True)), m.Done)
        await publisher.publish("t", ["more"])
        assert await client.is_silent(3)
        assert await refusal_of(client, m.Seek(1, 7, 0)) == "topic.partition_unknown"
        filtering = await subscribed(client, where="routing_key = 'odd'")
        assert filtering.subscription == 2
        odd: list[str] = []
        while len(odd) < 5:
            odd += values((await client.pull(2, wait_max_ms=1000)).batches)
        assert odd == ["1", "3", "5", "7", "9"]
        assert await refusal_of(client, m.Subscribe("t", where="(")) == "predicate.invalid"
        assert await refusal_of(client, m.Subscribe("t", start=100)) == "log.offset_out_of_range"
        assert await refusal_of(client, m.Heartbeat(1, 0)) == "delivery.wrong_kind"


@simulated
async def test_repeated_requests_of_two_subscriptions_are_told_apart(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, _) = await apart(world, kind="stream")
        client = await door.client()
        for value in "abcdef":
            await client.publish("t", [value])
        await subscribed(client)
        await subscribed(client)
        found: list[tuple[int, list[str]]] = []
        for subscription in (1, 2) * 3:
            await client.tell(m.Credit(subscription, 1))
            event = await client.delivery()
            found.append((event.message.subscription, values(event.batches)))
        assert found == [(subscription, [value]) for value in "abc" for subscription in (1, 2)]


@simulated
async def test_members_of_a_group_at_different_doors_share_and_hand_over(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="stream", partitions=2)
        one, two = await door.client(), await third.client()
        for partition in range(2):
            await one.publish("t", ["a", "b"], partition=partition)
        await subscribed(one, group="g", session_ms=5000)
        first = await message_of(one, m.Assigned)
        assert first.partitions == [0, 1]
        await subscribed(two, group="g")
        revoked = await message_of(one, m.Assigned)
        assert len(revoked.partitions) == len(revoked.revoked) == 1
        (given,) = revoked.revoked
        commit = m.Commit(1, given, revoked.epoch, 1, "half")
        assert isinstance(await one.call(commit), m.Done)
        assert isinstance(await one.call(m.Heartbeat(1, revoked.epoch)), m.Done)
        assert await refusal_of(one, commit) == "group.fenced"
        gained = await message_of(two, m.Assigned)
        while not gained.partitions:
            gained = await message_of(two, m.Assigned)
        assert gained.partitions == [given]
        await two.call(m.Credit(1, 100))
        event = await two.delivery()
        assert (event.message.partition, values(event.batches)) == (given, ["b"])
        assert await two.settle(1, event) == []
        # Without heartbeats the session ends, and the share goes to the other member.
        ended = await message_of(one, m.Ended)
        assert ended.code == "group.session_expired"
        taken = await message_of(two, m.Assigned)
        assert taken.partitions == [0, 1]


@simulated
async def test_the_session_of_a_member_outlasts_its_connection_to_a_door(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="stream")
        one, two = await door.client(), await third.client()
        await subscribed(one, group="g", member="ann", session_ms=20_000)
        await message_of(one, m.Assigned)
        await subscribed(two, group="g", member="bob")
        await one.stream.aclose()
        assigned = await message_of(two, m.Assigned)
        assert assigned.partitions == []
        began_s = trio.current_time()
        while not assigned.partitions:
            assigned = await message_of(two, m.Assigned)
        assert 15 < trio.current_time() - began_s < 25


# --- the end ---------------------------------------------------------------------------------------------------------


@simulated
async def test_a_lost_link_ends_the_consumer_and_loses_nothing(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, (door, third) = await apart(world, kind="queue", lease="1h")
        client, publisher = await door.client(), await third.client()
        await publisher.publish("t", ["a", "b"])
        await subscribed(client, credit=1)
        first = await client.delivery()
        assert await client.settle(1, first) == []
        second = await client.delivery()
        env.world.cut(door.env.name, leader.env.name)
        settle = await client.send(m.Settle(1, [m.Settlement(0, second.message.delivery_id, -1, -1)]))
        waiting = await client.send(m.Pull(1, 1, 60_000))
        ended = await message_of(client, m.Ended)
        assert (ended.subscription, ended.code) == (1, "peer.unreachable")
        assert await client.code_of(settle) == "peer.unknown"
        assert (await client.answer(waiting)).batches == []
        assert await refusal_of(client, m.Pull(1, 1)) == "delivery.subscription_unknown"
        assert await refusal_of(client, m.Subscribe("t")) == "peer.unreachable"
        await trio.sleep(2 * SILENCE_S)
        env.world.heal(door.env.name, leader.env.name)
        made = await _again(client, credit=1)
        event = await client.delivery()
        assert (values(event.batches), event.message.attempt) == (["b"], 2)
        assert await client.settle(made.subscription, event) == []
        assert await client.is_silent(3)


async def _again(client: RawClient, **options: Any) -> m.Subscribed:
    with trio.fail_after(60):
        while True:
            try:
                return await subscribed(client, **options)
            except Refused as refused:
                if not refused.failed.retriable:
                    raise
                await trio.sleep(0.2)


@simulated
async def test_a_leader_that_dies_gives_back_what_was_not_settled(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, (door, third) = await apart(world, kind="queue", lease="1h")
        client, publisher = await door.client(), await third.client()
        await publisher.publish("t", ["a", "b"])
        await subscribed(client, credit=2)
        event = await client.delivery()
        ack = m.Settlement(0, event.message.delivery_id, 0, 1)
        assert (await client.call(m.Settle(1, [ack]))).refused == []
        leader.env.kill()
        ended = await message_of(client, m.Ended)
        assert ended.code == "peer.unreachable"
        await leader.ended()
        await leader.start()
        made = await _again(client, credit=2)
        event = await client.delivery()
        assert values(event.batches) == ["b"]
        assert await client.settle(made.subscription, event) == []


@simulated
async def test_a_leader_that_stops_lets_the_clients_of_other_brokers_settle(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, (door, third) = await apart(world, kind="queue", lease="1h")
        client, publisher = await door.client(), await third.client()
        await publisher.publish("t", ["a", "b"])
        await subscribed(client, credit=1)
        event = await client.delivery()
        waiting = await client.send(m.Pull(1, 1, 60_000))
        world.nursery.start_soon(leader.stop)
        assert (await client.answer(waiting)).batches == []
        assert await client.settle(1, event) == []
        ended = await message_of(client, m.Ended)
        assert ended.code == "peer.unreachable"
        await leader.ended()
        await leader.start()
        await _again(client, credit=2)
        event = await client.delivery()
        assert (values(event.batches), event.message.attempt) == (["b"], 1)


@simulated
async def test_a_door_that_stops_lets_its_clients_settle(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="queue", lease="1h")
        client, publisher = await door.client(), await third.client()
        await publisher.publish("t", ["a", "b"])
        await subscribed(client, credit=1)
        event = await client.delivery()
        began_s = trio.current_time()
        world.nursery.start_soon(door.stop)
        await message_of(client, m.Goodbye)
        await trio.sleep(0.5)
        assert await client.settle(1, event) == []
        assert await client.until_closed() == []
        assert trio.current_time() - began_s < 1.5, "it need not wait for its drain_timeout"
        other = await third.client()
        await subscribed(other, credit=2)
        event = await other.delivery()
        assert (values(event.batches), event.message.attempt) == (["b"], 1)


@simulated
async def test_a_deleted_topic_ends_its_consumers_everywhere(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, (door, third) = await apart(world, kind="queue")
        client = await door.client()
        await subscribed(client, credit=1)
        await (await third.client()).administer("topic.delete", name="t")
        ended = await message_of(client, m.Ended)
        assert ended.code == "topic.unknown"


@simulated
async def test_subscriptions_of_a_connection_are_counted_at_its_door(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        await (await brokers[0].client()).administer(
            "topic.create", name="t", settings={"kind": "stream", "partitions": 4096}
        )
        _, (door, _) = await led(brokers)
        client = await door.client()
        for _ in range(8):
            await subscribed(client)
        assert await refusal_of(client, m.Subscribe("t")) == "limit.exceeded"
        await client.call(m.Unsubscribe(3))
        await subscribed(client)
        (described,) = [it for it in await client.administer("connection.list") if it["subscriptions"]]
        assert [it["topic"] for it in described["subscriptions"]] == ["t"] * 8


# --- rights ----------------------------------------------------------------------------------------------------------


@simulated
async def test_a_user_without_the_right_consumes_through_no_broker(env: SimEnv) -> None:
    toml = '[topics.t]\nkind = "stream"\n' + PUBLISHER
    async with broker_world(env) as world:
        brokers = await world.brokers(toml=toml)
        _, (other, _) = await led(brokers)
        for broker in brokers:
            assert await refusal_of(await broker.client(), m.Subscribe("t")) == "auth.forbidden"
        # The leader checks it again: the other broker may have other users in its file.
        other.toml = toml.replace('"publish"', '"publish", "consume"')
        await other.stop()
        await other.start()
        cluster = other.broker.cluster
        assert cluster is not None
        await until(lambda: len(cluster.view.state.sessions) == 3)
        assert await refusal_of(await other.client(), m.Subscribe("t")) == "auth.forbidden"


@simulated
async def test_a_right_that_is_taken_away_ends_the_consumer(env: SimEnv) -> None:
    rights = '[roles.r]\n"topic:t" = ["see", "consume"]\n[users.anonymous]\nroles = ["r"]\n'
    async with broker_world(env) as world:
        brokers = await world.brokers(toml='[topics.t]\nkind = "stream"\n' + rights)
        _, (door, _) = await led(brokers)
        client = await door.client()
        await subscribed(client)
        run_steps(door.broker.gateway._rooms.policy.remove_role("r"))  # Here alone, as a file's role is.
        assert (await message_of(client, m.Ended)).code == "auth.forbidden"


# --- backpressure ----------------------------------------------------------------------------------------------------


@simulated
async def test_a_client_that_does_not_read_holds_up_its_own_consumer_only(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, (door, _) = await apart(world, kind="stream")
        publisher = await leader.client()
        size = 100_000
        for _ in range(100):
            await publisher.publish("t", [b"x" * size])
        slow, quick = await door.client(), await door.client()
        await slow.send(m.Subscribe("t", credit=1_000_000))
        await subscribed(quick, credit=1_000_000)
        count = 0
        while count < 100:
            count += sum([batch.count for batch in (await quick.delivery()).batches])
        await trio.sleep(1)
        assert door.broker.memory.unsent.used_bytes < 4 << 20, "of 10 MB"
        count = 0
        while count < 100:
            count += sum([batch.count for batch in (await slow.delivery()).batches])
