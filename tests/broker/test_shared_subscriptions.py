"""Named shared subscriptions of streams: made, read by competing consumers, kept over crashes, and deleted."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from raw_client import (
    ALWAYS,
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

from linn.core.broker.broker import Broker
from linn.core.errors.names import NAME_CHARACTERS_MAX
from linn.core.topics.shared_entry import SHARED_MAX, SharedEntry, decode_entries, is_state_topic, state_topic
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ACK, NACK, REJECT, EXTEND, RELEASE, _, _ = m.Verdict
STREAM = '[topics.t]\nkind = "stream"\nlease = "10s"\n'
VALUES = [f"record {number}" for number in range(6)]


async def _join(client: RawClient, shared: str, credit: int = 0, **options: Any) -> int:
    subscribed = await client.call(m.Subscribe("t", shared=shared, credit=credit, **options))
    assert subscribed.kind == m.ConsumerKind.SHARED
    return int(subscribed.subscription)


async def _taken(client: RawClient, shared: str, count: int = 100, verdict: int = ACK) -> list[str]:
    """The values of so many records, or of all there are, settled one by one."""
    subscription = await _join(client, shared)
    found: list[str] = []
    while len(found) < count and (event := await client.pull(subscription, 1, wait_max_ms=500)).batches:
        found += values(event.batches)
        assert await client.settle(subscription, event, verdict) == []
    await client.call(m.Unsubscribe(subscription))
    return found


async def _publish(client: RawClient, contents: list[str]) -> None:
    for value in contents:
        await client.publish("t", [value])


async def _code(client: RawClient, verb: str, **arguments: Any) -> str:
    try:
        await client.administer(verb, **arguments)
    except Refused as refused:
        return refused.code
    return ""


@served(STREAM)
async def test_each_subscription_has_every_record_and_its_consumers_share_them(one: RawClient, two: RawClient) -> None:
    await _publish(one, VALUES)
    first, second = await _join(one, "work", 3), await _join(two, "work", 3)
    held = await one.delivery(), await two.delivery()
    assert values(held[0].batches) + values(held[1].batches) == VALUES, "of one partition, more than one worker reads"
    assert await one.settle(first, held[0]) == []
    assert await two.settle(second, held[1], NACK) == []
    again = await one.delivery()
    assert (values(again.batches), again.message.attempt) == (VALUES[3:], 2)
    assert await _taken(two, "audit") == VALUES
    assert await one.fetch("t") == VALUES


@served(STREAM)
async def test_a_subscription_begins_where_it_is_told_to(client: RawClient) -> None:
    for value, timestamp_ms in zip(VALUES[:4], (100, 101, 200, 201), strict=True):
        await client.call(m.Publish("t"), [records([value], timestamp_ms=timestamp_ms)])
    places = {"all": {}, "earliest": {"to": "earliest"}, "latest": {"to": "latest"}, "third": {"offset": 2}}
    for name, place in (places | {"end": {"offset": 4}, "time": {"timestamp_ms": 150}}).items():
        made = await client.administer("subscription.create", topic="t", subscription=name, **place)
        assert made == {"created": True}
    joined = [await _join(client, "late", start=m.START_LATEST), await _join(client, "one", starts=[1])]
    for subscription in joined:
        await client.call(m.Unsubscribe(subscription))
    await _publish(client, VALUES[4:])
    skipped = {"all": 0, "earliest": 0, "latest": 4, "third": 2, "end": 4, "time": 2, "late": 4, "one": 1}
    for name, count in skipped.items():
        assert await _taken(client, name) == VALUES[count:], name
    again = await client.administer("subscription.create", topic="t", subscription="all", to="latest")
    assert again == {"created": False}


@served(STREAM + "[topics.q]\n")
async def test_what_is_not_made(client: RawClient) -> None:
    assert await _code(client, "subscription.create", topic="q", subscription="s") == "delivery.wrong_kind"
    assert await _code(client, "subscription.create", topic="t", subscription="a/b") == "config.invalid"
    assert await _code(client, "subscription.create", topic="t", subscription="") == "config.invalid"
    assert await _code(client, "subscription.create", topic="t", subscription="s", to="middle") == "config.invalid"
    assert await _code(client, "subscription.delete", topic="t", subscription="s") == "shared.unknown"
    assert await _code(client, "subscription.show", topic="t", subscription="s") == "shared.unknown"
    assert await _code(client, "subscription.show", topic="t") == "delivery.wrong_kind"
    for asked in (m.Subscribe("q", shared="s"), m.Subscribe("t", "g", shared="s")):
        assert await client.code_of(await client.send(asked)) == "delivery.wrong_kind"
    for asked in (
        m.Subscribe("t", shared="s", where='label.a = "b"'),
        m.Subscribe("t", shared="s", partitions=[0]),
    ):
        assert await client.code_of(await client.send(asked)) == "delivery.wrong_kind"
    tried = await client.administer("subscription.create", topic="t", subscription="s", validate_only=True)
    assert tried == {"created": True}
    assert await client.administer("subscription.list", topic="t") == []
    for number in range(SHARED_MAX):
        await client.administer("subscription.create", topic="t", subscription=f"s{number}")
    assert await _code(client, "subscription.create", topic="t", subscription="more") == "limit.exceeded"
    assert await client.code_of(await client.send(m.Subscribe("t", shared="more"))) == "limit.exceeded"


@pytest.mark.parametrize("storage", ["segmented-log", "dram"])
@simulated
async def test_what_is_settled_stays_so_over_a_restart(env: SimEnv, storage: str) -> None:
    text = STREAM + f'storage = "{storage}"\n' + ALWAYS
    is_kept = storage != "dram"
    async with broker_on(env, text):
        client = await connected(env)
        await _publish(client, VALUES)
        assert await _taken(client, "work", 2) == VALUES[:2]
        late = await client.administer("subscription.create", topic="t", subscription="late", offset=5)
        assert late == {"created": True}
        held = await _join(client, "work", 1)
        assert values((await client.delivery()).batches) == VALUES[2:3]
        assert held
    async with broker_on(env, text):
        client = await connected(env)
        await _publish(client, [] if is_kept else VALUES)
        assert await _taken(client, "work") == VALUES[2 * is_kept :]
        assert await _taken(client, "late") == VALUES[5 * is_kept :]


async def _work(env: SimEnv, fsync: str, crash_at: int | None, seen: dict[str, list[str]]) -> range:
    """Make, read and delete subscriptions until power is lost; `seen`: what was confirmed."""
    async with broker_on(env, STREAM + f'storage = "fast"\n[storage.fast]\nengine = "segmented-log"\n{fsync}\n'):
        client = await connected(env)
        env.disk.sync_delay_s_max = 0.001
        env.disk.crash_at, first = crash_at, len(env.disk.operations)
        for value in VALUES:
            await client.publish("t", [value])
            seen["published"].append(value)
        await client.administer("subscription.create", topic="t", subscription="old")
        assert await _taken(client, "old") == VALUES
        await client.administer("subscription.delete", topic="t", subscription="old")
        seen["gone"].append("old")
        await client.administer("subscription.create", topic="t", subscription="work", offset=3)
        seen["made"].append("work")
        subscription = await _join(client, "work")
        for _ in range(2):
            event = await client.pull(subscription, 1)
            assert await client.settle(subscription, event) == []
            seen["settled"] += values(event.batches)
        if crash_at is not None:
            env.crash()
        return range(first, len(env.disk.operations))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fsync", ['fsync = "always"', 'fsync = "os"'])
def test_power_is_lost_anywhere(fsync: str, seed: int) -> None:
    """A confirmed subscription is there, one that was deleted is not, and no record is delivered at another's state."""
    text = STREAM + f'storage = "fast"\n[storage.fast]\nengine = "segmented-log"\n{fsync}\n'

    def lose_power(crash_at: int) -> None:
        seen: dict[str, list[str]] = {"published": [], "gone": [], "made": [], "settled": []}

        async def process(env: SimEnv) -> None:
            await _work(env, fsync, crash_at, seen)

        async def scenario(env: SimEnv) -> None:
            assert await env.run_until_death(process)
            async with broker_on(await after_power_loss(env, text), text) as broker:
                client = await connected(broker.env)  # type: ignore[arg-type]
                listed = [row["subscription"] for row in await client.administer("subscription.list")]
                assert not seen["gone"] or "old" not in listed
                assert not seen["made"] or "work" in listed
                kept = await client.fetch("t")
                if "always" in fsync:
                    assert kept[: len(seen["published"])] == seen["published"]
                new = [f"new {number}" for number in range(8)]
                await _publish(client, new)
                if "work" in listed:
                    left = await _taken(client, "work")
                    assert left[-len(new) :] == new
                    assert set(left) <= {*VALUES[3:], *new}
                    if "always" in fsync:
                        assert not set(left) & set(seen["settled"]), "an answered ack is forgotten"
                        assert set(kept[3:]) - set(left) <= set(VALUES[3:5]), "a record was never delivered"
                assert await _taken(client, "fresh") == kept + new

        run_simulation(seed, scenario)

    seen: dict[str, list[str]] = {"published": [], "gone": [], "made": [], "settled": []}
    operations = run_simulation(seed, lambda env: _work(env, fsync, None, seen))
    for crash_at in range(operations[0] + 2 * seed, operations[-1] + 3, 6):
        lose_power(crash_at)


