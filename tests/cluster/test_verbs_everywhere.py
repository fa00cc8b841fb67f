"""Verbs that brokers of a cluster answer together, or pass on; and what their audit trails have of them."""

from __future__ import annotations

import json

import pytest
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import Refused
from simulated_time import simulated

from linn import merging
from linn.core.admin.topic_description import topics_as_json
from linn.core.batch.steps import run_steps
from linn.core.errors.replication import NotLeader
from linn.testing.sim_env import SimEnv
from linn.verbs import VERBS
from linn.wire import messages as m

ROOT = '[users.anonymous]\nroles = ["administrator"]\n'
NAMES = ("a", "b", "c")


@simulated
async def test_a_group_is_one_whichever_broker_is_asked(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        clients = [await it.client() for it in brokers]
        for name in NAMES:
            await clients[0].administer("topic.create", name=name, settings={"kind": "stream"})
        led = await until_led(brokers, *NAMES)
        assert len(set(led.values())) == 3
        readers = {name: await led[name].client() for name in NAMES}
        for count, name in enumerate(NAMES[:2], 3):
            await readers[name].publish(name, ["x"] * count)
            subscription = (await readers[name].call(m.Subscribe(name, group="g"))).subscription
            assert await readers[name].commit(subscription, name, {0: 1}) == []
        await readers["c"].call(m.Subscribe("c", group="h"))
        for client in clients:
            g, h = await client.administer("group.list")
            assert (g["group"], g["topics"], g["members"]) == ("g", ["a", "b"], 2)
            assert (h["group"], h["topics"], h["members"]) == ("h", ["c"], 1)
            assert g["lag"] == 5
            (only,) = await client.administer("group.list", topic="b")
            assert (only["group"], only["topics"], only["members"]) == ("g", ["b"], 1)
            shown = await client.administer("group.show", group="g")
            assert [(it["topic"], it["end"]) for it in shown["offsets"]] == [("a", 3), ("b", 4)]
            assert [it["topics"] for it in shown["members"]] in ([["a"], ["b"]], [["b"], ["a"]])
            with pytest.raises(Refused) as refusal:
                await client.administer("group.show", group="nobody")
            assert refusal.value.code == "group.unknown"
        brokers[0].env.kill()
        assert [it["group"] for it in await clients[1].administer("group.list")], "others are listed without it"


@simulated
async def test_a_topic_that_another_broker_leads_since_is_described_anew(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        await client.administer("topic.create", name="a", settings={"kind": "stream", "partitions": 3})
        leader = (await until_led(brokers, "a"))["a"].broker
        steps = topics_as_json(leader.topics, ["a"])
        next(steps)
        leader.topic("a").resign(lambda: NotLeader("another broker leads it"))
        (shown,) = json.loads(run_steps(steps))
        assert (shown["name"], shown["partitions"]) == ("a", [])


@simulated
async def test_a_group_is_reset_and_deleted_at_all_brokers_that_have_a_part_of_it(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(toml=ROOT)
        first = await brokers[0].client()
        for name in NAMES:
            await first.administer("topic.create", name=name, settings={"kind": "stream"})
        led = await until_led(brokers, *NAMES)
        for name in NAMES[:2]:
            reader = await led[name].client()
            await reader.publish(name, ["x"] * 3)
            subscription = (await reader.call(m.Subscribe(name, group="g"))).subscription
            assert await reader.commit(subscription, name, {0: 1}) == []
            await reader.call(m.Unsubscribe(subscription))
        client = await led["c"].client()
        moved = await client.administer("group.reset", group="g", to="latest")
        assert [(it["topic"], it["offset"]) for it in moved] == [("a", 3), ("b", 3)]
        moved = await client.administer("group.reset", group="g", topic="b", offset=2)
        assert [(it["topic"], it["offset"]) for it in moved] == [("b", 2)]
        assert await client.administer("group.delete", group="g") == {}
        for broker in brokers:
            assert await (await broker.client()).administer("group.list") == []
        with pytest.raises(Refused) as refusal:
            await client.administer("group.delete", group="g")
        assert refusal.value.code == "group.unknown"
        assert await trail(led["c"]) == [], "the broker that was asked has no part of the group"
        assert [entry["action"] for entry in await trail(led["a"]) if "group" in entry["action"]] == [
            "group.reset",
            "group.delete",
        ]


async def trail(broker: SimBroker) -> list[dict[str, object]]:
    """The verbs about groups and records on a broker's audit trail."""
    partition = broker.broker.topics["__audit"].partitions[0]
    batches = await partition.read_range(0, partition.high_watermark, 1 << 20)
    entries = [json.loads(record.value or b"") for batch in batches for record in batch.records()]
    return [entry for entry in entries if entry["action"].startswith(("group.", "topic.purge", "subscription."))]


@simulated
async def test_a_verb_that_is_passed_on_is_on_the_trail_of_the_broker_that_carries_it_out_alone(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(toml=ROOT)
        client = await brokers[0].client()
        await client.administer("topic.create", name="a", settings={"kind": "both"})
        (leader,) = (await until_led(brokers, "a")).values()
        other = next(it for it in brokers if it is not leader)
        there = await other.client()
        await there.administer("topic.purge", name="a")
        await there.administer("subscription.create", topic="a", subscription="s")
        assert await trail(other) == []
        await until(lambda: leader.broker.topics["__audit"].partitions[0].high_watermark > 0)
        assert [(entry["action"], entry["outcome"], entry["user"]) for entry in await trail(leader)] == [
            ("topic.purge", "asked", "anonymous"),
            ("subscription.create", "asked", "anonymous"),
        ]


def test_each_verb_that_runs_everywhere_says_how_results_merge() -> None:
    for verb in VERBS.values():
        assert (verb.merge is not None) == (verb.runs == "everywhere"), verb.name


def test_decided_deliveries_of_all_brokers_are_as_many_as_one_tells() -> None:
    def told(topic: str, count: int, more: int) -> dict[str, object]:
        found = [{"topic": topic, "subscription": "", "partition": 0, "first": at} for at in range(count)]
        return {"deliveries": found, "more": more}

    merged = merging.deliveries([told("b", 600, 0), told("a", merging.DELIVERIES_MAX, 50)])
    assert len(merged["deliveries"]) == merging.DELIVERIES_MAX
    assert {item["topic"] for item in merged["deliveries"]} == {"a"}
    assert merged["more"] == 650


@simulated
async def test_groups_of_an_audit_trail_go_on_where_they_were_after_a_restart(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (broker,) = await world.brokers(1, toml=ROOT)
        client = await broker.client()
        await client.administer("topic.create", name="a", settings={"kind": "stream"})
        found = len(await client.taken("__audit", "auditors"))
        assert found
        await broker.stop()
        await broker.start()
        client = await broker.client()
        (position,) = (await client.administer("group.show", group="auditors"))["offsets"]
        assert position["offset"] == found
