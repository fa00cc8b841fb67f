"""Exchanges that lead to exchanges and alternates, through a broker: by TOML, live, and after a restart."""

from __future__ import annotations

import pytest
from raw_client import (
    HEAD,
    RawClient,
    Refused,
    broker_on,
    configured,
    connected,
    places,
    records,
    served,
    simulated,
    values,
)

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import ConfigError
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

LINKED = """
[exchanges.flights]
type = "topic"
alternate = "lost"

[exchanges.late]
type = "fanout"
[[exchanges.late.bindings]]
exchange = "flights"
key = "*.late"

[exchanges.lost]
type = "fanout"

[topics.all]
kind = "stream"
[[topics.all.bindings]]
exchange = "flights"
key = "jfk.*"
[[topics.all.bindings]]
exchange = "late"

[topics.late]
kind = "stream"
[[topics.late.bindings]]
exchange = "late"

[topics.rest]
kind = "stream"
[[topics.rest.bindings]]
exchange = "lost"
"""


async def publish(client: RawClient, *keys: str, exchange: str = "flights", mandatory: bool = False) -> m.Placement:
    batch = build_from_records([Record(value=key.encode(), routing_key=key) for key in keys], base_id=1)
    answer = await client.call(m.Publish(exchange, to_exchange=True, mandatory=mandatory), [batch])
    placement: m.Placement = answer.placements[0]
    return placement


@served(LINKED)
async def test_a_topic_gets_a_record_once_however_many_paths_lead_to_it(client: RawClient) -> None:
    assert (await publish(client, "jfk.late", "jfk.ontime", "lga.late", "lga.ontime")).copies == 3 + 2 + 1
    assert await client.fetch("all") == ["jfk.late", "jfk.ontime", "lga.late"]
    assert await client.fetch("late") == ["jfk.late", "lga.late"]
    assert await client.fetch("rest") == ["lga.ontime"]


@simulated
async def test_links_made_live_route_at_once_and_after_a_restart(env: SimEnv) -> None:
    text = '[exchanges.a]\ntype = "topic"\n'
    async with broker_on(env, text):
        client = await connected(env)
        await client.administer("exchange.create", name="rest", settings={"type": "fanout"})
        settings = {"type": "fanout", "alternate": "rest", "bindings": [{"exchange": "a", "key": "x.#"}]}
        assert await client.administer("exchange.create", name="b", settings=settings) == {"created": True}
        assert await client.administer("exchange.create", name="b", settings=settings) == {"created": False}
        for different in ({"type": "fanout"}, settings | {"alternate": None}, settings | {"type": "topic"}):
            with pytest.raises(Refused, match=r"topic\.exists"):
                await client.administer("exchange.create", name="b", settings=different)
        await client.administer("topic.create", name="t", settings={"kind": "stream"})
        await client.administer("exchange.bind", exchange="rest", topic="t")
        for _ in range(2):
            await client.administer("exchange.bind", exchange="a", target_exchange="b", key="y")
        assert (await publish(client, "x.1", "y", "z", exchange="a")).copies == 2
    async with broker_on(env, text):
        client = await connected(env)
        assert (await publish(client, "x.2", "y", "z", exchange="a")).copies == 2
        shown = await client.administer("exchange.show", name="a")
        assert [(each["exchange"], each["key"]) for each in shown["bindings"]] == [("b", "x.#"), ("b", "y")]
        assert (await client.administer("exchange.show", name="b"))["alternate"] == "rest"
        for key in ("x.#", "y"):
            await client.administer("exchange.unbind", exchange="a", target_exchange="b", key=key)
        assert (await publish(client, "x.3", "y", exchange="a")).copies == 0
    async with broker_on(env, text):
        client = await connected(env)
        assert (await publish(client, "x.4", "y", exchange="a")).copies == 0
        assert await client.fetch("t") == ["x.1", "y", "x.2", "y"]


@served(LINKED)
async def test_cycles_are_refused_live_and_change_nothing(client: RawClient) -> None:
    before = await client.administer("exchange.list")
    for source, target, circle in (
        ("late", "flights", "late -> flights -> late"),
        ("lost", "flights", "lost -> flights -> lost"),
        ("late", "late", "late -> late"),
    ):
        with pytest.raises(Refused, match=rf"exchange\.binding_invalid: .*{circle}"):
            await client.administer("exchange.bind", exchange=source, target_exchange=target, key="k")
    await client.administer("exchange.create", name="new", settings={"alternate": "flights"})
    await client.administer("exchange.delete", name="new")
    for settings in (
        {"alternate": "new"},
        {"bindings": [{"exchange": "new"}]},
        {"alternate": "flights", "bindings": [{"exchange": "late"}]},
    ):
        with pytest.raises(Refused, match="circle"):
            await client.administer("exchange.create", name="new", settings=settings)
    assert await client.administer("exchange.list") == before


