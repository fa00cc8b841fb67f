"""The status of messages, by their ids: in every state, for anybody, after restarts and losses of power."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from uuid import UUID

import pytest
import trio
from raw_client import (
    ALWAYS,
    RawClient,
    Refused,
    after_power_loss,
    broker_on,
    connected,
    served,
    simulated,
    unsynced,
    values,
)
from seeds import tiered
from test_dedup import send, with_ids
from test_transactions import Owner

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.topics import message_index
from linn.core.topics.message_index import index_topic
from linn.core.topics.shared_entry import OWN_QUEUE, state_topic
from linn.message_status import IDS_MAX
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ACK, NACK, REJECT, *_ = m.Verdict
QUEUE = '[topics.t]\nstatus = "7d"\n'
LIMITED = QUEUE + 'records_max = 2\noverflow = "drop-head"\n'
DEAD = QUEUE + 'dead_letter = "dead"\nmax_deliveries = 2\nttl = "1h"\n[topics.dead]\nstatus = "7d"\n'


async def status(client: RawClient, *ids: int, topic: str = "t") -> list[str]:
    """The states of messages, with the reasons of dead ones."""
    found = await client.administer("message.status", topic=topic, ids=[str(UUID(int=id)) for id in ids])
    assert [each["id"] for each in found] == [str(UUID(int=id)) for id in ids]
    return [" ".join([each["state"], each["reason"]]).strip() for each in found]


async def settle_one(client: RawClient, subscription: int, verdict: int, **options: Any) -> None:
    """Take the next message of the queue, and settle it."""
    event = await client.pull(subscription, records_max=1)
    await client.settle(subscription, event, verdict, **options)


@served(QUEUE)
async def test_a_message_is_unknown_then_stored_delivered_and_settled(client: RawClient) -> None:
    assert await status(client, 7) == ["unknown"]
    await send(client, with_ids(7, 8, 9))
    assert await status(client, 9, 7, 5, 8, 7) == ["stored", "stored", "unknown", "stored", "stored"]
    subscription = (await client.call(m.Subscribe("t"))).subscription
    event = await client.pull(subscription, records_max=1)
    assert await status(client, 7, 8) == ["delivered", "stored"]
    await client.settle(subscription, event, NACK)
    assert await status(client, 7, 8) == ["delivered", "stored"], "a consumer had it"
    await settle_one(client, subscription, ACK)
    await settle_one(client, subscription, ACK)
    assert await status(client, 7, 8, 9) == ["settled", "settled", "stored"]


@served(QUEUE)
async def test_the_answer_has_the_place(client: RawClient) -> None:
    await send(client, with_ids(1, 2))
    first, second = await client.administer("message.status", topic="t", ids=[str(UUID(int=2)), str(UUID(int=3))])
    assert (first["partition"], first["offset"], first["reason"]) == (0, 1, "")
    assert (second["partition"], second["offset"]) == (None, None)


@served(QUEUE)
async def test_messages_without_ids_of_their_own_count_up_from_the_first(client: RawClient) -> None:
    base = (1 << 128) - 2
    await send(client, build_from_records([Record(value=b"%d" % n) for n in range(4)], base_id=base))
    assert await status(client, base, base + 1, 0, 1, 2) == ["stored"] * 4 + ["unknown"]


@served(DEAD)
async def test_dead_letters_have_reasons_and_can_be_asked_about_where_they_are(env: SimEnv) -> None:
    client = await connected(env)
    await send(client, with_ids(1, 2, 3, 4))
    subscription = (await client.call(m.Subscribe("t"))).subscription
    await settle_one(client, subscription, REJECT)
    await settle_one(client, subscription, NACK)
    await settle_one(client, subscription, NACK)
    await settle_one(client, subscription, ACK)
    await trio.sleep(2)
    assert await status(client, 1, 2, 3, 4) == ["dead rejected", "dead max_deliveries", "settled", "stored"]
    assert await status(client, 1, 2, 3, topic="dead") == ["stored", "stored", "unknown"]
    await trio.sleep(3700)
    client = await connected(env)
    assert await status(client, 4, 1) == ["expired", "dead rejected"]


@served(QUEUE + 'ttl = "20s"\n')
async def test_a_message_that_expires_without_a_dead_letter_topic_is_expired(client: RawClient) -> None:
    await send(client, with_ids(1))
    await trio.sleep(25)
    assert await status(client, 1) == ["expired"]


@served(LIMITED)
async def test_messages_that_made_room_are_dropped(client: RawClient) -> None:
    for id in range(5):
        await send(client, with_ids(id))
        await trio.sleep(1)
    assert await status(client, *range(5)) == ["dropped"] * 3 + ["stored"] * 2
    await client.administer("topic.purge", name="t")
    assert await status(client, *range(5)) == ["dropped"] * 5


@served('[topics.t]\nkind = "stream"\nstatus = "7d"\n')
async def test_a_message_of_a_stream_is_stored_or_unknown(client: RawClient) -> None:
    await send(client, with_ids(1))
    assert await status(client, 1, 2) == ["stored", "unknown"]


@served(QUEUE + 'delivery = "exactly-once"\n')
async def test_a_decided_message_is_decided_until_it_is_done(client: RawClient) -> None:
    await send(client, with_ids(1))
    subscription = (await client.call(m.Subscribe("t", member="ann", two_phase=True))).subscription
    event = await client.pull(subscription)
    await client.settle(subscription, event, m.Verdict.READY)
    assert await status(client, 1) == ["decided"]
    await client.settle(subscription, event, m.Verdict.DONE)
    assert await status(client, 1) == ["settled"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_message_of_a_transaction_is_in_doubt_until_it_ends(commit: bool) -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, QUEUE):
            client = await connected(env)
            owner = await Owner.open(client)
            await owner.publish("t", ["1"], id=UUID(int=1))
            assert await status(client, 1) == ["in_doubt"]
            await owner.end(commit=commit)
            assert await status(client, 1) == ["stored" if commit else "aborted"]
            if not commit:
                await send(client, with_ids(1))
                assert await status(client, 1) == ["stored"], "it was published again"

    run_simulation(1, scenario)


@served(QUEUE + 'partitions = 3\npartitioner = "murmur2"\n')
async def test_a_message_is_found_in_any_partition(client: RawClient) -> None:
    for partition in range(3):
        await client.call(m.Publish("t", partition=partition), [with_ids(partition)])
    assert await status(client, 2, 0, 1, 3) == ["stored"] * 3 + ["unknown"]


@served('[topics.t]\ndead_letter = "d"\n[topics.d]\n')
async def test_status_begins_and_ends_live(client: RawClient) -> None:
    with pytest.raises(Refused, match=r"message\.status_unsupported"):
        await status(client, 1)
    await send(client, with_ids(1))
    await client.administer("topic.alter", name="t", settings={"status": "1h"})
    await send(client, with_ids(2))
    subscription = (await client.call(m.Subscribe("t"))).subscription
    await settle_one(client, subscription, REJECT)
    await settle_one(client, subscription, REJECT)
    await trio.sleep(1)
    assert await status(client, 1, 2) == ["unknown", "dead rejected"], "ids count from the change on"
    await client.administer("topic.alter", name="t", settings={"status": "off"})
    with pytest.raises(Refused, match=r"message\.status_unsupported"):
        await status(client, 2)
    await send(client, with_ids(3))
    await client.administer("topic.alter", name="t", settings={"status": "1h", "partitions": 2})
    await send(client, with_ids(4))
    await client.call(m.Publish("t", partition=1), [with_ids(5)])
    assert await status(client, 3, 4, 5) == ["unknown", "stored", "stored"]
    await client.administer("topic.alter", name="t", settings={"partitions": 3})
    await client.call(m.Publish("t", partition=2), [with_ids(6)])
    assert await status(client, 3, 4, 5, 6) == ["unknown", "stored", "stored", "stored"]
    await client.administer("topic.delete", name="t")
    await client.administer("topic.create", name="t", settings={"status": "1h"})
    assert await status(client, 3, 4, 5, 6) == ["unknown"] * 4


@simulated
async def test_a_status_that_the_file_sets_knows_the_records_that_are_there(env: SimEnv) -> None:
    async with broker_on(env, "[topics.t]\npartitions = 2\n"):
        client = await connected(env)
        for id in range(30):
            await send(client, with_ids(id))
        assert len(await client.taken("t", count=3)) == 3
        await trio.sleep(2)
    with small_runs():
        for text in (QUEUE + "partitions = 2\n", QUEUE + "partitions = 4\n"):
            async with broker_on(env, text):
                client = await connected(env)
                found = await status(client, *range(31))
                assert found == ["settled"] * 3 + ["stored"] * 27 + ["unknown"]


@served(QUEUE)
async def test_wrong_questions_are_refused(client: RawClient) -> None:
    for topic, ids, code in (
        ("u", [], "topic.unknown"),
        ("t", ["7"], "config.invalid"),
        ("t", [7], "config.invalid"),
        ("t", ["x" * 1000], "config.invalid"),
        ("t", [str(UUID(int=1))] * (IDS_MAX + 1), "limit.exceeded"),
        ("t", [str(UUID(int=1))] * 40_000, "limit.exceeded"),
    ):
        with pytest.raises(Refused) as refused:
            await client.administer("message.status", topic=topic, ids=ids)
        assert refused.value.code == code
    assert await status(client) == []
    assert await status(client, *range(IDS_MAX)) == ["unknown"] * IDS_MAX


# --- restarts ---------------------------------------------------------------------------------------------------------


@simulated
async def test_outcomes_survive_restarts_as_long_as_they_are_kept(env: SimEnv) -> None:
    text = QUEUE.replace("7d", "600s") + 'dead_letter = "d"\n[topics.d]\n'
    async with broker_on(env, text):
        client = await connected(env)
        await send(client, with_ids(1, 2, 3))
        subscription = (await client.call(m.Subscribe("t"))).subscription
        await settle_one(client, subscription, ACK)
        await settle_one(client, subscription, REJECT)
        await settle_one(client, subscription, ACK)
        await trio.sleep(2)
    for _ in range(2):
        async with broker_on(env, text):
            client = await connected(env)
            assert await status(client, 1, 2, 3) == ["settled", "dead rejected", "settled"]
            await trio.sleep(200)
    async with broker_on(env, text) as broker:
        await trio.sleep(300)
        client = await connected(env)
        assert await status(client, 1, 2, 3) == ["unknown"] * 3
        (queue,) = broker.topics["t"].queue.partition_queues  # type: ignore[union-attr]
        assert queue.partition.start_offset == 3, "nothing is kept once its id is forgotten"
        assert not queue.subscription._states.ended.count


@contextmanager
def small_runs(rows: int = 8, endings: int = 3) -> Iterator[None]:
    """Write runs and marks of the index soon."""
    before = message_index.RUN_ROWS_MAX, message_index.ENDINGS_AT_ONCE
    message_index.RUN_ROWS_MAX, message_index.ENDINGS_AT_ONCE = rows, endings
    try:
        yield
    finally:
        message_index.RUN_ROWS_MAX, message_index.ENDINGS_AT_ONCE = before


@simulated
async def test_a_status_outlives_its_record(env: SimEnv) -> None:
    text = QUEUE.replace("7d", "600s") + 'dead_letter = "d"\nmax_deliveries = 1\n[topics.d]\n'
    ids = range(60)
    outcomes = {id: ("settled", "dead rejected", "dead max_deliveries")[id % 3] for id in ids}
    with small_runs():
        async with broker_on(env, text) as broker:
            client = await connected(env)
            subscription = (await client.call(m.Subscribe("t"))).subscription
            for id in ids:
                await send(client, with_ids(id))
                await settle_one(client, subscription, (ACK, REJECT, NACK)[id % 3])
            await trio.sleep(25)
            assert broker.topics["t"].partitions[0].start_offset >= 48, "settled records go when a run has their ids"
            assert await status(client, *ids, 99) == [*outcomes.values(), "unknown"]
        for _ in range(2):
            async with broker_on(env, text) as broker:
                client = await connected(env)
                assert await status(client, *ids, 99) == [*outcomes.values(), "unknown"]
                await trio.sleep(100)
                await send(await connected(env), with_ids(100))
        async with broker_on(env, text) as broker:
            await trio.sleep(600)
            client = await connected(env)
            assert await status(client, *ids, 100) == ["unknown"] * 60 + ["stored"]
            (index,) = broker.topics["t"].ids.statuses.indexes.values()  # type: ignore[union-attr]
            assert index.log.partition.start_offset >= 5 * 257, "runs go as well"
        async with broker_on(env, text):
            assert await status(await connected(env), *ids, 100) == ["unknown"] * 60 + ["stored"]


@simulated
async def test_a_message_is_known_as_long_as_it_waits(env: SimEnv) -> None:
    text = QUEUE.replace("7d", "100s")
    with small_runs():
        for _ in range(2):
            async with broker_on(env, text):
                client = await connected(env)
                if await status(client, 0) == ["unknown"]:
                    for id in range(20):
                        await send(client, with_ids(id))
                await trio.sleep(500)
                assert await status(await connected(env), *range(20)) == ["stored"] * 20


@simulated
async def test_the_newest_of_several_messages_with_an_id_counts_also_over_runs(env: SimEnv) -> None:
    with small_runs():
        async with broker_on(env, QUEUE):
            client = await connected(env)
            subscription = (await client.call(m.Subscribe("t"))).subscription
            for id in (7, *range(10, 20), 7, *range(20, 30)):
                await send(client, with_ids(id))
            await trio.sleep(15)
            await settle_one(client, subscription, ACK)
            assert await status(client, 7) == ["stored"]
        async with broker_on(env, QUEUE):
            assert await status(await connected(env), 7, 10) == ["stored", "stored"]


@served(QUEUE + 'partitions = 2\npartitioner = "murmur2"\n')
async def test_a_message_that_was_aborted_in_one_partition_may_be_in_another(client: RawClient) -> None:
    owner = await Owner.open(client)
    await owner.publish("t", ["1"], id=UUID(int=1))
    await owner.end(commit=False)
    assert await status(client, 1) == ["aborted"]
    await client.call(m.Publish("t", partition=1), [with_ids(1)])
    assert await status(client, 1) == ["stored"]


def live_and_lose_power(seed: int) -> None:
    """Messages are published, taken, acked and rejected over losses of power; each confirmed one has its status."""
    with small_runs(rows=3 + seed % 20):
        _live_and_lose_power(seed)


def _live_and_lose_power(seed: int) -> None:
    rng = Random(seed)
    text = ALWAYS + QUEUE + 'dead_letter = "dead"\nrecords_max = 8\noverflow = "drop-head"\n[topics.dead]\n'
    text += 'kind = "stream"\nstatus = "7d"\n'
    sent: dict[int, set[str]] = {}
    """The states that each confirmed message may have."""

    async def work(env: SimEnv) -> None:
        env.disk.crash_at = len(env.disk.operations) + rng.randrange(40, 400)
        async with broker_on(env, text):
            client = await connected(env, producer_id=0)
            subscription = (await client.call(m.Subscribe("t"))).subscription
            for _ in range(100):
                if rng.random() < 0.5:
                    ids = [rng.getrandbits(40) for _ in range(rng.randint(1, 3))]
                    await send(client, with_ids(*ids))
                    sent.update({id: {"stored", "delivered", "dropped"} for id in ids})
                    continue
                event = await client.pull(subscription, records_max=rng.randint(1, 3))
                taken = [record.id.int for batch in event.batches for record in batch.records() if record.id]
                verdict = rng.choice((ACK, REJECT, NACK))
                outcome = {ACK: {"settled"}, REJECT: {"dead rejected"}, NACK: {"delivered", "dropped"}}[verdict]
                for id in taken:
                    sent[id] = sent.get(id, {"stored", "delivered", "dropped"}) | outcome
                if taken:
                    await client.settle(subscription, event, verdict)
                    # A nack is no promise that survives.
                    sent.update({id: outcome | ({"stored"} if verdict == NACK else set()) for id in taken})

    async def scenario(env: SimEnv) -> None:
        for _ in range(4):
            if not await env.run_until_death(work):
                env.crash()
            env = await after_power_loss(env, text)
        async with broker_on(env, text):
            client = await connected(env)
            await trio.sleep(2)
            ids = list(sent)
            found = dict(zip(ids, await status(client, *ids), strict=True))
            for id, state in found.items():
                assert state in sent[id], f"{id} is {state}, not one of {sent[id]}"
            dead = [id for id, state in found.items() if state == "dead rejected"]
            assert await status(client, *dead, topic="dead") == ["stored"] * len(dead), "a copy of each"
            waiting = {id for id, state in found.items() if state in ("stored", "delivered")}
            taken = await client.taken("t")
            assert set(map(int, taken)) >= waiting & sent.keys()

    run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", tiered(range(16), 2))
def test_power_losses_change_no_status(seed: int) -> None:
    live_and_lose_power(seed)


def publish_and_lose_the_end(seed: int) -> None:
    """The log is synced from time to time only: the last records may be lost, and others get their offsets."""
    rng = Random(seed)
    text = '[topics.t]\nkind = "stream"\nstatus = "7d"\n'
    sent: list[int] = []

    async def work(env: SimEnv) -> None:
        env.disk.crash_at = len(env.disk.operations) + rng.randrange(20, 400)
        async with broker_on(env, text):
            client = await connected(env)
            for _ in range(60):
                sent.append(rng.getrandbits(40))
                await send(client, with_ids(sent[-1]))
                await trio.sleep(rng.choice((0, 0, 0.3)))

    async def scenario(env: SimEnv) -> None:
        for _ in range(4):
            if not await env.run_until_death(work):
                env.crash()
            env = await after_power_loss(env, text)
        async with broker_on(env, text):
            client = await connected(env)
            values = await client.fetch("t", bytes_max=1 << 20)
            ids = [str(UUID(int=id)) for id in sent]
            found = await client.administer("message.status", topic="t", ids=ids)
            places = {int(UUID(each["id"])): each["offset"] for each in found if each["state"] != "unknown"}
            wanted = {int(value): offset for offset, value in enumerate(values)}
            assert places == wanted, "each id leads to its own record"

    with small_runs():
        run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", tiered(range(8), 2))
def test_an_id_leads_to_no_other_record_after_a_loss_of_power(seed: int) -> None:
    publish_and_lose_the_end(seed)


# --- what a run and a mark wait for -----------------------------------------------------------------------------------


def trim_and_lose_power(seed: int) -> None:
    """Settled records wait for the log of their ids, and power is lost before that is synced."""
    text, ids = ALWAYS + "segment_bytes_max = 4096\n" + QUEUE, range(60)

    async def work(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            with unsynced(env, index_topic("t")):
                for id in ids:
                    record = Record(value=bytes(300), id=UUID(int=id))
                    await client.call(m.Publish("t"), [build_from_records([record], base_id=0)])
                assert len(await client.taken("t")) == len(ids)
                await trio.sleep(15)
            env.crash()

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(work)
        env = await after_power_loss(env, text)
        async with broker_on(env, text):
            assert await status(await connected(env), *ids) == ["settled"] * len(ids), "an id outlives its record"

    with small_runs():
        run_simulation(seed, scenario)


def acknowledge_and_lose_power(seed: int) -> None:
    """Records are acked, and power is lost before that is synced; then they are rejected."""
    text, ids = ALWAYS + QUEUE.replace("7d", "600s"), range(4)

    async def work(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            await send(client, with_ids(*ids))
            subscription = (await client.call(m.Subscribe("t"))).subscription
            event = await client.pull(subscription)
            with unsynced(env, state_topic(OWN_QUEUE, "t")):
                with trio.move_on_after(1) as waits:
                    await client.settle(subscription, event)
                assert waits.cancelled_caught, "an ack is not answered before it is durable"
                await send(await connected(env), with_ids(*range(10, 20)))  # A run is due, and a mark.
                await trio.sleep(1)
            env.crash()

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(work)
        env = await after_power_loss(env, text)
        async with broker_on(env, text):
            client = await connected(env)
            subscription = (await client.call(m.Subscribe("t"))).subscription
            event = await client.pull(subscription, len(ids), wait_max_ms=500)
            rejected = list(map(int, values(event.batches)))
            await client.settle(subscription, event, REJECT)
            await client.taken("t")
            await trio.sleep(100)
            found = await status(await connected(env), *ids)
            assert found == [("dead rejected" if id in rejected else "settled") for id in ids], "none ended otherwise"

    with small_runs():
        run_simulation(seed, scenario)


@served(QUEUE)
async def test_a_message_is_aborted_also_while_its_id_leaves_the_memory(env: SimEnv, client: RawClient) -> None:
    with small_runs(), unsynced(env, index_topic("t")):
        owner = await Owner.open(client)
        await owner.publish("t", ["1"], id=UUID(int=1))
        await owner.end(commit=False)
        await send(client, with_ids(*range(2, 12)))
        await trio.sleep(1)
        assert await status(client, 1, 2) == ["aborted", "stored"]


@pytest.mark.parametrize("seed", range(2))
def test_ids_and_endings_outlive_records_only_once_they_are_durable(seed: int) -> None:
    trim_and_lose_power(seed)
    acknowledge_and_lose_power(seed)
