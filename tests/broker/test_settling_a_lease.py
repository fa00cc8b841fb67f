"""Settling all that is left of a lease by its delivery id, without naming offsets."""

from __future__ import annotations

import pytest
import trio
from raw_client import ALWAYS, RawClient, after_power_loss, broker_on, connected, served, simulated, values

from linn.core.broker.broker import Broker
from linn.core.queue.partition_queue import PartitionQueue
from linn.protocols.capnp.subscriber import LINGER_CREDIT_MIN, RELEASE_LINGER_S
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ACK, NACK, REJECT, EXTEND, RELEASE, _, _ = m.Verdict
QUEUE = '[topics.t]\nlease = "10s"\ndead_letter = "dead"\n[topics.dead]\n'
LETTERS = list("abcdefghij")


def whole(delivery_id: int, verdict: int = ACK, ms: int = 0) -> m.Settlement:
    """A settlement of all that is left of a lease in partition 0."""
    return m.Settlement(0, delivery_id, m.WHOLE_LEASE, m.WHOLE_LEASE, verdict, ms)


async def settle(client: RawClient, subscription: int, *entries: m.Settlement) -> list[str]:
    """The codes of the entries that the broker refuses."""
    return [refusal.code for refusal in (await client.call(m.Settle(subscription, list(entries)))).refused]


async def leased(client: RawClient, credit: int = 100) -> tuple[int, int]:
    """(subscription, delivery id) of LETTERS."""
    await client.publish("t", LETTERS)
    subscription = (await client.call(m.Subscribe("t", credit=credit))).subscription
    event = await client.delivery()
    assert values(event.batches) == LETTERS
    return subscription, event.message.delivery_id


def queue_of(broker: Broker) -> PartitionQueue:
    queue = broker.topics["t"].queue
    assert queue is not None
    return queue.partition_queue(0)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (ACK, []),
        (NACK, [("b", 2), ("d", 2), ("e", 2), ("f", 2), ("g", 2), ("h", 2), ("i", 2)]),
        (RELEASE, [("b", 1), ("d", 1), ("e", 1), ("f", 1), ("g", 1), ("h", 1), ("i", 1)]),
        (REJECT, []),
    ],
)
@served(QUEUE)
async def test_a_verdict_on_a_lease_is_about_the_records_that_are_left(
    broker: Broker, client: RawClient, verdict: int, expected: list[tuple[str, int]]
) -> None:
    subscription, id = await leased(client)
    singles = [m.Settlement(0, id, offset, offset + 1) for offset in (0, 2, 9)]
    assert await settle(client, subscription, *singles) == []
    await client.call(m.Credit(subscription, 0))
    log = queue_of(broker).log.state
    assert log is not None
    before = log.partition.log.bounds()[1]
    assert await settle(client, subscription, whole(id, verdict)) == []
    assert verdict == REJECT or log.partition.log.bounds()[1] == before + 1, "one record of the state log"
    assert await settle(client, subscription, whole(id, verdict)) == ["delivery.not_current"]
    assert [
        (value, event.message.attempt)
        for event in await pulled(client, subscription)
        for value in values(event.batches)
    ] == expected
    dead = ["b", "d", "e", "f", "g", "h", "i"] if verdict == REJECT else []
    with trio.fail_after(10):
        while (await client.administer("topic.show", name="dead"))["queue"]["unsettled"] != len(dead):
            await trio.sleep(0.1)
    queue_of(broker).subscription.check()


async def pulled(client: RawClient, subscription: int) -> list:
    """All deliveries that can be pulled now."""
    found = []
    while (event := await client.pull(subscription)).batches:
        found.append(event)
    return found


@served(QUEUE)
async def test_records_returned_before_belong_to_whoever_holds_them_now(
    broker: Broker, client: RawClient, other: RawClient
) -> None:
    subscription, id = await leased(client)
    await client.call(m.Credit(subscription, 0))
    assert await settle(client, subscription, m.Settlement(0, id, 3, 5, NACK)) == []
    theirs = (await other.call(m.Subscribe("t", credit=1))).subscription
    held = await other.delivery()
    assert (values(held.batches), held.message.attempt) == (["d"], 2)
    assert await settle(client, subscription, whole(id)) == []
    assert queue_of(broker).subscription.settled == [(5, 10)]
    assert await settle(other, theirs, whole(held.message.delivery_id)) == []
    again = await other.delivery()
    assert (values(again.batches), again.message.attempt) == (["e"], 2)
    assert await settle(other, theirs, whole(again.message.delivery_id)) == []
    assert queue_of(broker).subscription.settled_before() == 10