@served('[exchanges.a]\nalternate = "b"\n[exchanges.b]\n[exchanges.c]\n')
async def test_an_exchange_that_others_need_is_not_deleted(client: RawClient) -> None:
    await client.administer("exchange.bind", exchange="a", target_exchange="c", key="k")
    with pytest.raises(Refused, match=r"topic\.invalid: exchange b is the alternate of a"):
        await client.administer("exchange.delete", name="b")
    with pytest.raises(Refused, match="still has bindings: c"):
        await client.administer("exchange.delete", name="a")
    await client.administer("exchange.delete", name="c")
    assert (await client.administer("exchange.show", name="a"))["bindings"] == [], "what led to it went with it"
    await client.administer("exchange.delete", name="a")
    await client.administer("exchange.delete", name="b")
    for name in ("", "b"):
        with pytest.raises(Refused, match=r"exchange\.unknown"):
            await client.administer("exchange.delete", name=name)


@served('[exchanges.a]\n[exchanges.b]\ntype = "topic"\n[topics.t]\n')
async def test_targets_of_bindings_are_checked(client: RawClient) -> None:
    for code, arguments in (
        ("config.invalid", {"exchange": "a", "topic": "t", "target_exchange": "b"}),
        ("config.invalid", {"exchange": "a"}),
        ("config.invalid", {"exchange": "a", "target_exchange": 7}),
        ("exchange.unknown", {"exchange": "a", "target_exchange": "x"}),
        ("exchange.unknown", {"exchange": "x", "target_exchange": "b"}),
        ("exchange.unknown", {"exchange": "a", "target_exchange": ""}),
        ("exchange.binding_invalid", {"exchange": "b", "target_exchange": "a", "key": ".".join("a" * 65)}),
        ("exchange.binding_invalid", {"exchange": "b", "target_exchange": "a", "arguments": {"whre": 1}}),
    ):
        with pytest.raises(Refused) as refused:
            await client.administer("exchange.bind", **arguments)
        assert refused.value.code == code, arguments
    for settings in ({"alternate": "x"}, {"bindings": [{"exchange": "x"}]}):
        with pytest.raises(Refused, match=r"exchange\.unknown"):
            await client.administer("exchange.create", name="c", settings=settings)
    for settings in ({"alternate": 1}, {"alternat": "a"}, {"bindings": [{"key": "k"}]}):
        with pytest.raises(Refused, match=r"config\."):
            await client.administer("exchange.create", name="c", settings=settings)
    assert len(await client.administer("exchange.list")) == 2


@simulated
async def test_live_exchanges_that_no_longer_fit_the_file_are_left_out(env: SimEnv) -> None:
    async with broker_on(env, "[exchanges.a]\n[exchanges.b]\n"):
        client = await connected(env)
        await client.administer("exchange.bind", exchange="a", target_exchange="b", key="k")
        await client.administer("exchange.create", name="live", settings={"alternate": "b"})
    async with broker_on(env, '[exchanges.a]\n[[exchanges.a.bindings]]\nexchange = "b"\nkey = "k"\n[exchanges.b]\n'):
        client = await connected(env)
        assert (await client.administer("exchange.show", name="a"))["bindings"] == []
        assert (await client.administer("exchange.show", name="live"))["alternate"] == "b"
    async with broker_on(env, "[exchanges.a]\n"):
        client = await connected(env)
        assert (await client.administer("exchange.show", name="live"))["alternate"] is None
        assert [each["name"] for each in await client.administer("exchange.list")] == ["a", "live"]


WRONG = [
    ('[exchanges.a]\nalternate = "b"\n', 'exchanges.a.alternate: there is no exchange "b"', 2),
    (
        '[exchanges.late]\n[[exchanges.late.bindings]]\nexchange = "lat"\n',
        'exchanges.late.bindings[0].exchange: there is no exchange "lat"; did you mean "late"?',
        3,
    ),
    ('[exchanges.a]\nalternate = "a"\n', "in a circle: a -> a", 2),
    (
        '[exchanges.a]\nalternate = "b"\n[exchanges.b]\nalternate = "c"\n[exchanges.c]\nalternate = "a"\n',
        "exchanges.c.alternate: exchanges would lead in a circle: c -> a -> b -> c",
        6,
    ),
    (
        '[exchanges.a]\nalternate = "b"\n[exchanges.b]\n[[exchanges.a.bindings]]\nkey = "k"\nexchange = "b"\n',
        "exchanges.a.bindings[0].exchange: exchanges would lead in a circle: b -> a -> b",
        6,
    ),
    (
        '[exchanges.a]\ntype = "fanout"\n[exchanges.b]\n[[exchanges.b.bindings]]\nexchange = "a"\nwhre = 1\n',
        "exchanges.b.bindings[0]",
        4,
    ),
]


