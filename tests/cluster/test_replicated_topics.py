"""Topics with several replicas: what was confirmed is there when a broker dies, and the topic goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, records, values
from replicas_seen import ALL, agree, content, in_sync, marks, replica_at
from replicated_topic import next_leader, publish_numbers, replicated_topic, until_alike
from simulated_time import simulated

from linn.cluster.channel import PING_S
from linn.core.errors.replication import NotLeader
from linn.core.log.replication.leader import LOST_S
from linn.core.replicas.replication import TICK_S
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


async def confirmed(client: RawClient, name: str, value: str) -> None:
    """Publish with acks of all replicas, again while the topic has no leader or too few replicas."""
    with trio.fail_after(60):
        while True:
            try:
                await client.publish(name, [value], acks=ALL)
                return
            except Refused as refused:
                if not refused.code.startswith(("partition.", "peer.")):
                    raise
                await trio.sleep(0.1)


def sessions(broker: SimBroker) -> set[int]:
    """Nodes that are alive, as a broker knows it."""
    assert broker.broker.cluster is not None
    return {*broker.broker.cluster.view.state.sessions}


Killing = Callable[[SimBroker], Awaitable[None]]


async def kill(broker: SimBroker) -> None:
    broker.env.kill()
    await broker.ended()


async def power_off(broker: SimBroker) -> None:
    broker.env.crash()
    await broker.ended()


async def stop(broker: SimBroker) -> None:
    await broker.stop()


@simulated
async def test_all_replicas_get_every_record_as_it_is_stored(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream", partitions=2) as (leader, others):
        client = await leader.client()
        await publish_numbers(client, 20, partitions=2)

        await until(lambda: agree([leader, *others], "t"))
        assert [marks(leader, "t")[number][1] for number in (0, 1)] == [10, 10]
        for number in (0, 1):
            first, *copies = [await content(it, "t", number) for it in [leader, *others]]
            assert copies == [first, first]


@pytest.mark.parametrize("end", [kill, power_off, stop])
@simulated
async def test_a_stream_goes_on_at_another_broker_with_all_that_was_confirmed(env: SimEnv, end: Killing) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await leader.client()
        await publish_numbers(client, 20)
        await end(leader)
        second = await next_leader(others)
        client = await second.client()
        await confirmed(client, "t", "20")
        assert await client.fetch("t") == [str(number) for number in range(21)]
        await leader.start()
        await until(lambda: len(in_sync(second)) == 3)


@pytest.mark.parametrize("end", [kill, power_off, stop])
@simulated
async def test_a_queue_goes_on_at_another_broker_without_records_that_were_acked(env: SimEnv, end: Killing) -> None:
    async with replicated_topic(env, kind="queue") as (leader, others):
        client = await leader.client()
        await publish_numbers(client, 10)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        acked = []
        for _ in range(4):
            event = await client.pull(subscription, 1, wait_max_ms=500)
            await client.settle(subscription, event)
            acked += values(event.batches)
        leased = await client.pull(subscription, 2, wait_max_ms=500)
        await end(leader)
        second = await next_leader(others)
        client = await second.client()
        taken = await client.taken("t")
        assert sorted([*acked, *taken], key=int) == [str(number) for number in range(10)]
        assert set(values(leased.batches)) <= set(taken)


@simulated
async def test_another_session_while_logs_are_cut_is_told_afterwards(env: SimEnv) -> None:
    async with replicated_topic(env, kind="both") as (leader, others):
        follower = others[0]
        replica = replica_at(follower, "t")
        assert replica is not None
        keep, told = replica.keep_subscriptions, list[str]()

        async def keep_in_another_session(numbers: set[int]) -> None:
            await keep(numbers)
            if not told:
                told.append("another")
                replica.session_changed("another", is_held=True)

        replica.keep_subscriptions = keep_in_another_session
        env.world.sever(*[f"machine{it.number}" for it in (leader, follower)])
        env.world.heal(*[f"machine{it.number}" for it in (leader, follower)])
        await until(lambda: bool(told))
        await confirmed(await leader.client(), "t", "after")
        await until_alike(leader, [leader, *others])
        assert not follower.has_ended


@simulated
async def test_a_topic_whose_last_replica_in_sync_is_down_is_shown_without_a_leader(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream", min_in_sync=1) as (leader, others):
        for broker in others:
            await kill(broker)
        await until(lambda: in_sync(leader) == (leader.number,))
        await kill(leader)
        left = others[0]
        await left.start()
        await until(lambda: sessions(left) == {left.number})
        client = await left.client()
        shown = (await client.administer("topic.show", name="t"))["replicas"]
        assert (shown["leader"], shown["in_sync"]) == (0, [leader.number])
        await leader.start()
        await until_led([left, leader], "t")
        assert (await client.administer("topic.show", name="t"))["replicas"]["leader"] == leader.number


@simulated
async def test_with_too_few_replicas_all_is_refused_at_once_and_leader_goes_on(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await leader.client()
        await kill(others[0])
        began_s = trio.current_time()
        await client.publish("t", ["one gone"], acks=ALL)
        assert trio.current_time() - began_s <= 3.0, "a dead follower holds a publish up for two seconds and a moment"
        await kill(others[1])
        await trio.sleep(2.5)
        began_s = trio.current_time()
        with pytest.raises(Refused, match="fewer than 2 replicas of topic t") as refusal:
            await client.publish("t", ["two gone"], acks=ALL)
        assert (refusal.value.code, trio.current_time() - began_s < 0.1) == ("partition.not_enough_replicas", True)
        with pytest.raises(Refused, match="fewer than 2 replicas of topic t"):
            await client.administer("topic.alter", name="t", settings={"kind": "both"})
        await client.publish("t", ["by the leader alone"], acks=1)
        assert await client.fetch("t") == ["one gone"], "readers see what the in-sync set has"
        await others[0].start()
        await confirmed(client, "t", "back")
        assert await client.fetch("t") == ["one gone", "by the leader alone", "back"]


async def longest_wait(client: RawClient, for_s: float) -> float:
    """Publish with acks of all replicas for a while; returns the longest wait for a confirmation."""
    began_s, waits = trio.current_time(), [0.0]
    while trio.current_time() - began_s < for_s:
        sent_s = trio.current_time()
        await client.publish("t", ["x"], acks=ALL)
        waits.append(trio.current_time() - sent_s)
        await trio.sleep(0.05)
    return max(waits)


@pytest.mark.parametrize("seed", range(5))
@simulated
async def test_a_follower_that_falls_silent_holds_publishes_up_for_three_seconds_at_most(
    env: SimEnv, seed: int
) -> None:
    """Its links are not closed: for all that the leader knows, it may be slow."""
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await leader.client()
        silent = others[0]
        await trio.sleep(seed * 0.13)
        env.world.cut(leader.env.name, silent.env.name)
        wait_s = await longest_wait(client, 10.0)
        assert LOST_S - PING_S <= wait_s <= LOST_S + PING_S + TICK_S + 0.1 < 3.0
        assert silent.number not in in_sync(leader)
        env.world.heal(leader.env.name, silent.env.name)
        await until(lambda: len(in_sync(leader)) == 3)


def entry_revision(broker: SimBroker) -> int | None:
    """The revision of the topic's entry, which changes with the in-sync set, as a broker knows it."""
    assert broker.broker.cluster is not None
    return broker.broker.cluster.view.state.revision_of(f"parts/{broker.broker.topic('t').id}/0")


