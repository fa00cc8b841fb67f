"""The memory budget holds: with long queues, with clients that never read, with publishers that are too quick."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest
import trio
from raw_client import ALWAYS, HEAD, RawClient, after_power_loss, broker_on, connected, records, served, simulated

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.broker.broker import Broker
from linn.core.env.real.env import RealEnv
from linn.core.loop.memory_budget import RESERVE_BYTES
from linn.protocols.capnp.outbox import FRAME_BYTES, READ_AHEAD_BYTES_MAX, memory_bytes
from linn.testing.process import BrokerProcess
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import BATCHES_MAX, frames_of, frames_to, hello

MIB = 1 << 20
BUDGET_BYTES = 16 * MIB
UNCOUNTED_BYTES = 24 * MIB
"""Memory of a broker under load besides its budget: shared buffers, freed memory that is kept, garbage."""
CONNECTION_BYTES = 64 << 10
"""Uncounted memory of a connection with a subscription, including one delivery of these tests."""
IN_FLIGHT = 32
LIMITED = f'memory_bytes_max = "{BUDGET_BYTES // MIB}MiB"\n'


# --- queues that grow ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def peak_bytes(pid: int) -> AsyncIterator[list[int]]:
    """The greatest memory of a process meanwhile, beyond what it had at first."""
    process = psutil.Process(pid)
    before = process.memory_info().rss
    peak = [0]

    async def watch() -> None:
        while True:
            peak[0] = max(peak[0], process.memory_info().rss - before)
            await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield peak
        nursery.cancel_scope.cancel()


async def fill(client: RawClient, topic: str, batches: int, records_each: int, record_bytes: int) -> None:
    """Publish records that are numbered through."""
    waiting: list[int] = []
    for number in range(batches):
        first = number * records_each
        numbered = tuple(b"%0*d" % (record_bytes, first + place) for place in range(records_each))
        waiting.append(await client.send(m.Publish(topic), [build_batch(BatchColumns(numbered, 0, 1))]))
        if len(waiting) >= IN_FLIGHT:
            await client.answer(waiting.pop(0))
    for correlation in waiting:
        await client.answer(correlation)


async def take_all(client: RawClient, topic: str, count: int) -> None:
    """Take everything out of a queue: all of it must come, in order."""
    subscription = (await client.call(m.Subscribe(topic))).subscription
    expected = 0
    while expected < count:
        event = await client.pull(subscription, 100_000, 1000)
        for batch in event.batches:
            assert batch.base_offset == expected
            assert int(batch.value(0) or b"-1") == expected
            expected = batch.end_offset
        await client.settle(subscription, event)


async def _queue_up(folder: Path, topics: int, batches: int, records_each: int, record_bytes: int) -> None:
    names = [f"q{number}" for number in range(topics)]
    text = f"[broker]\n{LIMITED}" + "".join(f'[topics.{name}]\nstorage = "dram"\n' for name in names)
    with BrokerProcess(folder, text) as broker:
        client = await connected(RealEnv(), broker.address)
        async with peak_bytes(broker.pid) as peak:
            for name in names:
                await fill(client, name, batches, records_each, record_bytes)
            for name in names:
                await take_all(client, name, batches * records_each)
        await client.stream.aclose()
    assert peak[0] < BUDGET_BYTES + UNCOUNTED_BYTES


@pytest.mark.system
async def test_queues_that_grow_go_to_the_disk_and_come_out_whole_and_in_order(tmp_path: Path) -> None:
    await _queue_up(tmp_path, topics=4, batches=2_000, records_each=100, record_bytes=128)


@pytest.mark.soak
@pytest.mark.parametrize(("topics", "batches", "records_each"), [(10, 1_000, 1_000), (4, 25_000, 100)])
async def test_ten_million_records_fit(tmp_path: Path, topics: int, batches: int, records_each: int) -> None:
    await _queue_up(tmp_path, topics, batches, records_each, record_bytes=16)


# --- clients that never read -----------------------------------------------------------------------------------------


@contextmanager
def stalled(path: str, topic: str, count: int) -> Iterator[None]:
    """Clients that subscribe with a credit that never ends, and never read."""
    said = b"".join([*frames_of(hello("stalled"), 1), *frames_of(m.Subscribe(topic, credit=1 << 31), 2)])
    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(path)
            client.sendall(said)
        yield


async def take_some(client: RawClient, topic: str, count: int) -> None:
    """Take so many records out of a topic, whoever else is there."""
    subscription = (await client.call(m.Subscribe(topic))).subscription
    with trio.fail_after(60):
        while count > 0:
            event = await client.pull(subscription, 1000, 1000)
            count -= sum(batch.count for batch in event.batches)
            if event.batches and event.message.delivery_id:
                await client.settle(subscription, event)


async def _stall(folder: Path, topic: str, count: int, batches: int) -> None:
    path, text = str(folder / "s"), f"[broker]\n{LIMITED}[topics.t]\n{topic}\n"
    with BrokerProcess(folder, text, listen=["127.0.0.1:0", f"unix:{path}"]) as broker:
        client = await connected(RealEnv(), broker.address)
        async with peak_bytes(broker.pid) as peak:
            with stalled(path, "t", count):
                await fill(client, "t", batches, 100, 200)
                await take_some(client, "t", 10_000)
        await client.stream.aclose()
    assert peak[0] < BUDGET_BYTES + UNCOUNTED_BYTES + count * CONNECTION_BYTES


@pytest.mark.system
@pytest.mark.parametrize("topic", ['storage = "dram"\nlease = "1h"', 'lease = "1h"'])
async def test_clients_that_never_read_fill_no_memory_and_starve_nobody(tmp_path: Path, topic: str) -> None:
    await _stall(tmp_path, topic, 20, 4_000)


@pytest.mark.system
async def test_batches_that_wait_in_their_files_count_a_little_each(tmp_path: Path) -> None:
    path, names = str(tmp_path / "s"), ["linn_memory_bytes", "linn_listener_unsent_bytes"]
    with BrokerProcess(tmp_path, '[topics.t]\nkind = "stream"\n', listen=["127.0.0.1:0", f"unix:{path}"]) as broker:
        client = await connected(RealEnv(), broker.address)
        await fill(client, "t", 500, 100, 200)
        with stalled(path, "t", 1), trio.fail_after(20):
            seen, unsent, counted = (0.0, 0.0), 0.0, 0.0
            # Metrics are read one after the other, while deliveries go on: only values that stand still agree.
            while unsent < 500_000 or seen != (unsent, counted):
                seen = unsent, counted
                metrics = {
                    metric["name"]: metric["samples"] for metric in await client.administer("metrics.show", names=names)
                }
                unsent = sum(value for _, value in metrics["linn_listener_unsent_bytes"])
                counted = {labels[0]: value for labels, value in metrics["linn_memory_bytes"]}["unsent"]
            assert unsent / 100 < counted < unsent / 10
        await client.stream.aclose()


@pytest.mark.system
@pytest.mark.parametrize("storage", ["dram", "segmented-log"])
async def test_unread_fetches_of_small_batches_fill_no_memory(tmp_path: Path, storage: str) -> None:
    text = f'[broker]\n{LIMITED}[topics.t]\nkind = "stream"\nstorage = "{storage}"\n'
    said = b"".join(frames_of(hello("stalled"), 1))
    said += b"".join(b"".join(frames_of(m.Fetch("t", 0, 0, bytes_max=MIB * 16), n)) for n in range(2, 22))
    path = str(tmp_path / "s")
    with BrokerProcess(tmp_path, text, listen=["127.0.0.1:0", f"unix:{path}"]) as broker, ExitStack() as stack:
        client = await connected(RealEnv(), broker.address)
        for _ in range(20):
            await client.call(m.Publish("t"), [records(["x" * 100]) for _ in range(BATCHES_MAX)])
        async with peak_bytes(broker.pid) as peak:
            for _ in range(12):
                stalled = stack.enter_context(socket.socket(socket.AF_UNIX))
                stalled.connect(path)
                stalled.sendall(said)
            with trio.fail_after(60):
                for offset in range(0, 20 * BATCHES_MAX, BATCHES_MAX):
                    assert await client.fetch("t", 0, offset)
        await client.stream.aclose()
    assert peak[0] < UNCOUNTED_BYTES + 12 * CONNECTION_BYTES


@served('[topics.t]\nkind = "stream"\nstorage = "dram"\n')
async def test_a_hundred_unread_fetches_buffer_about_one_answer_which_is_counted(
    broker: Broker, client: RawClient, stalled: RawClient
) -> None:
    for _ in range(4):
        await client.publish("t", [LARGE])
    asked = [await stalled.send(m.Fetch("t", 0, 0, bytes_max=16 * MIB)) for _ in range(100)]
    await trio.sleep(5)
    assert len(LARGE) < broker.memory.unsent.used_bytes < READ_AHEAD_BYTES_MAX + 5 * len(LARGE)
    for correlation in asked:
        assert len((await stalled.answer(correlation)).batches) == 4


def test_a_buffer_is_counted_whole_and_once_however_small_its_views_are() -> None:
    buffer = memoryview(bytes(MIB))
    assert memory_bytes([buffer[:10], buffer[10:20], b"x" * 30]) == MIB + 30 + 3 * FRAME_BYTES


def test_small_batches_are_sent_as_one_piece_that_keeps_no_other_buffer() -> None:
    whole = b"".join(bytes(records(["x"]).message) for _ in range(100)) + bytes(MIB)
    size = records(["x"]).size
    batches = [RecordBatch(memoryview(whole)[at * size : (at + 1) * size]) for at in range(100)]
    frames = frames_to(m.Fetched(0, 100, 100), 7, batches)
    assert len(frames) == 1
    assert memory_bytes(frames) < 100 * size + 1024


@pytest.mark.soak
@pytest.mark.parametrize("topic", ['storage = "dram"\nlease = "1h"', 'lease = "1h"', 'kind = "stream"'])
async def test_a_thousand_clients_that_never_read_fill_no_memory(tmp_path: Path, topic: str) -> None:
    await _stall(tmp_path, topic, 1_000, 200_000)


# --- publishes that wait ---------------------------------------------------------------------------------------------

FULL = '[topics.t]\nbytes_max = "1MiB"\nlease = "1h"\n'
LARGE = "x" * (256 << 10)
PUBLISHES = 20


def received_bytes(broker: Broker) -> int:
    return broker.memory.received.used_bytes


@simulated
async def test_publishers_to_a_full_topic_are_held_back_and_nothing_is_lost(env: SimEnv) -> None:
    async with broker_on(env, FULL, HEAD + LIMITED) as broker, trio.open_nursery() as nursery:
        count = 10

        async def publish() -> None:
            client = await connected(env)
            for _ in range(PUBLISHES):
                await client.send(m.Publish("t"), [records([LARGE])])
            for correlation in range(2, PUBLISHES + 2):
                await client.answer(correlation)
            await client.stream.aclose()

        for _ in range(count):
            nursery.start_soon(publish)
        await trio.sleep(60)
        share = broker.memory.received
        assert share.bytes_max <= received_bytes(broker) < share.bytes_max + count * (RESERVE_BYTES + 2 * len(LARGE))
        await take_some(await connected(env), "t", count * PUBLISHES)
    assert received_bytes(broker) == 0


@simulated
async def test_one_connection_publishes_and_consumes_though_memory_is_short(env: SimEnv) -> None:
    async with broker_on(env, FULL, HEAD + LIMITED) as broker:
        client, others = await connected(env), [await connected(env) for _ in range(8)]
        subscription = (await client.call(m.Subscribe("t"))).subscription
        async with trio.open_nursery() as nursery:
            for other in others:
                nursery.start_soon(_flood, other)
            await trio.sleep(1)
            assert broker.memory.received.is_over
            own = [await client.send(m.Publish("t"), [records([LARGE])]) for _ in range(8)]
            with trio.fail_after(3600):
                while not all(client.is_answered(correlation) for correlation in own):
                    event = await client.pull(subscription, 100, 1000)
                    if event.batches:
                        await client.settle(subscription, event)
            nursery.cancel_scope.cancel()


async def _flood(client: RawClient, topic: str = "t", count: int = 1 << 30) -> None:
    for _ in range(count):
        await client.tell(m.Publish(topic), [records([LARGE])])


@simulated
async def test_large_requests_that_come_at_once_come_in_turns(env: SimEnv) -> None:
    text = '[topics.t]\nkind = "stream"\nmessage_bytes_max = "8MiB"\n'
    head = HEAD + LIMITED + 'message_bytes_max = "8MiB"\nbatch_bytes_max = "9MiB"\n'
    frames = frames_of(m.Publish("t"), 2, [records(["y" * 4 * MIB])])
    whole = b"".join(frames)
    async with broker_on(env, text, head) as broker:
        clients = [await connected(env) for _ in range(10)]
        peak = 0
        async with trio.open_nursery() as nursery:

            async def publish(client: RawClient) -> None:
                nonlocal peak
                for place in range(0, len(whole), 64 << 10):
                    await client.stream.send([whole[place : place + (64 << 10)]])
                    await trio.sleep(0.01)
                    peak = max(peak, received_bytes(broker))
                await client.answer(2)

            for client in clients:
                nursery.start_soon(publish, client)
        assert broker.memory.received.bytes_max <= peak < broker.memory.received.bytes_max + 4 * MIB + 10 * 512 * 1024
        assert received_bytes(broker) == 0
        assert broker.topics["t"].partitions[0].high_watermark == 10


@simulated
async def test_a_client_that_stalls_in_a_large_request_blocks_others_until_it_is_disconnected(env: SimEnv) -> None:
    text = '[topics.t]\nkind = "stream"\nmessage_bytes_max = "8MiB"\n'
    head = HEAD + LIMITED + 'message_bytes_max = "8MiB"\nbatch_bytes_max = "9MiB"\n'
    whole = b"".join(frames_of(m.Publish("t"), 2, [records(["y" * 7 * MIB])]))
    async with broker_on(env, text, head) as broker, trio.open_nursery() as nursery:
        stopped, other = await connected(env), await connected(env)
        await stopped.stream.send([whole[: 6 * MIB]])
        await trio.sleep(1)
        nursery.start_soon(other.stream.send, [whole])
        await trio.sleep(30)
        await (await connected(env)).publish("t", ["small"])
        assert broker.topics["t"].partitions[0].high_watermark == 1
        with trio.fail_after(60):
            await other.answer(2)
        assert received_bytes(broker) == 0


# --- a disk that is too slow -----------------------------------------------------------------------------------------

BATCH = "z" * (64 << 10)
DISK_BYTES_PER_S = 4 * MIB


@simulated
async def test_a_publisher_at_twice_the_disks_speed_waits_and_nothing_confirmed_is_lost(env: SimEnv) -> None:
    confirmed, sent = 0, 0

    async def publish(client: RawClient) -> None:
        nonlocal sent
        while True:
            await client.send(m.Publish("t"), [records([BATCH])])
            sent += 1
            await trio.sleep(len(BATCH) / (2 * DISK_BYTES_PER_S))

    async def life(env: SimEnv) -> None:
        nonlocal confirmed
        env.disk.sync_bytes_per_s = DISK_BYTES_PER_S
        head = HEAD + LIMITED + "inflight_requests_max = 20\n"
        async with broker_on(env, ALWAYS + TEXT_OF_STREAM, head) as broker, trio.open_nursery() as nursery:
            client, other = await connected(env), await connected(env)
            nursery.start_soon(publish, client)
            for correlation in range(2, 300):
                await client.answer(correlation)
                confirmed += 1
                log = broker.topics["t"].partitions[0].log
                waiting_bytes = log.size_bytes() * (log.bounds()[1] - log.durable()) // max(1, log.bounds()[1])
                assert waiting_bytes < 2 * 20 * len(BATCH)
            assert sent - confirmed < 100
            await other.publish("t", ["others are served"])
            env.crash()

    began = trio.current_time()
    assert await env.run_until_death(life)
    assert trio.current_time() - began > 298 * len(BATCH) / DISK_BYTES_PER_S
    after = await after_power_loss(env, ALWAYS + TEXT_OF_STREAM)
    async with broker_on(after, ALWAYS + TEXT_OF_STREAM):
        found = await (await connected(after)).fetch("t", offset=confirmed - 1)
        assert found[0] == BATCH


TEXT_OF_STREAM = '[topics.t]\nkind = "stream"\n'


@simulated
async def test_connections_that_are_gone_have_given_back_all_that_was_counted_for_them(env: SimEnv) -> None:
    text = FULL + '[topics.s]\nkind = "stream"\nstorage = "dram"\n'
    async with broker_on(env, text, HEAD + LIMITED) as broker:
        for wait_s in (0.001, 0.1, 5):
            clients = [await connected(env) for _ in range(5)]
            filler, stalled, fetcher, blocked, broken = clients
            await filler.publish("s", [LARGE])
            await stalled.tell(m.Subscribe("s", credit=1 << 20))
            for _ in range(5):
                await fetcher.send(m.Fetch("s", 0, 0, bytes_max=1 << 20))
                await blocked.tell(m.Publish("t"), [records([LARGE])])
            await broken.stream.send([b"".join(frames_of(m.Publish("t"), 2, [records([LARGE])]))[:200_000]])
            await trio.sleep(wait_s)
            if wait_s == 5:
                assert broker.memory.unsent.used_bytes > len(LARGE)
                assert received_bytes(broker) > len(LARGE)
            for client in clients:
                await client.stream.aclose()
            await trio.sleep(5)
            assert (broker.memory.unsent.used_bytes, received_bytes(broker)) == (0, 0)


# --- nobody waits for what is no longer so ----------------------------------------------------------------------------


@simulated
async def test_a_publish_waiting_for_room_blocks_no_incomplete_request(env: SimEnv) -> None:
    text = FULL.replace("1MiB", '8MiB"\nmessage_bytes_max = "8MiB') + '[topics.s]\nmessage_bytes_max = "8MiB"\n'
    head = HEAD + LIMITED + 'message_bytes_max = "8MiB"\nbatch_bytes_max = "9MiB"\n'

    def whole(topic: str) -> bytes:
        return b"".join(frames_of(m.Publish(topic), 2, [records(["y" * 3 * MIB])]))

    async with broker_on(env, text, head):
        first, other = await connected(env), await connected(env)
        await (await connected(env)).publish("t", ["y" * 7 * MIB])
        full, fine = whole("t"), whole("s")
        for client, piece in ((first, full[: 3 * MIB // 2]), (other, fine[: 2 * MIB]), (first, full[3 * MIB // 2 :])):
            with trio.fail_after(10):
                await client.stream.send([piece])
            await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.stream.send, [fine[2 * MIB :]])
            with trio.fail_after(10):
                await other.answer(2)
        assert not first.is_answered(2)


@simulated
async def test_a_connection_that_is_held_up_for_memory_is_read_again_when_others_have_given_it_back(
    env: SimEnv,
) -> None:
    async with broker_on(env, FULL + FULL.replace("topics.t", "topics.u"), HEAD + LIMITED) as broker:
        held_up, flooding = await connected(env), await connected(env)
        for _ in range(5):
            await held_up.tell(m.Publish("t"), [records([LARGE])])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_flood, flooding, "u", 20)
            await trio.sleep(1)
            assert broker.memory.received.is_over
            asked = [await held_up.send(m.Describe(["t"])) for _ in range(2)][1]
            with trio.move_on_after(1) as scope:
                await held_up.answer(asked)
            assert scope.cancelled_caught
            await take_some(await connected(env), "u", 20)
        assert not broker.memory.received.is_over
        with trio.fail_after(10):
            await held_up.answer(asked)