@pytest.mark.parametrize(("text", "said", "line"), WRONG)
def test_wrong_links_in_the_file_are_reported_with_their_lines(text: str, said: str, line: int) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(text, head="")
    head_lines = 2  # The listener's.
    assert said in refused.value.text
    assert refused.value.text.startswith(f"test.toml:{line + head_lines}: ")


@simulated
async def test_unroutable_mandatory_records_are_named(env: SimEnv) -> None:
    text = (
        '[exchanges.e]\ntype = "topic"\n[topics.t]\nkind = "stream"\n[[topics.t.bindings]]\nexchange = "e"\nkey = "a"\n'
    )
    async with broker_on(env, text):
        client = await connected(env)
        for keys, returned, copies in (
            (("a", "b", "b", "a", "b"), [1, 3, 4, 5], 2),
            (("b",), [0, 1], 0),
            (("a", "a"), [], 2),
        ):
            placement = await publish(client, *keys, exchange="e", mandatory=True)
            assert (placement.returned, placement.copies) == (returned, copies)
            assert (placement.partition >= 0) == (returned == [])
            assert (await publish(client, *keys, exchange="e")).returned == []
        assert (await publish(client, "t", "no", "t", exchange="", mandatory=True)).returned == [1, 2]


@served('[exchanges.e]\n[topics.t]\n[[topics.t.bindings]]\nexchange = "e"\nkey = "a"\n')
async def test_each_batch_of_a_mandatory_publish_has_its_own_ranges(client: RawClient) -> None:
    batches = [records(["1", "2"], routing_key=key) for key in ("a", "b", "a", "c")]
    answer = await client.call(m.Publish("e", to_exchange=True, mandatory=True), batches)
    assert [placement.returned for placement in answer.placements] == [[], [0, 2], [], [0, 2]]


@served("[topics.t]\n")
async def test_mandatory_changes_nothing_for_a_topic(client: RawClient) -> None:
    answer = await client.call(m.Publish("t", mandatory=True), [records(["a"])])
    assert places(answer) == [(0, 0, 1)]
    with pytest.raises(Refused, match=r"topic\.unknown"):
        await client.call(m.Publish("u", mandatory=True), [records(["a"])])


@served('[exchanges.e]\ntype = "topic"\n[topics.t]\n[[topics.t.bindings]]\nexchange = "e"\nkey = "a"\n')
async def test_a_mandatory_publish_is_bounded_and_refused_whole(client: RawClient) -> None:
    alternating = [Record(routing_key="ab"[n % 2]) for n in range(m.MANDATORY_RECORDS_MAX)]
    largest = build_from_records(alternating, base_id=1)
    answer = await client.call(m.Publish("e", to_exchange=True, mandatory=True), [largest])
    returned = answer.placements[0].returned
    assert returned[::2] == list(range(1, m.MANDATORY_RECORDS_MAX, 2))
    assert len(returned) == m.MANDATORY_RECORDS_MAX
    more = [build_from_records(alternating, base_id=1), records(["x"], routing_key="a")]
    with pytest.raises(Refused, match=r"limit\.exceeded"):
        await client.call(m.Publish("e", to_exchange=True, mandatory=True), more)
    shown = await client.administer("topic.show", name="t")
    assert shown["queue"]["unsettled"] == m.MANDATORY_RECORDS_MAX // 2


@simulated
async def test_one_record_reaches_ten_thousand_topics_by_one_binding_each(env: SimEnv) -> None:
    bound = "".join(f'[topics.t{n}]\n[[topics.t{n}.bindings]]\nexchange = "e"\n' for n in range(10_000))
    async with broker_on(
        env, f'[exchanges.e]\ntype = "fanout"\n{bound}', HEAD + 'default_storage = "dram"\n'
    ) as broker:
        client = await connected(env)
        batch = build_from_records([Record(value=b"x"), Record(value=b"y")], base_id=1)
        answer = await client.call(m.Publish("e", to_exchange=True), [batch])
        assert places(answer) == [(-1, -1, 20_000)]
        assert all(topic.partitions[0].high_watermark == 2 for topic in broker.topics.values())
        worker = (await client.call(m.Subscribe("t9999", credit=9))).subscription
        delivered = await client.delivery()
        assert (delivered.message.subscription, values(delivered.batches)) == (worker, ["x", "y"])
