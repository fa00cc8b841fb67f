"""Metrics are what happened: numbers against what a client did to a broker."""

from __future__ import annotations

import pytest
import trio
from metric_samples import samples, value
from raw_client import (
    ALWAYS,
    HEAD,
    RawClient,
    Refused,
    after_power_loss,
    broker_on,
    connected,
    records,
    served,
    simulated,
)

from linn.core.batch.batch import RecordBatch
from linn.core.broker.broker import Broker
from linn.core.errors.tree import LogCorrupt
from linn.core.loop.fair_turns import FIRST_TOGETHER, TurnSlot
from linn.core.loop.histogram import Histogram
from linn.core.metrics import report as metric_report
from linn.core.publish.publisher import BATCH_BYTES, WAITING_BYTES
from linn.core.queue.dispatch_order import INDEX_RECORD_BYTES
from linn.core.queue.queue import PARTITIONS_IN_A_TURN
from linn.testing.deterministic import VirtualTime
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

WORK = '[topics.t]\nlease = "10s"\nmax_deliveries = 2\ndead_letter = "dead"\n[topics.dead]\nkind = "stream"\n'


@served('[topics.t]\nkind = "stream"\npartitions = 2\n[topics.other]\n')
async def test_published_and_consumed_messages_are_counted(broker: Broker, client: RawClient) -> None:
    batches = [records(["a"] * 3), records(["bb"] * 5)]
    sizes = [batch.size for batch in batches]
    for partition, batch in enumerate(batches):
        await client.call(m.Publish("t", partition=partition), [batch])
    published = ("batches", 2), ("records", 8), ("bytes", sum(sizes))
    for what, number in published:
        assert value(broker, f"linn_topic_published_{what}_total", "t") == number
        assert value(broker, f"linn_topic_published_{what}_total", "other") == 0
        assert value(broker, f"linn_topic_delivered_{what}_total", "t") == 0
    assert value(broker, "linn_topic_records", "t") == 8
    assert value(broker, "linn_topic_bytes", "t") == sum(sizes)
    await client.call(m.Subscribe("t", credit=100, start=-2))
    assert len((await client.delivery()).batches + (await client.delivery()).batches) == 2
    await client.fetch("t", partition=1)
    assert value(broker, "linn_topic_delivered_records_total", "t") == 8 + 5
    assert value(broker, "linn_topic_delivered_batches_total", "t") == 3
    assert value(broker, "linn_topic_delivered_bytes_total", "t") == sum(sizes) + sizes[1]
    assert value(broker, "linn_topic_consumers", "t") == 1


@simulated
async def test_counters_begin_at_0_after_a_restart_and_gauges_do_not(env: SimEnv) -> None:
    for published in (2, 4):
        async with broker_on(env, "[topics.t]\n") as broker:
            client = await connected(env)
            await client.publish("t", ["a", "b"])
            assert value(broker, "linn_topic_published_records_total", "t") == 2
            assert value(broker, "linn_topic_records", "t") == published


@served(WORK)
async def test_a_queue_in_numbers(env: SimEnv, broker: Broker) -> None:
    def queue() -> dict[str, int]:
        names = ("ready", "leased", "delayed", "dead", "unsettled")
        return {name: value(broker, f"linn_queue_{name}_records", "t", "") for name in names}

    client = await connected(env)
    await client.publish("t", ["a", "b", "c", "d"])
    assert queue() == {"ready": 4, "leased": 0, "delayed": 0, "dead": 0, "unsettled": 4}
    worker = (await client.call(m.Subscribe("t", credit=2))).subscription
    first = await client.delivery()
    assert queue() == {"ready": 2, "leased": 2, "delayed": 0, "dead": 0, "unsettled": 4}
    await client.settle(worker, first, m.Verdict.NACK, 5000)
    second = await client.delivery()
    assert queue() == {"ready": 0, "leased": 2, "delayed": 2, "dead": 0, "unsettled": 4}
    await trio.sleep(6)
    assert queue() == {"ready": 2, "leased": 2, "delayed": 0, "dead": 0, "unsettled": 4}
    assert value(broker, "linn_queue_redelivered_records_total", "t", "") == 0
    await client.settle(worker, second)
    await client.settle(worker, await client.delivery(), m.Verdict.NACK)
    assert value(broker, "linn_queue_redelivered_records_total", "t", "") == 2
    await trio.sleep(1)
    assert value(broker, "linn_queue_dead_letters_total", "t", "") == 2, "max_deliveries is 2"
    assert value(broker, "linn_topic_published_records_total", "dead") == 2
    assert queue() == {"ready": 0, "leased": 0, "delayed": 0, "dead": 0, "unsettled": 0}
    assert value(broker, "linn_topic_delivered_records_total", "t") == 6
    assert "dead" not in {topic for topic, _ in samples(broker, "linn_queue_unsettled_records")}


