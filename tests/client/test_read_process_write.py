"""`Client.process`: each message that is read has its output once, whatever raises, reconnects, restarts or moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio
from both_loops import on_both_clients, on_both_loops
from relay import restartable, running_relay

import linn
from linn.client import Client, Message, Output
from linn.core.errors.tree import MessageInvalid, SubscriptionWrongKind, TopicUnknown, TransactionFenced
from linn.testing.broker_thread import BrokerThread
from linn.testing.virtual_world import VirtualWorld
from linn.wire import messages as m

CONFIG = """
[broker]
default_storage = "segmented-log"
[exchanges.events]
type = "topic"
[topics.jobs]
redelivery_delay = "10ms"
[topics.visits]
kind = "stream"
partitions = 2
[topics.made]
kind = "both"
"""
COUNT = 40
INPUTS = [b"%d" % number for number in range(COUNT)]
SOURCES = [("jobs", None), ("visits", "counters")]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with BrokerThread('[exchanges.events]\ntype = "topic"\n') as running:
        yield running.url


async def publish(client: Client, topic: str, values: list[bytes]) -> None:
    async with client.producer(topic) as producer:
        await producer.publish_many(values, keys=values)


async def filled(client: Client, name: str, group: str | None, values: list[bytes] = INPUTS) -> None:
    """A source, which is a stream of two partitions for a group, and a sink."""
    if group:
        await client.admin.create_topic(name, kind="stream", partitions=2)
    else:
        await client.admin.create_topic(name, redelivery_delay="10ms")
    await client.admin.create_topic(f"{name}-made", kind="both")
    await publish(client, name, values)


async def outputs(client: Client, topic: str) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        fetched = await client.fetch(topic, 0, offset)
        found += [value or b"" for batch in fetched.batches for value in batch.values]
        if fetched.next_offset <= offset:
            return found
        offset = fetched.next_offset


async def until_made(client: Client, topic: str, values: list[bytes]) -> None:
    """Wait until the outputs are there, and check that there are no others."""
    while len(found := await outputs(client, topic)) < len(values):
        await anyio.sleep(0.005)
    assert Counter(found) == Counter(values)


async def until_settled(client: Client, topic: str, group: str | None) -> None:
    """Wait until the source has nothing left."""
    while True:
        if group is None:
            queue = (await client.admin.topic(topic))["queue"]
            assert queue is not None
            left = queue["unsettled"]
        else:
            left = sum(entry["lag"] or 0 for entry in (await client.admin.group(group))["offsets"])
        if not left:
            return
        await anyio.sleep(0.005)


def doubled(message: Message) -> bytes:
    return b"2 x " + (message.value or b"")


MADE = [b"2 x " + value for value in INPUTS]


@pytest.mark.parametrize("group", [None, "counters"])
@pytest.mark.parametrize("workers", [1, 4])
@on_both_loops
async def test_each_message_has_its_output(client: Client, name: str, group: str | None, workers: int) -> None:
    async with anyio.create_task_group() as tasks:
        own = group and f"{name}-{group}"
        await filled(client, name, own)
        sink = f"{name}-made"
        tasks.start_soon(
            partial(client.process, name, doubled, sink, name=name, group=own, workers=workers, prefetch=4)
        )
        await until_made(client, sink, MADE)
        await until_settled(client, name, own)
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_a_function_makes_anything_of_a_message_and_may_wait(broker: str, name: str) -> None:
    async def function(message: Message) -> Any:
        await anyio.sleep(0)
        return {
            "none": None,
            "empty": [],
            "bytes": b"alone",
            "several": [b"a", Output(b"b", key=b"k", labels={"n": 1}, headers={"h": b"v"})],
            "routed": Output(b"routed", routing_key=f"{name}.x"),
            "elsewhere": [Output(None, topic=f"{name}-more"), Output(b"routed too", routing_key=f"{name}.y")],
        }[message.text]

    async with linn.connect(broker) as client, anyio.create_task_group() as tasks:
        await filled(client, name, None, [b"none", b"empty", b"bytes", b"several", b"routed", b"elsewhere"])
        await client.admin.create_topic(f"{name}-more", kind="both")
        await client.admin.bind("events", f"{name}-made", f"{name}.*")
        await client.admin.bind("events", f"{name}-made", "")
        tasks.start_soon(partial(client.process, name, function, exchange="events", name=name))
        await until_made(client, f"{name}-made", [b"alone", b"a", b"b", b"routed", b"routed too"])
        assert [batch.values for batch in (await client.fetch(f"{name}-more", 0, 0)).batches] == [[None]]
        await until_settled(client, name, None)
        (b,) = [it for batch in (await client.fetch(f"{name}-made", 0, 0)).batches for it in batch if it.value == b"b"]
        assert (b.key, dict(b.labels), dict(b.headers)) == (b"k", {"n": 1}, {"h": b"v"})
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("group", [None, "counters"])
@on_both_loops
async def test_the_error_of_a_function_ends_the_process_and_the_next_one_does_the_rest(
    broker: str, name: str, group: str | None
) -> None:
    own = group and f"{name}-{group}"
    failing = {b"7", b"23"}

    def function(message: Message) -> bytes:
        if message.value in failing:
            failing.remove(message.value)
            raise ZeroDivisionError(message.text)
        return doubled(message)

    async with linn.connect(broker) as client:
        await filled(client, name, own)
        work = partial(client.process, name, function, f"{name}-made", name=name, group=own, prefetch=5)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await work()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await until_made(client, f"{name}-made", MADE)
            await until_settled(client, name, own)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("group", [None, "counters"])
@on_both_loops
async def test_a_process_of_the_same_name_takes_over(
    client: Client, other: Client, name: str, group: str | None
) -> None:
    own = group and f"{name}-{group}"
    await filled(client, name, own)
    fenced = anyio.Event()
    sink = f"{name}-made"

    async def until_fenced() -> None:
        with pytest.raises(TransactionFenced):
            await client.process(name, doubled, sink, name=name, group=own, prefetch=4)
        fenced.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_fenced)
        await until_made(client, sink, MADE)
        tasks.start_soon(partial(other.process, name, doubled, sink, name=name, group=own, prefetch=4))
        rounds = 0
        while not fenced.is_set():
            await publish(client, name, INPUTS)
            rounds += 1
        await until_made(client, sink, MADE * (1 + rounds))
        await until_settled(client, name, own)
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_a_rebalance_in_the_middle_has_each_message_processed_once(
    client: Client, other: Client, name: str
) -> None:
    await filled(client, name, name)
    busy = {"one": 0, "two": 0}

    async def function(worker: str, message: Message) -> bytes:
        busy[worker] += 1
        await anyio.sleep(0)
        return doubled(message)

    def process(its: Client, worker: str) -> Callable[[], Awaitable[None]]:
        made = partial(function, worker)
        return partial(its.process, name, made, f"{name}-made", name=f"{name}-{worker}", group=name, prefetch=2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process(client, "one"))
        while busy["one"] < 3:
            await anyio.sleep(0)
        async with anyio.create_task_group() as second:
            second.start_soon(process(other, "two"))
            while not busy["two"]:
                await publish(client, name, [b"more"])  # To both partitions, sooner or later.
                await anyio.sleep(0)
            second.cancel_scope.cancel()
        await until_settled(client, name, name)
        tasks.cancel_scope.cancel()
    async with client.consumer(name, f"{name}-check") as consumer:
        read = Counter([doubled(await anext(consumer)) for _ in range(await total(client, name))])
    assert Counter(await outputs(client, f"{name}-made")) == read


async def total(client: Client, topic: str) -> int:
    """The number of records of a stream without transactions."""
    return sum([(await client.fetch(topic, number, 0)).high_watermark for number in (0, 1)])


@on_both_clients
async def test_arguments_that_make_no_sense_are_refused(client: Client, name: str) -> None:
    for wrong in ({}, {"sink": "a", "exchange": "b"}, {"sink": "a", "workers": 0}):
        with pytest.raises(MessageInvalid):
            await client.process(name, doubled, name=name, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TopicUnknown):
        await client.process(name, doubled, "sink", name=name)
    await client.admin.create_topic(name, kind="stream")
    with pytest.raises(SubscriptionWrongKind):
        await client.process(name, doubled, "sink", name=name)


# --- lost answers and connections -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "group"), SOURCES)
@pytest.mark.parametrize("fault", ["loses", "loses_answer_to", "holds_answer_to", "stalls_at"])
@on_both_loops
async def test_a_worker_goes_on_once_after_a_commit_in_doubt(
    tmp_path: Path, topic: str, group: str | None, fault: str
) -> None:
    with restartable(tmp_path, CONFIG) as broker:
        async with running_relay(broker.address) as relay:
            options = {"request_timeout_s": 0.5, "backoff_s": 0.001}
            async with (
                linn.connect(f"linn://{broker.address}") as direct,
                linn.connect(relay.url, **options) as client,
                anyio.create_task_group() as tasks,
            ):
                setattr(relay, fault, m.EndTransaction)
                tasks.start_soon(partial(client.process, topic, doubled, "made", name="w", group=group, prefetch=4))
                await publish(direct, topic, INPUTS)
                while getattr(relay, fault) is not None:
                    await anyio.sleep(0.01)
                if fault == "holds_answer_to":
                    await anyio.sleep(0)
                    while not (await outputs(direct, "made")):
                        await anyio.sleep(0.01)
                    tasks.start_soon(let_go_later, relay)
                elif fault == "stalls_at":
                    tasks.start_soon(cut_later, relay)
                await until_made(direct, "made", MADE)
                await until_settled(direct, topic, group)
                await until_made(direct, "made", MADE)
                tasks.cancel_scope.cancel()


async def let_go_later(relay: Any) -> None:
    """Pass the answer on after the client's patience has ended."""
    await anyio.sleep(1)
    relay.let_go()


