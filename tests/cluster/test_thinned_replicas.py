"""Thinned logs of topics with replicas: any of these may lead next; one that was away, or is new, has what is left."""

from __future__ import annotations

import pytest
import trio
from broker_world import SimBroker, broker_world
from cluster_world import until
from raw_client import RawClient, records, simulated
from replicas_seen import ALL
from replicated_topic import made, next_leader, replicated_topic, until_alike
from seeds import failures
from test_operated_brokers import operate
from test_replicated_topics import Killing, kill, power_off, sessions
from thinned_replicas_run import VALUE_BYTES as BYTES
from thinned_replicas_run import Messages, Publisher, log_at, run_seed, stored_at, toml_of

from linn.core.log.storage import PartitionId
from linn.core.metadata.levels import THIN_LEVEL
from linn.core.replicas.log_numbers import number_of
from linn.core.topics.timing_logs import timing_topic
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TOML = toml_of("os")
BATCH = 7
RECORDS = 34 * BATCH
STUCK = list(range(3, RECORDS, 60))
"""Messages that a worker holds."""


def two_publishers() -> tuple[Publisher, Publisher]:
    """One that publishes first, and one that goes on."""
    messages = Messages()
    return Publisher(messages), Publisher(messages)


def is_thin(broker: SimBroker, number: int = 0) -> bool:
    return log_at(broker, number).log.size_bytes() < RECORDS * BYTES / 3


async def publish(early: Publisher, publisher: Publisher, leader: SimBroker, batches: int) -> None:
    """Publish batches, all but the first of one producer."""
    await early.publish(await early.connected(leader), BATCH)
    client = await publisher.connected(leader)
    for _ in range(batches - 1):
        await publisher.publish(client, BATCH)


async def settle_others(client: RawClient) -> None:
    """Settle all messages but a few."""
    worker = (await client.call(m.Subscribe("t"))).subscription
    while (event := await client.pull(worker, 60, wait_max_ms=100)).batches:
        first, end, id = event.batches[0].base_offset, event.batches[-1].end_offset, event.message.delivery_id
        bounds = [first, *[it for it in STUCK if first <= it < end], end]
        spans = zip([first, *[it + 1 for it in bounds[1:-1]]], bounds[1:], strict=True)
        entries = [m.Settlement(0, id, *span) for span in spans if span[0] < span[1]]
        assert (await client.call(m.Settle(worker, entries))).refused == []


