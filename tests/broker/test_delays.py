"""Delayed records come into their topic when they are due, and not before, whatever happens meanwhile."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest
import schedule_run
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
    unsynced,
)

from linn.api import InterceptorKind, hookimpl
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records, edit_batch
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.core.errors.tree import MessageInvalid, StorageError
from linn.core.log.partition import Partition
from linn.core.queue import transfer
from linn.core.queue.dead_letter import Intent
from linn.core.topics.timing_logs import timing_topic
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

QUEUE = "[topics.t]\n"
STREAM = '[topics.t]\nkind = "stream"\n'
TWO = "[exchanges.e]\n" + "".join(f'[topics.{name}]\n[[topics.{name}.bindings]]\nexchange = "e"\n' for name in "tu")
YEAR_MS = 366 * 86_400_000


async def publish(client: RawClient, contents: list[str], **properties: Any) -> Any:
    return await client.call(m.Publish("t"), [records(contents, **properties)])


def ends(broker: Broker) -> list[int]:
    """The ends of the partitions of the topic: its offsets so far."""
    return list(broker.topics["t"].ends().values())


def scheduled(broker: Broker) -> int:
    return broker.topics["t"].timing.waiting_count


@pytest.mark.parametrize("text", [QUEUE, STREAM], ids=["queue", "stream"])
@simulated
async def test_a_delayed_record_has_no_offset_before_it_is_due(env: SimEnv, text: str) -> None:
    async with broker_on(env, text) as broker:
        client = await connected(env)
        await publish(client, ["later"], delay_ms=10_000)
        await publish(client, ["now"])
        await publish(client, ["at a time"], due_ms=env.clock.now_ms() + 5_000)
        assert (ends(broker), scheduled(broker)) == ([1], 2)
        await trio.sleep(4.9)
        assert ends(broker) == [1]
        await trio.sleep(0.2)
        assert ends(broker) == [2]
        await trio.sleep(4.5)
        assert ends(broker) == [2]
        await trio.sleep(0.6)
        assert (ends(broker), scheduled(broker)) == ([3], 0)
        assert await client.fetch("t") == ["now", "at a time", "later"]


@served(QUEUE)
async def test_a_record_comes_without_its_time_and_with_all_else(client: RawClient) -> None:
    await publish(client, ["a"], delay_ms=1_000, ttl_ms=60_000, key=b"k", labels={"x": 1}, headers=(("h", b"v"),))
    await trio.sleep(2)
    subscription = (await client.call(m.Subscribe("t"))).subscription
    (batch,) = (await client.pull(subscription)).batches
    record = batch.record(0)
    assert (record.delay_ms, record.due_ms, record.ttl_ms) == (0, 0, 60_000)
    assert (record.key, dict(record.labels), record.headers) == (b"k", {"x": 1}, (("h", b"v"),))


@served(QUEUE)
async def test_records_come_in_the_order_of_their_times_and_then_of_their_arrival(
    env: SimEnv, client: RawClient
) -> None:
    due_ms = env.clock.now_ms() + 10_000
    for content, more_ms in [("c", 3), ("a", 1), ("d", 3), ("b", 2)]:
        await publish(client, [content], due_ms=due_ms + more_ms)
    env.clock.jump(20_000)  # All are due at once when the broker finds out.
    await trio.sleep(61)
    client = await connected(env)
    assert await client.fetch("t") == ["a", "b", "c", "d"]


@pytest.mark.parametrize("batch_bytes_max", [1, 600, 8 << 20])
@served(QUEUE)
async def test_records_of_many_batches_come_in_their_order_however_few_of_these_fit_into_memory(
    env: SimEnv, client: RawClient, monkeypatch: pytest.MonkeyPatch, batch_bytes_max: int
) -> None:
    monkeypatch.setattr(transfer, "BATCH_BYTES_MAX", batch_bytes_max)
    due_ms, numbers = env.clock.now_ms() + 10_000, list(range(60))
    Random(1).shuffle(numbers)
    for first in range(0, 60, 6):
        made = [Record(value=b"%d" % number, due_ms=due_ms + number) for number in numbers[first : first + 6]]
        await client.call(m.Publish("t"), [build_from_records(made, base_id=first)])
    env.clock.jump(20_000)
    await trio.sleep(61)
    assert await (await connected(env)).fetch("t") == [str(number) for number in range(60)]


@served(QUEUE.replace("\n", "\npartitions = 3\n"))
async def test_a_delayed_record_goes_to_the_partition_that_was_chosen_for_it(client: RawClient, broker: Broker) -> None:
    await client.call(m.Publish("t", partition=2), [records(["a", "b"], delay_ms=1_000)])
    for number in range(9):
        await publish(client, [str(number)], delay_ms=1_000)
    await trio.sleep(2)
    assert ends(broker) == [3, 3, 5]


@served(QUEUE)
async def test_times_that_none_can_keep_are_refused_by_name(client: RawClient, broker: Broker) -> None:
    wrong = [{"due_ms": -1}, {"due_ms": 253_402_300_800_000}, {"due_ms": 2**63 - 1}, {"due_ms": 5, "delay_ms": 5}]
    for properties in wrong:
        with pytest.raises(Refused) as refused:
            await publish(client, ["a"], **properties)
        assert refused.value.code == "message.invalid"
    assert (ends(broker), scheduled(broker)) == ([0], 0), "never now"


@served(QUEUE)
async def test_a_time_that_has_passed_is_now(client: RawClient) -> None:
    await publish(client, ["a"], due_ms=1)
    await trio.sleep(0.5)
    assert await client.fetch("t") == ["a"]


@simulated
async def test_years_pass_and_restarts(env: SimEnv) -> None:
    async with broker_on(env, QUEUE):
        await publish(await connected(env), ["old"], due_ms=env.clock.now_ms() + 10 * YEAR_MS)
    async with broker_on(env, QUEUE) as broker:
        await trio.sleep(1)
        assert (ends(broker), scheduled(broker)) == ([0], 1)
    env.clock.jump(10 * YEAR_MS)
    async with broker_on(env, QUEUE) as broker:
        await trio.sleep(1)
        assert (ends(broker), scheduled(broker)) == ([1], 0)


@simulated
async def test_a_clock_that_is_set_back_delays_and_one_that_is_set_forward_hastens(env: SimEnv) -> None:
    async with broker_on(env, QUEUE) as broker:
        client = await connected(env)
        await publish(client, ["a"], delay_ms=10_000)
        env.clock.jump(-60_000)
        await trio.sleep(30)
        assert ends(broker) == [0]
        env.clock.jump(60_000)
        await trio.sleep(61)
        assert ends(broker) == [1]


@simulated
async def test_the_kind_of_the_topic_may_change_meanwhile(env: SimEnv) -> None:
    async with broker_on(env, QUEUE) as broker:
        client = await connected(env)
        await publish(client, ["a"], delay_ms=10_000)
        await client.administer("topic.alter", name="t", settings={"kind": "stream", "partitions": 2})
        await publish(client, ["b"], delay_ms=10_000)
        await trio.sleep(11)
        assert (sum(ends(broker)), scheduled(broker)) == (2, 0)


@simulated
async def test_a_topic_is_deleted_with_what_waits_for_it(env: SimEnv) -> None:
    async with broker_on(env, ""):
        client = await connected(env)
        for _ in range(2):
            await client.administer("topic.create", name="t", settings={"status": "7d"})
            await publish(client, ["a"], delay_ms=10_000)
            await publish(client, ["now"])
            await client.administer("topic.delete", name="t")
        assert not [name for name in env.disk.list_dir("data/segmented-log") if name.endswith(".t")]
    async with broker_on(env, QUEUE) as broker:
        await trio.sleep(20)
        assert ends(broker) == [0]


@served('[topics.t]\nrecords_max = 3\noverflow = "reject"\n')
async def test_records_wait_on_while_their_topic_is_full(client: RawClient, broker: Broker) -> None:
    await publish(client, ["1", "2", "3"])
    await publish(client, ["4", "5"], delay_ms=1_000)
    await trio.sleep(5)
    assert (ends(broker), scheduled(broker)) == ([3], 2)
    assert await client.taken("t") == ["1", "2", "3"]
    await trio.sleep(15)
    assert (ends(broker), scheduled(broker)) == ([5], 0)


class _Stamp:
    """An interceptor that marks each value, and refuses empty ones."""

    name = value = "stamp"
    dist = None

    def load(self) -> object:
        return self

    @hookimpl
    def linn_register_interceptor(self) -> list[InterceptorKind]:
        return [InterceptorKind("stamp", None, lambda *_: self)]

    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch:
        if any(record.value == b"" for record in batch.records()):
            raise MessageInvalid("empty").of_messages([0])
        return edit_batch(batch, values=[(record.value or b"") + b"!" for record in batch.records()])


@simulated
async def test_interceptors_see_a_record_once_when_it_is_published(env: SimEnv) -> None:
    async with broker_on(env, STREAM + 'interceptors = ["stamp"]\n', plugins=[_Stamp()]):
        client = await connected(env)
        with pytest.raises(Refused, match=r"message\.invalid: empty"):
            await publish(client, [""], delay_ms=1_000)
        await publish(client, ["a"], delay_ms=1_000)
        await trio.sleep(2)
        assert await client.fetch("t") == ["a!"]


@served("[topics.t]\nrecords_max = 400\n")
async def test_steps_are_small_where_the_topic_has_a_limit(client: RawClient, broker: Broker) -> None:
    await publish(client, ["first"])
    await publish(client, [str(number) for number in range(900)], delay_ms=1_000)
    await trio.sleep(5)
    assert 300 < ends(broker)[0] <= 400, "as many as fit, and not none because all do not"


@served('[topics.t]\ndedup = "5m"\n')
async def test_an_id_comes_into_the_topic_once(client: RawClient, broker: Broker) -> None:
    await publish(client, ["a"], delay_ms=1_000, id=UUID(int=7))
    await publish(client, ["a"], delay_ms=2_000, id=UUID(int=7))
    await trio.sleep(3)
    assert (ends(broker), scheduled(broker)) == ([1], 0)


@served(TWO)
async def test_an_exchange_chooses_when_a_record_is_published(client: RawClient, broker: Broker) -> None:
    await client.call(m.Publish("e", to_exchange=True), [records(["a"], delay_ms=1_000)])
    await trio.sleep(2)
    assert [list(broker.topics[name].ends().values()) for name in "tu"] == [[1], [1]]


@served(QUEUE)
async def test_a_batch_may_have_records_for_now_and_for_later(client: RawClient, broker: Broker) -> None:
    batch = build_from_records([Record(value=b"1"), Record(value=b"2", delay_ms=1_000), Record(value=b"3")], base_id=9)
    await client.call(m.Publish("t"), [batch])
    assert (ends(broker), scheduled(broker)) == ([2], 1)
    await trio.sleep(2)
    assert await client.fetch("t") == ["1", "3", "2"]


async def listed(client: RawClient, **options: Any) -> tuple[int, list[str]]:
    found = await client.administer("scheduled.list", topic="t", **options)
    return found["count"], [each["id"] for each in found["first"]]


async def changed(client: RawClient, verb: str, *ids: str, **options: Any) -> list[str]:
    found = await client.administer(f"scheduled.{verb}", topic="t", ids=list(ids), **options)
    assert [each["id"] for each in found] == list(ids)
    return [each["outcome"] for each in found]


@served(QUEUE.replace("\n", "\npartitions = 2\n"))
async def test_the_next_records_are_listed_in_their_order(env: SimEnv, client: RawClient) -> None:
    assert await listed(client) == (0, [])
    due_ms = env.clock.now_ms() + 50_000
    for partition, more_ms in [(0, 3), (1, 1), (1, 4), (0, 2)]:
        await client.call(m.Publish("t", partition=partition), [records(["a", "b"], due_ms=due_ms + more_ms)])
    expected = ["1/0", "1/1", "0/2", "0/3", "0/0", "0/1", "1/2", "1/3"]
    assert await listed(client) == (8, expected)
    assert await listed(client, count=3) == (8, expected[:3])
    assert (await client.administer("scheduled.list", topic="t"))["first"][0]["due_ms"] == due_ms + 1


@served(QUEUE)
async def test_single_records_are_asked_for_by_their_ids(env: SimEnv, client: RawClient) -> None:
    due_ms = env.clock.now_ms() + 50_000
    await publish(client, ["a", "b", "c"], due_ms=due_ms)
    await changed(client, "move", "0/1", due_ms=due_ms + 7)
    await changed(client, "cancel", "0/0")
    found = await client.administer("scheduled.list", topic="t", ids=["0/2", "0/0", "0/1", "0/3", "1/0"])
    assert found == {"count": 2, "first": [{"id": "0/2", "due_ms": due_ms}, {"id": "0/1", "due_ms": due_ms + 7}]}


@served(STREAM)
async def test_records_that_wait_can_be_fetched_and_those_that_have_left_can_not(client: RawClient) -> None:
    with pytest.raises(Refused, match=r"partition_unknown.*no message of topic t has waited"):
        await client.fetch("__d.t")
    await publish(client, ["sooner"], delay_ms=1_000)
    await publish(client, ["a", "b", "c"], delay_ms=50_000)
    await changed(client, "cancel", "0/2")
    assert await client.fetch("__d.t", unsettled=True) == ["sooner", "a", "c"]
    await trio.sleep(2)
    assert await client.fetch("__d.t", unsettled=True) == ["a", "c"]
    for name in ("__d.", "__d.u", "__d.__d.t", "__t.t"):
        with pytest.raises(Refused, match=r"topic\.unknown"):
            await client.fetch(name)


@simulated
async def test_a_cancelled_record_never_comes(env: SimEnv) -> None:
    async with broker_on(env, QUEUE):
        client = await connected(env)
        await publish(client, ["a", "b", "c"], delay_ms=20_000)
        assert await changed(client, "cancel", "0/1", validate_only=True) == ["cancelled"]
        assert await changed(client, "cancel", "0/1", "0/1", "0/3", "1/0") == ["cancelled", "gone", "gone", "gone"]
        assert await listed(client) == (2, ["0/0", "0/2"])
    async with broker_on(env, QUEUE):
        await trio.sleep(25)
        client = await connected(env)
        assert await client.fetch("t") == ["a", "c"]
        assert await changed(client, "cancel", "0/0") == ["gone"]


@simulated
async def test_a_moved_record_comes_at_its_other_time_also_after_restarts(env: SimEnv) -> None:
    begin_ms = env.clock.now_ms()
    async with broker_on(env, QUEUE):
        client = await connected(env)
        await publish(client, ["later", "sooner", "not", "years"], delay_ms=20_000)
        assert await changed(client, "move", "0/0", due_ms=begin_ms + 30_000) == ["moved"]
        assert await changed(client, "move", "0/1", due_ms=begin_ms + 10_000) == ["moved"]
        assert await changed(client, "move", "0/3", due_ms=begin_ms + 10 * YEAR_MS) == ["moved"]
        assert await changed(client, "move", "0/2", due_ms=begin_ms + 5_000, validate_only=True) == ["moved"]
        assert await listed(client) == (4, ["0/1", "0/2", "0/0", "0/3"])
    for sleep_s, come in [(0, []), (11, ["sooner"]), (10, ["sooner", "not"]), (10, ["sooner", "not", "later"])]:
        async with broker_on(env, QUEUE) as broker:
            await trio.sleep(sleep_s)
            client = await connected(env)
            found = [await client.fetch("t", 0, offset) for offset in range(ends(broker)[0])]
            assert [some[0] for some in found] == come
    async with broker_on(env, QUEUE) as broker:
        await trio.sleep(1)
        assert await listed(await connected(env)) == (1, ["0/3"])
        env.clock.jump(10 * YEAR_MS)
        await trio.sleep(61)
        assert scheduled(broker) == 0


@served(QUEUE)
async def test_a_record_that_is_leaving_can_not_be_changed(env: SimEnv, client: RawClient, broker: Broker) -> None:
    await publish(client, ["a", "b"], delay_ms=1_000)
    (queue,) = broker.topics["t"].timing.queues.values()
    queue.begin_step([(0, 1)], Intent(0, 7))
    assert await changed(client, "cancel", "0/0", "0/1") == ["leaving", "cancelled"]
    assert await changed(client, "move", "0/0", due_ms=env.clock.now_ms()) == ["leaving"]


@served('[topics.t]\nrecords_max = 1\noverflow = "reject"\n')
async def test_a_record_that_waits_for_room_is_leaving(client: RawClient, broker: Broker) -> None:
    await publish(client, ["full"])
    await publish(client, ["a"], due_ms=1)
    await trio.sleep(1)
    assert await changed(client, "cancel", "0/0") == ["leaving"]


@served(QUEUE)
async def test_questions_about_no_record_are_refused(client: RawClient) -> None:
    wrong = ["", "0", "0/", "/0", "0/-1", "-1/0", "a/b", "0/1/2", "\u0660/0", "0/" + "9" * 40]
    for id in wrong:
        with pytest.raises(Refused) as refused:
            await changed(client, "cancel", id)
        assert refused.value.code == "config.invalid"
    with pytest.raises(Refused, match=r"limit\.exceeded"):
        await changed(client, "cancel", *["0/0"] * 1001)
    for due_ms in (0, 253_402_300_800_000):
        with pytest.raises(Refused, match=r"config\.invalid"):
            await changed(client, "move", "0/0", due_ms=due_ms)


@simulated
async def test_nothing_leaves_before_a_start_knows_all_that_waits(env: SimEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_on(env, STREAM):
        await publish(await connected(env), ["old"], delay_ms=1_000)
    env.clock.jump(60_000)
    read_log, slow_until = Partition.read_log, trio.current_time() + 3

    async def slow(self: Partition, offset: int, bytes_max: int) -> list[RecordBatch]:
        if (self.id.topic, offset) == (timing_topic("t"), 0) and trio.current_time() < slow_until:
            raise StorageError("the disk does not answer")
        return await read_log(self, offset, bytes_max)

    monkeypatch.setattr(Partition, "read_log", slow)
    async with broker_on(env, STREAM) as broker:
        client = await connected(env)
        await publish(client, ["new"], due_ms=env.clock.now_ms() - 1)
        await trio.sleep(1)
        assert ends(broker) == [0]
        await trio.sleep(5)
        assert await client.fetch("t") == ["old", "new"]


@pytest.mark.parametrize("seed", range(4))
def test_a_duplicate_stands_for_a_delayed_record_only_once_it_is_stored_for_good(seed: int) -> None:
    text, id = ALWAYS + STREAM + 'dedup = "1h"\n', UUID(int=1)

    async def work(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            await publish(client, ["a"], id=id, delay_ms=1_000)
            with unsynced(env, "t"), trio.move_on_after(5) as waits:
                await publish(client, ["a"], id=id)
            assert waits.cancelled_caught
            env.crash()

    async def scenario(env: SimEnv) -> None:
        await env.run_until_death(work)
        env = await after_power_loss(env, text)
        async with broker_on(env, text):
            await trio.sleep(5)
            assert await (await connected(env)).fetch("t") == ["a"]

    run_simulation(seed, scenario)


@served('[topics.t]\ndead_letter = "dead"\n[topics.dead]\norder = "key"\n')
async def test_records_that_were_moved_keep_the_order_of_their_keys(client: RawClient) -> None:
    await publish(client, ["a", "b"], key=b"k", delay_ms=1_000)
    await trio.sleep(2)
    await client.administer("topic.alter", name="t", settings={"order": "key"})
    for topic in ("t", "dead"):
        subscription = (await client.call(m.Subscribe(topic))).subscription
        for _ in range(2):
            event = await client.pull(subscription, 10, wait_max_ms=2_000)
            assert sum(batch.count for batch in event.batches) == 1, "one of a key at a time"
            if topic == "t":
                await client.settle(subscription, event, m.Verdict.REJECT)
            else:
                await trio.sleep(1)
                assert not (await client.pull(subscription, 10)).batches
                break


@pytest.mark.parametrize("seed", range(30))
def test_each_record_comes_once_and_not_early_whatever_happens(seed: int) -> None:
    schedule_run.walk(seed)
