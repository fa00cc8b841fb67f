"""Clients that lose their broker, in virtual time and with the defaults: they come back while they are open."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio
from both_loops import on_both_loops
from scripted_peer import Peer

import linn
from linn.client import Client, Message
from linn.core.broker.broker import running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.errors.tree import ConnectionLost, DeliveryNotCurrent, RequestTimeout, TopicFull, VersionUnsupported
from linn.core.plugins.manager import PluginManager, installed
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

URL = "linn://127.0.0.1:5466"
TOML = """
[broker]
data_dir = "data"
default_storage = "segmented-log"
[storage.segmented-log]
fsync = "always"
[listeners.native]
address = "127.0.0.1:5466"
[topics.jobs]
lease = "30s"
[topics.log]
kind = "stream"
"""

HOUR_S = 3_600.0
TIMEOUT_S = 30.0
LATER_S = TIMEOUT_S / 4
"""A timeout is seen up to a quarter of itself later."""

Scenario = Callable[[SimEnv, Client, "Machine"], Awaitable[Any]]


class Machine:
    """The broker's, which is away when a scenario says so."""

    def __init__(self, env: SimEnv) -> None:
        self._node = SimEnv(1, name="broker", world=env.world)

    async def serve(self) -> None:
        source = TomlSource(TOML, "test.toml")
        plugins = PluginManager(plugin_settings(source), installed())

        async def broker(env: SimEnv) -> None:
            async with running_broker(load_config(source, plugins), env, plugins):
                await trio.sleep_forever()

        while True:
            await self._node.run_until_death(broker)
            await self._back.wait()
            self._node = self._node.restart()

    def go_away(self) -> None:
        self._back = trio.Event()
        self._node.crash()

    def come_back(self) -> None:
        self._back.set()


def simulated(scenario: Scenario) -> Any:
    """Run a scenario beside a broker; returns its result."""

    async def run(env: SimEnv) -> Any:
        machine = Machine(env)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(machine.serve)
            await trio.sleep(1)
            async with linn.connect(URL, env=env) as client:
                found = await scenario(env, client, machine)
            nursery.cancel_scope.cancel()
        return found

    return run_simulation(1, run)


async def read(client: Client, topic: str, into: list[bytes | None], group: str | None = None) -> None:
    """Iterate for ever, as a program does that knows nothing of outages."""

    async def note(message: Message) -> None:
        into.append(message.value)
        await message.ack()

    async with client.consumer(topic, group=group) as consumer:
        async for message in consumer:
            await note(message)


def test_consumers_and_publishers_outlive_an_hour_without_a_broker() -> None:
    async def scenario(env: SimEnv, client: Client, machine: Machine) -> list[list[bytes | None]]:
        queue: list[bytes | None] = []
        stream: list[bytes | None] = []
        group: list[bytes | None] = []
        async with trio.open_nursery() as nursery, client.producer("jobs") as jobs, client.producer("log") as log:
            nursery.start_soon(read, client, "jobs", queue)
            nursery.start_soon(read, client, "log", stream)
            nursery.start_soon(read, client, "log", group, "readers")
            for producer in (jobs, log):
                await producer.publish(b"before")
            await trio.sleep(1)
            machine.go_away()
            await trio.sleep(HOUR_S)
            machine.come_back()
            for producer in (jobs, log):
                await producer.publish(b"after")
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        return [queue, stream, group]

    assert simulated(scenario) == [[b"before", b"after"]] * 3


def test_publishes_and_requests_without_a_broker_fail_when_their_own_time_is_over() -> None:
    async def scenario(env: SimEnv, client: Client, machine: Machine) -> list[tuple[str, float]]:
        ends: list[tuple[str, float]] = []

        async def ask(request: Callable[[], Awaitable[Any]], wait_s: float) -> None:
            await trio.sleep(wait_s)
            began = trio.current_time()
            with pytest.raises(RequestTimeout) as caught:
                await request()
            ends.append((caught.value.text, trio.current_time() - began))

        async with client.producer("log") as producer:
            await producer.publish(b"before")
            machine.go_away()
            await trio.sleep(1)
            async with trio.open_nursery() as nursery:
                for number in range(20):  # Far more than may wait to be sent.
                    nursery.start_soon(ask, lambda: producer.publish(b"", key=b"1"), number * 3.0)
                nursery.start_soon(ask, lambda: producer.publish_many([b""] * 10), 0)
                nursery.start_soon(ask, client.describe, 5.0)
                nursery.start_soon(ask, lambda: client.consumer("log").__aenter__(), 5.0)
            machine.come_back()
            await producer.publish(b"after")
            fetched = await client.fetch("log", 0, 0)
            assert [value for batch in fetched.batches for value in batch.values] == [b"before", b"after"]
        return ends

    ends = simulated(scenario)
    assert len(ends) == 23
    for text, waited_s in ends:
        assert TIMEOUT_S <= round(waited_s, 6) <= TIMEOUT_S + LATER_S, text
        assert "can't connect" in text


