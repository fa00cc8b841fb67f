"""The audit trail: each change with its caller, counted refusals, a chain that shows tampering, a full disk."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from raw_client import RawClient, Refused, after_power_loss, broker_on, connected, served, simulated
from test_rights import EVERYTHING, FILE, ROWS, Rights, Row, code_of

from linn.core.admin.audit import COUNTED_S, KINDS_MAX
from linn.core.broker.broker import Broker
from linn.core.ports.principal import Principal
from linn.core.security.audit_chain import AuditChain, ChainVerifier
from linn.core.security.sasl.scram import make_verifier
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.verbs import VERBS
from linn.wire import messages as m

SYNCED = FILE + '[storage.segmented-log]\nfsync = "always"\n'
SECRET = make_verifier("secret", b"s" * 16, 4096).text()
CHANGES = [row for row in ROWS if row.name in VERBS and VERBS[row.name].acts]


async def _texts(client: RawClient) -> list[str]:
    found: list[str] = []
    while more := await client.fetch("__audit", offset=len(found), bytes_max=1 << 24):
        found += more
    return found


async def _trail(client: RawClient) -> list[dict[str, Any]]:
    verifier, found = ChainVerifier(), await _texts(client)
    assert [verifier.check(text.encode()) for text in found] == [None] * len(found)
    return [json.loads(text) for text in found]


async def _as_administrator(env: SimEnv, broker: Broker) -> RawClient:
    rights = Rights(broker)
    await rights.begin()
    await rights.are(EVERYTHING)
    return await connected(env, name="auditor")


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: f"{row.name} by {', '.join(row.needs)}")
@simulated
async def test_a_change_by_each_verb_is_on_the_trail_with_its_caller(env: SimEnv, row: Row) -> None:
    async with broker_on(env, FILE) as broker:
        client = await _as_administrator(env, broker)
        before = len(await _trail(client))
        code = await code_of(row.act, client)
        asked, *failed = (await _trail(client))[before:]
        assert (asked["action"], asked["user"], asked["client"], asked["outcome"]) == (
            row.name,
            "anonymous",
            "auditor",
            "asked",
        )
        assert asked["address"] in [connection["peer"] for connection in await client.administer("connection.list")]
        assert [record["outcome"] for record in failed] == ([code] if code else [])


@served(FILE)
async def test_names_are_recorded_and_values_and_secrets_are_not(broker: Broker, env: SimEnv) -> None:
    client = await _as_administrator(env, broker)
    await client.administer("user.create", name="alice", roles=["administrator"], scram=SECRET)
    await client.administer("topic.alter", name="q", settings={"lease": "77s"})
    await client.administer("topic.alter", name="q", settings={"lease": "78s"}, validate_only=True)
    (*_, user, topic) = await _trail(client)
    assert user["arguments"] == {"name": "alice", "roles": ["administrator"]}
    assert user["changed"] == ["scram"]
    assert (topic["arguments"], topic["changed"]) == ({"name": "q"}, ["settings.lease"])
    text = "".join(await _texts(client))
    assert SECRET not in text
    assert "77s" not in text


@served(FILE)
async def test_refusals_are_written_at_once_and_counted_for_a_minute(broker: Broker, env: SimEnv) -> None:
    stranger = await connected(env)
    for _ in range(50):
        with pytest.raises(Refused):
            await stranger.publish("q", ["a"])
    client = await _as_administrator(env, broker)

    async def refusals() -> list[tuple[str, str, str, int]]:
        found = [record for record in await _trail(client) if record["outcome"] == "auth.forbidden"]
        return [(record["action"], record["user"], record["on"], record["times"]) for record in found]

    assert await refusals() == [("publish topic", "anonymous", "q", 1)]
    await trio.sleep(COUNTED_S + 1)
    assert await refusals() == [("publish topic", "anonymous", "q", 1), ("publish topic", "anonymous", "q", 49)]


@served(FILE)
async def test_many_kinds_of_refusals_are_counted_together(broker: Broker, env: SimEnv) -> None:
    for number in range(KINDS_MAX + 100):
        broker.audit.seen("publish topic", Principal("1.2.3.4:5", "c", "mallory"), f"t{number}", "auth.forbidden")
    client = await _as_administrator(env, broker)
    await trio.sleep(COUNTED_S + 1)
    records = [record for record in await _trail(client) if record["action"] == "publish topic"]
    assert len(records) == KINDS_MAX + 2
    assert (records[-1]["user"], records[-1]["times"]) == ("", 99)


@served(FILE)
async def test_looking_into_a_queue_is_recorded(broker: Broker, env: SimEnv) -> None:
    client = await _as_administrator(env, broker)
    await client.publish("q", ["a"])
    assert await client.fetch("q") == ["a"]
    assert await client.fetch("s") == []
    assert [record["on"] for record in await _trail(client) if record["action"] == "browse"] == ["q"]


@served(FILE)
async def test_an_export_is_recorded_and_has_what_the_caller_may_see(broker: Broker, env: SimEnv) -> None:
    client = await _as_administrator(env, broker)
    found = await client.administer("definitions.export")
    assert found == {
        "exchanges": await client.administer("exchange.list"),
        "topics": await client.administer("topic.list"),
    }
    (record,) = [record for record in await _trail(client) if record["action"] == "definitions.export"]
    assert (record["user"], record["client"], record["outcome"]) == ("anonymous", "auditor", "done")
    peers = [connection["peer"] for connection in await client.administer("connection.list")]
    assert record["address"] in [peer.rpartition(":")[0] for peer in peers]
    rights = Rights(broker)
    await rights.are({"topic:q": ["see"]})
    found = await client.administer("definitions.export")
    assert ([topic["name"] for topic in found["topics"]], found["exchanges"]) == (["q"], [])


@served(FILE)
async def test_a_record_of_an_export_can_not_be_taken_away_unseen(broker: Broker, env: SimEnv) -> None:
    client = await _as_administrator(env, broker)
    await client.administer("definitions.export")
    await client.administer("topic.delete", name="q")
    texts = await _texts(client)
    (at,) = [number for number, text in enumerate(texts) if "definitions.export" in text]
    verifier = ChainVerifier()
    verdicts = [verifier.check(text.encode()) for text in texts[:at] + texts[at + 1 :]]
    assert verdicts[:at] == [None] * at
    assert verdicts[at] is not None


@simulated
async def test_the_chain_goes_on_after_a_power_loss(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, FILE) as broker:
            client = await _as_administrator(env, broker)
            await client.administer("topic.delete", name="q")
            env.crash()

    await env.run_until_death(process)
    env = await after_power_loss(env, FILE)
    async with broker_on(env, FILE):
        client = await connected(env)
        await client.administer("topic.delete", name="s")
        deleted = [record["arguments"]["name"] for record in await _trail(client) if record["action"] == "topic.delete"]
        assert deleted[-1] == "s"


@pytest.mark.parametrize("part", range(6))
def test_no_change_survives_a_power_loss_without_its_record(part: int) -> None:
    found = [run_simulation(point, partial(_lose_power, point)) for point in range(part, 60, 6)]
    assert any(is_dead and made for is_dead, made in found), "no power loss comes between the changes"


async def _lose_power(point: int, env: SimEnv) -> tuple[bool, int]:
    """Lose power at one of the disk's operations while topics are made; returns how many there are afterwards."""

    async def process(env: SimEnv) -> None:
        async with broker_on(env, SYNCED) as broker:
            client = await _as_administrator(env, broker)
            env.disk.crash_at = len(env.disk.operations) + 1 + point
            for number in range(8):
                await client.administer("topic.create", name=f"made-{number}", settings={"kind": "stream"})

    is_dead = await env.run_until_death(process)
    env = await after_power_loss(env, SYNCED)
    async with broker_on(env, SYNCED):
        client = await connected(env)
        made = {topic["name"] for topic in await client.administer("topic.list") if topic["name"].startswith("made-")}
        recorded = {
            record["arguments"]["name"] for record in await _trail(client) if record["action"] == "topic.create"
        }
        assert made <= recorded
        return is_dead, len(made)


