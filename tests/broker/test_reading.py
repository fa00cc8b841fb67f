"""Reading by offset, by push and by pull: how much, how long, and never more than was asked for."""

from __future__ import annotations

import json

import pytest
import trio
from raw_client import ALWAYS, HEAD, RawClient, Refused, broker_on, connected, records, served, simulated, values

from linn.core.broker.broker import Broker
from linn.core.log.storage import READ_BATCHES_MAX
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import BATCHES_MAX, Event

STREAM = '[topics.t]\nkind = "stream"\n'


def _bounds(event: Event) -> tuple[int, int, int]:
    fetched = event.message
    assert isinstance(fetched, m.Fetched)
    return fetched.start_offset, fetched.high_watermark, fetched.next_offset


@served(STREAM)
async def test_a_fetch_waits_for_as_many_bytes_as_it_wants_and_no_longer_than_it_may(
    client: RawClient, other: RawClient
) -> None:
    size = records(["x" * 100]).size
    started = trio.current_time()
    event = await client.ask(m.Fetch("t", 0, 0, wait_max_ms=5000))
    assert event.batches == []
    assert _bounds(event) == (0, 0, 0)
    assert 5 <= trio.current_time() - started < 6
    waiting = await client.send(m.Fetch("t", 0, 0, bytes_min=2 * size, wait_max_ms=30_000))
    await other.publish("t", ["x" * 100])
    await trio.sleep(1)
    assert not client.is_answered(waiting)
    await other.publish("t", ["y" * 100])
    with trio.fail_after(1):
        event = await client.answer(waiting)
    assert [batch.base_offset for batch in event.batches] == [0, 1]
    assert _bounds(event) == (0, 2, 2)


@served(STREAM)
async def test_a_fetch_gives_at_least_one_batch_and_keeps_to_its_byte_limit(client: RawClient) -> None:
    for number in range(10):
        await client.publish("t", [f"{number}a", f"{number}b", f"{number}c"])
    size = records(["0a", "0b", "0c"]).size
    assert len((await client.ask(m.Fetch("t", 0, 0, bytes_max=1))).batches) == 1
    assert (await client.ask(m.Fetch("t", 0, 0, bytes_max=0))).batches == [], "it only says that there are some"
    assert len((await client.ask(m.Fetch("t", 0, 0, bytes_max=3 * size))).batches) == 3
    assert await client.fetch("t", offset=7, bytes_max=1) == ["2b", "2c"], "a batch is cut at the offset"
    assert await client.fetch("t", offset=30) == []


@served(STREAM)
async def test_offsets_that_are_none_are_refused(client: RawClient) -> None:
    await client.publish("t", ["a"])
    for offset in (-1, -(2**63), 2, 2**63 - 1):
        with pytest.raises(Refused, match=r"log\.offset_out_of_range"):
            await client.fetch("t", offset=offset, wait_max_ms=60_000)
    for partition in (1, -1, 2**31 - 1):
        with pytest.raises(Refused, match=r"topic\.partition_unknown"):
            await client.fetch("t", partition)
    with pytest.raises(Refused, match=r"topic\.unknown"):
        await client.fetch("x" * 10_000)


@served(ALWAYS + STREAM)
async def test_reads_end_at_the_high_watermark(
    env: SimEnv, broker: Broker, client: RawClient, reader: RawClient
) -> None:
    partition = broker.topics["t"].partitions[0]
    subscription = (await reader.call(m.Subscribe("t", credit=1000))).subscription
    assert subscription == 1
    env.disk.sync_delay_s_max = 0.5
    for number in range(50):
        await client.tell(m.Publish("t", acks=m.Acks.NONE), [records([str(number)])])
        await trio.sleep(0.05)
        for event in (await reader.ask(m.Fetch("t", 0, 0)), *reader.pushed):
            assert all(batch.end_offset <= partition.log.durable() for batch in event.batches)
    await trio.sleep(5)
    assert await reader.fetch("t") == [str(number) for number in range(50)]
    await reader.call(m.Ping())
    pushed = [value for event in reader.pushed for value in values(event.batches)]
    assert pushed == [str(number) for number in range(50)]


@served(STREAM)
async def test_an_offset_is_found_by_time(client: RawClient) -> None:
    for number in range(5):
        await client.call(m.Publish("t"), [records(["a", "b"], timestamp_ms=1000 * number)])
    asked = {-2: 0, -1: 0, 0: 0, 1: 2, 3000: 6, 4000: 8, 4001: 10, -5: 0, 2**62: 10}
    for timestamp, offset in asked.items():
        assert await client.call(m.FindOffset("t", 0, timestamp)) == m.FoundOffset(offset)
    for place, offset in ((m.Place.EARLIEST, 0), (m.Place.LATEST, 10)):
        assert await client.call(m.FindOffset("t", 0, place=place)) == m.FoundOffset(offset)
    with pytest.raises(Refused, match=r"protocol\.request_unknown"):
        await client.call(m.FindOffset("t", 0, place=3))


