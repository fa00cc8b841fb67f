"""The status of delayed messages: scheduled until they come, cancelled if they never do, and known after restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from raw_client import RawClient, broker_on, connected, records, served, simulated
from test_dedup import send, with_ids
from test_message_index import IndexRun
from test_message_status import QUEUE, small_runs, status

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.core.queue import scheduled_queue
from linn.core.queue.scheduled_queue import WaitingIds
from linn.core.topics import message_index
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


async def schedule(client: RawClient, *ids: int, delay_ms: int = 10_000) -> None:
    """Publish messages with these ids, which are their values as well."""
    for id in ids:
        await client.call(m.Publish("t", partition=0), [records([str(id)], delay_ms=delay_ms, id=UUID(int=id))])


async def cancel(client: RawClient, *ids: str, **options: Any) -> None:
    await client.administer("scheduled.cancel", topic="t", ids=list(ids), **options)


@pytest.mark.parametrize("kind", ["queue", "stream"])
@simulated
async def test_a_message_is_scheduled_until_it_comes_also_after_a_restart(env: SimEnv, kind: str) -> None:
    text = QUEUE + f'kind = "{kind}"\n'
    async with broker_on(env, text):
        client = await connected(env)
        await schedule(client, 1, 2)
        await schedule(client, 3, delay_ms=90_000)
        assert await status(client, 1, 2, 3, 4) == ["scheduled"] * 3 + ["unknown"]
        (first, second) = await client.administer("message.status", topic="t", ids=[str(UUID(int=id)) for id in (1, 2)])
        assert [(each["partition"], each["offset"]) for each in (first, second)] == [(0, 0), (0, 1)]
    async with broker_on(env, text):
        client = await connected(env)
        assert await status(client, 1, 2, 3) == ["scheduled"] * 3
        await trio.sleep(11)
        assert await status(client, 1, 2, 3) == ["stored"] * 2 + ["scheduled"]


@simulated
async def test_a_cancelled_message_is_known_as_long_as_others_that_have_ended(env: SimEnv) -> None:
    text = QUEUE.replace("7d", "600s")
    async with broker_on(env, text):
        client = await connected(env)
        await schedule(client, 1, 2, 3, delay_ms=2_000_000)
        await cancel(client, "0/0", validate_only=True)
        assert await status(client, 1) == ["scheduled"]
        await cancel(client, "0/0", "0/0", "0/2", "0/7")
        assert await status(client, 1, 2, 3) == ["cancelled", "scheduled", "cancelled"]
    for _ in range(2):
        async with broker_on(env, text):
            assert await status(await connected(env), 1, 2, 3) == ["cancelled", "scheduled", "cancelled"]
            await trio.sleep(250)
    async with broker_on(env, text) as broker:
        await trio.sleep(250)
        assert await status(await connected(env), 1, 2, 3) == ["unknown", "scheduled", "unknown"]
        await schedule(await connected(env), 4, delay_ms=2_000_000)
        await cancel(await connected(env), "0/3")
        await trio.sleep(61)
        (index,) = broker.topics["t"].ids.statuses.indexes.values()  # type: ignore[union-attr]
        assert index.log.partition.start_offset > 0, "what is forgotten leaves the log"
        assert await status(await connected(env), 4) == ["cancelled"]
    async with broker_on(env, text):
        assert await status(await connected(env), 1, 2, 3, 4) == ["unknown", "scheduled", "unknown", "cancelled"]


@served(QUEUE + 'records_max = 1\noverflow = "reject"\n')
async def test_a_message_that_waits_for_room_is_scheduled_and_leaving(client: RawClient) -> None:
    await send(client, with_ids(1))
    await schedule(client, 2, delay_ms=1_000)
    await trio.sleep(3)
    assert await status(client, 1, 2) == ["stored", "scheduled leaving"]


@served(QUEUE)
async def test_of_several_messages_with_an_id_the_one_counts_that_is_furthest_from_its_end(client: RawClient) -> None:
    await schedule(client, 1)
    await send(client, with_ids(1))
    assert await status(client, 1) == ["stored"]
    assert await client.taken("t") == ["1"]
    assert await status(client, 1) == ["scheduled"], "another of the same id is settled"
    await cancel(client, "0/0")
    assert await status(client, 1) == ["settled"]
    await schedule(client, 2)
    await cancel(client, "0/1")
    await schedule(client, 2)
    assert await status(client, 2) == ["scheduled"], "it was published again"


@served("[topics.t]\n")
async def test_ids_count_from_the_change_that_sets_a_status(client: RawClient) -> None:
    await schedule(client, 1)
    await client.administer("topic.alter", name="t", settings={"status": "1h"})
    await schedule(client, 2)
    assert await status(client, 1, 2) == ["unknown", "scheduled"]
    await client.administer("topic.alter", name="t", settings={"status": "off"})
    await cancel(client, "0/1")
    await schedule(client, 3)
    await client.administer("topic.alter", name="t", settings={"status": "1h"})
    assert await status(client, 1, 2, 3) == ["unknown"] * 3
    await trio.sleep(11)
    assert await status(client, 1, 2, 3) == ["stored", "unknown", "stored"]


@served(QUEUE)
async def test_a_cancel_on_a_full_disk_is_no_half_cancel(env: SimEnv, client: RawClient, broker: Broker) -> None:
    await schedule(client, 1, 2)
    env.disk.capacity_bytes = env.disk.used_bytes
    with pytest.raises(Exception, match=r"storage\.disk_full"):
        await cancel(client, "0/0")
    env.disk.capacity_bytes = 1 << 30
    await trio.sleep(30)
    assert await client.fetch("t") in (["1", "2"], ["2"])
    assert broker.topics["t"].timing.waiting_count == 0


@simulated
async def test_a_cancel_comes_between_the_parts_of_no_run(env: SimEnv) -> None:
    with small_runs(rows=4):
        async with broker_on(env, QUEUE):
            client = await connected(env)
            async with trio.open_nursery() as nursery:
                for id in range(40):
                    await schedule(client, 100 + id)
                    nursery.start_soon(cancel, await connected(env), f"0/{id}")
                    await send(client, with_ids(id))
            assert await status(client, *range(40)) == ["stored"] * 40
        async with broker_on(env, QUEUE):
            client = await connected(env)
            assert await status(client, *range(40)) == ["stored"] * 40
            assert await status(client, *range(100, 140)) == ["cancelled"] * 40


def test_the_oldest_cancelled_messages_are_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = IndexRun(SimEnv(0))
        await world.begin()
        ids = [bytes([number]) * 16 for number in range(20)]
        for id in ids:
            await world.index.note_cancelled(id)
        await world.act("tidy", None)
        for _ in range(2):
            assert [world.index.was_cancelled(id) for id in ids] == [False] * 12 + [True] * 8
            await world.act("open again", None)
            await world.act("tidy", None)
        assert world.own.start_offset == 12

    monkeypatch.setattr(message_index, "CANCELLED_MAX", 8)
    trio.run(run)


# --- the table of ids -------------------------------------------------------------------------------------------------


@contextmanager
def small_parts() -> Iterator[None]:
    before, scheduled_queue.PART_ROWS = scheduled_queue.PART_ROWS, 4
    try:
        yield
    finally:
        scheduled_queue.PART_ROWS = before


IDS = st.one_of(st.binary(min_size=16, max_size=16), st.integers(0, 300).map(lambda number: number.to_bytes(16)))


@given(st.lists(st.one_of(st.lists(IDS, min_size=1, max_size=6, unique=True), st.integers(0, 40)), max_size=20))
def test_the_table_finds_each_id_that_waits_and_drops_the_others(actions: list[list[bytes] | int]) -> None:
    async def run() -> None:
        table, wanted, count = WaitingIds(), dict[bytes, int](), 0
        for action in actions:
            if isinstance(action, int):
                wanted = {id: at for id, at in wanted.items() if at != action}
                for _ in range(count + 1):
                    await table.thin(frozenset(wanted.values()).__contains__)
                assert table.count == len(wanted)
                continue
            fresh = [id for id in action if id not in wanted]
            if fresh:
                batch = build_from_records([Record(value=b"", id=UUID(bytes=id)) for id in fresh], base_id=0)
                batch.stamp(count, 0, 0, 0)
                table.add(batch)
                wanted |= {id: count + at for at, id in enumerate(fresh)}
                count += len(fresh)
            assert {id: table.find(id) for id in wanted} == wanted

    with small_parts():
        trio.run(run)


@served(QUEUE)
async def test_ids_of_messages_that_have_come_leave_the_memory(client: RawClient, broker: Broker) -> None:
    with small_parts():
        for _ in range(10):
            await client.call(m.Publish("t"), [records(["a", "b", "c"], delay_ms=1_000)])
            await trio.sleep(2)
        await schedule(client, 99)
        await trio.sleep(0)
        (queue,) = broker.topics["t"].timing.queues.values()
        assert queue._ids is not None
        assert queue._ids.count <= 2 * (1 + 4) + 3
        assert await status(client, 99) == ["scheduled"]