@served(FILE)
async def test_a_change_that_cannot_be_recorded_is_refused_and_data_goes_on(broker: Broker, env: SimEnv) -> None:
    client = await _as_administrator(env, broker)
    await client.administer("topic.create", name="fast", settings={"storage": "dram"})
    capacity_bytes, env.disk.capacity_bytes = env.disk.capacity_bytes, 1
    with pytest.raises(Refused) as refused:
        await client.administer("topic.delete", name="q")
    assert refused.value.code == "storage.disk_full"
    assert (await client.publish("fast", ["a"])).copies == 1
    assert await client.taken("fast", count=1) == ["a"]
    env.disk.capacity_bytes = capacity_bytes
    await client.administer("topic.delete", name="q")
    assert [record["action"] for record in await _trail(client)][-1] == "topic.delete"


@served(FILE)
async def test_nobody_writes_to_the_trail_or_changes_it(broker: Broker, env: SimEnv) -> None:
    client = await _as_administrator(env, broker)
    root = Rights(broker)
    for verb, arguments in [
        ("topic.delete", {"name": "__audit"}),
        ("topic.purge", {"name": "__audit"}),
        ("topic.alter", {"name": "__audit", "settings": {"retention": "1ms"}}),
        ("topic.alter", {"name": "q", "settings": {"dead_letter": "__audit"}}),
        ("exchange.bind", {"exchange": "x", "topic": "__audit"}),
        ("subscription.create", {"topic": "__audit", "subscription": "s"}),
        ("topic.create", {"name": "__audit"}),
    ]:
        with pytest.raises(Exception, match="__audit"):
            await root.perform(verb, **arguments)
    before = len(await _trail(client))
    for publish in (m.Publish("__audit"), m.Publish("", to_exchange=True)):
        with pytest.raises(Refused):
            await client.call(publish, [_own_record()])
    assert all(record["outcome"] == "auth.forbidden" for record in (await _trail(client))[before:])


