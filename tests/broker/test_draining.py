"""An orderly stop: what is under way is answered, and it takes bounded time."""

from __future__ import annotations

import contextlib

import pytest
import trio
from raw_client import ALWAYS, HEAD, Refused, broker_on, configured, connected, records, simulated, values

from linn.core.broker.broker import running_broker
from linn.core.errors.tree import ConnectFailed, DataDirLocked
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

QUEUE = '[topics.t]\nlease = "60s"\n'


@contextlib.asynccontextmanager
async def stopping(env: SimEnv, text: str):  # type: ignore[no-untyped-def]
    """A broker that stops when the block ends, while clients go on; yields a list for what they still do."""
    after: list = []
    config, manager = configured(text)
    async with trio.open_nursery() as nursery:

        async def serve(task_status=trio.TASK_STATUS_IGNORED) -> None:  # type: ignore[no-untyped-def]
            async with running_broker(config, env, manager) as broker:
                task_status.started(broker)
                await broker.wait_stopped()

        broker = await nursery.start(serve)
        yield broker, after
        broker.stop()
        for action in after:
            await action()


@simulated
async def test_clients_without_anything_under_way_are_let_go_at_once(env: SimEnv) -> None:
    async with stopping(env, QUEUE):
        client = await connected(env)
        await client.call(m.Subscribe("t", credit=5))
        started = trio.current_time()
    assert trio.current_time() - started < 0.5
    assert [type(message) for message in await client.until_closed()] == [m.Goodbye]


@simulated
async def test_publishes_under_way_are_answered(env: SimEnv) -> None:
    async with stopping(env, ALWAYS + QUEUE):
        client = await connected(env)
        await client.publish("t", ["first"])  # It makes the log's files, each of which is synced.
        env.disk.sync_delay_s_max = 1
        publishes = [await client.send(m.Publish("t"), [records([str(i)])]) for i in range(10)]
        await trio.sleep(0.1)
    await client.until_closed()
    for correlation in publishes:
        await client.answer(correlation)


@simulated
async def test_waiting_fetches_are_answered_without_records(env: SimEnv) -> None:
    async with stopping(env, QUEUE + '[topics.s]\nkind = "stream"\n'):
        client = await connected(env)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        pull = await client.send(m.Pull(subscription, 1, 60_000))
        fetch = await client.send(m.Fetch("s", 0, 0, wait_max_ms=60_000))
        await trio.sleep(1)
        started = trio.current_time()
    assert trio.current_time() - started < 0.5
    await client.until_closed()
    assert (await client.answer(pull)).batches == (await client.answer(fetch)).batches == []


@simulated
async def test_a_publish_that_waits_for_room_is_refused(env: SimEnv) -> None:
    async with stopping(env, QUEUE + 'bytes_max = "1KiB"\nmessage_bytes_max = 1000\n'):
        client = await connected(env)
        await client.publish("t", ["x" * 900])
        blocked = await client.send(m.Publish("t"), [records(["y" * 900])])
        await trio.sleep(1)
    await client.until_closed()
    with pytest.raises(Refused, match=r"broker\.stopping"):
        await client.answer(blocked)


@simulated
async def test_a_draining_broker_accepts_settlements_and_delivers_no_more(env: SimEnv) -> None:
    async with stopping(env, QUEUE) as (_, after):
        client, other = await connected(env), await connected(env)
        await client.publish("t", ["a", "b"])
        worker = (await client.call(m.Subscribe("t", credit=1))).subscription
        held = await client.delivery()

        async def go_on() -> None:
            assert isinstance((await client.push()).message, m.Goodbye)
            for each in (other, client):
                with pytest.raises(Refused, match=r"broker\.stopping"):
                    await each.publish("t", ["c"])
            await client.call(m.Credit(worker, 10))
            assert await client.settle(worker, held) == []
            await client.until_closed(1)
            assert not client.pushed

        after.append(go_on)
    async with broker_on(env, QUEUE):
        client = await connected(env)
        worker = (await client.call(m.Subscribe("t"))).subscription
        assert values((await client.pull(worker)).batches) == ["b"]


@simulated
async def test_a_client_that_keeps_its_leases_holds_the_stop_up_no_longer_than_the_timeout(env: SimEnv) -> None:
    async with stopping(env, QUEUE):
        client = await connected(env)
        await client.publish("t", ["a"])
        await client.call(m.Subscribe("t", credit=1))
        await client.delivery()
        started = trio.current_time()
    assert 1.9 < trio.current_time() - started < 2.5


@simulated
async def test_a_stopping_broker_accepts_no_connections(env: SimEnv) -> None:
    async with stopping(env, QUEUE) as (_, after):
        client = await connected(env)
        await client.publish("t", ["a"])
        await client.call(m.Subscribe("t", credit=1))
        await client.delivery()

        async def come() -> None:
            await trio.sleep(0.5)
            with pytest.raises(ConnectFailed):
                await connected(env)

        after.append(come)


@simulated
async def test_a_cancelled_stop_ends_at_once_and_in_order(env: SimEnv) -> None:
    with trio.CancelScope() as scope:
        async with stopping(env, QUEUE) as (_, after):
            client = await connected(env)
            await client.publish("t", ["a"])
            await client.call(m.Subscribe("t", credit=1))
            await client.delivery()

            async def cancel() -> None:
                await trio.sleep(0.1)
                started.append(trio.current_time())
                scope.cancel()

            started: list[float] = []
            after.append(cancel)
    assert trio.current_time() - started[0] < 0.1
    async with broker_on(env, QUEUE):
        client = await connected(env)
        worker = (await client.call(m.Subscribe("t"))).subscription
        event = await client.pull(worker)
        assert (values(event.batches), event.message.attempt) == (["a"], 2)


@simulated
async def test_a_client_that_never_reads_holds_the_stop_up_no_longer_than_the_timeout(env: SimEnv) -> None:
    async with stopping(env, '[topics.t]\nkind = "stream"\n'):
        client = await connected(env)
        await client.publish("t", ["x" * 1000] * 500)
        for _ in range(20):
            await client.send(m.Fetch("t", 0, 0))
        await trio.sleep(1)
        started = trio.current_time()
    assert trio.current_time() - started < 2.5


@simulated
async def test_the_data_folder_belongs_to_one_broker_at_a_time(env: SimEnv) -> None:
    async with broker_on(env, QUEUE, HEAD):
        with pytest.raises(DataDirLocked):
            async with broker_on(env, QUEUE, HEAD):
                pass
        await (await connected(env)).publish("t", ["a"])
    async with broker_on(env, QUEUE, HEAD):
        assert await (await connected(env)).fetch("t") == ["a"]
