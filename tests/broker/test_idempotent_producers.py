"""Numbered batches by hand: what is stored once, what is refused, and what an exchange and a restart make of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio
from raw_client import (
    ALWAYS,
    HAND_ID,
    RawClient,
    Refused,
    after_power_loss,
    broker_on,
    connected,
    records,
    served,
    simulated,
    values,
)

from linn.api import Interceptor, InterceptorKind, hookimpl
from linn.core.batch.batch import SCATTERED, RecordBatch
from linn.core.broker.broker import Broker
from linn.core.log import partition as partition_module
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ID = HAND_ID
STREAM = '[topics.t]\nkind = "stream"\n'
THREE = """
[exchanges.e]
type = "topic"
[topics.a]
kind = "stream"
message_bytes_max = 4096
bytes_max = 5000
overflow = "reject"
[[topics.a.bindings]]
exchange = "e"
key = "#"
[topics.b]
kind = "stream"
partitions = 3
[[topics.b.bindings]]
exchange = "e"
key = "k.#"
[topics.c]
kind = "both"
[[topics.c.bindings]]
exchange = "e"
key = "#.l"
"""


def numbered(
    sequence: int, texts: Sequence[str], epoch: int = 0, *, scattered: bool = False, **properties: Any
) -> RecordBatch:
    batch = records(texts, **properties)
    batch.number(ID, epoch, sequence, SCATTERED if scattered else 0)
    return batch


async def send(client: RawClient, batch: RecordBatch, **where: Any) -> m.Placement:
    target = where.pop("target", "t")
    answer = await client.call(m.Publish(target, **({"partition": 0} | where)), [batch])
    (placement,) = answer.placements
    return placement  # type: ignore[no-any-return]


async def refusal(client: RawClient, batch: RecordBatch, **where: Any) -> str:
    with pytest.raises(Refused) as refused:
        await send(client, batch, **where)
    return refused.value.code


async def through(client: RawClient, key: str, sequence: int, texts: Sequence[str], epoch: int = 0) -> m.Placement:
    batch = numbered(sequence, texts, epoch, scattered=True, routing_key=key)
    return await send(client, batch, target="e", to_exchange=True, partition=-1)


async def everything(client: RawClient, topic: str, partitions: int = 1) -> list[str]:
    return [value for index in range(partitions) for value in await client.fetch(topic, partition=index)]


# --- one partition ---------------------------------------------------------------------------------------------------


@served(STREAM)
async def test_a_batch_that_comes_again_is_answered_with_its_offset(broker: Broker, client: RawClient) -> None:
    for sequence in range(3):
        assert (await send(client, numbered(sequence, ["abc"[sequence]]))).base_offset == sequence
    again = await send(client, numbered(1, ["b"]))
    assert (again.partition, again.base_offset, again.copies) == (0, 1, 1)
    assert await client.fetch("t") == ["a", "b", "c"]
    assert broker.topics["t"].partitions[0].duplicates == 1
    shown = await client.administer("topic.show", name="t")
    assert (shown["producers"], shown["duplicates"]) == (1, 1)


@served(STREAM)
async def test_a_gap_an_old_epoch_and_an_old_batch_are_refused(client: RawClient) -> None:
    assert await refusal(client, numbered(1, ["x"])) == "producer.out_of_order"
    for sequence in range(12):
        await send(client, numbered(sequence, [str(sequence)]))
    assert await refusal(client, numbered(13, ["x"])) == "producer.out_of_order"
    assert await refusal(client, numbered(0, ["x"])) == "producer.duplicate"
    await send(client, numbered(0, ["new"], epoch=1))
    assert await refusal(client, numbered(12, ["x"])) == "producer.fenced"
    assert await client.fetch("t") == [*map(str, range(12)), "new"]


@served(STREAM)
async def test_a_numbered_batch_comes_alone_and_says_when_the_broker_chooses_its_partition(client: RawClient) -> None:
    with pytest.raises(Refused, match=r"batch\.malformed"):
        await client.call(m.Publish("t", partition=0), [numbered(0, ["a"]), numbered(1, ["b"])])
    assert await refusal(client, numbered(0, ["a"]), partition=-1) == "batch.malformed"
    await send(client, numbered(0, ["a"], scattered=True), partition=-1)
    assert await client.fetch("t") == ["a"]


def test_too_many_producers_are_refused_until_idle_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module, "PRODUCERS_MAX", 3)
    run_simulation(0, too_many_producers)


async def too_many_producers(env: SimEnv) -> None:
    async with broker_on(env, STREAM):
        client = await connected(env)

        async def first_of(producer: int) -> m.Placement:
            batch = records(["x"])
            batch.number(ID + producer, 0, 0, 0)
            return await send(client, batch)

        for producer in (1, 2, 3):
            await first_of(producer)
        with pytest.raises(Refused, match=r"producer\.limit"):
            await first_of(4)
        assert (await first_of(3)).base_offset == 2
        await trio.sleep(601)
        client = await connected(env)
        assert (await first_of(4)).base_offset == 3


class _Dropping(Interceptor):
    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch | None:
        return None if batch.value(0) == b"drop" else records([f"<{value}>" for value in values([batch])])


class _DroppingPlugin:
    name = value = "dropping"
    dist = None

    def load(self) -> object:
        return self

    @hookimpl
    def linn_register_interceptor(self) -> list[InterceptorKind]:
        return [InterceptorKind("dropping", None, lambda *_: _Dropping())]


@simulated
async def test_what_an_interceptor_changes_or_drops_has_its_number_all_the_same(env: SimEnv) -> None:
    text = STREAM + 'interceptors = ["dropping"]\n'
    async with broker_on(env, text, plugins=[_DroppingPlugin()]):
        client = await connected(env)
        assert await refusal(client, numbered(1, ["drop"])) == "producer.out_of_order"
        for sequence, text in enumerate(["a", "drop", "b"]):
            await send(client, numbered(sequence, [text]))
        for sequence, text in enumerate(["a", "drop", "b"]):
            await send(client, numbered(sequence, [text]))
        assert await client.fetch("t") == ["<a>", "<b>"]


# --- several ---------------------------------------------------------------------------------------------------------


@served(THREE)
async def test_an_exchange_gives_each_destination_what_it_lacks(broker: Broker, client: RawClient) -> None:
    await through(client, "k.l", 0, ["one"])
    # As after a crash between the destinations: one of them has the batch already.
    batch = numbered(1, ["two"], scattered=True)
    await send(client, batch, target="a", partition=-1)
    for _ in range(2):
        assert (await through(client, "k.l", 1, ["two"])).copies == 3
    assert await everything(client, "a") == ["one", "two"]
    assert sorted(await everything(client, "b", 3)) == ["one", "two"]
    assert await everything(client, "c") == ["one", "two"]
    assert broker.topics["a"].partitions[0].duplicates == 2


@served(THREE)
async def test_behind_a_batch_that_was_refused_for_now_nothing_of_its_producer_is_stored(client: RawClient) -> None:
    await through(client, "k.l", 0, ["x" * 3_000])
    with pytest.raises(Refused, match=r"topic\.full"):
        await through(client, "k.l", 1, ["y" * 3_000])
    with pytest.raises(Refused, match=r"producer\.out_of_order"):
        await through(client, "k.l", 2, ["z"])
    # Its producer gives it up, and goes on in another epoch.
    assert (await through(client, "k.l", 0, ["z"], epoch=1)).copies == 3
    assert [text[0] for text in await everything(client, "c")] == ["x", "z"]


@simulated
async def test_a_batch_of_many_keys_goes_to_the_same_partitions_again(env: SimEnv) -> None:
    for partitioner in ("murmur2", "sticky", "round-robin"):
        topic = f'[topics.{partitioner}]\nkind = "stream"\npartitions = 5\npartitioner = "{partitioner}"\n'
        async with broker_on(env, topic):
            client = await connected(env)
            for sequence in range(0, 60, 6):
                texts = [f"{sequence + index}" for index in range(6)]
                for _ in range(2):
                    batch = numbered(sequence, texts, scattered=True)
                    assert (await send(client, batch, target=partitioner, partition=-1)).copies == 6
            found = await everything(client, partitioner, 5)
            assert sorted(map(int, found)) == list(range(60))


# --- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("death", ["stop", "kill", "power loss"])
@pytest.mark.parametrize("segment_bytes", [4_096, 1 << 20])
@simulated
async def test_a_restart_knows_what_was_stored(env: SimEnv, death: str, segment_bytes: int) -> None:
    text = ALWAYS + f'segment_bytes_max = {segment_bytes}\n[topics.t]\nkind = "stream"\n[topics.q]\n'

    async def before(env: SimEnv) -> None:
        async with broker_on(env, text) as broker:
            client = await connected(env)
            for sequence in range(20):
                await send(client, numbered(sequence, ["x" * 900]))
                await send(client, numbered(sequence, ["x" * 900]), target="q")
            await take_all(client)
            await broker.topics["q"].enforce_retention()
            if death == "kill":
                env.kill()
            elif death == "power loss":
                env.crash()

    async def take_all(client: RawClient) -> None:
        worker = (await client.call(m.Subscribe("q"))).subscription
        taken = 0
        while taken < 20:
            event = await client.pull(worker, 20)
            taken += sum(batch.count for batch in event.batches)
            await client.settle(worker, event)

    died = await env.run_until_death(before)
    assert died is (death != "stop")
    env = await after_power_loss(env, text) if died else env
    async with broker_on(env, text) as broker:
        client = await connected(env)
        for topic in ("t", "q"):
            for sequence in range(12, 20):
                again = await send(client, numbered(sequence, ["x" * 900]), target=topic)
                assert again.base_offset == sequence
            assert (await send(client, numbered(20, ["y"]), target=topic)).base_offset == 20
        assert len(await client.fetch("t")) == 21
        assert unsettled(broker) == 1


def unsettled(broker: Broker) -> int:
    queue = broker.topics["q"].queue
    assert queue is not None
    return queue.unsettled_count()


def cut_and_kill(seed: int) -> None:
    """Publish batches that are cut for three partitions, kill the broker, and send the last ones again."""
    text = '[topics.t]\nkind = "stream"\npartitions = 3\npartitioner = "round-robin"\n'
    texts = [[f"{sequence + index}" for index in range(6)] for sequence in range(0, 60, 6)]

    async def before(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            for each in texts:
                await send(client, numbered(int(each[0]), each, scattered=True), partition=-1)
            env.kill()

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(before)
        env = env.restart()
        async with broker_on(env, text):
            client = await connected(env)
            for each in texts[-8:]:
                await send(client, numbered(int(each[0]), each, scattered=True), partition=-1)
            found = await everything(client, "t", 3)
            assert sorted(map(int, found)) == list(range(60)), f"each once, not {found}"

    run_simulation(seed, scenario)


def test_batches_that_the_broker_has_cut_are_known_after_a_restart() -> None:
    cut_and_kill(0)


@simulated
async def test_no_two_starts_give_the_same_producer_ids(env: SimEnv) -> None:
    given: list[int] = []
    for _ in range(3):
        async with broker_on(env, ""):
            for _ in range(2):
                client = RawClient(await env.net.connect("127.0.0.1:5466"))
                given.append((await client.greet()).producer_id)
                await client.stream.aclose()
    assert given == sorted(set(given))
    assert all(later - earlier >= 256 for earlier, later in pairwise(given))