@simulated
async def test_a_follower_whose_disk_is_slow_stays_in_sync(env: SimEnv) -> None:
    """It pings while its disk syncs: publishes wait for it, and the set stays as it is."""
    async with replicated_topic(env, toml='[storage.segmented-log]\nfsync = "always"\n', kind="stream") as (
        leader,
        others,
    ):
        client = await leader.client()
        await client.publish("t", ["the first makes files"], acks=ALL)
        slow = others[0]
        slow.env.disk.sync_delay_s_max = 2.5
        revision = entry_revision(leader)
        assert await longest_wait(client, 30.0) > LOST_S
        assert entry_revision(leader) == revision


@simulated
async def test_a_store_that_lost_everything_stops_no_topic(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await others[0].client()
        leader.world.store.empty()
        await trio.sleep(30)  # All sessions have ended, and no node gets another one.
        await client.publish("t", ["served on"], acks=ALL)


@simulated
async def test_a_topic_gets_the_replicas_that_it_lacks_when_there_are_more_brokers(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (first,) = await world.brokers(1, '[topics.t]\nkind = "both"\nreplicas = 3\nmin_in_sync = 1\n')
        client = await first.client()
        await until(lambda: "t" in first.broker.topics)
        await until_led([first], "t")
        for number in range(5):
            await client.publish("t", [str(number)], acks=ALL)
        second, third = await world.brokers(2)
        await until(lambda: in_sync(first) == (1, 2, 3))
        await kill(first)
        (leader,) = (await until_led([second, third], "t")).values()
        assert await (await leader.client()).taken("t") == ["0", "1", "2", "3", "4"]


@simulated
async def test_a_node_with_an_empty_disk_copies_everything(env: SimEnv) -> None:
    async with replicated_topic(env, kind="both", partitions=2) as (leader, others):
        client = await leader.client()
        await publish_numbers(client, 10, partitions=2)
        lost = others[0]
        await kill(lost)
        lost.replace_disk()
        await until(lambda: lost.number not in sessions(leader))
        await lost.start()
        await until_alike(leader, [leader, *others])
        for number in marks(leader, "t"):
            assert await content(lost, "t", number) == await content(leader, "t", number)


async def numbered(client: RawClient, earlier: RawClient, sequence: int) -> m.Placement:
    """Publish one record as the producer whose ids an earlier client was given."""
    batch = records([f"{sequence}"])
    batch.number(earlier.welcome.producer_id, 0, sequence, 0)
    answer = await client.call(m.Publish("t", partition=0, acks=ALL), [batch])
    placement: m.Placement = answer.placements[0]
    return placement


@pytest.mark.parametrize("storage", ["segmented-log", "dram"])
@simulated
async def test_a_replica_knows_the_producers_of_records_that_it_never_had(env: SimEnv, storage: str) -> None:
    async with replicated_topic(env, kind="queue", min_in_sync=1, storage=storage) as (leader, others):
        client = await leader.client()
        newcomer, *others = others
        await kill(newcomer)
        newcomer.replace_disk()
        for sequence in range(5):
            assert (await numbered(client, client, sequence)).base_offset == sequence
        subscription = (await client.call(m.Subscribe("t"))).subscription
        await client.settle(subscription, await client.pull(subscription, 10, wait_max_ms=500))
        await until(lambda: marks(leader, "t")[0][:2] == (5, 5))
        await until(lambda: newcomer.number not in sessions(leader))
        await newcomer.start()
        await until(lambda: len(in_sync(leader)) == 3 and marks(newcomer, "t")[0][:2] == (5, 5))
        for broker in (*others, leader):
            await kill(broker)
        await until(lambda: newcomer.broker.topic("t").led_by is None)
        later = RawClient(await env.net.connect(newcomer.address))
        await later.greet("raw", client.welcome.producer_id, client.welcome.producer_key)
        assert (await numbered(later, client, 4)).base_offset == 4, "it is not stored again"
        with pytest.raises(Refused) as refusal:
            await numbered(later, client, 6)
        assert refusal.value.code == "producer.out_of_order"
        assert (await numbered(later, client, 5)).base_offset == 5


@simulated
async def test_settings_and_subscriptions_change_at_all_replicas_and_their_logs_go_with_the_topic(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await leader.client()
        await client.administer("topic.alter", name="t", settings={"partitions": 3})
        await client.administer("subscription.create", topic="t", subscription="s")
        await until(lambda: len(in_sync(leader)) == 3 and len(marks(leader, "t")) == 7)
        await publish_numbers(client, 6, partitions=3)
        subscription = (await client.call(m.Subscribe("t", shared="s"))).subscription
        await client.settle(subscription, await client.pull(subscription, 1, wait_max_ms=500))
        await until(lambda: agree([leader, *others], "t"))
        await client.call(m.Unsubscribe(subscription))
        await client.administer("subscription.delete", topic="t", subscription="s")
        await until(lambda: all(len(marks(it, "t")) == 4 for it in [leader, *others]))
        await client.administer("topic.delete", name="t")
        await until(lambda: not any("t" in it.broker.topics for it in [leader, *others]))
        for broker in [leader, *others]:
            folder = "data/segmented-log"
            await until(lambda: not any(n.endswith("t") for n in broker.env.disk.list_dir(folder)))  # noqa: B023


@simulated
async def test_a_subscription_made_anew_takes_nothing_from_a_log_that_a_replica_still_has(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        away = others[0]
        client = await leader.client()
        await publish_numbers(client, 4)
        await client.administer("subscription.create", topic="t", subscription="s")
        subscription = (await client.call(m.Subscribe("t", shared="s"))).subscription
        for _ in range(3):
            await client.settle(subscription, await client.pull(subscription, 1, wait_max_ms=500))
        await until(lambda: agree([leader, *others], "t"))
        await kill(away)
        await client.call(m.Unsubscribe(subscription))
        await client.administer("subscription.delete", topic="t", subscription="s")
        await client.administer("subscription.create", topic="t", subscription="s")
        subscription = (await client.call(m.Subscribe("t", shared="s"))).subscription
        await client.settle(subscription, await client.pull(subscription, 1, wait_max_ms=500))
        await away.start()
        await until_alike(leader, [leader, *others])
        for number in marks(leader, "t"):
            assert await content(away, "t", number) == await content(leader, "t", number)


@simulated
async def test_topics_show_tells_who_leads_and_who_is_in_sync(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        shown = [(await (await it.client()).administer("topic.show", name="t"))["replicas"] for it in [leader, *others]]
        followers = sorted(it.number for it in others)
        assert [[follower["node"] for follower in each.pop("followers")] for each in shown] == [followers] * 3
        assert shown == [{"leader": leader.number, "epoch": 1, "nodes": [1, 2, 3], "in_sync": [1, 2, 3]}] * 3


@pytest.mark.parametrize("end", [kill, power_off, stop])
@simulated
async def test_a_group_goes_on_at_its_positions_at_the_next_leader(env: SimEnv, end: Killing) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await leader.client()
        await publish_numbers(client, 10)
        assert await client.taken("t", "g", 6) == ["0", "1", "2", "3", "4", "5"]
        (before,) = await client.administer("group.list", topic="t")
        await end(leader)
        second = await next_leader(others)
        client = await second.client()
        assert await client.taken("t", "g") == ["6", "7", "8", "9"]
        (after,) = await client.administer("group.list", topic="t")
        assert after["epoch"] > before["epoch"], "a member of the former leader's is fenced"
        await leader.start()
        await until_alike(second, [leader, *others])


@simulated
async def test_a_leader_that_is_replaced_while_a_group_reads_goes_on_as_a_follower(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await leader.client()
        await client.publish("t", ["0", "1"], acks=ALL)
        subscription = (await client.call(m.Subscribe("t", group="g"))).subscription
        await client.settle(subscription, await client.pull(subscription, 1, wait_max_ms=500))
        leader.world.store.end_leases(leader.env.name)
        await until(lambda: leader.broker.topic("t").led_by is not None)
        second = await next_leader(others)
        await until_alike(second, [leader, *others])
        assert await (await leader.client()).taken("t", "g") == ["1"]


def step_down(leader: SimBroker) -> None:
    replica = replica_at(leader, "t")
    assert replica is not None
    for partition in replica.logs.values():
        partition.go_offline(replica.leader.part.epoch)


def resign(leader: SimBroker) -> None:
    step_down(leader)
    leader.broker.topic("t").resign(lambda: NotLeader("it is led elsewhere"))


@pytest.mark.parametrize("end", [step_down, resign])
@simulated
async def test_a_leader_that_is_replaced_drops_no_more_records_to_make_room(
    env: SimEnv, end: Callable[[SimBroker], None]
) -> None:
    small = "[storage.segmented-log]\nsegment_bytes_max = 4096\n"
    limits = {"bytes_max": 10_000, "message_bytes_max": 5_000, "overflow": "drop-head"}
    async with replicated_topic(env, toml=small, kind="both", partitions=2, **limits) as (leader, _):
        topic, batch = leader.broker.topic("t"), records(["x" * 1000])
        client = await leader.client()
        for _ in range(8):
            await client.publish("t", ["x" * 1000], acks=ALL, partition=0)
        starts = {number: start for number, (start, _, _) in marks(leader, "t").items()}
        for _ in range(4):
            assert topic.room.takes(batch.size, batch.count)
            topic.append(topic.partition(0), batch)
        end(leader)
        await trio.testing.wait_all_tasks_blocked()
        assert {number: start for number, (start, _, _) in marks(leader, "t").items()} == starts
        assert not leader.has_ended


@simulated
async def test_a_lower_minimum_lets_a_topic_go_on_with_fewer_replicas(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await leader.client()
        for other in others:
            await kill(other)
        await trio.sleep(2.5)
        with pytest.raises(Refused, match="fewer than 2 replicas"):
            await client.publish("t", ["refused"], acks=ALL)
        await client.administer("topic.alter", name="t", settings={"min_in_sync": 1})
        await confirmed(client, "t", "by one")
        assert await client.fetch("t") == ["by one"]


@simulated
async def test_a_publish_that_is_confirmed_when_its_lane_has_ended_costs_the_leader_nothing(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        door, third = others
        client = await door.client()
        await client.publish("t", ["first"], acks=ALL)
        await kill(third)
        asked = await client.send(m.Publish("t", acks=ALL), [records(["second"])])
        await trio.sleep(0.5)
        env.world.sever(leader.env.name, door.env.name)
        assert (await client.code_of(asked)).startswith("peer.")
        await until(lambda: in_sync(leader) == tuple(sorted([leader.number, door.number])))
        await confirmed(client, "t", "third")
        assert await (await leader.client()).fetch("t") == ["first", "second", "third"]


@pytest.mark.parametrize("end", [kill, power_off, stop])
@simulated
async def test_a_queue_that_keeps_records_has_them_and_its_subscriptions_at_the_next_leader(
    env: SimEnv, end: Killing
) -> None:
    text = '[storage.segmented-log]\nsegment_bytes_max = "4KiB"\nindex_interval_bytes = 512\n'
    async with replicated_topic(env, toml=text, keep="60s") as (leader, others):
        client = await leader.client()
        for number in range(20):
            await client.publish("t", [f"{number:<500}"], acks=ALL)
        assert len(await client.taken("t", count=15)) == 15
        await client.administer("subscription.create", topic="t", subscription="again", offset=3)
        subscription = (await client.call(m.Subscribe("t", shared="again"))).subscription
        await client.settle(subscription, await client.pull(subscription, 1, wait_max_ms=500))
        await until(lambda: agree([leader, *others], "t"))
        await end(leader)
        leader = await next_leader(others)
        client = await leader.client()
        subscription = (await client.call(m.Subscribe("t", shared="again"))).subscription
        event = await client.pull(subscription, 100, wait_max_ms=500)
        found = [int(value) for value in values(event.batches)]
        assert found == [*range(4, 4 + len(found))]
        await client.settle(subscription, event)
        await trio.sleep(120)
        client = await leader.client()
        start, _ = leader.broker.topics["t"].partitions[0].log.bounds()
        assert 8 <= start <= 15, "settled records go by their age, and no other"
        assert [int(value) for value in await client.taken("t")] == [*range(15, 20)]
        left = others[0] if others[0] is not leader else others[1]
        await until(lambda: left.broker.topics["t"].logs is not None and marks(left, "t")[0] == marks(leader, "t")[0])
