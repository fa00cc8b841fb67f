from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

import anyio
import pytest
import trio
from stopwatch import at_most

import linn
import linn.sync
from linn.core.broker.broker import Broker
from linn.core.errors.tree import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    PluginUnknown,
    RequestTimeout,
    SubscriptionWrongKind,
    SyncFailed,
    TopicUnknown,
)
from linn.testing import BrokerThread

QUEUE = {"orders": {"kind": "queue"}}
STREAM = {"prices": {"kind": "stream"}}
READY_S_BEST, READY_S_MEDIAN = 0.1, 1.0
"""Start and stop included. The best of several is the cost; the median includes the load of a busy machine."""
BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def values(broker: BrokerThread, topic: str) -> list[bytes | None]:
    return [message.value for message in broker.records(topic)]


# --- life ------------------------------------------------------------------------------------------------------------


@pytest.mark.perf
def test_a_broker_starts_and_stops_within_a_tenth_of_a_second() -> None:
    with BrokerThread(topics=QUEUE):
        pass  # What is imported the first time counts no more.
    took_s = []
    for _ in range(9):
        began = time.perf_counter()
        with BrokerThread(topics=QUEUE):
            pass
        took_s.append(time.perf_counter() - began)
    assert min(took_s) < READY_S_BEST
    assert statistics.median(took_s) < READY_S_MEDIAN


def test_brokers_share_nothing() -> None:
    with BrokerThread(topics=QUEUE) as one, BrokerThread(topics=QUEUE) as other:
        assert one.url != other.url
        one.publish("orders", b"coffee")
        other.publish("orders", b"tea")
        one.advance(hours=1)
        assert values(one, "orders") == [b"coffee"]
        assert values(other, "orders") == [b"tea"]


def test_nothing_is_left_behind() -> None:
    with BrokerThread(topics=QUEUE) as broker:
        folder = Path(broker.broker.config.broker.data_dir)
        assert folder.exists()
    assert not folder.parent.exists()
    assert "linn-broker" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ConnectFailed):
        linn.sync.connect(broker.url)


@pytest.mark.measured
def test_it_ends_while_clients_are_still_connected() -> None:
    broker = BrokerThread(topics=QUEUE).start()
    forgotten = linn.sync.connect(broker.url, retries_max=1, backoff_s=0.001)
    consumer = forgotten.consumer("orders")
    with at_most(wall_s=READY_S_MEDIAN):
        broker.stop()
    with pytest.raises(ConnectFailed):
        forgotten.describe("orders")
    with pytest.raises(ConnectFailed):
        next(consumer)
    forgotten.close()


def test_the_error_that_ended_the_broker_is_raised() -> None:
    async def fail(running: Broker) -> None:
        running.fail(SyncFailed("the disk is on fire"))
        await trio.sleep_forever()

    broker = BrokerThread(topics=QUEUE).start()
    with pytest.raises(ConnectionLost, match="the broker of this test has ended"):
        broker.call(fail)
    with pytest.raises(ConnectionLost, match="the broker of this test has ended"):
        broker.records("orders")
    with pytest.raises(SyncFailed, match="the disk is on fire"):
        broker.stop()
    broker.stop()


# --- configuration ---------------------------------------------------------------------------------------------------


def test_a_configuration_may_be_text_a_file_tables_or_all() -> None:
    text = '[exchanges.flights]\ntype = "topic"\n'
    bound = {"late": {"kind": "queue", "bindings": [{"exchange": "flights", "key": "departed.*.late"}]}}
    with BrokerThread(text, topics=bound) as broker:
        broker.publish_to("flights", b"again", routing_key="departed.jfk.late", labels={"origin": "JFK"})
        (message,) = broker.records("late")
        assert (message.value, message.routing_key, dict(message.labels)) == (
            b"again",
            "departed.jfk.late",
            {"origin": "JFK"},
        )


def test_a_file_for_production_listens_and_writes_where_nobody_else_does(tmp_path: Path) -> None:
    file = tmp_path / "linn.toml"
    file.write_text(
        f'[broker]\ndata_dir = "{tmp_path}/production"\nname = "shop"\n[listeners.native]\naddress = "127.0.0.1:1"\n'
        '[topics.kept]\nkind = "stream"\nstorage = "segmented-log"\n[topics.plain]\nkind = "queue"\n'
    )
    with BrokerThread(file) as broker, linn.sync.connect(broker.url) as client:
        assert client.broker == "shop"
        assert broker.broker.topics["kept"].settings.storage == "segmented-log"
        assert broker.broker.topics["plain"].settings.storage == "dram"
        broker.publish("kept", b"here")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["linn.toml"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topics": {"orders": {"knd": "queue"}}}, "the test's configuration:3: .*knd"),
        ({"config": '[listeners.native]\nprotocol = "capnpp"\n'}, "the test's configuration:2: .*capnpp"),
        ({"config": Path("no-such.toml")}, "no-such.toml: can't be read"),
        ({"topics": {"orders": {"kind": None}}}, "a setting must be text, a number"),
    ],
)
def test_problems_of_a_configuration_are_named(given: dict[str, object], text: str) -> None:
    with pytest.raises((ConfigError, PluginUnknown), match=text):
        BrokerThread(**given).start()  # type: ignore[arg-type]


# --- looking ---------------------------------------------------------------------------------------------------------


def test_a_queue_holds_unsettled_records() -> None:
    with BrokerThread(topics=QUEUE | {"both": {"kind": "both"}}) as broker:
        for topic in ("orders", "both"):
            broker.publish(topic, b"one", b"two", b"three")
            with linn.sync.connect(broker.url) as client, client.consumer(topic) as consumer:
                next(consumer)
                next(consumer).ack().wait()
        assert values(broker, "orders") == [b"one", b"three"]
        assert values(broker, "both") == [b"one", b"two", b"three"]


