"""Queues over the wire: leases, settlements, competing consumers, and what a restart keeps."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
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
    values,
)

from linn.core.batch.builder import slice_batch
from linn.core.broker.broker import Broker
from linn.core.log import state_log
from linn.core.queue.event import encode_events
from linn.core.queue.partition_queue import LEASES_IN_A_TURN
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

ACK, NACK, REJECT, EXTEND, RELEASE, _, _ = m.Verdict
QUEUE = '[topics.t]\nlease = "10s"\n'


async def _worker(client: RawClient, credit: int = 1, topic: str = "t") -> int:
    subscription: int = (await client.call(m.Subscribe(topic, credit=credit))).subscription
    return subscription


async def _drained(client: RawClient, subscription: int, count: int, held: int = 0) -> list[tuple[str, int]]:
    """Ack `count` records beside those that are held; (value, attempt) of each."""
    seen: list[tuple[str, int]] = []
    await client.call(m.Credit(subscription, held + count))
    while len(seen) < count:
        event = await client.delivery()
        seen += [(value, event.message.attempt) for value in values(event.batches)]
        assert await client.settle(subscription, event) == []
    return seen


@served(QUEUE)
async def test_returned_records_keep_their_place_and_attempts(client: RawClient) -> None:
    for value in "abcd":
        await client.publish("t", [value])
    worker = await _worker(client)
    first = await client.delivery()
    await client.settle(worker, first, NACK)
    assert await _drained(client, worker, 4) == [("a", 2), ("b", 1), ("c", 1), ("d", 1)]


@served(QUEUE)
async def test_a_nack_may_ask_for_a_delay_and_nothing_waits_behind_it(client: RawClient) -> None:
    for value in "ab":
        await client.publish("t", [value])
    worker = await _worker(client)
    held, nacked = await client.delivery(), trio.current_time()
    await client.settle(worker, held, NACK, ms=5000)
    await client.call(m.Credit(worker, 2))
    assert values((await client.delivery()).batches) == ["b"]
    assert values((await client.delivery()).batches) == ["a"]
    assert 5 <= trio.current_time() - nacked < 5.5


@served(QUEUE)
async def test_expired_records_go_to_another_consumer_and_the_late_ack_is_refused(
    slow: RawClient, quick: RawClient
) -> None:
    await slow.publish("t", ["a"])
    lazy = await _worker(slow)
    held = await slow.delivery()
    busy = await _worker(quick)
    assert await quick.is_silent(9)
    again = await quick.delivery(2)
    assert (values(again.batches), again.message.attempt) == (["a"], 2)
    refused = await slow.settle(lazy, held)
    assert [refusal.code for refusal in refused] == ["delivery.not_current"]
    assert await quick.settle(busy, again) == []
    assert [refusal.code for refusal in await quick.settle(busy, again)] == ["delivery.not_current"]
    assert (await quick.administer("topic.show", name="t"))["queue"]["unsettled"] == 0


@served(QUEUE)
async def test_an_extended_lease_lasts_longer(client: RawClient, other: RawClient) -> None:
    await client.publish("t", ["a"])
    worker = await _worker(client)
    held = await client.delivery()
    await _worker(other)
    for _ in range(3):
        await trio.sleep(8)
        assert await client.settle(worker, held, EXTEND, ms=10_000) == []
    assert await other.is_silent(0.1)
    assert await client.settle(worker, held) == []
    refused = await client.settle(worker, held, EXTEND, ms=10_000)
    assert [refusal.code for refusal in refused] == ["delivery.not_current"]


@served(QUEUE)
async def test_settlements_that_make_no_sense_change_nothing_and_stop_no_other(
    client: RawClient, other: RawClient
) -> None:
    await client.publish("t", ["a", "b", "c"])
    worker, thief = await _worker(client, 3), await _worker(other, 3)
    held = (await client.delivery()).message.delivery_id
    entries = [
        (m.Settlement(0, held + 1, 0, 3), "delivery.not_current"),
        (m.Settlement(0, 2**64 - 1, 0, 3), "delivery.not_current"),
        (m.Settlement(0, held, 0, 4), "delivery.not_current"),
        (m.Settlement(0, held, 2, 2), "delivery.not_current"),
        (m.Settlement(0, held, -1, 2), "delivery.not_current"),
        (m.Settlement(0, held, -(2**63), 2**63 - 1), "delivery.not_current"),
        (m.Settlement(7, held, 0, 3), "topic.partition_unknown"),
        (m.Settlement(-1, held, 0, 3), "topic.partition_unknown"),
        (m.Settlement(0, held, 0, 3, verdict=9), "delivery.wrong_kind"),
        (m.Settlement(0, held, 0, 3, EXTEND, 0), "limit.exceeded"),
        (m.Settlement(0, held, 0, 3, EXTEND, 2**32 - 1), "limit.exceeded"),
        (m.Settlement(0, held, 0, 3, NACK, 2**32 - 1), "limit.exceeded"),
    ]
    answer = await other.call(m.Settle(thief, [m.Settlement(0, held, 0, 3)]))
    assert [refusal.code for refusal in answer.refused] == ["delivery.not_current"], "another's lease"
    good = m.Settlement(0, held, 0, 1)
    answer = await client.call(m.Settle(worker, [*(entry for entry, _ in entries), good]))
    assert [(r.entry, r.code) for r in answer.refused] == [(i, code) for i, (_, code) in enumerate(entries)]
    shown = (await client.administer("topic.show", name="t"))["queue"]
    assert (shown["unsettled"], shown["leased"]) == (2, 2)


@served(QUEUE)
async def test_consumers_share_and_what_one_holds_at_its_death_goes_to_the_others(env: SimEnv) -> None:
    clients = [await connected(env) for _ in range(3)]
    for number in range(30):
        await clients[0].publish("t", [f"{number:02}"])
    workers = [await _worker(client, 5) for client in clients]
    held: list[list[str]] = [[], [], []]
    for place, client in enumerate(clients):
        while len(held[place]) < 5:
            held[place] += values((await client.delivery()).batches)
    assert sorted(value for own in held for value in own) == [f"{number:02}" for number in range(15)]
    await clients[2].stream.aclose()
    await trio.sleep(1)
    got = [value for value, attempt in await _drained(clients[0], workers[0], 5, held=5) if attempt == 2]
    assert got == sorted(held[2])


@served(QUEUE)
async def test_a_consumer_that_unsubscribes_returns_its_leases(client: RawClient) -> None:
    await client.publish("t", ["a", "b"])
    worker = await _worker(client, 2)
    await client.delivery()
    waiting = await client.send(m.Pull(worker, 1, 60_000))
    await client.call(m.Unsubscribe(worker))
    with trio.fail_after(1):
        assert (await client.answer(waiting)).batches == []
    assert values((await client.pull(await _worker(client, 0))).batches) == ["a", "b"]


@served("[topics.t]\npartitions = 2\nmax_deliveries = 1\n")
async def test_a_pull_from_an_offset_passes_over_what_is_before_it(client: RawClient) -> None:
    """A delivery cut off by its size returns the rest of its lease as if it had not been taken."""
    for value in ("a", "b", "c" * 700_000, "d" * 700_000):
        await client.publish("t", [value], partition=1)
    worker = await _worker(client, 0)

    async def pull(start: int, partition: int = 1) -> tuple[list[int], int]:
        event = await client.ask(m.Pull(worker, 10, placed=True, partition=partition, start=start))
        pulled.append(event)
        offsets = [offset for batch in event.batches for offset in range(batch.base_offset, batch.end_offset)]
        return offsets, event.message.attempt  # type: ignore[attr-defined]

    pulled: list[Event] = []
    assert await pull(0, partition=0) == ([], 0)
    assert await pull(4) == ([], 0)
    assert await pull(2) == ([2], 1)
    assert await pull(1) == ([1], 1)
    assert await client.settle(worker, pulled[-1], RELEASE) == []
    assert await pull(0) == ([0, 1], 1), "what was released is in its place, and its attempt did not count"
    assert await pull(3) == ([3], 1)
    assert await pull(0) == ([], 0)
    with pytest.raises(Refused, match="partition_unknown"):
        await pull(0, partition=2)


@served('[topics.s]\nkind = "stream"\n[topics.once]\ndelivery = "at-most-once"\n')
async def test_only_a_queue_with_leases_can_be_pulled_from_an_offset(client: RawClient) -> None:
    for topic in ("s", "once"):
        with pytest.raises(Refused, match="wrong_kind"):
            await client.call(m.Pull(await _worker(client, 0, topic), 1, placed=True))
        await client.publish(topic, ["a"])
        assert values((await client.pull(await _worker(client, 0, topic))).batches) == ["a"], "nothing was taken"


@simulated
async def test_hundreds_of_leases_of_one_consumer_are_returned_in_turns(env: SimEnv) -> None:
    count = 4 * LEASES_IN_A_TURN + 5
    async with broker_on(env, '[topics.t]\nlease = "1h"\npartitions = 2\n') as broker:
        greedy, client = await connected(env), await connected(env)
        for partition in (0, 1):
            await client.publish("t", ["x"] * count, partition=partition)
        subscription = await _worker(greedy, credit=0)
        for _ in range(2 * count):
            await greedy.pull(subscription, 1)
        queue = broker.topics["t"].queue
        assert queue is not None
        (consumer,) = queue.consumers.values()
        left = [2 * count]
        consumer.close()
        for _ in range(20):
            await trio.lowlevel.checkpoint()
            left.append(sum(partition_queue.subscription.leased_count for partition_queue in queue.partition_queues))
        # A turn of the test may be two of the queue's, and one of those ends a partition and begins the next.
        assert max(before - after for before, after in pairwise(left)) <= 3 * LEASES_IN_A_TURN
        assert left[-1] == 0
        assert {attempt for _, attempt in await _drained(client, await _worker(client, 0), 2 * count)} == {2}


@served('[topics.t]\nstorage = "dram"\npartitions = 50\n')
async def test_a_leaving_consumer_visits_only_partitions_that_delivered_to_it(env: SimEnv, broker: Broker) -> None:
    clients = [await connected(env) for _ in range(2)]
    for client in clients:
        await _worker(client)
    await clients[1].publish("t", ["x"], partition=33)
    holder, other = clients if not await clients[0].is_silent(1) else clients[::-1]
    await holder.delivery()
    queue = broker.topics["t"].queue
    assert queue is not None
    assert [consumer.is_holding() for consumer in queue.consumers.values()].count(True) == 1
    await holder.stream.aclose()
    assert (await other.delivery()).message.attempt == 2  # type: ignore[attr-defined]
    assert len(queue.consumers) == 1


@served(QUEUE)
async def test_every_wake_up_reaches_a_task_that_can_use_it(env: SimEnv) -> None:
    clients = [await connected(env) for _ in range(4)]
    for number in range(40):
        workers = [await _worker(client, 1) for client in clients]
        await trio.sleep(0.1)
        # Whoever is woken may be going away just now, a little before or after.
        leaver = number % 4
        requests = [(m.Publish("t"), [records([str(number)])]), (m.Unsubscribe(workers[leaver]), None)]
        for message, batches in requests if number % 8 < 4 else reversed(requests):
            await clients[leaver].tell(message, batches)
        await trio.sleep(1)
        for place, client in enumerate(clients):
            await client.call(m.Ping())
            if place == leaver:
                client.pushed.clear()
                continue
            while client.pushed:
                event = client.pushed.popleft()
                assert values(event.batches) == [str(number)]
                assert await client.settle(workers[place], event) == []
            await client.call(m.Unsubscribe(workers[place]))
        assert (await clients[0].administer("topic.show", name="t"))["queue"]["unsettled"] == 0


@served(QUEUE)
async def test_one_batch_wakes_as_many_as_it_has_records_for(env: SimEnv) -> None:
    clients = [await connected(env) for _ in range(3)]
    for client in clients:
        await _worker(client, 1)
    await clients[0].publish("t", ["a", "b", "c"])
    got = [values((await client.delivery(1)).batches) for client in clients]
    assert sorted(got) == [["a"], ["b"], ["c"]]


@served(ALWAYS + '[topics.t]\ndelivery = "at-most-once"\n')
async def test_at_most_once_a_record_is_handed_over_only_when_that_is_durable(
    env: SimEnv, broker: Broker, client: RawClient
) -> None:
    for number in range(10):
        await client.publish("t", [str(number)])
    queue = broker.topics["t"].queue
    assert queue is not None
    state = queue.partition_queues[0].log.state
    assert state is not None
    env.disk.sync_delay_s_max = 1
    worker = await _worker(client, 0)
    for _ in range(10):
        await client.pull(worker, 1)
        assert state.partition.log.durable() == state.partition.log.bounds()[1]


@simulated
async def test_at_most_once_never_gives_a_record_twice(env: SimEnv) -> None:
    text = ALWAYS + '[topics.t]\ndelivery = "at-most-once"\n'
    seen: list[str] = []
    async with broker_on(env, text):
        client = await connected(env)
        for number in range(20):
            await client.publish("t", [str(number)])
        subscribed = await client.call(m.Subscribe("t", credit=5))
        assert subscribed.lease_ms == 0
        while len(seen) < 5:
            seen += values((await client.delivery()).batches)
        seen += values((await client.pull(subscribed.subscription, 5)).batches)
        await client.stream.aclose()
        other = await connected(env)
        seen += values((await other.pull(await _worker(other, 0), 3)).batches)
    async with broker_on(env, text):
        client = await connected(env)
        seen += values((await client.pull(await _worker(client, 0), 100)).batches)
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen, key=int)


@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
def test_attempts_and_settlements_survive(end: str) -> None:
    async def first(env: SimEnv) -> None:
        async with broker_on(env, ALWAYS + QUEUE):
            client = await connected(env)
            await client.publish("t", ["a", "b", "c", "d"])
            worker = await _worker(client, 2)
            event = await client.delivery()
            await client.call(m.Credit(worker, 1))
            entry = m.Settlement(0, event.message.delivery_id, 1, 2)
            await client.call(m.Settle(worker, [entry]))
            await client.settle(worker, _only(event, 0), NACK)
            assert (await client.delivery()).message.attempt == 2
            await trio.sleep(1)
            if end == "kill":
                env.kill()
            elif end == "crash":
                env.crash()

    async def scenario(env: SimEnv) -> None:
        await env.run_until_death(first)
        if env.is_dead:
            env = env.restart()
        async with broker_on(env, ALWAYS + QUEUE):
            client = await connected(env)
            seen = await _drained(client, await _worker(client, 0), 3)
            assert [value for value, _ in seen] == ["a", "c", "d"]
            # What a crash takes is at most the attempt that nobody was told of as settled.
            assert seen[0][1] in ((3,) if end != "crash" else (2, 3))
            assert [attempt for _, attempt in seen[1:]] == [1, 1]

    for seed in range(3):
        run_simulation(seed, scenario)


def _only(event, index: int):  # type: ignore[no-untyped-def]
    return event._replace(batches=[slice_batch(event.batches[0], index, index + 1)])


def test_events_of_records_lost_with_power_hide_no_new_ones() -> None:
    """The state log may have outlived the data log: what it says of lost records is not said of their successors."""

    async def scenario(env: SimEnv) -> None:
        async def process(env: SimEnv) -> None:
            async with broker_on(env, QUEUE) as broker:
                client = await connected(env)
                worker = await _worker(client, 0)
                for number in range(20):
                    await client.publish("t", [f"old{number}"])
                await client.call(m.Credit(worker, 10))
                settled = 0
                while settled < 10:
                    event = await client.delivery()
                    settled += len(values(event.batches))
                    await client.settle(worker, event)
                await broker.topics["t"].queue.partition_queues[0].log.state.partition.log.sync()
                env.crash()

        assert await env.run_until_death(process)
        env = await after_power_loss(env, QUEUE)
        async with broker_on(env, QUEUE) as broker:
            client = await connected(env)
            kept = broker.topics["t"].partitions[0].high_watermark
            lost.append(20 - kept)
            for number in range(20):
                await client.publish("t", [f"new{number}"])
            worker = await _worker(client, 0)
            seen = [value for value, _ in await _drained(client, worker, 20 + max(0, kept - 10))]
            assert [value for value in seen if value.startswith("new")] == [f"new{number}" for number in range(20)]

    lost: list[int] = []
    for seed in range(8):
        run_simulation(seed, scenario)
    assert max(lost) > 10, "no seed lost settled records: this test shows nothing"


@pytest.fixture
def _small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "SNAPSHOT_AFTER_BYTES", 4_000)
    monkeypatch.setattr("linn.core.queue.trimming.TRIM_AFTER_RECORDS", 20)


@pytest.mark.usefixtures("_small_snapshots")
@simulated
async def test_the_state_log_stays_small_under_load_and_means_the_same_after_a_restart(env: SimEnv) -> None:
    text = '[storage.segmented-log]\nindex_interval_bytes = 512\nsegment_bytes_max = "16KiB"\n' + QUEUE
    settled: set[str] = set()
    async with broker_on(env, text) as broker:
        client = await connected(env)
        worker = await _worker(client, 0)
        state = broker.topics["t"].queue.partition_queues[0].log.state.partition.log
        sizes = []
        for number in range(150):
            await client.publish("t", [f"{number}.{i}" for i in range(4)])
            await client.call(m.Credit(worker, 4))
            event = await client.delivery()
            # Some of them are never settled, so that there are holes.
            await client.settle(worker, event, ACK if number % 7 else NACK, ms=0 if number % 7 else 500_000)
            if number % 7:
                settled |= set(values(event.batches))
            sizes.append(state.size_bytes())
        assert max(sizes) < 60_000
        assert state.bounds()[0] > 100, "it was compacted"
    async with broker_on(env, text) as broker:
        subscription = broker.topics["t"].queue.partition_queues[0].subscription
        subscription.check()
        assert subscription.statistics().delayed == 22 * 4
        client = await connected(env)
        await trio.sleep(1)
        assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 600 - len(settled)


@pytest.mark.usefixtures("_small_snapshots")
def test_events_replayed_after_a_snapshot_do_not_grow_with_it() -> None:
    text = '[storage.segmented-log]\nindex_interval_bytes = 512\nsegment_bytes_max = "16KiB"\n' + QUEUE

    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, text) as broker:
            client = await connected(env)
            worker = await _worker(client, 0)
            partition_queue = broker.topics["t"].queue.partition_queues[0]
            for number in range(900):
                await client.publish("t", [str(number)])
                await client.call(m.Credit(worker, 1))
                event = await client.delivery()
                await client.settle(worker, event, NACK if number % 2 else ACK, ms=number % 2 * 3_600_000)
                await trio.sleep(1)
                snapshot_bytes = len(encode_events(partition_queue.subscription.snapshot_events()))
                behind.append(partition_queue.log.state.partition.log.size_bytes() - snapshot_bytes)
            assert snapshot_bytes > 15_000

    behind: list[int] = []
    run_simulation(0, scenario)
    assert max(behind) < 2 * 4_000 + 1_000


@simulated
async def test_a_purge_settles_waiting_records_and_leaves_leased_ones(env: SimEnv) -> None:
    async with broker_on(env, QUEUE):
        client = await connected(env)
        await client.publish("t", ["a", "b", "c", "d"])
        worker = await _worker(client, 1)
        held = await client.delivery()
        assert await client.administer("topic.purge", name="t") == {"purged": 3}
        assert await client.settle(worker, held, NACK) == []
        await client.publish("t", ["e"])
    async with broker_on(env, QUEUE):
        client = await connected(env)
        assert [value for value, _ in await _drained(client, await _worker(client, 0), 2)] == ["a", "e"]


@served(QUEUE)
async def test_settled_records_leave_the_log(client: RawClient) -> None:
    await client.publish("t", ["x" * 1000] * 50)
    await _drained(client, await _worker(client, 0), 50)
    await trio.sleep(1)
    shown = (await client.administer("topic.show", name="t"))["partitions"][0]
    assert (shown["start"], shown["end"], shown["bytes"]) == (50, 50, 0)


@simulated
async def test_retention_on_a_queue_with_a_stream_drops_unsettled_records_and_consumers_continue(env: SimEnv) -> None:
    text = '[storage.segmented-log]\nsegment_age = "5s"\n[topics.t]\nkind = "both"\nretention = "20s"\nlease = "10m"\n'
    async with broker_on(env, text):
        client = await connected(env)
        await client.publish("t", ["old"] * 10)
        worker = await _worker(client, 2)
        held = await client.delivery()
        for _ in range(10):
            await trio.sleep(5)
            await client.call(m.Ping())
        refused = await client.settle(worker, held)
        assert [refusal.code for refusal in refused] == ["delivery.not_current"]
        assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 0
        await client.publish("t", ["new"])
        assert values((await client.delivery()).batches) == ["new"], "what was dropped is not held any more"
        assert [ended.delivery_id for ended in client.lost] == [held.message.delivery_id]  # type: ignore[attr-defined]


@pytest.mark.parametrize("ends", ["kill", "crash"])
@simulated
async def test_delayed_records_are_redelivered_after_a_restart_though_nothing_else_happens(
    env: SimEnv, ends: str
) -> None:
    text = ALWAYS + '[topics.t]\nlease = "1h"\nredelivery_delay = "5s"\n'

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            await client.publish("t", ["a"])
            subscription = (await client.call(m.Subscribe("t", credit=1))).subscription
            assert await client.settle(subscription, await client.delivery(), m.Verdict.NACK) == []
            getattr(env, ends)()
            await trio.sleep_forever()

    assert await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, text):
        client = await connected(env)
        await client.call(m.Subscribe("t", credit=1))
        assert (await client.delivery(10)).message.attempt == 2  # type: ignore[attr-defined]


@simulated
async def test_a_queue_whose_first_segments_were_dropped_recovers_from_events_about_them(env: SimEnv) -> None:
    text = '[storage.segmented-log]\nsegment_bytes_max = 4096\n[topics.t]\nlease = "1h"\n'

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            subscription = (await client.call(m.Subscribe("t", credit=1000))).subscription
            for number in range(40):
                await client.publish("t", [f"{number:<400}"])
                event = await client.delivery()
                if number < 35:
                    assert await client.settle(subscription, event) == []
            await trio.sleep(1)
            env.kill()
            await trio.sleep_forever()

    assert await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, text) as broker:
        assert broker.topics["t"].partitions[0].start_offset > 0
        client = await connected(env)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        first, *_ = values((await client.pull(subscription)).batches)
        assert first.strip() == "35"


# --- credit and leases that end --------------------------------------------------------------------------------------

SHORT_LEASE = '[topics.t]\nlease = "1s"\n'


@served(SHORT_LEASE)
async def test_a_consumer_whose_leases_expire_is_notified_and_gets_more(client: RawClient) -> None:
    await client.publish("t", [str(number) for number in range(14)])
    worker = await _worker(client, 4)
    first = await client.delivery()
    assert first.batches[0].count == 4
    again = await client.delivery()
    assert (values(again.batches), again.message.attempt) == (["0", "1", "2", "3"], 2)  # type: ignore[attr-defined]
    lost = [(ended.subscription, ended.partition, ended.delivery_id) for ended in client.lost]
    assert lost == [(worker, 0, first.message.delivery_id)]  # type: ignore[attr-defined]
    assert await client.settle(worker, again) == []
    assert values((await client.delivery()).batches) == ["4", "5", "6", "7"]


@served('[topics.t]\nlease = "1h"\n')
async def test_credit_returns_with_every_end_of_a_lease_and_counts_held_records(client: RawClient) -> None:
    worker = await _worker(client, 10)
    for verdict in (ACK, NACK, REJECT):
        for number in range(30):
            await client.publish("t", [str(number)])
        seen = 0
        while seen < 30:
            event = await client.delivery()
            assert len(values(event.batches)) <= 10
            seen += len(values(event.batches))
            await client.settle(worker, event, verdict, ms=3_600_000 if verdict == NACK else 0)
    await client.call(m.Credit(worker, 3))
    for _ in range(9):
        await client.publish("t", ["x"])
    kept = [await client.delivery() for _ in range(3)]
    assert await client.is_silent(10), "it holds three"
    await client.call(m.Credit(worker, 4))
    kept.append(await client.delivery())
    assert await client.is_silent(10), "it holds four: credit says how many, and adds nothing"
    await client.settle(worker, kept.pop())
    kept.append(await client.delivery())
    assert await client.is_silent(10)


@served("[topics.t]\n")
async def test_fewer_records_than_half_the_credit_wait_a_moment_for_others_to_be_settled(client: RawClient) -> None:
    await client.publish("t", [str(number) for number in range(300)])
    worker = await _worker(client, 100)
    first = await client.delivery()
    partition, held = 0, first.message.delivery_id  # type: ignore[attr-defined]
    for offset in range(100):
        await client.tell(m.Settle(worker, [m.Settlement(partition, held, offset, offset + 1)]))
    sizes: list[int] = []
    while sum(sizes) < 100:
        sizes.append(len(values((await client.delivery()).batches)))
    assert len(sizes) < 10, "not one by one"


@served(QUEUE)
async def test_less_credit_counts_at_once_also_for_a_push_that_waits(client: RawClient) -> None:
    worker = await _worker(client, 50)
    await trio.sleep(1)
    await client.call(m.Credit(worker, 1))
    await client.publish("t", list("abc"))
    assert values((await client.delivery()).batches) == ["a"]
    assert await client.is_silent(1)


@pytest.mark.parametrize("pulls", [False, True])
def test_a_subscription_without_credit_is_not_given_again_what_it_releases(pulls: bool) -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, QUEUE):
            client, other = await connected(env), await connected(env)
            await client.publish("t", list("abc"))
            worker = await _worker(client, 0 if pulls else 50)
            if pulls:
                held = await client.ask(m.Pull(worker, 3, 0))
                pull = await client.send(m.Pull(worker, 3, 5_000))
            else:
                held = await client.delivery()
            await trio.sleep(1)
            await client.call(m.Credit(worker, 0))
            assert await client.settle(worker, held, RELEASE) == []
            assert await client.is_silent(1)
            if pulls:
                assert (await client.answer(pull)).batches == []
            await client.call(m.Unsubscribe(worker))
            await _worker(other, 3)
            again = await other.delivery()
            assert (values(again.batches), again.message.attempt) == (["a", "b", "c"], 1)

    run_simulation(1, scenario)
