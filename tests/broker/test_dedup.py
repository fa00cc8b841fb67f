"""Messages with an id that a topic knows: stored once, answered with the first one's place, whatever restarts."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID

import pytest
import trio
from raw_client import ALWAYS, RawClient, Refused, after_power_loss, broker_on, connected, served, simulated
from seeds import tiered
from test_idempotent_producers import numbered
from test_transactions import Owner

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.core.topics import message_ids
from linn.core.topics.message_ids import MessageIds
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

QUEUE = '[topics.t]\ndedup = "5m"\n'
STREAM = QUEUE + 'kind = "stream"\n'


def with_ids(*ids: int) -> RecordBatch:
    """A batch of records with these ids, which are their values as well."""
    return build_from_records([Record(value=b"%d" % id, id=UUID(int=id)) for id in ids], base_id=0)


async def send(client: RawClient, batch: RecordBatch) -> m.Placement:
    answer = await client.call(m.Publish("t", partition=0), [batch])
    (placement,) = answer.placements
    return placement  # type: ignore[no-any-return]


@served(STREAM)
async def test_a_message_with_a_known_id_is_answered_with_the_first_ones_place(
    broker: Broker, client: RawClient
) -> None:
    for id in (7, 8, 9):
        await send(client, with_ids(id))
    again = await send(client, with_ids(8))
    assert (again.partition, again.base_offset, again.copies) == (0, 1, 1)
    run = await send(client, with_ids(8, 9))
    assert (run.base_offset, run.copies) == (1, 2)
    assert await client.fetch("t") == ["7", "8", "9"]
    assert broker.topics["t"].partitions[0].duplicates == 2


@served(STREAM)
async def test_a_batch_that_is_known_in_part_stores_the_rest_and_has_no_one_place(client: RawClient) -> None:
    await send(client, with_ids(1, 2, 3))
    mixed = await send(client, with_ids(2, 4, 3, 5, 4))
    assert mixed.base_offset == -1
    assert await client.fetch("t") == ["1", "2", "3", "4", "5"]
    assert (await send(client, with_ids(3, 1))).base_offset == -1
    assert await client.fetch("t") == ["1", "2", "3", "4", "5"]


@served(STREAM)
async def test_batches_of_one_publish_are_compared_with_one_another(client: RawClient) -> None:
    await client.call(m.Publish("t", partition=0), [with_ids(1, 2), with_ids(2, 3)])
    assert await client.fetch("t") == ["1", "2", "3"]


@served(STREAM)
async def test_messages_without_ids_of_their_own_are_no_duplicates(client: RawClient) -> None:
    made = [Record(value=b"a"), Record(value=b"b")]
    for number in range(3):
        await send(client, build_from_records(made, base_id=number << 64))
    await send(client, build_from_records(made, base_id=2 << 64))
    assert len(await client.fetch("t")) == 6


@served(STREAM)
async def test_an_id_is_forgotten_after_the_window(env: SimEnv) -> None:
    await send(await connected(env), with_ids(1))
    await trio.sleep(299)
    assert (await send(await connected(env), with_ids(1))).base_offset == 0
    await trio.sleep(30)
    assert (await send(await connected(env), with_ids(1))).base_offset == 1


@served('[topics.t]\nkind = "stream"\n')
async def test_a_window_begins_changes_and_ends_live(env: SimEnv, client: RawClient) -> None:
    await send(client, with_ids(1))
    await client.administer("topic.alter", name="t", settings={"dedup": "1h"})
    assert (await send(client, with_ids(1))).base_offset == 1, "ids count from the change on"
    await trio.sleep(1800)
    client = await connected(env)
    assert (await send(client, with_ids(1))).base_offset == 1
    await client.administer("topic.alter", name="t", settings={"dedup": "off"})
    assert (await send(client, with_ids(1))).base_offset == 2


@served('[topics.t]\nkind = "stream"\ndedup = "5m"\npartitions = 4\npartitioner = "murmur2"\n')
async def test_each_partition_knows_its_own(client: RawClient) -> None:
    for partition in (0, 1, 0, 1):
        await client.call(m.Publish("t", partition=partition), [with_ids(1)])
    assert [len(await client.fetch("t", partition)) for partition in range(4)] == [1, 1, 0, 0]


# --- producers and transactions ---------------------------------------------------------------------------------------


def signed(sequence: int, *ids: int) -> RecordBatch:
    batch, numbers = with_ids(*ids), numbered(sequence, ["x"] * len(ids))
    batch.number(numbers.producer_id, numbers.producer_epoch, sequence, numbers.attributes)
    return batch


@served(STREAM)
async def test_a_producer_goes_on_behind_messages_that_were_known(client: RawClient) -> None:
    await send(client, with_ids(1, 2))
    assert (await send(client, signed(0, 1, 2))).base_offset == 0
    assert (await send(client, signed(0, 1, 2))).base_offset == 0, "it comes again"
    await send(client, signed(2, 2, 3))
    await send(client, signed(2, 2, 3))
    assert (await send(client, signed(4, 4))).base_offset == 3
    assert await client.fetch("t") == ["1", "2", "3", "4"]
    with pytest.raises(Refused, match=r"producer\.out_of_order"):
        await send(client, signed(9, 1))


def end_and_publish_again(seed: int) -> None:
    """An id in an open transaction is in doubt; a commit makes it known, and an abort forgets it."""
    commit = bool(seed % 2)

    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, STREAM):
            client, other = await connected(env), await connected(env, producer_id=0)
            owner = await Owner.open(client)
            await owner.publish("t", ["1"], id=UUID(int=1))
            with pytest.raises(Refused, match=r"message\.in_doubt"):
                await send(other, with_ids(1))
            await owner.publish("t", ["1"], id=UUID(int=1))
            await owner.end(commit=commit)
            again = await send(other, with_ids(1))
            assert again.base_offset == (0 if commit else 2), "an aborted message is no message"
            assert await other.fetch("t") == ["1"]

    run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_id_in_an_open_transaction_is_in_doubt_and_an_abort_forgets_it(seed: int) -> None:
    end_and_publish_again(seed)


# --- queues and restarts ----------------------------------------------------------------------------------------------


TWO = ALWAYS + QUEUE + "partitions = 2\n"


@simulated
async def test_ids_survive_restarts_also_of_records_that_were_settled(env: SimEnv) -> None:
    async def settle_and_die(env: SimEnv) -> None:
        async with broker_on(env, TWO):
            client = await connected(env)
            for id in range(5):
                await send(client, with_ids(id))
            await client.call(m.Publish("t", partition=1), [with_ids(9)])
            subscription = (await client.call(m.Subscribe("t", partitions=[]))).subscription
            while (event := await client.pull(subscription, 1)).batches:
                if event.message.partition == 0:  # type: ignore[attr-defined]
                    await client.settle(subscription, event)
            env.kill()

    async def recover_and_die(env: SimEnv) -> None:
        async with broker_on(env, TWO) as broker:
            await trio.sleep(1)
            assert broker.topics["t"].partitions[0].start_offset == 0, "a recovery trims nothing whose id is known"
            env.kill()

    await env.run_until_death(settle_and_die)
    env = env.restart()
    await env.run_until_death(recover_and_die)
    env = env.restart()
    async with broker_on(env, TWO) as broker:
        client = await connected(env)
        for id in range(5):
            assert (await send(client, with_ids(id))).base_offset == id
        await trio.sleep(400)
        client = await connected(env)
        assert broker.topics["t"].partitions[0].start_offset == 5, "nothing is kept once its id is forgotten"
        assert (await send(client, with_ids(1))).base_offset == 5


def publish_and_lose_power(seed: int) -> None:
    """Each message is published again and again, over losses of power, and stored once."""
    rng = Random(seed)
    text = ALWAYS + '[topics.t]\nkind = "stream"\ndedup = "1h"\n'
    confirmed: dict[int, int] = {}

    async def work(env: SimEnv) -> None:
        env.disk.crash_at = len(env.disk.operations) + rng.randrange(20, 300)
        async with broker_on(env, text):
            client = await connected(env, producer_id=0)
            for _ in range(100):
                ids = [rng.randrange(60) for _ in range(rng.randint(1, 3))]
                placement = await send(client, with_ids(*ids))
                if len(ids) == 1:
                    place = confirmed.setdefault(ids[0], placement.base_offset)
                    assert 0 <= place == placement.base_offset, "the place of the first one"

    async def scenario(env: SimEnv) -> None:
        for _ in range(4):
            if not await env.run_until_death(work):
                env.crash()
            env = await after_power_loss(env, text)
        async with broker_on(env, text):
            client = await connected(env)
            values = await client.fetch("t", bytes_max=1 << 20)
            assert max(Counter(values).values()) == 1, "each is stored once"
            for id, offset in confirmed.items():
                assert values[offset] == str(id), "where it was said to be"

    run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", tiered(range(16), 2))
def test_power_losses_store_no_message_twice(seed: int) -> None:
    publish_and_lose_power(seed)


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_number_of_ids_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "IDS_MAX", 10)
    ids = MessageIds(0)
    for number in range(30):
        batch = with_ids(number)
        batch.stamp(number, 0)
        ids.note(batch, number / 1000, 300.0)
    assert ids.find([UUID(int=number).bytes for number in (5, 20, 29)]) == [None, 20, 29]
    assert ids.kept_from == 19


def test_an_id_is_not_found_across_the_border_of_two_entries() -> None:
    ids = MessageIds(0)
    batch = with_ids(1, 1 << 64)
    batch.stamp(0, 0)
    ids.note(batch, 0.0, 300.0)
    bucket = b"".join(ids._buckets.values())
    for at in range(1, len(bucket) - 16):
        found = bytes(bucket[at : at + 16])
        if at % 24 and found not in (UUID(int=1).bytes, UUID(int=1 << 64).bytes):
            assert ids.find([found]) == [None]
    assert ids.find([UUID(int=id).bytes for id in (1, 1 << 64)]) == [0, 1]