async def stuck_at(leader: SimBroker, early: Publisher, publisher: Publisher) -> RawClient:
    """Publish, and settle all but a few messages; returns the client that holds these."""
    worker = await leader.client()
    await publish(early, publisher, leader, RECORDS // BATCH)
    await settle_others(worker)
    return worker


async def delivers_what_is_left(leader: SimBroker, early: Publisher, publisher: Publisher) -> None:
    """Check that a leader knows the producers, and has the messages that are not settled."""
    for each in (early, publisher):
        client = await each.connected(leader)
        await each.repeat(client)
        await each.publish(client, 1)
    assert [int(value) for value in await client.taken("t")] == [*STUCK, RECORDS, RECORDS + 1]


@pytest.mark.parametrize("end", [kill, power_off])
@simulated
async def test_followers_are_thinned_as_their_leader_is_and_lead_with_what_is_left(env: SimEnv, end: Killing) -> None:
    both = two_publishers()
    async with replicated_topic(env, toml=TOML, lease="1h") as (leader, others):
        await stuck_at(leader, *both)
        await until(lambda: all(is_thin(it) for it in (leader, *others)))
        await end(leader)
        await delivers_what_is_left(await next_leader(others), *both)


async def left_behind(leader: SimBroker, late: SimBroker, early: Publisher, publisher: Publisher) -> None:
    """Kill a follower whose log then ends within a batch of the thinned log of its leader."""
    client = await publisher.connected(leader)
    for _ in range(RECORDS // BATCH // 2):
        await publisher.publish(client, BATCH)
    await kill(late)
    end = log_at(late).log.bounds()[1]
    await publish(early, publisher, leader, RECORDS // BATCH // 2)
    await settle_others(await leader.client())
    await until(lambda: is_thin(leader))
    assert [it for it in await stored_at(leader) if it.base_offset < end < it.end_offset], "no batch begins there"
    await until(lambda: late.number not in sessions(leader))


@simulated
async def test_a_follower_that_ends_within_a_thinned_batch_catches_up_and_leads(env: SimEnv) -> None:
    both = two_publishers()
    async with replicated_topic(env, toml=TOML, lease="1h", min_in_sync=1) as (leader, others):
        late, *others = others
        await left_behind(leader, late, *both)
        await late.start()
        await until_alike(leader, [leader, late, *others])
        for broker in (*others, leader):
            await kill(broker)
        await until(lambda: late.broker.topic("t").led_by is None)
        await delivers_what_is_left(late, *both)


@simulated
async def test_thinned_logs_are_cut_where_a_leader_ends_that_was_elected_without_being_in_sync(env: SimEnv) -> None:
    both = two_publishers()
    async with replicated_topic(env, toml=TOML, lease="1h", min_in_sync=1) as (leader, others):
        late, *others = others
        await left_behind(leader, late, *both)
        end = log_at(late).log.bounds()[1]
        for broker in (leader, *others):
            await kill(broker)
        await late.start()
        given_up = sorted([leader.number, *(it.number for it in others)])
        alive = late.broker.cluster.view.state.sessions  # type: ignore[union-attr]
        await until(lambda: not alive.keys() & set(given_up))
        await operate(late, "elect", topic="t", leader=late.number, unclean=True, give_up=given_up)
        await until(lambda: late.broker.topic("t").led_by is None)
        for broker in (leader, *others):
            await broker.start()
        await until_alike(late, [leader, late, *others])
        assert log_at(leader).log.bounds() == (0, end)


@simulated
async def test_a_new_replica_of_a_thinned_log_knows_its_producers(env: SimEnv) -> None:
    both = two_publishers()
    async with replicated_topic(env, toml=TOML, lease="1h", min_in_sync=1) as (leader, others):
        fresh, *others = others
        await stuck_at(leader, *both)
        await until(lambda: is_thin(leader))
        await kill(fresh)
        fresh.replace_disk()
        await until(lambda: fresh.number not in sessions(leader))
        await fresh.start()
        await until_alike(leader, [leader, fresh, *others])
        assert is_thin(fresh)
        for broker in (*others, leader):
            await kill(broker)
        await until(lambda: fresh.broker.topic("t").led_by is None)
        await delivers_what_is_left(fresh, *both)


@simulated
async def test_no_record_goes_before_its_settlement_is_committed(env: SimEnv) -> None:
    both = two_publishers()
    async with replicated_topic(env, toml=TOML, lease="1h") as (leader, others):
        worker = await leader.client()
        await publish(*both, leader, RECORDS // BATCH)
        subscription = (await worker.call(m.Subscribe("t"))).subscription
        event = await worker.pull(subscription, RECORDS)
        for other in others:
            env.world.cut(leader.env.name, other.env.name)
        deliver, end = event.message, event.batches[-1].end_offset
        await worker.send(m.Settle(subscription, [m.Settlement(0, deliver.delivery_id, 1, end)]))
        await trio.sleep(0.1)
        await leader.broker.topics["t"].enforce_retention()
        await trio.sleep(1)
        assert not is_thin(leader)
        for other in others:
            env.world.heal(leader.env.name, other.env.name)
        await until(lambda: is_thin(leader))


@simulated
async def test_timing_logs_are_thinned_at_all_replicas(env: SimEnv) -> None:
    async with replicated_topic(env, toml=TOML, kind="stream") as (leader, others):
        client, now_ms, numbers = await leader.client(), leader.env.clock.now_ms(), range(0, RECORDS, BATCH)
        await client.call(m.Publish("t", acks=ALL), [records(["for years"], due_ms=now_ms + 10**11)])
        for first in numbers:
            values = [f"{number:<{BYTES}}" for number in range(first, first + BATCH)]
            await client.call(m.Publish("t", acks=ALL), [records(values, due_ms=now_ms + 5_000)])
        timing = leader.broker.topics["t"].timing
        await until(lambda: timing.waiting_count == 1)
        number = number_of("t", PartitionId(timing_topic("t"), 0))
        await until(lambda: all(is_thin(it, number) for it in (leader, *others)))
        await kill(leader)
        second = await next_leader(others)
        assert second.broker.topics["t"].timing.waiting_count == 1
        assert second.broker.topics["t"].ends()[0] == RECORDS


@simulated
async def test_nothing_is_thinned_while_brokers_may_be_of_the_version_before(env: SimEnv) -> None:
    both = two_publishers()
    async with broker_world(env) as world:
        brokers = await world.brokers(toml=TOML, level=THIN_LEVEL - 1)
        leader = await made(brokers, lease="1h")
        await stuck_at(leader, *both)
        await trio.sleep(30)
        assert not is_thin(leader)


@pytest.mark.parametrize("seed", range(2))
def test_thinned_replicas_have_all_that_is_left_whatever_dies(seed: int) -> None:
    run_seed(seed)


@pytest.mark.soak(seeds=2_000, chunk=25)
def test_thinned_replicas_have_all_that_is_left_in_many_more_runs(seeds: range) -> None:
    assert failures(run_seed, seeds, "tests/cluster/thinned_replicas_run.py") == {}