async def cut_later(relay: Any) -> None:
    await anyio.sleep(1)
    await relay.cut()


# --- restarts, in virtual time --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "group"), SOURCES)
@pytest.mark.parametrize("workers", [1, 4])
def test_workers_go_on_once_after_each_restart_of_the_broker(topic: str, group: str | None, workers: int) -> None:
    async def scenario(world: VirtualWorld) -> None:
        async with world.connect() as client, world.connect() as other, trio.open_nursery() as nursery:
            work = partial(client.process, topic, doubled, "made", name="w", group=group, workers=workers, prefetch=3)
            nursery.start_soon(work)
            for round in range(6):
                await publish(other, topic, [b"%d/%s" % (round, value) for value in INPUTS])
                await trio.sleep(0.003 * (round + 1))
                (world.kill if round % 2 else world.lose_power)()
                await world.restart()
            expected = [b"2 x %d/%s" % (round, value) for round in range(6) for value in INPUTS]
            await until_made(other, "made", expected)
            await until_settled(other, topic, group)
            await until_made(other, "made", expected)
            nursery.cancel_scope.cancel()

    world = VirtualWorld(CONFIG + '[storage.segmented-log]\nfsync = "always"\n')
    world.run(scenario)


@pytest.mark.parametrize("is_blocking", [False, True], ids=["async", "blocking"])
def test_a_process_ends_what_the_one_before_it_has_left_open_before_it_waits(is_blocking: bool) -> None:
    """The message that it waits for is held by the transaction that is open."""
    with BrokerThread(CONFIG) as running, linn.sync.connect(running.url) as other:
        with linn.sync.connect(running.url) as client, client.producer("jobs") as producer:
            producer.publish(b"7")
            tx = client.transaction("w/0")
            tx.__enter__()
            consumer = client.consumer("jobs").__enter__()
            tx.ack(next(consumer))
            tx.publish("made", b"never")
            client._thread.call(tx._made._settle)
        if is_blocking:

            def stop(message: linn.sync.Message) -> None:
                raise ZeroDivisionError(message.text)

            with pytest.raises(ZeroDivisionError, match="7"):
                other.process("jobs", stop, "made", name="w")
        else:
            anyio.run(until_first, running.url, backend="trio")


async def until_first(url: str) -> None:
    async with linn.connect(url) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(client.process, "jobs", doubled, "made", name="w"))
        await until_made(client, "made", [b"2 x 7"])
        tasks.cancel_scope.cancel()