async def oldest_ready_s(broker: Broker, topic: str = "t") -> float:
    await broker.metrics.measure()
    return float(value(broker, "linn_queue_oldest_ready_seconds", topic, ""))


@pytest.mark.parametrize("order", ["fifo", "priority"])
@simulated
async def test_the_age_of_the_oldest_ready_record_counts_from_its_append(env: SimEnv, order: str) -> None:
    async with broker_on(env, f'[topics.t]\nlease = "1h"\norder = "{order}"\n') as broker:
        client = await connected(env)
        assert await oldest_ready_s(broker) == 0
        for number in range(3):  # The oldest is the least important one.
            priority = number * (order == "priority")
            await client.call(m.Publish("t"), [records([str(number)] * 2, priority=priority)])
            await trio.sleep(10)
        assert await oldest_ready_s(broker) == pytest.approx(30, abs=0.1)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        one = await client.pull(subscription, 1)
        assert await oldest_ready_s(broker) == pytest.approx(30, abs=0.1), "the other one of its batch, or older ones"
        rest = [await client.pull(subscription, 1) for _ in range(3 if order == "fifo" else 5)]
        assert await oldest_ready_s(broker) == pytest.approx(10 * (order == "fifo"), abs=0.1), "leased ones don't count"
        (listed,) = await client.administer("subscription.list")
        assert listed["oldest_ready_s"] == pytest.approx(10 * (order == "fifo"), abs=0.1)
        assert await client.settle(subscription, one, m.Verdict.NACK) == []
        assert await oldest_ready_s(broker) == pytest.approx(30 if order == "fifo" else 10, abs=0.1), "it is back"
        assert rest
    await trio.sleep(60)
    async with broker_on(env, f'[topics.t]\nlease = "1h"\norder = "{order}"\n') as broker:
        assert await oldest_ready_s(broker) == pytest.approx(90, abs=5), "its age survives a restart"


@served("[topics.t]\npartitions = 200\n")
async def test_others_have_turns_while_the_ages_of_many_partitions_are_read(broker: Broker, client: RawClient) -> None:
    for partition in range(200):
        await client.call(m.Publish("t", partition=partition), [records(["v"])])
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        for _ in range(2):  # The second time nothing has changed.
            before = turns
            assert await oldest_ready_s(broker) > 0
            assert turns - before >= 200 // PARTITIONS_IN_A_TURN
        nursery.cancel_scope.cancel()


@served("[topics.t]\n")
async def test_a_damaged_record_has_no_age_and_keeps_no_metric_from_being_read(
    env: SimEnv, broker: Broker, client: RawClient
) -> None:
    await client.publish("t", ["a"])
    await trio.sleep(5)

    async def lose(offset: int, bytes_max: int) -> list[RecordBatch]:
        raise LogCorrupt(f"no batch holds offset {offset}")

    broker.topics["t"].partitions[0].log.read = lose  # type: ignore[method-assign, assignment]
    assert await oldest_ready_s(broker) == 0