@served(STREAM + 'retention = "60s"\n[storage.segmented-log]\nsegment_bytes_max = "1MiB"\n')
async def test_records_that_retention_drops_leave_the_subscription(
    env: SimEnv, broker: Broker, client: RawClient
) -> None:
    await client.administer("subscription.create", topic="t", subscription="work")
    await _publish(client, ["x" * 100_000] * 20)
    await trio.sleep(120)
    client = await connected(env)
    await _publish(client, VALUES)
    start = broker.topics["t"].partitions[0].start_offset
    assert start > 0
    shown = await client.administer("subscription.show", topic="t", subscription="work")
    assert (shown["unsettled"], shown["by_partition"][0]["settled_before"]) == (26 - start, start)
    assert (await _taken(client, "work"))[-len(VALUES) :] == VALUES


@served(STREAM + 'dead_letter = "dead"\nmax_deliveries = 2\n[topics.dead]\nkind = "stream"\n')
async def test_dead_letters_of_each_subscription_are_copied_once(client: RawClient) -> None:
    await _publish(client, ["bad"])
    for name in ("one", "two"):
        assert await _taken(client, name, 2, NACK) == ["bad", "bad"]
        assert await _taken(client, name) == []
    copies = (await client.ask(m.Fetch("dead", 0, 0, wait_max_ms=1000))).batches
    labels = [dict(record.labels or {}) for batch in copies for record in batch.records()]
    assert [(label["linn.dead.subscription"], label["linn.dead.attempts"]) for label in labels] == [
        ("one", 2),
        ("two", 2),
    ]