def test_messages_in_flight_when_the_broker_ended_have_an_unknown_fate() -> None:
    async def scenario(env: SimEnv, client: Client, machine: Machine) -> str:
        async with client.producer("log") as producer, trio.open_nursery() as nursery:
            nursery.start_soon(away, machine)
            try:
                while True:
                    await producer.publish(b"")
            except RequestTimeout as error:
                return error.text

    async def away(machine: Machine) -> None:
        await trio.sleep(0.1)
        machine.go_away()

    assert "may or may not be stored" in simulated(scenario)


def test_an_outage_is_reported_at_its_start_at_intervals_and_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(env: SimEnv, client: Client, machine: Machine) -> None:
        machine.go_away()
        await trio.sleep(100)
        machine.come_back()
        await trio.sleep(5)

    with caplog.at_level(logging.INFO, "linn.client"):
        simulated(scenario)
    told = [record.getMessage() for record in caplog.records if record.name == "linn.client"]
    assert [line.split(":")[0].split(" after")[0] for line in told] == [
        "connection lost, connecting again",
        *["still no connection"] * 3,
        "connected to 127.0.0.1",
    ]
    assert [line.count("127.0.0.1:5466") for line in told] == [1] * 5
    assert told[-1].startswith("connected to 127.0.0.1:5466 again after 10")


JOBS = 100


class Worker:
    """A worker as applications write it, without any handling of outages."""

    def __init__(self, client: Client, topic: str, group: str | None = None, prefetch: int | None = None) -> None:
        self.consumer = client.consumer(topic, group=group, prefetch=prefetch)
        self.done: list[bytes | None] = []
        self.ended = False

    async def run(self) -> None:
        try:
            async with self.consumer as consumer:
                async for message in consumer:
                    await trio.sleep(0.01)  # The job.
                    message.ack()
                    self.done.append(message.value)
        finally:
            self.ended = True