@simulated
async def test_the_window_of_an_order_is_seen(env: SimEnv) -> None:
    async with broker_on(env, '[topics.t]\nlease = "1h"\norder = "key"\n[topics.plain]\n') as broker:
        client = await connected(env)
        for topic in ("t", "plain"):
            await client.publish(topic, ["a", "b", "c"])
        assert value(broker, "linn_queue_order_window_bytes", "t", "") == 3 * INDEX_RECORD_BYTES
        assert value(broker, "linn_queue_order_window_bytes", "plain", "") == 0
        subscription = (await client.call(m.Subscribe("t"))).subscription
        await client.pull(subscription, 2)
        assert value(broker, "linn_queue_order_window_bytes", "t", "") == INDEX_RECORD_BYTES


@served(WORK)
async def test_dead_letters_that_wait_for_their_target_are_seen(broker: Broker, client: RawClient) -> None:
    await client.publish("t", ["a"])
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    delivery = await client.delivery()
    await client.administer("topic.alter", name="t", settings={"dead_letter": None})
    await client.administer("topic.delete", name="dead")
    await client.settle(worker, delivery, m.Verdict.REJECT)
    await trio.sleep(1)
    assert value(broker, "linn_queue_dead_letters_total", "t", "") == 1
    assert value(broker, "linn_queue_dead_records", "t", "") == 0, "without a target it is dropped"


@served('[topics.s]\nkind = "stream"\npartitions = 2\n')
async def test_the_lag_of_a_group_is_what_it_has_not_committed(broker: Broker, client: RawClient) -> None:
    for partition in (0, 1):
        await client.call(m.Publish("s", partition=partition), [records(["a", "b", "c"])])
    reader = (await client.call(m.Subscribe("s", group="g", credit=2, start=-2))).subscription
    await client.push()
    delivery = await client.delivery()
    assert value(broker, "linn_group_lag_records", "s", "g") == 6
    assert value(broker, "linn_group_members", "s", "g") == 1
    await client.settle(reader, delivery)
    assert value(broker, "linn_group_lag_records", "s", "g") == 4
    await client.call(m.Unsubscribe(reader))
    assert value(broker, "linn_group_members", "s", "g") == 0


@simulated
async def test_records_dropped_by_overflow_are_counted(env: SimEnv) -> None:
    limits = 'message_bytes_max = "4KiB"\nbytes_max = "64KiB"\noverflow = "drop-head"\n'
    text = "".join(f'[topics.{kind}]\nkind = "{kind}"\n{limits}' for kind in ("queue", "stream"))
    async with broker_on(env, text) as broker:
        client = await connected(env)
        for kind in ("queue", "stream"):
            for _ in range(200):
                await client.publish(kind, ["x" * 1000])
            await trio.sleep(1)
            dropped = value(broker, "linn_topic_dropped_records_total", kind)
            assert dropped > 100
            assert value(broker, "linn_topic_records", kind) == 200 - dropped
        queue_dropped = value(broker, "linn_topic_dropped_records_total", "queue")
        assert value(broker, "linn_queue_missed_records_total", "queue", "") == queue_dropped
        assert value(broker, "linn_queue_unsettled_records", "queue", "") == 200 - queue_dropped


@simulated
async def test_a_publish_that_fails_is_counted_by_its_code(env: SimEnv) -> None:
    text = '[topics.small]\nmessage_bytes_max = 10\n[topics.t]\n[exchanges.e]\ntype = "topic"\n'
    async with broker_on(env, text) as broker:
        client = await connected(env)
        for target in ("small", "nowhere", "small"):
            with pytest.raises(Refused):
                await client.publish(target, ["x" * 100])
        with pytest.raises(Refused, match=r"exchange\.unknown"):
            await client.publish("gone", ["x"], to_exchange=True)
        await client.publish("t", ["x"])
        assert (await client.publish("e", ["x"], to_exchange=True)).copies == 0
        assert value(broker, "linn_publish_unrouted_batches_total") == 1
        assert samples(broker, "linn_publish_errors_total") == {
            ("message.too_large",): 2,
            ("topic.unknown",): 1,
            ("exchange.unknown",): 1,
        }
        assert value(broker, "linn_topic_publish_errors_total", "small") == 2
        assert value(broker, "linn_topic_publish_errors_total", "t") == 0


