"""Queues with an order, from a client's publish to its acks: over restarts, failures, and changes of the order."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from metric_samples import value
from raw_client import RawClient, Refused, broker_on, connected, records, served, values

import linn
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.broker.broker import Broker
from linn.core.errors.tree import ConfigError, FeatureUnsupported, LimitExceeded, SubscriptionWrongKind
from linn.core.plugins.hookspecs import hookimpl
from linn.core.queue.dispatch_order import INDEX_RECORD_BYTES, OrderKind, Taken
from linn.core.queue.ordering import SHORT_WINDOW
from linn.core.queue.partition_queue import PartitionQueue
from linn.plugins.orders import PriorityOrder
from linn.testing.deterministic import run_simulation
from linn.testing.plugin_broker import URL, plugin_broker
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

KEY_COUNT = int(os.environ.get("ORDER_KEYS", "50"))
FLOOD = int(os.environ.get("ORDER_FLOOD", "3000"))
"""Numbers of keys, and of jobs of the tenant that floods: 1,000 and 200,000 were run as well."""
PRIORITIES = '[topics.q]\norder = "priority"\nlease = "10s"\n'
FAIR = '[topics.q]\norder = "fair"\norder_by = "label.tenant"\n'
KEYS = '[topics.q]\norder = "key"\nlease = "10s"\npartitions = 2\n'


def queue_of(broker: Broker, partition: int = 0) -> PartitionQueue:
    queue = broker.topics["q"].queue
    assert queue is not None
    return queue.partition_queue(partition)


async def drained(client: linn.Client, count: int, prefetch: int = 1) -> list[bytes]:
    """Receive and ack `count` values, one after the other."""
    found: list[bytes] = []
    async with client.consumer("q", prefetch=prefetch) as consumer:
        while len(found) < count:
            message = await anext(consumer)
            found.append(message.value or b"")
            await message.ack()
    return found


async def prioritized(client: linn.Client, priorities: Sequence[int]) -> None:
    async with client.producer("q") as producer:
        for number, priority in enumerate(priorities):
            await producer.publish(b"%d/%d" % (priority, number), priority=priority)


def in_levels(priorities: Sequence[int]) -> list[bytes]:
    order = sorted(range(len(priorities)), key=lambda number: (-min(priorities[number], 9), number))
    return [b"%d/%d" % (priorities[number], number) for number in order]


def keyed(*keys: bytes | None) -> RecordBatch:
    return build_batch(BatchColumns([b"v"] * len(keys), 1, 1, keys=keys))


def offsets(event: Any) -> list[int]:
    return [batch.offset(index) for batch in event.batches for index in range(batch.count)]


# --- priority ---


@pytest.mark.parametrize("prefetch", [1, 5, 100])
def test_the_highest_priority_is_delivered_first(prefetch: int) -> None:
    priorities = [number * 7 % 11 for number in range(60)]

    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, PRIORITIES), linn.connect(URL, env=env) as client:
            await prioritized(client, priorities)
            assert await drained(client, 60, prefetch) == in_levels(priorities)

    run_simulation(0, scenario)


def test_the_order_survives_a_restart_with_what_was_leased() -> None:
    priorities = [number * 7 % 11 for number in range(40)]

    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, PRIORITIES), linn.connect(URL, env=env) as client:
            await prioritized(client, priorities)
            async with client.consumer("q", prefetch=1) as consumer:
                for _ in range(3):
                    await (await anext(consumer)).ack()
                await anext(consumer)
        async with plugin_broker(env, PRIORITIES), linn.connect(URL, env=env) as client:
            assert await drained(client, 37) == in_levels(priorities)[3:]

    run_simulation(0, scenario)


def test_what_is_returned_keeps_its_place_in_the_order() -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, PRIORITIES), linn.connect(URL, env=env) as client:
            await prioritized(client, [0, 5, 5, 9])
            async with client.consumer("q", prefetch=1) as consumer:
                await (await anext(consumer)).nack(delay_ms=3_000)
                assert (await anext(consumer)).value == b"5/1"
                await trio.sleep(4)
            assert await drained(client, 4) == [b"9/3", b"5/1", b"5/2", b"0/0"]

    run_simulation(0, scenario)


@served(PRIORITIES)
async def test_a_lease_of_scattered_records_is_settled_by_any_ranges(broker: Broker, client: RawClient) -> None:
    batch = build_batch(BatchColumns([b"%d" % at for at in range(10)], 1, 1, priorities=[9, 0] * 5))
    await client.call(m.Publish("q", partition=0), [batch])
    subscription = (await client.call(m.Subscribe("q", credit=5))).subscription
    event = await client.delivery()
    assert values(event.batches) == ["0", "2", "4", "6", "8"]
    id = event.message.delivery_id

    async def settle(first: int, end: int) -> list[str]:
        entry = m.Settlement(0, id, first, end, m.Verdict.ACK, 0)
        return [refusal.code for refusal in (await client.call(m.Settle(subscription, [entry]))).refused]

    assert await settle(1, 2) == ["delivery.not_current"], "1 is not of this lease"
    assert await settle(0, 2) == []
    assert await settle(0, 2) == ["delivery.not_current"]
    assert await settle(-1 << 40, 1 << 40) == ["delivery.not_current"]
    assert await settle(2, 9) == []
    others: list[str] = []
    while len(others) < 5:
        others += values((await client.delivery()).batches)
    assert others == ["1", "3", "5", "7", "9"]
    assert queue_of(broker).subscription.settled == [(2, 3), (4, 5), (6, 7), (8, 9)]


@served(PRIORITIES)
async def test_a_batch_of_a_lease_covers_the_offsets_up_to_the_next(broker: Broker, client: RawClient) -> None:
    for _ in range(2):
        columns = BatchColumns([b"x" * 2_000] * 10, 1, 1, priorities=[0, 9, 0, 0, 9, 0, 0, 0, 0, 0])
        await client.call(m.Publish("q", partition=0), [build_batch(columns)])
    await client.call(m.Subscribe("q", credit=4))
    batches = (await client.delivery()).batches
    assert [(it.base_offset, it.end_offset, it.count) for it in batches] == [(1, 11, 2), (11, 15, 2)]


def test_priorities_are_refused_without_an_order_and_accepted_with_any() -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, "[topics.q]\n"), linn.connect(URL, env=env) as client:
            async with client.producer("q") as producer:
                with pytest.raises(FeatureUnsupported, match='does not serve priorities without order = "priority"'):
                    await producer.publish(b"1", priority=3)
                await client.admin.alter_topic("q", order="fair")
                await producer.publish(b"2", priority=3)

    run_simulation(0, scenario)


@served(PRIORITIES)
async def test_a_pull_from_an_offset_is_refused(client: RawClient) -> None:
    subscription = (await client.call(m.Subscribe("q", credit=0))).subscription
    with pytest.raises(Refused, match="nothing is taken from the middle") as raised:
        await client.call(m.Pull(subscription, 5, placed=True))
    assert raised.value.code == SubscriptionWrongKind.code


# --- changes ---


@pytest.mark.parametrize("order", ["priority", "key", "fair"])
def test_the_order_is_changed_while_records_are_leased(order: str) -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, "[topics.q]\n") as broker, linn.connect(URL, env=env) as client:
            async with client.producer("q") as producer:
                for number in range(20):
                    await producer.publish(b"%d" % number, key=b"%d" % (number % 3))
            async with client.consumer("q", prefetch=4) as consumer:
                first = [await anext(consumer) for _ in range(4)]
                await client.admin.alter_topic("q", order=order)
                await client.admin.alter_topic("q", order=order, order_window=7)
                await first[1].ack()
                await first[2].nack()
                await client.admin.alter_topic("q", order="fifo")
                await client.admin.alter_topic("q", order=order)
                for message in (first[0], first[3]):
                    await message.ack()
            assert sorted(await drained(client, 17), key=int) == [b"2", *(b"%d" % at for at in range(4, 20))]
            queue_of(broker).subscription.check()
            assert queue_of(broker).subscription.unsettled_count(20) == 0

    run_simulation(0, scenario)


def test_a_window_that_is_full_goes_on_as_records_are_taken() -> None:
    async def scenario(env: SimEnv) -> None:
        text = PRIORITIES + "order_window = 8\n"
        async with plugin_broker(env, text) as broker, linn.connect(URL, env=env) as client:
            await prioritized(client, [number % 10 for number in range(100)])
            found = await drained(client, 100)
            assert len({*found}) == 100
            assert found[0] == b"7/7", "of the first eight"
            assert queue_of(broker).subscription.unsettled_count(100) == 0

    run_simulation(0, scenario)


def test_indexes_stop_growing_at_their_share_of_memory_and_everything_is_delivered() -> None:
    count, at_most = 3_000, 2_000

    async def scenario(env: SimEnv) -> None:
        text = PRIORITIES + '[topics.other]\norder = "key"\n'
        async with plugin_broker(env, text) as broker, linn.connect(URL, env=env) as client:
            share = broker.memory.indexed
            share.bytes_max = at_most * INDEX_RECORD_BYTES
            for topic in ("other", "q"):
                async with client.producer(topic) as producer:
                    for first in range(0, count, 250):
                        await producer.publish_many([b"%d" % number for number in range(first, first + 250)])
                await trio.sleep(1)
            windows = {topic: value(broker, "linn_queue_order_window_bytes", topic, "") for topic in ("other", "q")}
            assert at_most <= windows["other"] // INDEX_RECORD_BYTES < at_most + 250
            assert 0 < windows["q"] // INDEX_RECORD_BYTES < SHORT_WINDOW + 250
            assert share.used_bytes == broker.memory.stored.used_bytes == sum(windows.values())
            assert sorted(await drained(client, count, prefetch=50), key=int) == [b"%d" % at for at in range(count)]
            assert share.used_bytes == windows["other"], "what is delivered makes room"
            await client.admin.alter_topic("other", order="fair")
            await trio.sleep(1)
            assert share.used_bytes == broker.memory.stored.used_bytes > 0
            await client.admin.delete_topic("other")
            assert share.used_bytes == broker.memory.stored.used_bytes == 0

    run_simulation(0, scenario)


def test_a_purge_leaves_an_index_that_goes_on() -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, PRIORITIES) as broker, linn.connect(URL, env=env) as client:
            await prioritized(client, [3] * 30)
            assert queue_of(broker).purge() == 30
            await prioritized(client, [1, 2])
            assert await drained(client, 2) == [b"2/1", b"1/0"]

    run_simulation(0, scenario)


# --- key ---


@pytest.mark.parametrize("seed", range(3))
def test_the_records_of_a_key_are_processed_in_order_whatever_fails(seed: int) -> None:
    keys, each, workers = KEY_COUNT, 6, 8

    async def scenario(env: SimEnv) -> None:
        rng = random.Random(seed)
        done: dict[bytes, list[int]] = defaultdict(list)
        busy: set[bytes] = set()

        async def work(client: linn.Client) -> None:
            while sum(map(len, done.values())) < keys * each:
                async with client.consumer("q", prefetch=rng.randint(1, 6)) as consumer:
                    for _ in range(rng.randint(1, 30)):
                        with trio.move_on_after(5):
                            message = await anext(consumer)
                            assert message.key is not None
                            assert message.key not in busy, "two records of a key were in flight"
                            busy.add(message.key)
                            await trio.sleep(rng.random() / 10)
                            number = int(message.value or b"")
                            fails = rng.random()
                            busy.discard(message.key)
                            if fails < 0.1:
                                await message.nack(delay_ms=rng.choice([0, 700]))
                            elif fails < 0.12:
                                break  # The consumer leaves with what it holds.
                            else:
                                await message.ack()
                                done[message.key].append(number)

        async with plugin_broker(env, KEYS), linn.connect(URL, env=env) as client:
            async with client.producer("q") as producer:
                for number in range(each):
                    for key in range(keys):
                        await producer.publish(b"%d" % number, key=b"key %d" % key)
            async with trio.open_nursery() as nursery:
                for _ in range(workers):
                    nursery.start_soon(work, client)
        assert set(map(tuple, done.values())) == {tuple(range(each))}
        assert len(done) == keys

    run_simulation(seed, scenario)


def test_a_retry_that_waits_holds_its_key_also_over_a_restart() -> None:
    text = KEYS.replace("partitions = 2", 'redelivery_delay = "30s"')

    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, text), linn.connect(URL, env=env) as client:
            async with client.producer("q") as producer:
                for value in (b"a1", b"b1", b"a2", b"b2"):
                    await producer.publish(value, key=value[:1])
            async with client.consumer("q", prefetch=1) as consumer:
                await (await anext(consumer)).nack()
        async with plugin_broker(env, text), linn.connect(URL, env=env) as client:
            async with client.consumer("q", prefetch=1) as consumer:
                found = []
                for _ in range(4):
                    message = await anext(consumer)
                    found.append(message.value)
                    await message.ack()
            assert found == [b"b1", b"b2", b"a1", b"a2"]

    run_simulation(0, scenario)


@served(KEYS)
async def test_the_broker_adds_the_hashes_of_keys_that_come_without(broker: Broker, client: RawClient) -> None:
    await client.call(m.Publish("q", partition=0), [keyed(b"a", None, b"a")])
    stored = (await broker.topics["q"].partitions[0].read(0, 1))[0]
    hashes = stored.key_hashes
    assert hashes is not None
    assert hashes[0] == hashes[2] != hashes[1] == 0
    assert [(record.key, record.value) for record in stored.records()] == [(b"a", b"v"), (None, b"v"), (b"a", b"v")]
    stored.check_stored()


@served('[topics.q]\nlease = "10s"\n')
async def test_keys_that_were_stored_without_hashes_are_told_apart_by_an_order_that_comes_later(
    broker: Broker, client: RawClient
) -> None:
    await client.call(m.Publish("q", partition=0), [keyed(b"a", b"a", None, b"b")])
    assert (await broker.topics["q"].partitions[0].read(0, 1))[0].key_hashes is None
    await client.administer("topic.alter", name="q", settings={"order": "key"})
    subscription = (await client.call(m.Subscribe("q", credit=9))).subscription
    event = await client.delivery()
    assert offsets(event) == [0, 2, 3], "one of a key at a time"
    assert await client.settle(subscription, event) == []
    assert offsets(await client.delivery()) == [1]


@served("[topics.q]\n")
async def test_stored_keys_that_are_too_long_to_hash_do_not_stop_an_order_that_comes_later(client: RawClient) -> None:
    await client.call(m.Publish("q", partition=0), [keyed(b"k" * (300 << 10), b"k")])
    await client.administer("topic.alter", name="q", settings={"order": "key"})
    await client.call(m.Subscribe("q", credit=9))
    assert offsets(await client.delivery()) == [0, 1]


@served(KEYS + 'dead_letter = "dead"\n[topics.dead]\norder = "key"\n')
async def test_dead_letters_of_one_key_are_worked_off_one_after_the_other(client: RawClient) -> None:
    await client.call(m.Publish("q", partition=0), [keyed(b"a", b"b", b"a")])
    subscription = (await client.call(m.Subscribe("q", credit=9))).subscription
    for _ in range(2):  # The second one of its key comes when the first is rejected.
        assert await client.settle(subscription, await client.delivery(), m.Verdict.REJECT) == []
    dead = (await client.call(m.Subscribe("dead", credit=9))).subscription
    keys: list[list[bytes | None]] = []
    while sum(map(len, keys)) < 3:
        event = await client.delivery(30)
        keys.append([record.key for batch in event.batches for record in batch.records()])
        assert await client.settle(dead, event) == []
    assert all(found.count(b"a") <= 1 for found in keys)
    assert sorted(key for found in keys for key in found) == [b"a", b"a", b"b"]


@served(KEYS)
async def test_a_key_of_a_mebibyte_without_its_hash_is_refused(broker: Broker, client: RawClient) -> None:
    with pytest.raises(Refused, match=LimitExceeded.code):
        await client.call(m.Publish("q", partition=0), [keyed(b"k" * 1_000_000)])
    await client.call(m.Publish("q", partition=0), [keyed(b"k" * 200_000)])
    assert broker.topics["q"].partitions[0].log.bounds() == (0, 1)


# --- fair ---


@served(FAIR + "weights = {acme = 3}\n")
async def test_weights_are_live_and_are_shares_of_the_workers(client: RawClient, broker: Broker) -> None:
    async def shares() -> list[int]:
        """Numbers of records of acme and of bob that eight workers get, who take one each and return it."""
        workers = [(await client.call(m.Subscribe("q"))).subscription for _ in range(8)]
        events = [await client.pull(worker, 1) for worker in workers]
        for worker, event in zip(workers, events, strict=True):
            assert await client.settle(worker, event, m.Verdict.RELEASE) == []
            await client.call(m.Unsubscribe(worker))
        found = [value for event in events for value in values(event.batches)]
        return [found.count(tenant) for tenant in ("acme", "bob")]

    for tenant in ("acme", "bob"):
        await client.call(m.Publish("q"), [records([tenant] * 50, labels={"tenant": tenant})])
    assert await shares() == [6, 2]
    done = await client.administer("topic.alter", name="q", settings={"weights.bob": 3})
    assert done["changed"] == ["weights"]
    assert await shares() == [4, 4]
    await client.administer("topic.alter", name="q", settings={"weights": None})
    assert await shares() == [4, 4]
    assert broker.topics["q"].settings.weights is None
    for wrong in ({"acme": 0}, {"acme": 1_001}, {"acme": "3"}, [3], {str(at): 1 for at in range(1_001)}):
        with pytest.raises(Refused, match=ConfigError.code):
            await client.administer("topic.alter", name="q", settings={"weights": wrong})


def test_a_flood_of_one_tenant_delays_the_others_by_a_job_and_not_by_the_flood() -> None:
    flood, others = FLOOD, 20

    async def scenario(env: SimEnv) -> None:
        waits: list[float] = []

        async def work(client: linn.Client) -> None:
            async with client.consumer("q", prefetch=1) as consumer:
                async for message in consumer:
                    if message.labels["tenant"] != "flood":
                        waits.append(trio.current_time() - float(message.value or b""))
                        if len(waits) == 5 * others:
                            nursery.cancel_scope.cancel()
                    await trio.sleep(0.1)
                    await message.ack()

        async def publish(client: linn.Client) -> None:
            async with client.producer("q") as producer:
                for _ in range(5):
                    for tenant in range(others):
                        now = b"%f" % trio.current_time()
                        await producer.publish(now, labels={"tenant": f"t{tenant}"})
                        await trio.sleep(0.1)

        async with plugin_broker(env, FAIR), linn.connect(URL, env=env) as client:
            async with client.producer("q") as producer:
                await producer.publish_many([b"0"] * flood, labels={"tenant": "flood"})
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(work, client)
                nursery.start_soon(publish, client)
        assert len(waits) == 5 * others
        assert max(waits) < 0.3, "the flood alone takes 75 seconds"

    run_simulation(0, scenario)


def test_consumers_of_transactions_settle_scattered_records() -> None:
    async def scenario(env: SimEnv) -> None:
        async with plugin_broker(env, PRIORITIES + "[topics.out]\n") as broker, linn.connect(URL, env=env) as client:
            await prioritized(client, [9, 0, 9, 0, 9])
            for is_commit in (False, True):
                async with client.consumer("q", prefetch=5) as consumer, client.transaction("t") as transaction:
                    messages = [await anext(consumer) for _ in range(3)]
                    assert [message.value for message in messages] == [b"9/0", b"9/2", b"9/4"]
                    for message in messages:
                        transaction.ack(message)
                    if not is_commit:
                        await transaction.abort()
            assert queue_of(broker).subscription.settled_before() == 1
            assert await drained(client, 2) == [b"0/1", b"0/3"]

    run_simulation(0, scenario)


# --- orders that fail ---


@served(PRIORITIES + "order_window = 4\n")
async def test_a_window_whose_records_have_all_expired_makes_room_for_the_others(client: RawClient) -> None:
    await client.call(m.Publish("q"), [records("abcd", ttl_ms=1_000)])
    await client.publish("q", ["e"])
    await trio.sleep(5)
    subscription = (await client.call(m.Subscribe("q"))).subscription
    assert values((await client.pull(subscription, wait_max_ms=1_000)).batches) == ["e"]


class Moody(PriorityOrder):
    """An order that raises once, and names records twice."""

    raises = True

    def take(self, records_max: int) -> Taken:
        if self.raises:
            self.raises = False
            raise RuntimeError("I am broken")
        taken = super().take(records_max // 2)
        return Taken([*taken.offsets, *taken.offsets], [*taken.classes, *taken.classes])


class MoodyPlugin:
    name = "moody"
    dist = None
    value = "moody"

    def load(self) -> MoodyPlugin:
        return self

    @hookimpl
    def linn_register_order(self) -> OrderKind:
        return OrderKind("moody", Moody)


def test_an_order_that_raises_ends_that_delivery_and_one_that_repeats_itself_delivers_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, '[topics.q]\norder = "moody"\n[topics.other]\n', plugins=[MoodyPlugin()]):
            bystander, client = await connected(env), await connected(env)
            await bystander.publish("q", ["a", "b", "c"])
            await client.call(m.Subscribe("q", credit=4))
            await client.until_closed()
            await bystander.publish("other", ["x"])
            assert await bystander.taken("other") == ["x"]
            subscription = (await bystander.call(m.Subscribe("q", credit=4))).subscription
            found: list[str] = []
            while len(found) < 3:
                event = await bystander.delivery()
                found += values(event.batches)
                assert await bystander.settle(subscription, event) == []
            assert found == ["a", "b", "c"]

    run_simulation(0, scenario)
    assert 'plugin "moody" (moody) in Moody.take' in caplog.text
