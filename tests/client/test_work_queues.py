"""Work queues with a client's defaults, in virtual time: work is shared, long jobs are done once, nothing is stuck."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

import linn
from linn.client import Client
from linn.core.broker.broker import running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.errors.tree import DeliveryNotCurrent
from linn.core.plugins.manager import PluginManager, installed
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

URL = "linn://127.0.0.1:5466"
TOML = """
[broker]
data_dir = "data"
[listeners.native]
address = "127.0.0.1:5466"
[topics.jobs]
lease = "30s"
max_deliveries = 5
dead_letter = "dead"
[topics.dead]
[topics.once]
delivery = "at-most-once"
"""

Scenario = Callable[[SimEnv, Client], Awaitable[Any]]


def simulated(scenario: Scenario, seed: int = 1) -> Any:
    """Run a scenario beside a broker; returns its result."""

    async def run(env: SimEnv) -> Any:
        node = SimEnv(1, name="broker", world=env.world)
        source = TomlSource(TOML, "test.toml")
        plugins = PluginManager(plugin_settings(source), installed())
        async with running_broker(load_config(source, plugins), node, plugins):
            async with linn.connect(URL, env=env) as client:
                return await scenario(env, client)

    return run_simulation(seed, run)


async def fill(client: Client, count: int, topic: str = "jobs") -> None:
    async with client.producer(topic) as producer:
        await producer.publish_many([b"%d" % number for number in range(count)])


async def state(client: Client, topic: str = "jobs") -> dict[str, Any]:
    return dict((await client.admin.topic(topic))["queue"])


@pytest.mark.parametrize("topic", ["jobs", "once"])
@pytest.mark.parametrize("job_s", [0.002, 0.012, 0.3])
def test_a_backlog_is_shared_by_four_workers(job_s: float, topic: str) -> None:
    rows = 3_000 if job_s < 0.1 else 200

    async def scenario(env: SimEnv, client: Client) -> list[int]:
        await fill(client, rows, topic)
        done = [0, 0, 0, 0]

        async def work(worker: int) -> None:
            async with linn.connect(URL, env=env) as own, own.consumer(topic) as consumer:
                async for message in consumer:
                    await trio.sleep(job_s)
                    message.ack()
                    done[worker] += 1

        async with trio.open_nursery() as nursery:
            for worker in range(4):
                nursery.start_soon(work, worker)
            while sum(done) < rows:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        return done

    done = simulated(scenario)
    assert sum(done) == rows
    assert min(done) > 0.8 * rows / 4, done


def test_each_of_a_hundred_jobs_runs_once_though_all_of_them_take_longer_than_a_lease() -> None:
    async def scenario(env: SimEnv, client: Client) -> tuple[list[int], dict[str, Any], int]:
        await fill(client, 100)
        runs: list[int] = []
        async with client.consumer("jobs") as consumer:
            while len(runs) < 100:
                async with (await anext(consumer)).process() as message:
                    runs.append(int(message.value or b""))
                    await trio.sleep(1)
        return runs, await state(client), (await state(client, "dead"))["unsettled"]

    runs, jobs, dead = simulated(scenario)
    assert runs == list(range(100))
    assert (jobs["unsettled"], dead) == (0, 0)


def test_a_worker_that_is_held_up_gets_its_messages_in_order() -> None:
    """Halfway through a lease its unread messages go back; those that came later must not be handed out before them."""

    async def scenario(env: SimEnv, client: Client) -> list[int]:
        await fill(client, 3)
        async with client.consumer("jobs", prefetch=100) as consumer:
            held = await anext(consumer)
            await trio.sleep(10)
            async with client.producer("jobs") as producer:
                await producer.publish_many([b"%d" % number for number in range(3, 6)])
            await trio.sleep(14)
            await held.ack()
            return [int((await anext(consumer)).value or b"") for _ in range(5)]

    assert simulated(scenario) == [1, 2, 3, 4, 5]


def test_a_job_that_takes_twenty_leases_is_done_once_while_others_do_the_rest() -> None:
    async def scenario(env: SimEnv, client: Client) -> list[tuple[int, int]]:
        await fill(client, 8)
        seen: list[tuple[int, int]] = []
        slow = await client.consumer("jobs").__aenter__()
        long_job = await anext(slow)  # Three more lie behind it.
        async with linn.connect(URL, env=env) as own, own.consumer("jobs") as other:
            with trio.move_on_after(600):
                async for message in other:
                    seen.append((int(message.value or b""), message.attempt))
                    await message.ack()
            await long_job.ack()
            assert (await state(own))["unsettled"] == 0
        await slow.aclose()
        return seen

    assert sorted(simulated(scenario)) == [(number, 1) for number in range(1, 8)]


def test_a_lease_is_renewed_up_to_its_bound_and_no_longer() -> None:
    async def scenario(env: SimEnv, client: Client) -> tuple[float, int]:
        await fill(client, 1)
        began = env.clock.monotonic()
        async with client.consumer("jobs", renewal_max_s=100) as stuck, linn.connect(URL, env=env) as own:
            held = await anext(stuck)
            async with own.consumer("jobs") as other:
                message = await anext(other)
                await message.ack()
            with pytest.raises(DeliveryNotCurrent):
                await held.ack()
            return env.clock.monotonic() - began, message.attempt

    waited_s, attempt = simulated(scenario)
    assert 90 < waited_s < 131
    assert attempt == 2


@pytest.mark.parametrize("keeps", [True, False])
def test_leases_of_forgotten_messages_are_not_renewed(keeps: bool) -> None:
    async def scenario(env: SimEnv, client: Client) -> bool:
        await fill(client, 2)
        async with client.consumer("jobs") as forgetful, linn.connect(URL, env=env) as own:
            kept = [await forgetful.next_batch()]
            if not keeps:
                kept.clear()
            async with own.consumer("jobs") as other:
                with trio.move_on_after(200):
                    await anext(other)
                    return True
        return False

    assert simulated(scenario) is not keeps


def test_an_application_that_collects_before_it_settles_gets_enough_records() -> None:
    async def scenario(env: SimEnv, client: Client) -> float:
        await fill(client, 1_000)
        began = env.clock.monotonic()
        async with client.consumer("jobs") as consumer:
            collected = [await anext(consumer) for _ in range(500)]
            for message in collected:
                message.ack()
        assert (await state(client))["unsettled"] == 500
        return env.clock.monotonic() - began

    assert simulated(scenario) < 2


def test_a_reader_of_a_queue_that_never_settles_sees_more_than_a_handful() -> None:
    async def scenario(env: SimEnv, client: Client) -> int:
        await fill(client, 200)
        seen = 0
        async with client.consumer("jobs") as consumer:
            with trio.move_on_after(2):
                async for _ in consumer:
                    seen += 1
        return seen

    assert simulated(scenario) == 200


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("prefetch", [None, 50])
def test_unread_messages_are_returned_without_an_attempt(prefetch: int | None, seed: int) -> None:
    async def scenario(env: SimEnv, client: Client) -> list[tuple[int, int]]:
        await fill(client, 20)
        async with client.consumer("jobs", prefetch=prefetch) as consumer:
            await anext(consumer)
            await trio.sleep(0.1)  # The broker waits for more, with room for as many as the consumer will release.
        async with client.consumer("jobs", prefetch=50) as consumer:
            return [((message := await anext(consumer)).offset, message.attempt) for _ in range(20)]

    assert sorted(simulated(scenario, seed)) == [(0, 2), *((offset, 1) for offset in range(1, 20))]


def test_other_consumers_get_records_behind_a_long_job_with_a_large_prefetch() -> None:
    async def scenario(env: SimEnv, client: Client) -> list[int]:
        await fill(client, 50)
        async with client.consumer("jobs", prefetch=50) as slow, linn.connect(URL, env=env) as own:
            long_job = await anext(slow)
            attempts = []
            async with own.consumer("jobs") as other:
                with trio.move_on_after(120):
                    async for message in other:
                        attempts.append(message.attempt)
                        await message.ack()
            await long_job.ack()
            return attempts

    attempts = simulated(scenario)
    assert len(attempts) > 0
    assert set(attempts) == {1}