@served("[topics.t]\n")
async def test_byte_counts_of_connections_match_the_wire(env: SimEnv, broker: Broker, client: RawClient) -> None:
    await client.publish("t", ["x" * 10_000])
    before = value(broker, "linn_listener_received_bytes_total", "native", "capnp")
    assert before > 10_000
    assert list(samples(broker, "linn_connection_received_bytes_total").values()) == [before]
    assert list(samples(broker, "linn_connection_sent_bytes_total").values()) == [
        value(broker, "linn_listener_sent_bytes_total", "native", "capnp")
    ]
    second = await connected(env)
    assert value(broker, "linn_listener_connections", "native", "capnp") == 2
    await second.stream.aclose()
    await client.stream.aclose()
    await trio.sleep(1)
    assert samples(broker, "linn_connection_received_bytes_total") == {}
    assert value(broker, "linn_listener_connections", "native", "capnp") == 0
    assert value(broker, "linn_listener_connections_opened_total", "native", "capnp") == 2
    assert value(broker, "linn_listener_received_bytes_total", "native", "capnp") > before, "what is gone counts"


@simulated
async def test_a_request_that_waits_and_output_that_is_not_taken_are_seen(env: SimEnv) -> None:
    full = '[topics.t]\nmessage_bytes_max = 4000\nbytes_max = 4000\noverflow = "block"\n'
    async with broker_on(env, full + '[topics.s]\nkind = "stream"\n') as broker:
        client = await connected(env)
        await client.send(m.Fetch("s", 0, 0, wait_max_ms=60_000, bytes_min=1))
        await client.publish("t", ["x" * 3000])
        held = records(["y" * 3000])
        await client.send(m.Publish("t"), [held])
        await trio.sleep(1)
        assert list(samples(broker, "linn_connection_inflight_requests").values()) == [1]
        beside = WAITING_BYTES + BATCH_BYTES + len("t")
        assert list(samples(broker, "linn_connection_held_bytes").values()) == [held.size + beside]
        other = await connected(env)
        for _ in range(20):
            await other.publish("s", ["z" * 50_000])
        await client.send(m.Subscribe("s", credit=1000, start=-2))
        await trio.sleep(1)
        unsent, nothing = samples(broker, "linn_connection_unsent_bytes").values()
        assert isinstance(unsent, int)
        assert (unsent > 500_000, nothing) == (True, 0)
        assert value(broker, "linn_listener_unsent_bytes", "native", "capnp") == unsent


@simulated
async def test_a_connection_that_an_error_ended_is_counted(env: SimEnv) -> None:
    async with broker_on(env, "", HEAD + "connections_max = 1\n") as broker:
        client = await connected(env)
        await env.net.connect("127.0.0.1:5466")
        await trio.sleep(1)
        assert value(broker, "linn_listener_connections_refused_total", "native", "capnp") == 1
        await client.stream.send([b"\xff" * 64])
        await client.until_closed(60)
        await trio.sleep(1)
        ((labels, count),) = samples(broker, "linn_listener_connections_failed_total").items()
        assert labels[:2] == ("native", "capnp")
        assert labels[2].startswith("protocol.")
        assert count == 1


@served(ALWAYS + "[topics.t]\n")
async def test_syncs_are_measured(env: SimEnv, broker: Broker, client: RawClient) -> None:
    await client.publish("t", ["first"])  # It makes the log's files, each of which is synced.
    histogram = value(broker, "linn_storage_sync_seconds", "segmented-log")
    assert isinstance(histogram, Histogram)
    appends, syncs = value(broker, "linn_storage_appends_total", "segmented-log"), histogram.count
    env.disk.sync_delay_s_max = 2
    await client.publish("t", ["a"])
    assert value(broker, "linn_storage_appends_total", "segmented-log") == appends + 1
    assert histogram.count == syncs + 1
    assert 0 < histogram.sum < 3
    assert value(broker, "linn_storage_segments", "segmented-log") == 2, "the queue's, and that of its state"


