"""A failing, full or lost disk never loses a confirmed message."""

from __future__ import annotations

import json

import pytest
import trio
from raw_client import ALWAYS, Refused, after_power_loss, broker_on, connected, records, simulated, values

from linn.core.errors.tree import DescriptorsExhausted, DiskFull, StorageError, SyncFailed
from linn.core.metadata.embedded import RESERVE_BYTES
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

INTERVAL = '[storage.segmented-log]\nfsync = "interval"\nflush_interval = "100ms"\n'
STREAM = '[topics.t]\nkind = "stream"\n'


@pytest.mark.parametrize("seed", range(6))
@simulated
async def test_a_failed_sync_ends_the_broker_and_nothing_confirmed_is_lost(env: SimEnv, seed: int) -> None:
    confirmed: list[str] = []

    async def process(env: SimEnv) -> None:
        async with broker_on(env, ALWAYS + STREAM):
            client = await connected(env)
            for number in range(100):
                if number == 5 + seed:
                    env.disk.fail_next_sync()
                await client.publish("t", [str(number)])
                confirmed.append(str(number))

    with pytest.raises(SyncFailed):
        await process(env)
    assert len(confirmed) == 5 + seed
    env.crash()
    env = env.restart()
    async with broker_on(env, ALWAYS + STREAM):
        kept = await (await connected(env)).fetch("t")
        assert kept[: len(confirmed)] == confirmed


@simulated
async def test_a_failed_sync_of_topic_metadata_ends_the_broker_too(env: SimEnv) -> None:
    async def process() -> None:
        async with broker_on(env, ""):
            client = await connected(env)
            env.disk.fail_next_sync()
            with pytest.raises((Refused, EOFError)):
                await client.administer("topic.create", name="t")
            await trio.sleep(10)
            pytest.fail("the broker went on")

    with pytest.raises(SyncFailed):
        await process()


@simulated
async def test_a_change_that_waits_for_a_failed_sync_does_not_hold_up_the_end(env: SimEnv) -> None:
    async def failing() -> None:
        raise SyncFailed("the disk is on fire")

    async def process() -> None:
        async with broker_on(env, "") as broker, trio.open_nursery() as nursery:
            nursery.start_soon(broker.administration._run_change, trio.sleep_forever)
            await trio.sleep(1)
            broker.spawn(failing)
            await trio.sleep(10)
            pytest.fail("the broker went on")

    with pytest.raises(SyncFailed), trio.fail_after(100):
        await process()


def test_a_sync_that_fails_before_a_first_delivery_ends_the_broker() -> None:
    @simulated
    async def process(env: SimEnv) -> None:
        async with broker_on(env, "[topics.t]\n"):
            client = await connected(env)
            await client.publish("t", ["a"])
            env.disk.fail_next_sync()
            await client.call(m.Subscribe("t", credit=1))
            await trio.sleep(10)
            pytest.fail("the broker went on")

    with pytest.raises(SyncFailed):
        process()


@pytest.mark.parametrize("text", [ALWAYS, INTERVAL, ""])
def test_the_fsync_policy_says_what_power_loss_may_take(text: str) -> None:
    losses: list[int] = []

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text + STREAM):
            client = await connected(env)
            for number in range(20):
                await client.publish("t", [str(number)])
            if text is INTERVAL:
                await trio.sleep(1)
            env.crash()

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(process)
        env = await after_power_loss(env, text + STREAM)
        async with broker_on(env, text + STREAM):
            kept = await (await connected(env)).fetch("t")
            assert kept == [str(number) for number in range(len(kept))]
            losses.append(20 - len(kept))

    for seed in range(8):
        run_simulation(seed, scenario)
    assert (max(losses) == 0) is (text != ""), losses


@simulated
async def test_the_death_of_the_process_takes_nothing_that_was_confirmed(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, STREAM):
            client = await connected(env)
            for number in range(20):
                await client.publish("t", [str(number)])
            env.kill()

    assert await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, STREAM):
        assert await (await connected(env)).fetch("t") == [str(number) for number in range(20)]