def test_a_stream_holds_all_its_partitions() -> None:
    with BrokerThread(topics={"prices": {"kind": "stream", "partitions": 3}}) as broker:
        receipts = broker.publish("prices", *(b"%d" % number for number in range(9)))
        assert len(receipts) == 9
        assert sorted(int(message.value or b"") for message in broker.records("prices")) == list(range(9))


def test_an_unknown_topic_is_an_error_at_once() -> None:
    with BrokerThread(topics=QUEUE) as broker:
        with pytest.raises(TopicUnknown, match="ordres"):
            broker.records("ordres")
        with pytest.raises(TopicUnknown, match="ordres"):
            broker.wait_settled_blocking("ordres")


def test_waiting_for_an_impossible_condition_is_an_error_at_once() -> None:
    with BrokerThread(topics=QUEUE | STREAM) as broker:
        with pytest.raises(SubscriptionWrongKind, match="prices is a stream"):
            broker.wait_settled_blocking("prices")
        with pytest.raises(SubscriptionWrongKind, match="orders is a queue"):
            broker.wait_committed_blocking("orders", "readers")


# --- waiting ---------------------------------------------------------------------------------------------------------


@BACKENDS
def test_a_test_waits_for_its_own_code_without_sleeping(backend: str) -> None:
    async def main(broker: BrokerThread) -> None:
        async def work() -> None:
            async with linn.connect(broker.url) as client, client.producer("prices") as producer:
                async with client.consumer("orders") as orders:
                    async for order in orders:
                        await producer.publish(order.value)
                        order.ack()

        async def read() -> None:
            async with linn.connect(broker.url) as client, client.consumer("prices", "readers") as prices:
                async for price in prices:
                    price.ack()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(read)
            broker.publish("orders", b"coffee", b"tea")
            found = await broker.wait_records("prices", 2)
            assert [message.value for message in found] == [b"coffee", b"tea"]
            await broker.wait_settled("orders")
            assert values(broker, "orders") == []
            await broker.wait_committed("prices", "readers")
            tasks.cancel_scope.cancel()

    with BrokerThread(topics=QUEUE | STREAM) as broker:
        anyio.run(main, broker, backend=backend)


def test_blocking_code_waits_too() -> None:
    with BrokerThread(topics=QUEUE | STREAM) as broker:

        def work() -> None:
            with linn.sync.connect(broker.url) as client, client.producer("prices") as producer:
                with client.consumer("orders") as orders, client.consumer("prices", "readers") as prices:
                    order = next(orders)
                    producer.publish(order.value)
                    order.ack().wait()
                    next(prices).ack().wait()

        thread = threading.Thread(target=work)
        thread.start()
        broker.publish("orders", b"coffee")
        assert [message.value for message in broker.wait_records_blocking("prices", 1)] == [b"coffee"]
        broker.wait_settled_blocking("orders")
        broker.wait_committed_blocking("prices", "readers")
        thread.join(10)
        assert not thread.is_alive()


def test_a_failed_wait_reports_the_actual_state() -> None:
    with BrokerThread(topics=QUEUE) as broker:
        broker.publish("orders", b"coffee")
        with pytest.raises(RequestTimeout) as raised:
            broker.wait_settled_blocking("orders", timeout_s=0.01)
        assert 'waited 0.01 s for "orders" to be settled' in raised.value.text
        assert "orders (queue): 1 published, 1 kept, 1 unsettled, 0 leased" in raised.value.text


@BACKENDS
def test_a_wait_that_is_cancelled_ends_in_the_broker_too(backend: str) -> None:
    async def count_listeners(broker: Broker) -> int:
        await trio.testing.wait_all_tasks_blocked()
        return len(broker.topics["orders"].partitions[0].watchers)

    async def main(broker: BrokerThread) -> None:
        before = broker.call(count_listeners)
        with anyio.move_on_after(0.05) as scope:
            await broker.wait_records("orders", 1, timeout_s=60)
        assert scope.cancelled_caught
        assert broker.call(count_listeners) == before

    with BrokerThread(topics=QUEUE) as broker:
        anyio.run(main, broker, backend=backend)


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_lease_of_an_hour_ends_at_once() -> None:
    with BrokerThread(topics={"orders": {"kind": "queue", "lease": "1h"}}) as broker:
        broker.publish("orders", b"coffee")
        with linn.sync.connect(broker.url) as client, client.consumer("orders") as consumer:
            assert next(consumer).attempt == 1
            broker.advance(minutes=59)
            assert "1 leased" in broker.summary()
            broker.advance(minutes=2)
            assert next(consumer).attempt == 2


def test_a_stream_forgets_after_a_day() -> None:
    with BrokerThread(topics={"prices": {"kind": "stream", "retention": "24h"}}) as broker:
        broker.publish("prices", b"1")
        broker.advance(hours=23)
        assert values(broker, "prices") == [b"1"]
        broker.publish("prices", b"2")
        broker.advance(hours=2)
        assert values(broker, "prices") == [b"2"]


def test_clients_stay_connected_for_a_year() -> None:
    with BrokerThread(topics=QUEUE) as broker, linn.sync.connect(broker.url) as client:
        connections = broker.broker.listening.connections
        broker.advance(days=365)
        broker.advance(seconds=1)
        client.describe("orders")
        assert broker.broker.listening.connections == connections == 1


def test_time_does_not_go_backwards() -> None:
    with BrokerThread(topics=QUEUE) as broker, pytest.raises(ValueError, match="backwards"):
        broker.advance(seconds=-1)