@served(QUEUE)
async def test_a_delivery_id_that_is_not_current_is_refused_without_offsets_too(
    broker: Broker, client: RawClient, thief: RawClient
) -> None:
    subscription, id = await leased(client)
    theirs = (await thief.call(m.Subscribe("t"))).subscription
    for verdict in m.Verdict:
        refused = ["delivery.wrong_kind" if verdict == m.Verdict.READY else "delivery.not_current"]
        assert await settle(thief, theirs, whole(id, verdict, 1_000)) == refused
        assert await settle(client, subscription, whole(id + 1, verdict, 1_000)) == refused
    for first, end in ((-1, 10), (-1, 0), (0, -1), (-2, -2)):
        assert await settle(client, subscription, m.Settlement(0, id, first, end)) == ["delivery.not_current"]
    assert queue_of(broker).subscription.leased_count == 10
    await client.call(m.Credit(subscription, 0))
    await trio.sleep(11)
    assert await settle(client, subscription, whole(id)) == ["delivery.not_current"]
    assert queue_of(broker).subscription.settled_before() == 0


@served(QUEUE)
async def test_a_whole_lease_is_extended_whatever_is_left_of_it(broker: Broker, client: RawClient) -> None:
    subscription, id = await leased(client)
    await client.call(m.Credit(subscription, 0))
    assert await settle(client, subscription, m.Settlement(0, id, 0, 9)) == []
    for _ in range(3):
        await trio.sleep(8)
        assert await settle(client, subscription, whole(id, EXTEND, 10_000)) == []
    assert await settle(client, subscription, whole(id)) == []
    assert queue_of(broker).subscription.settled_before() == 10


@simulated
async def test_what_is_left_of_a_lease_stays_settled_after_a_power_loss(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, ALWAYS + QUEUE):
            client = await connected(env)
            subscription, id = await leased(client)
            assert await settle(client, subscription, m.Settlement(0, id, 1, 2), m.Settlement(0, id, 4, 6, NACK)) == []
            await client.call(m.Credit(subscription, 0))
            assert await settle(client, subscription, whole(id)) == []
            env.crash()

    assert await env.run_until_death(process)
    env = await after_power_loss(env, ALWAYS + QUEUE)
    async with broker_on(env, ALWAYS + QUEUE) as broker:
        assert queue_of(broker).subscription.settled_before() == 4
        assert queue_of(broker).subscription.settled == [(6, 10)]
        assert await (await connected(env)).taken("t") == ["e", "f"]


@served('[topics.t]\nlease = "10s"\n')
async def test_each_delivery_has_a_lease_of_its_own(broker: Broker, client: RawClient) -> None:
    large = [bytes([number]) * 400_000 for number in range(6)]
    for value in large:
        await client.publish("t", [value])
    subscription = (await client.call(m.Subscribe("t", credit=6))).subscription
    events = [await client.delivery()]
    assert 0 < sum(batch.count for batch in events[0].batches) < 6, "more than fits into one delivery"
    while events[-1].batches[-1].end_offset < 6:
        events.append(await client.delivery())
    ids = [event.message.delivery_id for event in events]
    assert len(set(ids)) == len(ids)
    assert {event.message.attempt for event in events} == {1}, "records that were not delivered use up no attempt"
    assert await settle(client, subscription, whole(ids[0])) == []
    assert queue_of(broker).subscription.settled_before() == events[0].batches[-1].end_offset
    assert queue_of(broker).subscription.leased_count == 6 - events[0].batches[-1].end_offset
    assert await settle(client, subscription, *[whole(id) for id in ids[1:]]) == []
    assert queue_of(broker).subscription.settled_before() == 6


@served('[topics.t]\nkind = "stream"\n[topics.once]\ndelivery = "at-most-once"\n')
async def test_where_there_are_no_leases_offsets_have_to_be_named(client: RawClient) -> None:
    member = (await client.call(m.Subscribe("t", group="g"))).subscription
    reader = (await client.call(m.Subscribe("t"))).subscription
    once = (await client.call(m.Subscribe("once"))).subscription
    for verdict in m.Verdict:
        assert await settle(client, member, whole(1, verdict, 1)) == ["delivery.wrong_kind"]
        assert await settle(client, reader, whole(1, verdict, 1)) == ["delivery.wrong_kind"]
        refused = [] if verdict == ACK else ["delivery.not_current"]
        if verdict == m.Verdict.READY:
            refused = ["delivery.wrong_kind"]
        assert await settle(client, once, whole(1, verdict, 1)) == refused


@pytest.mark.parametrize(("credit", "waits"), [(LINGER_CREDIT_MIN - 1, False), (LINGER_CREDIT_MIN, True)])
@served("[topics.t]\n")
async def test_few_workers_get_their_next_record_at_once_and_a_large_credit_waits_for_more_acks(
    client: RawClient, credit: int, waits: bool
) -> None:
    await client.publish("t", ["v"] * (credit + 1))
    subscription = (await client.call(m.Subscribe("t", credit=credit))).subscription
    delivery_id = (await client.delivery()).message.delivery_id
    began = trio.current_time()
    assert await settle(client, subscription, m.Settlement(0, delivery_id, 0, 1, ACK, 0)) == []
    await client.delivery()
    assert (trio.current_time() - began >= RELEASE_LINGER_S) == waits