@pytest.mark.parametrize("fsync", [ALWAYS, ""])
@simulated
async def test_a_full_disk_refuses_by_name_loses_nothing_and_works_again_with_room(env: SimEnv, fsync: str) -> None:
    text = fsync + STREAM + '[topics.q]\nlease = "1h"\n'
    confirmed: list[str] = []
    async with broker_on(env, text):
        client = await connected(env)
        await client.publish("q", ["a", "b", "c", "d"])
        worker = (await client.call(m.Subscribe("q", credit=2))).subscription
        held = await client.delivery()
        member = (await client.call(m.Subscribe("t", group="g", credit=1))).subscription
        await client.push()
        env.disk.capacity_bytes = 60_000 + RESERVE_BYTES
        for size in [1000] * 100 + [100, 100, 1, 1]:
            value = f"{len(confirmed):<{size}}"
            code = await client.code_of(await client.send(m.Publish("t"), [records([value])]))
            assert code in ("", "storage.disk_full")
            confirmed += [value] if not code else []
        assert 10 < len(confirmed) < 100
        with pytest.raises(Refused, match=r"storage\.disk_full"):
            await client.publish("t", ["x"])
        # Nothing can be written now: settlements fail, reading does not.
        for request in (
            m.Settle(worker, [m.Settlement(0, held.message.delivery_id, 0, 1)]),
            m.Administer("topic.create", json.dumps({"name": "new"})),
        ):
            with pytest.raises(Refused, match=r"storage\.disk_full"):
                await client.call(request)
        await client.call(m.Unsubscribe(member))
        with pytest.raises(Refused, match=r"topic\.unknown"):
            await client.publish("new", ["x"])
        for _ in range(10):
            await trio.sleep(5)
            await client.call(m.Ping())
        assert (await _all(client))[: len(confirmed)] == confirmed
        env.disk.capacity_bytes = 1 << 30
        await client.publish("t", ["after"])
        confirmed.append("after")
        assert await client.administer("topic.create", name="new") == {"created": True}
        await client.publish("new", ["x"])
        entry = m.Settlement(0, held.message.delivery_id, 1, 2)
        assert (await client.call(m.Settle(worker, [entry]))).refused == []
        assert await _all(client) == confirmed
    async with broker_on(env, text):
        client = await connected(env)
        assert await _all(client) == confirmed
        assert await client.fetch("new") == ["x"]
        worker = (await client.call(m.Subscribe("q"))).subscription
        assert values((await client.pull(worker)).batches) == ["c", "d"]


async def _all(client) -> list[str]:  # type: ignore[no-untyped-def]
    return list(await client.fetch("t", bytes_max=1 << 24))


@simulated
async def test_a_client_that_goes_away_half_way_leaves_no_half_a_change(env: SimEnv) -> None:
    async with broker_on(env, ""):
        client = await connected(env)
        for number in range(30):
            env.disk.sync_delay_s_max = 0.05
            hasty = await connected(env)
            name = f"t{number}"
            # An answer that was never read makes its end a reset, which ends the session at once.
            await hasty.tell(m.Publish("nope"))
            await hasty.send(m.Ping())
            await hasty.send(m.Administer("topic.create", json.dumps({"name": name})))
            await trio.sleep(number * 0.002)
            await hasty.stream.aclose()
            await trio.sleep(1)
            existing = {topic["name"] for topic in await client.administer("topic.list")}
            if name in existing:
                for lease in ("5s", "6s"):
                    altered = await client.administer("topic.alter", name=name, settings={"lease": lease})
                    assert altered["changed"] == ["lease"]
    async with broker_on(env, ""):
        client = await connected(env)
        shown = {topic["name"]: topic["settings"]["lease"] for topic in await client.administer("topic.list")}
        assert shown == dict.fromkeys(existing | shown.keys(), "6s")
        assert len(shown) > 10


def without_descriptors(
    env: SimEnv,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    count: int,
    error: type[StorageError] = DescriptorsExhausted,
) -> None:
    """Make `count` syncs of folders of this name fail: no descriptor is left for them, or no room on the disk."""
    sync_dir, left = env.disk.sync_dir, count

    async def fail(path: str) -> None:
        nonlocal left
        if folder in path and left:
            left -= 1
            raise error(f"can't sync the folder {path}")
        await sync_dir(path)

    monkeypatch.setattr(env.disk, "sync_dir", fail)


@pytest.mark.parametrize("error", [DescriptorsExhausted, DiskFull])
@simulated
async def test_a_sync_that_lacked_descriptors_or_room_is_retried_soon(
    env: SimEnv, error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_on(env, (INTERVAL if error is DescriptorsExhausted else ALWAYS) + STREAM) as broker:
        log = broker.topics["t"].partitions[0].log
        without_descriptors(env, monkeypatch, "/t/", 3, error)
        await (await connected(env)).publish("t", ["the last for a long time"])
        await trio.sleep(10)
        assert log.durable() == log.bounds()[1] == 1


@simulated
async def test_a_queue_that_waits_for_the_disk_waits_for_descriptors_too(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ALWAYS + "[topics.q]\n"

    async def leased(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            await client.publish("q", ["a", "b"])
            await client.pull((await client.call(m.Subscribe("q"))).subscription)
            env.crash()

    assert await env.run_until_death(leased)
    env = env.restart()
    env.disk.capacity_bytes = env.disk.used_bytes + 100
    async with broker_on(env, text):
        client = await connected(env)
        queue = (await client.call(m.Subscribe("q"))).subscription
        assert not (await client.pull(queue, wait_max_ms=2_000)).batches
        without_descriptors(env, monkeypatch, "__s.q", 2)
        env.disk.capacity_bytes = 1 << 30
        assert values((await client.pull(queue, wait_max_ms=20_000)).batches) == ["a", "b"]