@pytest.mark.parametrize(("topic", "group"), [("jobs", None), ("log", "workers")])
@pytest.mark.parametrize("prefetch", [None, 50])
def test_a_worker_finishes_all_jobs_although_the_broker_crashes_halfway(
    topic: str, group: str | None, prefetch: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(env: SimEnv, client: Client, machine: Machine) -> list[bytes | None]:
        async with client.producer(topic) as producer:
            await producer.publish_many([b"%d" % number for number in range(JOBS)])
        worker = Worker(client, topic, group, prefetch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            while len(worker.done) < JOBS // 2:
                await trio.sleep(0.001)
            machine.go_away()
            await trio.sleep(60)
            machine.come_back()
            while len(set(worker.done)) < JOBS:
                await trio.sleep(0.1)
            await trio.sleep(1)
            assert not worker.ended
            nursery.cancel_scope.cancel()
        async with client.consumer(topic, group=group) as consumer:
            with trio.move_on_after(60):
                pytest.fail(f"{await anext(consumer)} was not settled")
        return worker.done

    with caplog.at_level(logging.INFO, "linn.client"):
        done = simulated(scenario)
    assert set(done) == {b"%d" % number for number in range(JOBS)}
    told = [record for record in caplog.records if "were not known to be settled" in record.msg]
    assert len(told) == 1
    count, repeated = told[0].args["count"], len(done) - JOBS  # type: ignore[index,call-overload]
    assert count == repeated or (group and 0 < count < repeated), "of a group only what was acked is counted"
    text = f"{count} records of {topic} were not known to be settled, and may be delivered again"
    assert told[0].getMessage() == text


@pytest.mark.parametrize(("topic", "group"), [("jobs", None), ("log", "workers")])
def test_awaiting_an_ack_that_an_outage_made_void_raises(topic: str, group: str | None) -> None:
    async def scenario(env: SimEnv, client: Client, machine: Machine) -> None:
        async with client.producer(topic) as producer:
            await producer.publish_many([b"0", b"1", b"2", b"3"])
        async with client.consumer(topic, group=group) as consumer:
            messages = [await anext(consumer) for _ in range(4)]
            machine.go_away()
            before = messages[0].ack()
            await trio.sleep(60)
            machine.come_back()
            await trio.sleep(60)
            for handle in (before, messages[1].ack(), messages[1].nack(), before):
                with pytest.raises(DeliveryNotCurrent, match="connection"):
                    await handle
            async with messages[2].process():  # What is done is done; it comes again.
                pass
            messages[3].ack()
            again = [await anext(consumer) for _ in range(4)]
            assert [message.offset for message in again] == [0, 1, 2, 3]
            await again[3].batch.ack()

    simulated(scenario)


def test_an_ack_after_the_lease_expired_that_nobody_awaits_is_refused_by_a_later_step() -> None:
    async def scenario(env: SimEnv, client: Client, machine: Machine) -> None:
        async with client.producer("jobs") as producer:
            await producer.publish_many([b"0", b"1"])
        async with client.consumer("jobs", renewal_max_s=0) as consumer:
            message = await anext(consumer)
            await trio.sleep(60)
            message.ack()
            await trio.sleep(1)  # A late ack waits for the linger: its caller may await it, and is told of it then.
            with pytest.raises(DeliveryNotCurrent):
                await anext(consumer)

    simulated(scenario)


def test_without_retries_waiting_messages_fail_at_once() -> None:
    async def scenario(env: SimEnv, client: Client, machine: Machine) -> float:
        async with linn.connect(URL, env=env, retries_max=0) as hasty:
            machine.go_away()
            began = trio.current_time()
            with pytest.raises(ConnectionLost):
                await hasty.describe()
            return trio.current_time() - began

    assert simulated(scenario) < 1


@on_both_loops
async def test_a_consumer_asks_again_where_its_subscription_is_refused_for_now(peer: Peer) -> None:
    async with linn.connect(peer.url, backoff_s=0.001) as client, client.consumer("t") as consumer:
        agree = peer.answers[m.Subscribe]
        peer.answers[m.Subscribe] = lambda session, event: m.Failed("topic.full", "not now", True)
        await peer.cut()
        await peer.until(lambda: len(peer.messages(m.Subscribe)) == 4)
        peer.answers[m.Subscribe] = agree
        with anyio.move_on_after(0.05):
            await anext(consumer)


@on_both_loops
async def test_a_lasting_refusal_is_the_publishs_error(peer: Peer) -> None:
    peer.answers[m.Publish] = lambda session, event: m.Failed("topic.full", "full", True)
    async with linn.connect(peer.url, request_timeout_s=0.1) as client, client.producer("t") as producer:
        with pytest.raises(TopicFull, match="full"):
            await producer.publish(b"")


@on_both_loops
async def test_a_broker_of_another_version_is_not_waited_for(peer: Peer) -> None:
    async with linn.connect(peer.url, backoff_s=0.001) as client, client.consumer("t") as consumer:
        peer.answers[m.Hello] = lambda session, event: m.Failed("protocol.version_unsupported", "too old", False)
        await peer.cut()
        with pytest.raises(VersionUnsupported):
            await anext(consumer)


@on_both_loops
async def test_a_subscription_that_is_made_after_the_wait_for_it_has_ended_is_given_up(peer: Peer) -> None:
    agree = peer.answers[m.Subscribe]
    peer.answers[m.Subscribe] = lambda session, event: None
    async with linn.connect(peer.url) as client:
        consumer = client.consumer("t")
        with anyio.move_on_after(0.05):
            await consumer.__aenter__()
        await peer.until(lambda: len(peer.messages(m.Subscribe)) == 1)
        (event,) = [event for event in peer.events if isinstance(event.message, m.Subscribe)]
        answer = agree(peer.sessions[0], event)
        assert answer is not None
        await peer.sessions[0].send(answer, event.correlation)
        await peer.until(lambda: len(peer.messages(m.Unsubscribe)) == 1)
        assert peer.messages(m.Credit) == []
