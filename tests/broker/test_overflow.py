"""Limits on the number of a queue's records, and what `overflow` does at them: whom it takes, and whom it leaves."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from raw_client import (
    ALWAYS,
    RawClient,
    Refused,
    after_power_loss,
    broker_on,
    connected,
    records,
    served,
    simulated,
    unsynced,
)
from raw_client import values as values_of
from seeds import tiered

from linn.core.broker.broker import Broker
from linn.core.topics.room import SURPLUS_SHARE, surplus_of
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = '[topics.t]\nlease = "1h"\nrecords_max = 5\n{}[topics.dead]\nkind = "stream"\n'
DROPS = 'overflow = "drop-head"\n'
KILLS = 'overflow = "dead-letter"\ndead_letter = "dead"\n'
FANOUT = '[exchanges.e]\ntype = "fanout"\n' + "".join(
    f'[topics.{name}]\noverflow = "reject"\nrecords_max = {limit}\n[[topics.{name}.bindings]]\nexchange = "e"\n'
    for name, limit in (("a", 10), ("b", 2), ("c", 10))
)


async def publish_one_by_one(client: RawClient, numbers: range) -> None:
    for number in numbers:
        await client.publish("t", [str(number)])
        await trio.sleep(0.1)


async def counts(client: RawClient, topic: str = "t") -> dict[str, int]:
    shown: dict[str, int] = (await client.administer("topic.show", name=topic))["queue"]
    return shown


async def dead_letters(client: RawClient) -> list[tuple[str, object]]:
    """The values and reasons of all dead letters."""
    batches = (await client.ask(m.Fetch("dead", 0, 0, bytes_max=1 << 20))).batches
    return [(record.value.decode(), record.labels["linn.dead.reason"]) for it in batches for record in it.records()]


# --- the number of records --------------------------------------------------------------------------------------------


@served(TEXT.format(DROPS))
async def test_a_queue_over_its_number_of_records_drops_the_oldest_and_keeps_leased_ones(client: RawClient) -> None:
    worker = (await client.call(m.Subscribe("t", credit=2))).subscription
    await publish_one_by_one(client, range(20))
    held = [await client.delivery() for _ in range(2)]
    shown = await counts(client)
    assert (shown["unsettled"], shown["leased"], shown["dropped"], shown["dead_lettered"]) == (5, 2, 15, 0)
    for event in held:
        assert await client.settle(worker, event) == []
    assert not [it for it in client.pushed if isinstance(it.message, m.LeaseEnded)]
    await client.call(m.Unsubscribe(worker))
    assert await client.taken("t") == ["17", "18", "19"]


@served(TEXT.format(DROPS))
async def test_one_batch_of_more_records_than_the_limit_leaves_its_newest_ones(client: RawClient) -> None:
    await client.publish("t", [str(number) for number in range(100)])
    await trio.sleep(1)
    assert await client.taken("t") == ["95", "96", "97", "98", "99"]


@served(ALWAYS + TEXT.format(DROPS))
async def test_records_are_dropped_once_they_are_committed_with_no_publish_after_them(client: RawClient) -> None:
    await client.publish("t", [str(number) for number in range(100)], acks=m.Acks.NONE)
    await trio.sleep(5)
    assert (await counts(client))["unsettled"] == 5


@served(ALWAYS + TEXT.format(DROPS))
async def test_records_make_room_once_those_that_came_instead_are_committed(env: SimEnv, client: RawClient) -> None:
    await client.publish("t", [str(number) for number in range(5)])
    with unsynced(env, "t"):
        await client.send(m.Publish("t"), [records(["5", "6"])])
        await trio.sleep(5)
        assert (await counts(client))["dropped"] == 0
    await trio.sleep(1_000)
    assert (await counts(await connected(env)))["dropped"] == 2


@served(TEXT.format(DROPS + "partitions = 4\n"))
async def test_the_fullest_partitions_give_up_records_first(client: RawClient) -> None:
    for partition, number in ((0, 1), (1, 2), (2, 9)):
        await client.publish("t", ["x"] * number, partition=partition)
    await trio.sleep(1)
    shown = (await client.administer("subscription.show", topic="t"))["by_partition"]
    assert [it["ready"] for it in shown] == [1, 2, 2, 0]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 200))
def test_the_surplus_leaves_what_fits_and_takes_from_the_largest(held: list[int], limit: int) -> None:
    surplus = surplus_of(held, limit)
    kept = [number - part for number, part in zip(held, surplus, strict=True)]
    assert min(kept) >= 0
    assert sum(kept) == min(sum(held), limit - limit // SURPLUS_SHARE)
    for number, part in zip(kept, surplus, strict=True):
        assert not part or number >= max(kept) - 1


@served(TEXT.format('overflow = "block"\n'))
async def test_publishers_wait_for_their_number_of_records(client: RawClient) -> None:
    await client.publish("t", ["0", "1", "2", "3"])
    waits = await client.send(m.Publish("t"), [records(["4", "5"])])
    assert await client.is_silent(5)
    worker = (await client.call(m.Subscribe("t"))).subscription
    await client.settle(worker, await client.pull(worker, 1))
    assert (await client.answer(waits)).message.placements[0].base_offset == 4


@served(TEXT.format(DROPS + 'delivery = "at-most-once"\n').replace('lease = "1h"\n', ""))
async def test_a_queue_whose_delivery_settles_counts_what_is_left(client: RawClient) -> None:
    await publish_one_by_one(client, range(4))
    worker = (await client.call(m.Subscribe("t", credit=3))).subscription
    assert len(values_of((await client.delivery()).batches)) == 3
    await publish_one_by_one(client, range(4, 8))
    assert (await counts(client))["dropped"] == 0
    assert (await counts(client))["unsettled"] == 5
    await client.call(m.Unsubscribe(worker))


# --- reject -----------------------------------------------------------------------------------------------------------


@served(FANOUT)
async def test_a_refused_publish_has_stored_nothing_in_any_topic_behind_an_exchange(
    broker: Broker, client: RawClient
) -> None:
    await client.publish("e", ["1", "2"], to_exchange=True)
    with pytest.raises(Refused, match=r"topic\.full.*topic b is full: it holds 2 unsettled records"):
        await client.publish("e", ["3"], to_exchange=True)
    assert [broker.topics[name].partitions[0].log.bounds()[1] for name in "abc"] == [2, 2, 2]
    await client.taken("b", count=1)
    await client.publish("e", ["3"], to_exchange=True)
    assert [broker.topics[name].partitions[0].log.bounds()[1] for name in "abc"] == [3, 3, 3]


@served('[topics.t]\npartitions = 8\npartitioner = "round-robin"\nrecords_max = 5\noverflow = "reject"\n')
async def test_the_parts_of_a_batch_for_several_partitions_count_together(client: RawClient) -> None:
    await client.call(m.Publish("t"), [records(["0"])])
    with pytest.raises(Refused, match=r"topic\.full"):
        await client.call(m.Publish("t"), [records([str(number) for number in range(1, 6)])])
    await client.call(m.Publish("t"), [records([str(number) for number in range(1, 5)])])
    assert (await counts(client))["unsettled"] == 5


# --- dead letters -----------------------------------------------------------------------------------------------------


@served(TEXT.format(KILLS))
async def test_the_oldest_records_become_dead_letters_and_leased_ones_stay(client: RawClient) -> None:
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    await publish_one_by_one(client, range(9))
    held = await client.delivery()
    await trio.sleep(1)
    assert await dead_letters(client) == [(str(number), "overflow") for number in range(1, 5)]
    shown = await counts(client)
    assert (shown["unsettled"], shown["dropped"], shown["dead_lettered"]) == (5, 0, 4)
    assert await client.settle(worker, held) == []
    await client.call(m.Unsubscribe(worker))
    assert await client.taken("t") == ["5", "6", "7", "8"]


@served(TEXT.format(KILLS).replace("[topics.dead]\n", '[topics.dead]\nbytes_max = "1KiB"\nmessage_bytes_max = 1000\n'))
async def test_dead_letters_that_wait_for_room_take_none_from_newer_records(client: RawClient) -> None:
    await publish_one_by_one(client, range(60))
    await trio.sleep(1)
    shown = await counts(client)
    copied = len(await dead_letters(client))
    assert copied < 55
    assert (shown["unsettled"], shown["dead_lettered"]) == (60 - copied, 55)
    assert await client.taken("t") == ["55", "56", "57", "58", "59"]


# --- live changes -----------------------------------------------------------------------------------------------------


@served(TEXT.format(DROPS))
async def test_a_lower_limit_ends_records_at_once_and_none_of_a_consumer(client: RawClient) -> None:
    await publish_one_by_one(client, range(5))
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    held = await client.delivery()
    await client.administer("topic.alter", name="t", settings={"records_max": 2})
    await trio.sleep(1)
    assert (await counts(client))["dropped"] == 3
    assert await client.settle(worker, held) == []
    await client.call(m.Unsubscribe(worker))
    assert await client.taken("t") == ["4"]


@pytest.mark.parametrize("change", [{"records_max": 9}, {"records_max": "unlimited"}, {"overflow": "drop-head"}])
@simulated
async def test_a_change_of_limits_lets_waiting_publishes_go_on(env: SimEnv, change: dict[str, object]) -> None:
    async with broker_on(env, TEXT.format("")):
        client = await connected(env)
        await client.publish("t", ["x"] * 5)
        waits = await client.send(m.Publish("t"), [records(["y"])])
        assert await client.is_silent(5)
        await client.administer("topic.alter", name="t", settings=change)
        assert (await client.answer(waits)).message.placements[0].base_offset == 5


@served(TEXT.format(DROPS))
async def test_a_queue_with_a_number_of_records_becomes_no_stream(client: RawClient) -> None:
    with pytest.raises(Refused, match=r"topics\.t\.records_max: counts the unsettled records of a queue"):
        await client.administer("topic.alter", name="t", settings={"kind": "stream"})
    await client.administer("topic.alter", name="t", settings={"kind": "stream", "records_max": None})


# --- crashes ----------------------------------------------------------------------------------------------------------


def overflow_and_lose_power(seed: int) -> None:
    """A queue that overflows, whose machine loses power at random: each record is in one place, once."""
    rng = Random(seed)
    text = ALWAYS + TEXT.format(KILLS + "partitions = 2\n")
    confirmed: list[str] = []
    acked: list[str] = []
    asked: set[str] = set()

    async def work(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            worker = (await client.call(m.Subscribe("t"))).subscription
            held = []
            for _ in range(40):
                step = rng.randrange(4)
                if step < 2:
                    number = len(confirmed)
                    batch = [f"{number + at}-{rng.random()}" for at in range(rng.randint(1, 4))]
                    await client.publish("t", batch, partition=rng.randrange(2))
                    confirmed.extend(batch)
                elif step == 2:
                    event = await client.pull(worker, rng.randint(1, 2))
                    held += [event] if event.batches else []
                elif held:
                    event = held.pop(rng.randrange(len(held)))
                    asked.update(values_of(event.batches))
                    assert await client.settle(worker, event) == [], "no lease ends for lack of room"
                    acked.extend(values_of(event.batches))
                if rng.random() < 0.02:
                    env.crash()

    async def scenario(env: SimEnv) -> None:
        for _ in range(3):
            if not await env.run_until_death(work):
                env.crash()
            env = await after_power_loss(env, text)
        async with broker_on(env, text):
            client = await connected(env)
            await trio.sleep(20)
            dead = Counter(value for value, _ in await dead_letters(client))
            assert max(dead.values(), default=1) == 1, "each has one copy"
            left = await client.taken("t", count=1000)
            places = Counter([*dead, *left, *acked])
            assert not [it for it in confirmed if it not in places and it not in asked], "no confirmed record is lost"
            assert not [it for it in places if places[it] > 1], "each is in one place"

    run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", tiered(range(20), 2))
def test_power_losses_lose_no_record_of_a_queue_that_overflows(seed: int) -> None:
    overflow_and_lose_power(seed)
