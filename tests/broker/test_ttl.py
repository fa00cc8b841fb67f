"""Time to live: records that wait too long in a queue expire, wherever they are, and without consumers."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import ttl_run
from raw_client import RawClient, Refused, broker_on, connected, records, served, simulated, values

from linn.core.broker.broker import Broker
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ACK, NACK, REJECT, EXTEND, RELEASE, *_ = m.Verdict
PLAIN = '[topics.t]\nlease = "10s"\n'
DEAD = PLAIN + 'dead_letter = "dead"\n[topics.dead]\n'
WITH_TTL = DEAD.replace("lease", 'ttl = "20s"\nlease')
U32_MAX = 2**32 - 1


async def publish(client: RawClient, contents: list[str], topic: str = "t", **properties: Any) -> None:
    await client.call(m.Publish(topic), [records(contents, **properties)])


async def dead(client: RawClient) -> list[tuple[str, str]]:
    """(value, reason) of the dead letters, which are settled."""
    subscription, found = (await client.call(m.Subscribe("dead"))).subscription, []
    while (event := await client.pull(subscription, wait_max_ms=100)).batches:
        found += [
            ((record.value or b"").decode(), str(record.labels["linn.dead.reason"]))
            for batch in event.batches
            for record in batch.records()
        ]
        await client.settle(subscription, event)
    return found


def unsettled(broker: Broker) -> int:
    queue = broker.topics["t"].queue
    assert queue is not None
    return queue.unsettled_count()


@served(WITH_TTL)
async def test_records_expire_without_a_consumer_and_become_dead_letters(client: RawClient, broker: Broker) -> None:
    await publish(client, ["a", "b"])
    await trio.sleep(10)
    await publish(client, ["c"])
    await trio.sleep(9.5)
    assert unsettled(broker) == 3
    await trio.sleep(1)
    assert await dead(client) == [("a", "expired"), ("b", "expired")]
    assert unsettled(broker) == 1
    await trio.sleep(10)
    assert await dead(client) == [("c", "expired")]
    (partition_queue,) = broker.topics["t"].queue.partition_queues  # type: ignore[union-attr]
    assert partition_queue.expired_records == 3
    (metric,) = await client.administer("metrics.show", names=["linn_queue_expired_records_total"])
    assert [["t", ""], 3] in metric["samples"]


@served(PLAIN)
async def test_a_ttl_of_its_own_ends_a_record_in_the_middle_of_the_queue(client: RawClient, broker: Broker) -> None:
    await publish(client, ["long", "also long"])
    await publish(client, ["short"], ttl_ms=5_000)
    await publish(client, ["longer"], ttl_ms=60_000)
    await trio.sleep(5.5)
    assert unsettled(broker) == 3
    assert await client.taken("t") == ["long", "also long", "longer"]


@served(WITH_TTL)
async def test_the_smaller_of_two_ttls_counts(client: RawClient) -> None:
    await publish(client, ["own"], ttl_ms=5_000)
    await publish(client, ["topic's"], ttl_ms=60_000)
    await trio.sleep(6)
    assert await dead(client) == [("own", "expired")]
    await trio.sleep(15)
    assert await dead(client) == [("topic's", "expired")]


@served(PLAIN)
async def test_a_ttl_of_0_is_none_and_the_largest_is_taken(env: SimEnv, client: RawClient, broker: Broker) -> None:
    await publish(client, ["for ever"], ttl_ms=0)
    await publish(client, ["49 days"], ttl_ms=U32_MAX)
    await trio.sleep(3_600)
    assert unsettled(broker) == 2
    env.clock.jump(49 * 86_400_000)
    await trio.sleep(120)
    assert unsettled(broker) == 2
    env.clock.jump(86_400_000)
    await trio.sleep(120)
    assert unsettled(broker) == 1


@pytest.mark.parametrize("text", [WITH_TTL, DEAD], ids=["topic", "own"])
@simulated
async def test_a_leased_record_outlives_its_time_and_expires_when_it_comes_back(env: SimEnv, text: str) -> None:
    async with broker_on(env, text.replace('"10s"', '"60s"')) as broker:
        client = await connected(env)
        await publish(client, ["acked", "returned"], ttl_ms=15_000)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        acked, returned = await client.pull(subscription, 1), await client.pull(subscription, 1)
        await trio.sleep(40)
        assert unsettled(broker) == 2
        assert await client.settle(subscription, acked, ACK) == []
        assert await client.settle(subscription, returned, NACK) == []
        await trio.sleep(2)
        assert await dead(client) == [("returned", "expired")]
        assert unsettled(broker) == 0


@pytest.mark.parametrize("text", [WITH_TTL, DEAD], ids=["topic", "own"])
@simulated
async def test_nobody_gets_an_expired_record_also_if_the_clock_is_set_forward_just_then(env: SimEnv, text: str) -> None:
    async with broker_on(env, text):
        client = await connected(env)
        await publish(client, ["old"], ttl_ms=15_000)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        env.clock.jump(30_000)
        await publish(client, ["new"], ttl_ms=15_000)
        assert values((await client.pull(subscription, 9)).batches) == ["new"]
        assert await dead(client) == [("old", "expired")]


@pytest.mark.parametrize("text", [WITH_TTL, DEAD], ids=["topic", "own"])
@simulated
async def test_a_clock_that_is_set_back_delays_the_end(env: SimEnv, text: str) -> None:
    async with broker_on(env, text) as broker:
        client = await connected(env)
        await publish(client, ["a"], ttl_ms=15_000)
        env.clock.jump(-3_600_000)
        await trio.sleep(3_600)
        assert unsettled(broker) == 1
        await trio.sleep(90)
        assert unsettled(broker) == 0


@pytest.mark.parametrize("text", [WITH_TTL, DEAD], ids=["topic", "own"])
@simulated
async def test_records_expire_after_a_restart_and_those_due_meanwhile_at_once(env: SimEnv, text: str) -> None:
    async with broker_on(env, text):
        client = await connected(env)
        await publish(client, ["early"], ttl_ms=15_000)
        await trio.sleep(14)
        await publish(client, ["late"], ttl_ms=15_000)
    await trio.sleep(8)
    async with broker_on(env, text) as broker:
        await trio.sleep(1)
        assert unsettled(broker) == 1
        await trio.sleep(20)
        assert unsettled(broker) == 0


@served(DEAD)
async def test_a_ttl_that_is_set_live_counts_for_records_that_are_there(env: SimEnv, broker: Broker) -> None:
    await publish(await connected(env), ["a"])
    await trio.sleep(100)
    client = await connected(env)
    await publish(client, ["b"])
    await client.administer("topic.alter", name="t", settings={"ttl": "60s"})
    await trio.sleep(1)
    assert await dead(client) == [("a", "expired")]
    await client.administer("topic.alter", name="t", settings={"ttl": "unlimited"})
    await trio.sleep(600)
    assert unsettled(broker) == 1
    client = await connected(env)
    await client.administer("topic.alter", name="t", settings={"ttl": "60s"})
    await trio.sleep(1)
    assert unsettled(broker) == 0


@served('[topics.t]\nttl = "20s"\norder = "priority"\nlease = "60s"\n')
async def test_records_of_a_queue_with_an_order_expire_as_well(env: SimEnv, client: RawClient, broker: Broker) -> None:
    await publish(client, ["low", "also low"], priority=1)
    await publish(client, ["short"], priority=9, ttl_ms=5_000)
    await publish(client, ["high"], priority=9, ttl_ms=60_000)
    await trio.sleep(6)
    assert unsettled(broker) == 3
    subscription = (await client.call(m.Subscribe("t"))).subscription
    assert values((await client.pull(subscription, 1)).batches) == ["high"]
    env.clock.jump(20_000)
    assert (await client.pull(subscription, 9, wait_max_ms=100)).batches == []
    await trio.sleep(1)
    assert unsettled(broker) == 1, "it is leased"


@served('[topics.t]\nttl = "20s"\n')
async def test_without_a_target_expired_records_are_dropped(client: RawClient, broker: Broker) -> None:
    await publish(client, [str(number) for number in range(1_000)])
    await trio.sleep(22)
    assert unsettled(broker) == 0
    assert broker.topics["t"].partitions[0].log.bounds() == (1_000, 1_000)


@served('[topics.t]\nttl = "20s"\ndelivery = "at-most-once"\n')
async def test_where_delivery_settles_expired_records_are_not_delivered_either(
    env: SimEnv, client: RawClient, broker: Broker
) -> None:
    await client.call(m.Publish("t"), [records(["a", "b", "c"])])
    await client.call(m.Publish("t"), [records(["d"], ttl_ms=1_000)])
    subscription = (await client.call(m.Subscribe("t"))).subscription
    env.clock.jump(5_000)
    await client.call(m.Publish("t"), [records(["e"])])
    taken = [values((await client.pull(subscription, 9, wait_max_ms=100)).batches) for _ in range(3)]
    assert [value for some in taken for value in some] == ["a", "b", "c", "e"]
    await trio.sleep(61)
    assert unsettled(broker) == 0


@served('[topics.t]\nkind = "both"\nttl = "20s"\n')
async def test_a_stream_that_is_a_queue_keeps_its_records_for_readers(client: RawClient, broker: Broker) -> None:
    await publish(client, ["a", "b"], ttl_ms=5_000)
    await client.administer("subscription.create", topic="t", subscription="all")
    await trio.sleep(60)
    assert unsettled(broker) == 0
    assert await client.fetch("t") == ["a", "b"]
    assert broker.topics["t"].shared("all").unsettled_count() == 2, "retention says what a named subscription gets"


@served('[topics.t]\nkind = "stream"\n')
async def test_a_stream_refuses_records_with_a_ttl(client: RawClient) -> None:
    with pytest.raises(Refused, match="t is a stream") as refused:
        await publish(client, ["a"], ttl_ms=5_000)
    assert refused.value.code == "message.unsupported"


@served(PLAIN)
async def test_a_record_of_an_open_transaction_expires_once_it_is_committed(client: RawClient, broker: Broker) -> None:
    partition = broker.topics["t"].partitions[0]
    stable = partition.stable_offset
    await publish(client, ["a"])
    # What readers can't see yet is as a transaction leaves it.
    partition._stable_end = stable
    await publish(client, ["b"], ttl_ms=2_000)
    await trio.sleep(10)
    assert partition.log.bounds() == (0, 2)
    partition._stable_end = None
    await trio.sleep(2)
    assert unsettled(broker) == 1


@served('[topics.t]\nttl = "20s"\nlease = "60s"\n')
async def test_many_records_expire_in_steps_in_the_order_of_their_age(client: RawClient, broker: Broker) -> None:
    for _ in range(30):
        await publish(client, [str(number) for number in range(1_000)])
    await trio.sleep(10)
    await publish(client, ["young"])
    await trio.sleep(11)
    assert unsettled(broker) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_life_with_consumers_jumps_of_the_clock_and_restarts(seed: int) -> None:
    ttl_run.walk(seed)