@served("[audit]\nenabled = true\n[topics.q]\n")
async def test_without_rights_the_trail_can_be_turned_on_and_stays_closed_to_writers(client: RawClient) -> None:
    await client.administer("topic.delete", name="q")
    assert [record["action"] for record in await _trail(client)] == ["topic.delete"]
    with pytest.raises(Refused, match="__audit"):
        await client.call(m.Publish("", to_exchange=True), [_own_record()])


@served("[topics.q]\n")
async def test_without_rights_there_is_no_trail(client: RawClient) -> None:
    assert [topic["name"] for topic in await client.administer("topic.list")] == ["q"]


TEXTS = st.lists(st.dictionaries(st.sampled_from("abc"), st.integers()), min_size=1, max_size=8)


@given(TEXTS, st.data())
def test_a_change_a_gap_and_another_order_are_found(fields: list[dict[str, int]], data: st.DataObject) -> None:
    chain, texts = AuditChain(), list[bytes]()
    for each in fields:
        texts.append(chain.next(each))
        chain.resume(texts[-1])
    start = data.draw(st.integers(0, len(texts) - 1))
    verifier = ChainVerifier()
    assert [verifier.check(text) for text in texts[start:]] == [None] * (len(texts) - start)
    assert verifier.last == chain.last
    tampered = list(texts)
    at = data.draw(st.integers(0, len(texts) - 1))
    what = data.draw(st.sampled_from(["change", "remove", "repeat"]))
    if what == "change":
        tampered[at] = tampered[at].replace(b"{", b'{"d":1,', 1)
    elif what == "remove":
        del tampered[at]
    else:
        tampered.insert(at, tampered[at])
    verifier = ChainVerifier()
    problems = [verifier.check(text) for text in tampered]
    is_unseen = what == "remove" and at in (
        0,
        len(texts) - 1,
    )  # Retention takes the start; the last hash shows the end.
    assert any(problems) or is_unseen or verifier.last != chain.last


def _own_record() -> Any:
    from raw_client import records

    return records(["a"], routing_key="__audit")