@served(STREAM)
async def test_deleting_asks_first_where_there_are_consumers(
    env: SimEnv, client: RawClient, operator: RawClient
) -> None:
    await _publish(client, VALUES)
    worker = await _join(client, "work", 6)
    held = await client.delivery()
    assert await _code(operator, "subscription.delete", topic="t", subscription="work") == "shared.busy"
    assert await _code(operator, "topic.alter", name="t", settings={"kind": "queue"}) == "config.not_live"
    await operator.administer("subscription.delete", topic="t", subscription="work", force=True)
    ended = await client.push()
    assert isinstance(ended.message, m.Ended)
    assert ended.message.code == "shared.unknown"
    assert isinstance(held.message, m.Deliver)
    late = m.Settle(worker, [m.Settlement(0, held.message.delivery_id, 0, 1)])
    assert await client.code_of(await client.send(late)) == "delivery.subscription_unknown"
    assert await operator.administer("subscription.list") == []
    assert not [name for name in env.disk.list_dir("data/segmented-log") if name.startswith("__s1")]
    assert await _taken(client, "work") == VALUES, "another one of that name begins anew"
    await operator.administer("subscription.delete", topic="t", subscription="work")
    await operator.administer("topic.alter", name="t", settings={"kind": "queue"})


@simulated
async def test_partitions_that_come_later_are_read_from_their_start(env: SimEnv) -> None:
    async with broker_on(env, STREAM + ALWAYS):
        client = await connected(env)
        await _publish(client, VALUES[:2])
        await client.administer("subscription.create", topic="t", subscription="work", to="latest")
        await client.administer("topic.alter", name="t", settings={"partitions": 2, "kind": "both"})
        await client.publish("t", VALUES[2:], partition=1)
        assert await _taken(client, "work") == VALUES[2:]
        await client.administer("topic.alter", name="t", settings={"kind": "stream"})
        assert [row["subscription"] for row in await client.administer("subscription.list")] == ["work"]
    async with broker_on(env, STREAM + ALWAYS):
        client = await connected(env)
        assert await _taken(client, "work") == []
        await client.publish("t", ["last"], partition=1)
        assert await _taken(client, "work") == ["last"]


