"""(Topic id, leader epoch, offset) never names two records, and a reader is told where its log was cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from raw_client import HAND_ID, RawClient, Refused, after_power_loss, broker_on, connected, records, served, simulated
from truncation_walks import walk

from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.batch.key_hash import key_hash
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TOML = """
[storage.segmented-log]
fsync = "interval"
flush_interval = "1s"
[topics.t]
kind = "stream"
storage = "segmented-log"
"""


async def lives(env: SimEnv, *parts: Callable[[RawClient], Awaitable[Any]]) -> list[Any]:
    """Run each part beside a broker that loses power after it; returns what they return."""
    found: list[Any] = []
    for part in parts:

        async def live(env: SimEnv, part: Callable[[RawClient], Awaitable[Any]] = part) -> None:
            async with broker_on(env, TOML):
                found.append(await part(await connected(env)))
                env.crash()
                await trio.sleep_forever()

        await env.run_until_death(live)
        env = await after_power_loss(env, TOML)
    return found


async def failure(client: RawClient, request: m.Message) -> m.Failed:
    """The refusal of a request."""
    with pytest.raises(Refused) as refused:
        await client.ask(request)
    return refused.value.failed


@simulated
async def test_a_topic_keeps_its_id_and_every_start_has_a_later_epoch(env: SimEnv) -> None:
    async def publish(client: RawClient) -> tuple[Any, int, str]:
        placement = await client.publish("t", ["a"])
        shown = await client.administer("topic.show", name="t")
        (info,) = (await client.call(m.Describe(["t"]))).topics
        assert (info.id_high, info.id_low) == (placement.topic_id_high, placement.topic_id_low)
        await trio.sleep(2)  # The folder's names are durable by then.
        return (info.id_high, info.id_low), placement.leader_epoch, shown["id"]

    (first, first_epoch, shown), (second, second_epoch, again) = await lives(env, publish, publish)
    assert first == second != (0, 0)
    assert shown == again
    assert 0 < first_epoch < second_epoch


@served("")
async def test_a_topic_that_is_made_again_is_another(client: RawClient) -> None:
    await client.administer("topic.create", name="u", settings={"kind": "stream"})
    old = await client.publish("u", ["a"])
    await client.administer("topic.delete", name="u")
    await client.administer("topic.create", name="u", settings={"kind": "stream"})
    new = await client.publish("u", ["b"])
    assert (old.topic_id_high, old.topic_id_low) != (new.topic_id_high, new.topic_id_low)
    known = {"topic_id_high": old.topic_id_high, "topic_id_low": old.topic_id_low}
    assert (await failure(client, m.Fetch("u", 0, 0, **known))).code == "topic.replaced"
    assert (await failure(client, m.Subscribe("u", **known))).code == "topic.replaced"
    known = {"topic_id_high": new.topic_id_high, "topic_id_low": new.topic_id_low}
    assert await client.fetch("u", **known) == ["b"]


@pytest.mark.parametrize("seed", [3, 8, 9, 10])  # With others the disk keeps what was not synced.
@simulated
async def test_a_reader_is_told_where_a_power_loss_cut_what_it_has_read(env: SimEnv, seed: int) -> None:
    async def publish_and_read(client: RawClient) -> m.Fetched:
        await client.publish("t", ["kept", "kept too"])
        await trio.sleep(2)  # They are synced.
        await client.publish("t", ["lost", "lost too"])
        fetched: m.Fetched = await client.call(m.Fetch("t", 0, 0))
        assert fetched.next_offset == 4
        return fetched

    epoch = 0

    async def read_on(client: RawClient) -> None:
        await client.publish("t", ["other", "others", "and more"])
        for request in (
            m.Fetch("t", 0, 4, leader_epoch=epoch),
            m.Subscribe("t", start=4, partitions=[0], leader_epoch=epoch),
            m.Subscribe("t", start=4, leader_epoch=epoch),
        ):
            failed = await failure(client, request)
            assert (failed.code, failed.partition, failed.offset) == ("log.truncated", 0, 2)
        assert await client.fetch("t", offset=2, leader_epoch=epoch) == ["other", "others", "and more"]
        assert await client.fetch("t", offset=4) == ["and more"], "without an epoch nothing is checked"
        again: m.Fetched = await client.call(m.Fetch("t", 0, 2))
        assert again.leader_epoch > epoch
        assert await client.fetch("t", offset=4, leader_epoch=again.leader_epoch) == ["and more"]

    async def first(client: RawClient) -> None:
        nonlocal epoch
        epoch = (await publish_and_read(client)).leader_epoch

    await lives(env, first, read_on)


@simulated
async def test_a_batch_that_is_sent_again_is_answered_with_the_epoch_in_which_it_was_stored(env: SimEnv) -> None:
    async def publish(client: RawClient) -> m.Placement:
        batch = records(["a"])
        batch.number(HAND_ID, 0, 0, 0)
        placement: m.Placement = (await client.call(m.Publish("t", partition=0), [batch])).placements[0]
        await trio.sleep(2)
        return placement

    first, again = await lives(env, publish, publish)
    assert (first.base_offset, first.leader_epoch) == (again.base_offset, again.leader_epoch)


SPREAD = """
[exchanges.e]
type = "fanout"
[topics.spread]
partitions = 4
bindings = [{ exchange = "e" }]
[topics.other]
bindings = [{ exchange = "e" }]
"""


@served(SPREAD)
async def test_a_batch_for_several_partitions_of_one_topic_is_answered_with_its_id_and_its_epoch(
    client: RawClient,
) -> None:
    keys = [b"%d" % number for number in range(100)]
    columns = BatchColumns([b"x"] * len(keys), 0, HAND_ID, keys=keys, key_hashes=[key_hash(key) for key in keys])
    answers = [
        (await client.call(m.Publish(target, target == "e"), [build_batch(columns)])).placements[0]
        for target in ("spread", "e")
    ]
    (info,) = (await client.call(m.Describe(["spread"]))).topics
    told = [(it.partition, it.topic_id_high, it.topic_id_low, it.leader_epoch) for it in answers]
    assert told == [(-1, info.id_high, info.id_low, info.partitions[0].leader_epoch), (-1, 0, 0, 0)]


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_has_what_the_log_has_whatever_power_losses_took(seed: int) -> None:
    walk(seed)


def test_readers_are_told_of_lost_records_in_these_runs() -> None:
    assert sum(map(walk, range(12))) >= 3
