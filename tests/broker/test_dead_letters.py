"""Dead letters: labelled, in the dead-letter topic exactly once, whatever crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

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

from linn.core.batch.record import Record
from linn.core.queue import transfer
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

TEXT = '[topics.t]\nlease = "10s"\nmax_deliveries = 2\ndead_letter = "dead"\n[topics.dead]\nkind = "stream"\n'


async def _dead(client: RawClient) -> list[Record]:
    found: list[Record] = []
    while batches := (await client.ask(m.Fetch("dead", 0, len(found), bytes_max=1 << 20))).batches:
        found += [record for batch in batches for record in batch.records()]
    return found


@served(TEXT)
async def test_a_dead_letter_names_its_origin_and_reason(env: SimEnv, client: RawClient) -> None:
    await client.publish("t", ["rejected"])
    await client.publish("t", ["tried"])
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    await client.settle(worker, await client.delivery(), m.Verdict.REJECT)
    for _ in range(2):
        await client.call(m.Credit(worker, 1))
        await client.settle(worker, await client.delivery(), m.Verdict.NACK)
    await trio.sleep(1)
    rejected, tried = await _dead(client)
    now_ms = rejected.labels["linn.dead.time_ms"]
    assert isinstance(now_ms, int)
    assert abs(env.clock.now_ms() - now_ms) < 5000
    common = {"linn.dead.topic": "t", "linn.dead.partition": 0}
    assert rejected.value == b"rejected"
    assert dict(rejected.labels) == common | {
        "linn.dead.reason": "rejected",
        "linn.dead.offset": 0,
        "linn.dead.attempts": 1,
        "linn.dead.time_ms": now_ms,
        "linn.dead.history": f'[["t","rejected",1,{now_ms},{now_ms}]]',
    }
    assert tried.value == b"tried"
    assert (tried.labels["linn.dead.reason"], tried.labels["linn.dead.attempts"]) == ("max_deliveries", 2)
    assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 0


@simulated
async def test_a_dead_letter_has_the_last_reason_also_after_a_restart(env: SimEnv) -> None:
    text = TEXT.replace("[topics.t]", ALWAYS + "[topics.t]")
    async with broker_on(env, text):
        client = await connected(env)
        await client.publish("t", ["a"])
        worker = (await client.call(m.Subscribe("t", credit=1))).subscription
        deliver = (await client.delivery()).message
        nack = m.Settlement(0, deliver.delivery_id, 0, 1, m.Verdict.NACK, 60_000, 2)
        assert (await client.call(m.Settle(worker, [nack], ["", "no\x1b room\nat all"]))).refused == []
    async with broker_on(env, text):
        client = await connected(env)
        await client.call(m.Subscribe("t", credit=1))
        await client.delivery(61)
        await trio.sleep(11)  # Nobody says why the second attempt fails.
        (dead,) = await _dead(client)
        assert (dead.labels["linn.dead.reason"], dead.labels["linn.dead.error"]) == (
            "max_deliveries",
            "no  room at all",
        )


@served(TEXT)
async def test_a_dead_letter_keeps_everything_but_its_labels(client: RawClient) -> None:
    sent = records(["v"], key=b"k", routing_key="r.k", labels={"own": 1}, headers=(("h", b"x"),), timestamp_ms=77)
    await client.call(m.Publish("t"), [sent])
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    await client.settle(worker, await client.delivery(), m.Verdict.REJECT)
    await trio.sleep(1)
    (dead,), (alive,) = await _dead(client), sent.records()
    assert (dead.value, dead.key, dead.routing_key, dead.headers) == (b"v", b"k", "r.k", (("h", b"x"),))
    assert (dead.id, dead.timestamp_ms, dead.labels["own"]) == (alive.id, 77, 1)


@served("[topics.t]\nmax_deliveries = 1\n")
async def test_without_a_dead_letter_topic_the_record_is_dropped(client: RawClient) -> None:
    await client.publish("t", ["a"])
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    await client.settle(worker, await client.delivery(), m.Verdict.NACK)
    await client.call(m.Credit(worker, 1))
    assert await client.is_silent(20)
    assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 0


@served(TEXT)
async def test_an_expired_last_lease_makes_a_dead_letter(client: RawClient) -> None:
    await client.publish("t", ["a"])
    await client.call(m.Subscribe("t", credit=2))
    await client.delivery()
    await client.delivery(11)
    await trio.sleep(11)
    assert [record.value for record in await _dead(client)] == [b"a"]


@simulated
async def test_a_dead_letter_topic_can_not_be_deleted_and_is_found_again_at_a_restart(env: SimEnv) -> None:
    # The queue's name comes before that of its dead-letter topic, so it is opened before.
    text = ALWAYS + '[topics.a]\nmax_deliveries = 1\ndead_letter = "b"\n[topics.b]\nkind = "stream"\n'
    async with broker_on(env, text):
        client = await connected(env)
        with pytest.raises(Refused, match=r"topic\.invalid"):
            await client.administer("topic.delete", name="b")
        await client.publish("a", ["x"])
        worker = (await client.call(m.Subscribe("a", credit=1))).subscription
        await client.delivery()
        assert worker == 1
    # The stop returned what was leased, so that the record died when there was nobody to copy it.
    async with broker_on(env, text):
        client = await connected(env)
        assert await client.fetch("b", wait_max_ms=500) == ["x"]


async def _reject(client: RawClient, worker: int, event: Event, offsets: Sequence[int]) -> None:
    id = event.message.delivery_id  # type: ignore[attr-defined]
    entries = [m.Settlement(0, id, offset, offset + 1, m.Verdict.REJECT) for offset in offsets]
    for at in range(0, len(entries), 500):
        assert (await client.call(m.Settle(worker, entries[at : at + 500]))).refused == []


@simulated
async def test_records_between_others_are_copied_many_at_a_time(env: SimEnv) -> None:
    env.disk.sync_delay_s_max = 0.01
    count = 9 * transfer.RECORDS_AT_ONCE + 50
    async with broker_on(env, ALWAYS + TEXT):
        client = await connected(env)
        await client.publish("t", [str(number) for number in range(2 * count)])
        worker = (await client.call(m.Subscribe("t", credit=2 * count))).subscription
        event, syncs = await client.delivery(), len(env.disk.operations)
        await _reject(client, worker, event, range(0, 2 * count, 2))
        await trio.sleep(1)
        letters = await _dead(client)
        assert [record.labels["linn.dead.offset"] for record in letters] == list(range(0, 2 * count, 2))
        assert [record.value for record in letters] == [str(number).encode() for number in range(0, 2 * count, 2)]
        assert len(env.disk.operations) - syncs < count / 3, "no sync for each"
        shown = await client.administer("subscription.show", topic="t")
        assert (shown["dead"], shown["leased"]) == (0, count)


@simulated
async def test_records_that_die_during_copying_are_copied_as_well(env: SimEnv) -> None:
    env.disk.sync_delay_s_max = 0.5
    count = 200
    async with broker_on(env, ALWAYS + TEXT):
        client = await connected(env)
        await client.publish("t", [str(number) for number in range(count)])
        worker = (await client.call(m.Subscribe("t", credit=count))).subscription
        event = await client.delivery()
        for first in (1, 0, 2, 3):
            await client.tell(
                m.Settle(
                    worker,
                    [
                        m.Settlement(0, event.message.delivery_id, at, at + 1, m.Verdict.REJECT)  # type: ignore[attr-defined]
                        for at in range(first, count, 4)
                    ],
                )
            )
            await trio.sleep(0.3)
        await trio.sleep(9)
        copies = Counter(record.labels["linn.dead.offset"] for record in await _dead(client))
        assert copies == dict.fromkeys(range(count), 1)


@simulated
async def test_without_a_dead_letter_topic_records_between_others_are_dropped_in_turns(env: SimEnv) -> None:
    count = 3_000
    async with broker_on(env, '[topics.t]\nlease = "1h"\n'):
        client = await connected(env)
        await client.publish("t", ["x"] * (2 * count))
        worker = (await client.call(m.Subscribe("t", credit=2 * count))).subscription
        await _reject(client, worker, await client.delivery(), range(0, 2 * count, 2))
        await trio.sleep(1)
        shown = await client.administer("subscription.show", topic="t")
        assert (shown["dead"], shown["leased"]) == (0, count)


@simulated
async def test_records_dropped_before_they_are_copied_count_as_missed(env: SimEnv) -> None:
    text = TEXT.replace("[topics.t]", '[topics.t]\nkind = "both"')
    async with broker_on(env, "[storage.segmented-log]\nsegment_bytes_max = 4096\n" + text) as broker:
        client, topic = await connected(env), broker.topics["t"]
        for _ in range(9):
            await client.publish("t", ["x" * 1000])
        worker = (await client.call(m.Subscribe("t", credit=1))).subscription
        event = await client.delivery()
        # What retention does first; the queue hears of it some syncs later.
        await topic.partitions[0].enforce_retention(env.clock.now_ms(), bytes_max=1)
        await client.settle(worker, event, m.Verdict.REJECT)
        await trio.sleep(1)
        assert await _dead(client) == []
        await topic.enforce_retention()
        assert topic.missed_records == topic.partitions[0].start_offset > 1
        assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 9 - topic.missed_records


RECORDS = 6


async def _work_in_gaps(env: SimEnv) -> None:
    """Work as `_work`, but reject every other record, and then the rest, each in one request."""
    async with broker_on(env, ALWAYS + TEXT):
        await _reject_in_gaps(await connected(env))


async def _reject_in_gaps(client: RawClient) -> None:
    start = (await client.administer("topic.show", name="t"))["partitions"][0]["end"]
    if start < RECORDS:
        await client.publish("t", [str(number) for number in range(start, RECORDS)])
    worker = (await client.call(m.Subscribe("t", credit=100))).subscription
    while not await client.is_silent(3):
        event = await client.delivery()
        held = [offset for batch in event.batches for offset in range(batch.base_offset, batch.end_offset)]
        for half in (held[::2], held[1::2]):
            if half:
                await _reject(client, worker, event, half)
                await trio.sleep(1)
        await client.call(m.Credit(worker, 100))


async def _work(env: SimEnv) -> None:
    """Publish some records and reject or use up all of them, without counting on anything from before."""
    async with broker_on(env, ALWAYS + TEXT):
        client = await connected(env)
        start = (await client.administer("topic.show", name="t"))["partitions"][0]["end"]
        for number in range(start, RECORDS):
            await client.publish("t", [str(number)])
        worker = (await client.call(m.Subscribe("t", credit=100))).subscription
        idle = False
        while not idle:
            idle = await client.is_silent(3)
            if not idle:
                event = await client.delivery()
                number = int(values(event.batches)[0])
                await client.settle(worker, event, m.Verdict.REJECT if number % 2 else m.Verdict.NACK)
                await client.call(m.Credit(worker, 100))


async def _work_twice(env: SimEnv, crash_at: int | None, work: Callable[[SimEnv], Awaitable[None]] = _work) -> int:
    """Lose power once, start again, and look at the dead letters; how many changes of the disk there were at first."""
    env.disk.crash_at = crash_at
    env.disk.sync_delay_s_max = 0.01
    died = await env.run_until_death(work)
    count = len(env.disk.operations)
    if died:
        env = await after_power_loss(env, ALWAYS + TEXT)
        assert not await env.run_until_death(work)
    async with broker_on(env, ALWAYS + TEXT):
        client = await connected(env)
        shown = (await client.administer("topic.show", name="t"))["partitions"][0]
        copies = await _copies(client)
        assert shown["end"] >= RECORDS
        assert copies == dict.fromkeys(range(shown["end"]), 1), f"one copy of each; power lost at {crash_at}"
        assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 0
    return count


async def _copies(client: RawClient) -> Counter[object]:
    """The number of copies by the offset of their record."""
    labels = [record.labels for record in await _dead(client)]
    return Counter(each["linn.dead.offset"] for each in labels if "linn.dead.offset" in each)


async def _until(happens: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not happens():
            await trio.sleep(0.001)


async def _lose_power_with_an_intent(env: SimEnv) -> None:
    """Lose power once the intent is durable, while others have published to the target what is not."""

    async def publish(client: RawClient) -> None:
        while True:
            await client.tell(m.Publish("dead", acks=m.Acks.NONE), [records(["other"])])
            await trio.sleep(0.002)

    async with broker_on(env, ALWAYS + TEXT) as broker, trio.open_nursery() as nursery:
        nursery.start_soon(publish, await connected(env))
        nursery.start_soon(_reject_in_gaps, await connected(env))
        queue, dead = broker.topics["t"].queue, broker.topics["dead"].partitions[0]
        assert queue is not None
        (partition_queue,) = queue.partition_queues

        def is_intended() -> bool:
            assert partition_queue.log.state is not None
            found, state = partition_queue.subscription.intended(), partition_queue.log.state.partition
            if not found or state.high_watermark < state.log.bounds()[1]:
                return False
            return dead.high_watermark < dead.log.bounds()[1]

        await _until(is_intended)
        env.crash()


async def _lose_power_with_copies(env: SimEnv) -> None:
    """Lose power once copies are durable, before that of their records is."""

    def has_copies() -> bool:
        done = [operation for operation, path in env.disk.operations if "/dead/0/" in path and path.endswith(".log")]
        return "write" in done and "sync end" in done[done.index("write") :]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_work_in_gaps, env)
        await _until(has_copies)
        env.crash()


def lose_power_twice(seed: int) -> None:
    """Lose power before the copies and after them."""

    async def scenario(env: SimEnv) -> None:
        for process in (_lose_power_with_an_intent, _lose_power_with_copies):
            env.disk.sync_delay_s_max = 0.1
            assert await env.run_until_death(process)
            env = await after_power_loss(env, ALWAYS + TEXT)
        assert not await env.run_until_death(_work_in_gaps)
        async with broker_on(env, ALWAYS + TEXT):
            copies = await _copies(await connected(env))
            assert copies == dict.fromkeys(range(RECORDS), 1), "one copy of each, after two power losses"

    run_simulation(seed, scenario)


def die_and_lose_power(seed: int, crash_at: int) -> None:
    """Lose power at one change of the disk."""
    run_simulation(seed, lambda env: _work_twice(env, crash_at))


@pytest.mark.parametrize("seed", range(5))
def test_each_record_is_a_dead_letter_exactly_once_wherever_power_is_lost(seed: int) -> None:
    """Power is lost at every other change of the disk, one run for each."""
    count = run_simulation(seed, lambda env: _work_twice(env, None))
    assert count > 50
    for crash_at in range(2 * seed, count, 10):
        die_and_lose_power(seed, crash_at)


@pytest.mark.parametrize("seed", range(3))
def test_records_that_share_an_intent_are_dead_letters_exactly_once_wherever_power_is_lost(seed: int) -> None:
    """Power is lost at every other change of the disk, one run for each."""
    count = run_simulation(seed, lambda env: _work_twice(env, None, _work_in_gaps))
    assert count > 20
    for crash_at in range(2 * seed, count, 6):
        run_simulation(seed, lambda env, at=crash_at: _work_twice(env, at, _work_in_gaps))  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(8))
def test_each_record_is_a_dead_letter_exactly_once_where_power_is_lost_before_the_copies_and_after(seed: int) -> None:
    lose_power_twice(seed)