@served(ALWAYS)
async def test_a_topic_of_the_name_of_a_deleted_one_has_no_subscriptions(env: SimEnv, client: RawClient) -> None:
    for _ in range(2):
        await client.administer("topic.create", name="t", settings={"kind": "stream"})
        await _publish(client, VALUES)
        assert await client.administer("subscription.list") == []
        assert await _taken(client, "work") == VALUES
        await client.administer("topic.delete", name="t")
        assert not [name for name in env.disk.list_dir("data/segmented-log") if name.endswith("t")]


@pytest.mark.parametrize("text", [STREAM, '[topics.t]\nlease = "10s"\n'])
@simulated
async def test_a_name_is_taken_over(env: SimEnv, text: str) -> None:
    """The older consumer is told, its leases are the next one's at once, and it settles nothing any more."""
    shared = "work" if "stream" in text else ""
    async with broker_on(env, text):
        old, new = await connected(env), await connected(env)
        await _publish(old, VALUES)
        first = (await old.call(m.Subscribe("t", shared=shared, member="ann"))).subscription
        assert values((await old.pull(first, 6)).batches) == VALUES
        asked = await old.send(m.Pull(first, 1, 60_000))
        await trio.sleep(1)  # It is at the broker by then, over another connection than the next request.
        second = (await new.call(m.Subscribe("t", shared=shared, credit=6, member="ann"))).subscription
        assert await old.code_of(asked) == "delivery.fenced"
        got: list[str] = []
        while len(got) < len(VALUES):
            event = await new.delivery(1)
            got += values(event.batches)
            assert await new.settle(second, event) == []
        assert sorted(got) == VALUES
        ended = await old.push()
        while not isinstance(ended.message, m.Ended):
            ended = await old.push()
        assert ended.message.code == "delivery.fenced"


@served(STREAM)
async def test_connections_show_the_names_of_their_consumers(client: RawClient) -> None:
    await _join(client, "work", member="ann")
    await client.call(m.Subscribe("t", "group", member="bob"))
    (connection,) = await client.administer("connection.list")
    assert [(each["shared"], each["group"], each["name"]) for each in connection["subscriptions"]] == [
        ("work", "", "ann"),
        ("", "group", "bob"),
    ]


@pytest.mark.parametrize(
    "entries",
    [
        {"a": {"number": 0}},
        {"a": {"number": SHARED_MAX + 1}},
        {"a": {"number": 1}, "b": {"number": 1}},
        {"a": {"number": 1, "starts": [-1]}},
        {"a": {"number": 1, "begins": []}},
        {"a/b": {"number": 1}},
        {"a": 1},
        [],
    ],
)
def test_damaged_metadata_of_subscriptions_is_refused(entries: object) -> None:
    with pytest.raises(ValueError, match=r"shared subscription|Expected|unknown field"):
        decode_entries(entries)
    assert decode_entries({"a": {"number": SHARED_MAX}}) == {"a": SharedEntry(SHARED_MAX)}


@simulated
async def test_the_longest_names_fit_into_the_names_of_folders(env: SimEnv) -> None:
    longest = "t" * NAME_CHARACTERS_MAX
    assert len(state_topic(SHARED_MAX, longest)) <= 255
    assert is_state_topic(state_topic(SHARED_MAX, longest))
    assert is_state_topic("__s.t")
    assert not is_state_topic("__g.orders")
    async with broker_on(env, ALWAYS):
        client = await connected(env)
        await client.administer("topic.create", name=longest, settings={"kind": "stream"})
        made = await client.administer("subscription.create", topic=longest, subscription="s" * NAME_CHARACTERS_MAX)
        assert made == {"created": True}


@served(STREAM)
async def test_a_full_disk_makes_no_subscription_or_a_whole_one(env: SimEnv, client: RawClient) -> None:
    await _publish(client, VALUES)
    env.disk.capacity_bytes = env.disk.used_bytes
    code = await _code(client, "subscription.create", topic="t", subscription="work")
    listed = [row["subscription"] for row in await client.administer("subscription.list")]
    assert (code, listed) in (("storage.disk_full", []), ("", ["work"]))
    env.disk.capacity_bytes = 1 << 40
    assert await _taken(client, "work") == VALUES