@pytest.mark.parametrize("kind", ["queue", "group", "reader"])
@pytest.mark.parametrize("pushes", [True, False])
@simulated
async def test_nobody_gets_more_than_requested(env: SimEnv, kind: str, pushes: bool) -> None:
    text = "[topics.t]\npartitions = 3\n" + ('kind = "stream"\n' if kind != "queue" else "")
    async with broker_on(env, text):
        client = await connected(env)
        for number in range(30):
            await client.publish("t", [f"{number}.{i}" for i in range(7)], partition=number % 3)
        group = "g" if kind == "group" else ""
        subscribed = await client.call(m.Subscribe("t", group=group, credit=10 if pushes else 0))
        if kind == "group":
            await client.push()
        seen: list[str] = []
        while len(seen) < 210:
            step = len(seen)
            if pushes:
                events = []
                while len(seen) < step + 10:
                    events.append(await client.delivery())
                    seen += values(events[-1].batches)
                assert len(seen) == step + 10
                assert not await client.is_silent(0) or await client.is_silent(1)
                for event in events if kind == "queue" else ():
                    await client.settle(subscribed.subscription, event)
                if kind != "queue":
                    await client.call(m.Credit(subscribed.subscription, 10))
            else:
                got = values((await client.pull(subscribed.subscription, 10)).batches)
                assert 0 < len(got) <= 10
                seen += got
        for partition in range(3):
            own = [value for value in seen if int(value.split(".")[0]) % 3 == partition]
            assert own == sorted(own, key=lambda value: [int(part) for part in value.split(".")]), "in order"
        assert len(set(seen)) == 210, "each once"


@served("[topics.t]\n")
async def test_a_pull_waits_for_records_and_no_longer_than_it_may(client: RawClient, other: RawClient) -> None:
    subscription = (await client.call(m.Subscribe("t"))).subscription
    started = trio.current_time()
    assert (await client.pull(subscription, wait_max_ms=3000)).batches == []
    assert 3 <= trio.current_time() - started < 4
    waiting = await client.send(m.Pull(subscription, 5, 30_000))
    await other.publish("t", ["a"])
    with trio.fail_after(1):
        assert values((await client.answer(waiting)).batches) == ["a"]
    assert (await client.pull(subscription, records_max=0, wait_max_ms=60_000)).batches == []


@served("[topics.t]\n")
async def test_a_pull_that_does_not_wait_uses_up_no_attempt_while_the_disk_is_read(client: RawClient) -> None:
    for number in range(20):
        await client.publish("t", [str(number)])
    subscription = (await client.call(m.Subscribe("t"))).subscription
    for number in range(20):
        event = await client.pull(subscription, 1)
        assert (values(event.batches), event.message.attempt) == ([str(number)], 1)


@served("[topics.t]\n")
async def test_several_pulls_at_once_are_each_answered(client: RawClient, other: RawClient) -> None:
    subscription = (await client.call(m.Subscribe("t"))).subscription
    waiting = [await client.send(m.Pull(subscription, 1, 10_000)) for _ in range(4)]
    await other.publish("t", ["a", "b"])
    events = [await client.answer(each) for each in waiting]
    assert sorted(value for event in events for value in values(event.batches)) == ["a", "b"]


@simulated
async def test_a_reader_behind_retention_continues_at_the_oldest_record(env: SimEnv) -> None:
    text = '[storage.segmented-log]\nsegment_age = "10s"\n[topics.t]\nkind = "both"\nretention = "20s"\nlease = "1h"\n'
    async with broker_on(env, text):
        client = await connected(env)
        reader = (await client.call(m.Subscribe("t", credit=1))).subscription
        grouped = (await client.call(m.Subscribe("t", group="g", credit=1))).subscription
        await client.push()
        await client.publish("t", [str(number) for number in range(10)])
        for _ in range(2):
            assert values((await client.delivery()).batches) == ["0"]
        for _ in range(20):
            await trio.sleep(5)
            await client.call(m.Ping())
        shown = (await client.administer("topic.show", name="t"))["partitions"][0]
        assert shown["start"] == shown["end"] == 10, "everything is too old"
        for subscription in (reader, grouped):
            await client.call(m.Credit(subscription, 5))
        assert await client.is_silent(5)
        await client.publish("t", ["new"])
        for _ in range(2):
            assert values((await client.delivery()).batches) == ["new"]


@served(ALWAYS + STREAM)
async def test_one_connection_carries_many_requests_and_answers_each_by_its_number(client: RawClient) -> None:
    slow = await client.send(m.Fetch("t", 0, 0, bytes_min=1 << 20, wait_max_ms=10_000))
    publishes = [await client.send(m.Publish("t"), [records([str(i)])]) for i in range(100)]
    wrong = [await client.send(m.Publish("nope"), [records(["x"])]) for _ in range(10)]
    ping = await client.send(m.Ping())
    assert isinstance((await client.answer(ping)).message, m.Pong)
    for correlation in wrong:
        with pytest.raises(Refused, match=r"topic\.unknown"):
            await client.answer(correlation)
    offsets = [(await client.answer(each)).message.placements[0].base_offset for each in publishes]
    assert offsets == list(range(100))
    assert not client.is_answered(slow)
    assert values((await client.answer(slow)).batches) == [str(i) for i in range(100)]