@simulated
async def test_a_torn_tail_that_was_cut_off_is_seen(env: SimEnv) -> None:
    cut = {}
    for seed in range(20):
        world = SimEnv(seed)
        lives = [0]

        async def life(env: SimEnv, lives: list[int] = lives) -> None:
            async with broker_on(env, "[topics.t]\nkind = 'stream'\n") as broker:
                lives.append(value(broker, "linn_storage_cut_bytes", "segmented-log"))
                client = await connected(env)
                for _ in range(5):
                    await client.publish("t", ["x" * 3000])
                env.crash()

        assert await world.run_until_death(life)
        assert await (await after_power_loss(world, "[topics.t]\nkind = 'stream'\n")).run_until_death(life)
        cut[seed] = lives[-1]
    assert any(cut.values()), "power failures tear tails"


@served('[plugins]\nload = ["grumbling_plugin"]\n')
async def test_exceptions_of_observers_are_counted(env: SimEnv, broker: Broker) -> None:
    assert value(broker, "linn_plugin_failures_total", "grumbling_plugin") == 0
    client = await connected(env)
    await client.administer("topic.create", name="t")
    assert value(broker, "linn_plugin_failures_total", "grumbling_plugin") == 1


@served("")
async def test_a_blocked_loop_shows_as_lag(broker: Broker) -> None:
    await trio.sleep(10.5)
    lag = value(broker, "linn_loop_lag_seconds")
    assert (lag.count, lag.sum) == (10, pytest.approx(0, abs=1e-6))
    assert value(broker, "linn_broker_uptime_seconds") == pytest.approx(10.5, abs=0.1)
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, VirtualTime)
    clock.jump(3)
    await trio.sleep(0.1)
    assert (lag.count, lag.sum) == (11, pytest.approx(2.5, abs=0.1))


@simulated
async def test_connections_that_wait_for_their_turn_are_counted(env: SimEnv) -> None:
    async with broker_on(env, "") as broker, trio.open_nursery() as nursery:
        assert value(broker, "linn_turns_waiting") == 0
        for _ in range(2 * FIRST_TOGETHER):
            nursery.start_soon(TurnSlot(broker.turns).next_turn, trio.lowlevel.checkpoint)
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        assert 0 < value(broker, "linn_turns_waiting") <= FIRST_TOGETHER
        await trio.sleep(1)
        assert value(broker, "linn_turns_waiting") == 0


@served(ALWAYS + "[topics.t]\n")
async def test_a_client_reads_metrics_over_the_native_protocol(broker: Broker, client: RawClient) -> None:
    await client.publish("t", ["a", "b"])
    (records_total,) = await client.administer("metrics.show", names=["linn_topic_published_records_total"])
    assert records_total == {
        "name": "linn_topic_published_records_total",
        "kind": "counter",
        "labels": ["topic"],
        "samples": [[["t"], 2]],
    }
    everything = await client.administer("metrics.show")
    assert [metric["name"] for metric in everything] == list(broker.metrics.metrics)
    (syncs,) = [metric for metric in everything if metric["name"] == "linn_storage_sync_seconds"]
    ((labels, histogram),) = syncs["samples"]
    assert labels == ["segmented-log"]
    assert histogram["buckets"][-1] == [None, histogram["count"]]
    assert await client.administer("metrics.show", names=["nothing"]) == []
    for wrong in ("linn_", [1], None):
        with pytest.raises(Refused, match=r"config\.invalid"):
            await client.administer("metrics.show", names=wrong)


@served("[topics.t]\n")
async def test_a_report_that_no_frame_holds_is_refused(broker: Broker, client: RawClient) -> None:
    limit, metric_report.SAMPLES_MAX = metric_report.SAMPLES_MAX, 5
    try:
        with pytest.raises(Refused, match=r"limit\.exceeded"):
            await client.administer("metrics.show")
    finally:
        metric_report.SAMPLES_MAX = limit
    assert value(broker, "linn_broker_topics") == 1