@simulated
async def test_subscriptions_of_a_connection_are_limited_and_unknown_ones_refused(env: SimEnv) -> None:
    async with broker_on(env, STREAM, HEAD + "subscriptions_max = 3\n"):
        client = await connected(env)
        ids = [(await client.call(m.Subscribe("t"))).subscription for _ in range(3)]
        with pytest.raises(Refused, match=r"limit\.exceeded"):
            await client.call(m.Subscribe("t"))
        await client.call(m.Unsubscribe(ids[0]))
        await client.call(m.Subscribe("t"))
        await client.call(m.Unsubscribe(ids[1]))
        for request in (m.Unsubscribe(ids[0]), m.Credit(ids[0], 1), m.Pull(99, 1), m.Settle(0, [])):
            with pytest.raises(Refused, match=r"delivery\.subscription_unknown"):
                await client.call(request)
        with pytest.raises(Refused, match=r"topic\.unknown"):
            await client.call(m.Subscribe("nope"))
        with pytest.raises(Refused, match=r"topic\.partition_unknown"):
            await client.call(m.Subscribe("t", partitions=[0, 7]))


@served(STREAM + "partitions = 2\n")
async def test_a_reader_begins_where_it_wants_to(client: RawClient) -> None:
    for partition in range(2):
        await client.publish("t", [f"{partition}{letter}" for letter in "abc"], partition=partition)
    begins = {-2: "abc", -1: "", 1: "bc", 3: "", -(2**63): "abc"}
    for start, letters in begins.items():
        subscription = (await client.call(m.Subscribe("t", credit=100, start=start, partitions=[1]))).subscription
        if letters:
            assert values((await client.delivery()).batches) == [f"1{letter}" for letter in letters]
        assert await client.is_silent(1)
        await client.call(m.Unsubscribe(subscription))


@served(STREAM + "partitions = 2\n")
async def test_an_offset_beyond_the_end_is_refused_wherever_something_begins(client: RawClient) -> None:
    """Unless another partition has it: then one that ends before is read from its end."""
    await client.publish("t", ["a", "b", "c"], partition=0)
    await client.publish("t", ["a"], partition=1)
    reader = (await client.call(m.Subscribe("t", start=0))).subscription
    wrong: list[m.Message] = [m.Fetch("t", 0, 4), m.Seek(reader, 0, 4)]
    for start in (4, 2**63 - 1):
        wrong += [m.Subscribe("t", group, start=start, shared=name) for group, name in (("", ""), ("", "s"), ("g", ""))]
        place = {"topic": "t", "subscription": "s", "offset": start}
        wrong.append(m.Administer("subscription.create", json.dumps(place)))
    for starts in ([4], [0, 2]):
        wrong += [
            m.Subscribe("t", group, starts=starts, shared=name) for group, name in (("", ""), ("", "s"), ("g", ""))
        ]
    wrong.append(m.Subscribe("t", start=2, partitions=[1]))
    for message in wrong:
        with pytest.raises(Refused, match=r"log\.offset_out_of_range"):
            await client.call(message)
    assert await client.administer("subscription.list", topic="t") == []
    for number, name in enumerate(("", "s")):
        last = (await client.call(m.Subscribe("t", start=3, credit=100, shared=name))).subscription
        await client.publish("t", [f"{number}"], partition=1)
        assert values((await client.delivery()).batches) == [f"{number}"]
        await client.call(m.Unsubscribe(last))
    member = (await client.call(m.Subscribe("t", "g", start=3))).subscription
    await client.call(m.Unsubscribe(member))
    with pytest.raises(Refused, match=r"log\.offset_out_of_range"):
        await client.administer("group.reset", group="g", topic="t", offset=4)


@served('[topics.s]\nkind = "stream"\n[topics.q]\n')
async def test_more_batches_than_fit_behind_one_frame_come_in_several(client: RawClient) -> None:
    half = BATCHES_MAX // 2 + 100
    singles = [[str(number)] for number in range(2 * half)]
    for topic in "sq":
        for some in (singles[:half], singles[half:]):
            await client.call(m.Publish(topic), [records(single) for single in some])
    wanted = [value for (value,) in singles]
    found: list[str] = []
    while len(found) < len(wanted):
        more = await client.fetch("s", 0, len(found))
        assert 0 < len(more) <= READ_BATCHES_MAX
        found += more
    assert found == wanted
    for topic in "sq":
        await client.call(m.Subscribe(topic, credit=2 * len(wanted)))
        got: list[str] = []
        while len(got) < len(wanted):
            got += values((await client.delivery()).batches)
        assert got == wanted
