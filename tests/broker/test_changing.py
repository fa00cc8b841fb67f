"""Changes while the broker runs: topics, kinds, settings, exchanges, bindings; and what a restart makes of them."""

from __future__ import annotations

import pytest
import trio
from raw_client import ALWAYS, HEAD, RawClient, Refused, broker_on, connected, records, served, simulated, values

from linn import __version__
from linn.core.broker.broker import Broker
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

INTERVAL = '[storage.segmented-log]\nfsync = "interval"\n'


@served(INTERVAL)
async def test_a_topic_deleted_before_its_flush_does_not_fail_others(client: RawClient) -> None:
    for _ in range(3):
        await client.administer("topic.create", name="t")
        await client.publish("t", ["a"])
        await client.administer("topic.delete", name="t")
    await trio.sleep(1)
    assert await client.administer("topic.list") == []


@served(ALWAYS)
async def test_a_publish_under_way_is_answered_when_its_topic_is_deleted(client: RawClient, other: RawClient) -> None:
    await client.administer("topic.create", name="t")
    publishes = [await client.send(m.Publish("t"), [records(["x"])]) for _ in range(20)]
    await other.administer("topic.delete", name="t")
    with trio.fail_after(5):
        for correlation in publishes:
            # Those that came too late are refused; pytest.raises would want all of them to be.
            code = await client.code_of(correlation)
            assert code in ("", "topic.unknown")


@served("")
async def test_a_deleted_topic_is_empty_when_recreated(client: RawClient) -> None:
    for _ in range(2):
        await client.administer("topic.create", name="t", settings={"kind": "both"})
        assert await client.fetch("t") == []
        await client.publish("t", ["a"])
        subscription = (await client.call(m.Subscribe("t", group="g", credit=1))).subscription
        assert (await client.push()).message == m.Assigned(subscription, 1, [0])
        await client.settle(subscription, await client.delivery())
        await client.call(m.Unsubscribe(subscription))
        await client.administer("topic.delete", name="t")


@served('[topics.t]\nkind = "both"\n')
async def test_subscribers_of_a_deleted_topic_are_told_and_keep_their_connection(client: RawClient) -> None:
    kinds = [m.Subscribe("t", credit=1), m.Subscribe("t", group="g", credit=1)]
    ids = {(await client.call(subscribe)).subscription for subscribe in kinds}
    await client.push()
    await client.administer("topic.delete", name="t")
    ended = [(await client.push()).message for _ in ids]
    assert {message.subscription for message in ended} == ids
    assert {message.code for message in ended} == {"topic.unknown"}
    with pytest.raises(Refused, match=r"topic\.unknown"):
        await client.publish("t", ["a"])


@served('[topics.t]\nkind = "stream"\n')
async def test_a_reader_of_a_deleted_topic_gets_an_error(client: RawClient) -> None:
    await client.call(m.Subscribe("t", credit=1))
    await client.administer("topic.delete", name="t")
    assert (await client.push()).message.code == "topic.unknown"


@served('[topics.t]\nkind = "stream"\n')
async def test_a_stream_becomes_a_queue_and_back_with_its_records_and_its_groups_places(client: RawClient) -> None:
    await client.publish("t", ["a", "b", "c"])
    member = (await client.call(m.Subscribe("t", group="g", credit=2))).subscription
    await client.push()
    assert await client.settle(member, await client.delivery()) == []
    altered = await client.administer("topic.alter", name="t", settings={"kind": "queue"})
    assert altered["changed"] == ["kind"]
    ended = (await client.push()).message
    assert (ended.subscription, ended.code) == (member, "topic.unknown")
    with pytest.raises(Refused, match=r"delivery\.wrong_kind"):
        await client.call(m.Subscribe("t", group="g"))
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    delivered = await client.delivery()
    assert values(delivered.batches) == ["a"]
    await client.administer("topic.alter", name="t", settings={"kind": "both"})
    assert await client.is_silent(1), "a queue that becomes both keeps its consumers"
    assert await client.settle(worker, delivered) == []
    assert values((await client.delivery()).batches) == ["b"]
    member = (await client.call(m.Subscribe("t", group="g", credit=9))).subscription
    await client.push()
    assert values((await client.delivery()).batches) == ["c"]
    await client.call(m.Credit(worker, 9))
    assert values((await client.delivery()).batches) == ["c"]
    await client.administer("topic.alter", name="t", settings={"kind": "stream"})
    assert (await client.push()).message.code == "topic.unknown"
    await client.administer("topic.alter", name="t", settings={"kind": "queue"})
    assert (await client.push()).message.subscription == member
    await client.call(m.Subscribe("t", credit=9))
    assert values((await client.delivery()).batches) == ["b", "c"], "a stream's time as such settles nothing"


@served("[topics.t]\n")
async def test_a_settlement_on_a_topic_that_is_gone_is_refused(client: RawClient) -> None:
    await client.publish("t", ["a", "b"])
    worker = (await client.call(m.Subscribe("t", credit=1))).subscription
    delivered = await client.delivery()
    await client.administer("topic.delete", name="t")
    assert (await client.push()).message.code == "topic.unknown"
    with pytest.raises(Refused, match=r"delivery\.subscription_unknown"):
        await client.settle(worker, delivered)


@served("[topics.t]\npartitions = 2\n")
async def test_a_change_with_a_fixed_setting_is_refused_completely(client: RawClient) -> None:
    for settings in ({"storage": "dram"}, {"delivery": "at-most-once"}, {"partitions": 1}):
        with pytest.raises(Refused, match=r"config\.not_live"):
            await client.administer("topic.alter", name="t", settings={"lease": "5s", **settings})
    shown = await client.administer("topic.show", name="t")
    assert shown["settings"]["lease"] == "30s"


@served('[topics.t]\n[topics.s]\nkind = "stream"\n')
async def test_settings_that_are_live_count_at_once(client: RawClient) -> None:
    await client.administer("topic.alter", name="t", settings={"lease": "1s", "message_bytes_max": 10})
    with pytest.raises(Refused, match=r"message\.too_large"):
        await client.publish("t", ["x" * 11])
    await client.publish("t", ["a"])
    assert (await client.call(m.Subscribe("t", credit=5))).lease_ms == 1000
    assert (await client.delivery()).message.attempt == 1
    assert (await client.delivery(1.1)).message.attempt == 2
    await client.administer("topic.alter", name="s", settings={"partitions": 3})
    assert (await client.publish("s", ["a"], partition=2)).partition == 2


@served("[topics.t]\n[exchanges.e]\n")
async def test_requests_that_make_no_sense_change_nothing(client: RawClient) -> None:
    before = await client.administer("topic.list")
    wrong = [
        ("topic.create", {"name": "../x"}, "config.invalid"),
        ("topic.create", {"name": "x" * 250}, "config.invalid"),
        ("topic.create", {"name": "a\0b"}, "config.invalid"),
        ("topic.create", {"name": "__s.t"}, "config.invalid"),
        ("topic.create", {"name": "<script>"}, "config.invalid"),
        ("topic.create", {"name": 5}, "config.invalid"),
        ("topic.create", {}, "config.invalid"),
        ("topic.create", {"name": "u", "settings": {"knid": "queue"}}, "config.unknown_key"),
        ("topic.create", {"name": "u", "settings": []}, "config.invalid"),
        ("topic.create", {"name": "t", "settings": {"kind": "stream"}}, "topic.exists"),
        ("topic.create", {"name": "u", "settings": {"dead_letter": "u"}}, "config.invalid"),
        ("topic.create", {"name": "u", "settings": {"bindings": [{"exchange": "no"}]}}, "config.invalid"),
        ("topic.alter", {"name": "u"}, "topic.unknown"),
        ("topic.alter", {"name": "t", "settings": 5}, "config.invalid"),
        ("topic.delete", {"name": "u"}, "topic.unknown"),
        ("topic.purge", {"name": "u"}, "topic.unknown"),
        ("exchange.create", {"name": "e", "settings": {"type": "fanout"}}, "topic.exists"),
        ("exchange.create", {"name": "f", "settings": {"type": "no"}}, "plugin.unknown"),
        ("exchange.create", {"name": "f", "settings": 5}, "config.invalid"),
        ("exchange.create", {"name": "../f"}, "config.invalid"),
        ("exchange.delete", {"name": "f"}, "exchange.unknown"),
        ("exchange.bind", {"exchange": "f", "topic": "t"}, "exchange.unknown"),
        ("exchange.bind", {"exchange": "e", "topic": "u"}, "topic.unknown"),
        ("exchange.bind", {"exchange": "e", "topic": "t", "arguments": {"x": 1}}, "exchange.binding_invalid"),
        ("exchange.bind", {"exchange": "e", "topic": "t", "arguments": []}, "config.invalid"),
        ("group.reset", {"topic": "t", "group": "g", "to": "latest"}, "delivery.wrong_kind"),
        ("topic.crate", {"name": "t"}, "protocol.request_unknown"),
        ("topic.create", {"name": "u", "setings": {"kind": "stream"}}, "config.unknown_key"),
        ("topic.list", {"name": "t"}, "config.unknown_key"),
    ]
    for verb, arguments, code in wrong:
        with pytest.raises(Refused) as refused:
            await client.administer(verb, **arguments)
        assert refused.value.code == code, (verb, arguments)
    for text in ("", "[]", "{", "[" * 100_000, '{"name": NaN}'):
        with pytest.raises(Refused) as refused:
            await client.call(m.Administer("topic.create", text))
        assert refused.value.code == "config.invalid"
    assert await client.administer("topic.list") == before


@simulated
async def test_exchanges_and_bindings_made_live_route_at_once_and_after_a_restart(env: SimEnv) -> None:
    async with broker_on(env, ""):
        client = await connected(env)
        assert await client.administer("exchange.create", name="e", settings={"type": "topic"}) == {"created": True}
        assert await client.administer("exchange.create", name="e", settings={"type": "topic"}) == {"created": False}
        for name in ("a", "b"):
            await client.administer("topic.create", name=name, settings={"kind": "stream"})
            await client.administer("exchange.bind", exchange="e", topic=name, key="x.*")
        assert (await client.publish("e", ["1"], to_exchange=True)).copies == 0, "no binding matches an empty key"
        assert await _send(client, "x.y", "2") == 2
        await client.administer("exchange.unbind", exchange="e", topic="b", key="x.*")
        assert await _send(client, "x.y", "3") == 1
        with pytest.raises(Refused, match="still has bindings: a"):
            await client.administer("exchange.delete", name="e")
        shown = await client.administer("topic.show", name="a")
        assert shown["settings"]["bindings"] == [{"exchange": "e", "key": "x.*", "arguments": {}}]
    async with broker_on(env, ""):
        client = await connected(env)
        assert await _send(client, "x.y", "4") == 1
        assert await client.fetch("a") == ["2", "3", "4"]
        assert await client.fetch("b") == ["2"]
        await client.administer("topic.delete", name="a")
        (left,) = await client.administer("exchange.list")
        assert left == {"name": "e", "type": "topic", "alternate": None, "settings": {}, "bindings": []}
        await client.administer("exchange.delete", name="e")
    async with broker_on(env, ""):
        client = await connected(env)
        assert await client.administer("exchange.list") == []
        assert [topic["name"] for topic in await client.administer("topic.list")] == ["b"]


async def _send(client: RawClient, routing_key: str, value: str) -> int:
    answer = await client.call(m.Publish("e", True), [records([value], routing_key=routing_key)])
    copies: int = answer.placements[0].copies
    return copies


@simulated
async def test_toml_wins_for_its_topics_at_a_restart_and_live_topics_stay(env: SimEnv) -> None:
    async with broker_on(env, '[topics.t]\nlease = "5s"\n[exchanges.e]\n'):
        client = await connected(env)
        settings = {"lease": "7s", "kind": "both", "retention": None}
        altered = await client.administer("topic.alter", name="t", settings=settings)
        assert [(warning["key"], warning["file"], warning["line"]) for warning in altered["warnings"]] == [
            ("lease", "test.toml", 7)
        ]
        assert altered["warnings"][0]["text"] == 'test.toml:7 sets lease = "5s": it counts at the next start'
        await client.administer("topic.create", name="live", settings={"lease": "9s"})
        await client.administer("exchange.bind", exchange="e", topic="t", key="k")
    async with broker_on(env, '[topics.t]\nlease = "6s"\n[exchanges.e]\n'):
        client = await connected(env)
        shown = {topic["name"]: topic["settings"] for topic in await client.administer("topic.list")}
        assert (shown["t"]["lease"], shown["t"]["kind"], shown["live"]["lease"]) == ("6s", "both", "9s")
        assert shown["t"]["retention"] == "forever"
        assert shown["t"]["bindings"] == [{"exchange": "e", "key": "k", "arguments": {}}]


def test_a_start_logs_replaced_and_dropped_live_values(caplog: pytest.LogCaptureFixture) -> None:
    async def lines_of(env: SimEnv, toml: str) -> list[str]:
        caplog.clear()
        async with broker_on(env, toml) as broker:
            lines = [record.getMessage() for record in caplog.records if "live value" in record.getMessage()]
            assert broker.topics["t"].settings.retention_ms == (14 * 86_400_000)
        return lines

    @simulated
    async def scenario(env: SimEnv) -> None:
        toml = '[topics.t]\nkind = "stream"\nretention = "14d"\n'
        async with broker_on(env, toml):
            client = await connected(env)
            changes = {"retention": "30d", "retention_bytes": "1MiB"}
            altered = await client.administer("topic.alter", name="t", settings=changes)
            assert [warning["key"] for warning in altered["warnings"]] == ["retention"]
        (line,) = await lines_of(env, toml)
        assert line == (
            'topic t: test.toml:8 sets retention = "14d", which replaces the live value "30d": '
            "records beyond it are dropped"
        )
        assert await lines_of(env, toml) == [], "what was replaced is live no more"

    with caplog.at_level("WARNING"):
        scenario()


@simulated
async def test_a_live_change_survives_a_power_loss_right_after_its_answer(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, '[topics.t]\nkind = "stream"\n'):
            client = await connected(env)
            await client.administer("topic.alter", name="t", settings={"retention": "30d", "partitions": 3})
            env.crash()

    assert await env.run_until_death(process)
    env = env.restart()
    for toml in ('[topics.t]\nkind = "stream"\n', "", '[topics.t]\nkind = "stream"\noverflow = "reject"\n'):
        async with broker_on(env, toml) as broker:
            settings = broker.topics["t"].settings
            assert (settings.retention_ms, settings.partitions) == (30 * 86_400_000, 3)
    assert settings.overflow == "reject"


@simulated
async def test_a_live_topic_keeps_settings_that_a_file_adopting_it_does_not_name(
    env: SimEnv,
) -> None:
    async with broker_on(env, ""):
        settings = {"kind": "stream", "storage": "dram", "lease": "9s", "dead_letter": None}
        await (await connected(env)).administer("topic.create", name="t", settings=settings)
    for toml in ('[topics.t]\nlease = "8s"\n', '[topics.t]\ndead_letter = "u"\n[topics.u]\n'):
        async with broker_on(env, toml) as broker:
            found = broker.topics["t"].settings
            assert (found.kind, found.storage) == ("stream", "dram")
    assert (found.lease_ms, found.dead_letter) == (30_000, "u"), "a key that the file named is the file's"


@simulated
async def test_each_setting_of_a_live_queue_is_there_after_a_restart(env: SimEnv) -> None:
    settings = {
        "ttl": "1h",
        "dead_letter_exchange": "graves",
        "dead_letter_key": "jobs",
        "consumers": "one",
        "expires": "2h",
        "delete_when": "unused",
        "records_max": 7,
        "order": "fair",
        "order_by": "label.tenant",
        "weights": {"acme": 3},
        "order_window": 8,
        "dedup": "5m",
        "status": "7d",
        "keep": "2d",
    }
    async with broker_on(env, ALWAYS):
        client = await connected(env)
        await client.administer("exchange.create", name="graves", settings={"type": "fanout"})
        await client.administer("topic.create", name="jobs", settings=settings)
        await client.administer("topic.create", name="wards", settings={"order": "priority", "levels": 3})
    async with broker_on(env, ALWAYS):
        client = await connected(env)
        shown = (await client.administer("topic.show", name="jobs"))["settings"]
        assert {key: shown[key] for key in settings} == settings
        assert (await client.administer("topic.show", name="wards"))["settings"]["levels"] == 3


@simulated
async def test_null_takes_a_live_setting_back(env: SimEnv) -> None:
    async with broker_on(env, "[topics.t]\n"):
        client = await connected(env)
        for lease in ("9s", None):
            await client.administer("topic.alter", name="t", settings={"lease": lease})
    async with broker_on(env, "[topics.t]\n") as broker:
        assert (broker.topics["t"].settings.lease_ms, broker.topics["t"].live_keys) == (30_000, ())


@simulated
async def test_partitions_that_grew_live_stay_where_the_file_names_fewer(env: SimEnv) -> None:
    toml = "[topics.t]\npartitions = 2\n"
    async with broker_on(env, toml):
        client = await connected(env)
        altered = await client.administer("topic.alter", name="t", settings={"partitions": 4})
        assert altered["warnings"][0]["text"] == (
            "test.toml:7 sets partitions = 2: the partitions stay, for they never shrink"
        )
    for _ in range(2):
        async with broker_on(env, toml) as broker:
            assert len(broker.topics["t"].partitions) == 4


@simulated
async def test_bindings_that_a_live_change_gave_to_a_topic_of_the_file_stay(env: SimEnv) -> None:
    async with broker_on(env, "[topics.t]\n[exchanges.e]\n"):
        client = await connected(env)
        bindings = [{"exchange": "e", "key": "k"}]
        await client.administer("topic.alter", name="t", settings={"bindings": bindings})
    async with broker_on(env, "[topics.t]\n[exchanges.e]\n"):
        assert await _send(await connected(env), "k", "1") == 1
    async with broker_on(env, "[topics.t]\n") as broker:
        assert broker.topics["t"].settings.bindings == ()


@simulated
async def test_an_exchange_may_go_from_toml_with_its_bindings(env: SimEnv) -> None:
    bound = '[topics.t]\n[[topics.t.bindings]]\nexchange = "e"\nkey = "k"\n'
    async with broker_on(env, "[exchanges.e]\n" + bound):
        client = await connected(env)
        await client.administer("topic.create", name="u", settings={"bindings": [{"exchange": "e", "key": "k"}]})
    async with broker_on(env, "[topics.t]\n"):
        client = await connected(env)
        assert [topic["settings"]["bindings"] for topic in await client.administer("topic.list")] == [[], []]


@simulated
async def test_the_brokers_limits_may_be_lowered_under_topics_that_exist(env: SimEnv) -> None:
    async with broker_on(env, "[topics.t]\n"):
        await (await connected(env)).administer("topic.create", name="u")
    head = HEAD + "message_bytes_max = 1000\n"
    async with broker_on(env, "[topics.t]\n", head):
        client = await connected(env)
        with pytest.raises(Refused, match=r"message\.too_large"):
            await client.publish("t", ["x" * 1001])


@simulated
async def test_a_change_of_a_fixed_topic_setting_in_toml_prevents_the_start(env: SimEnv) -> None:
    async with broker_on(env, "[topics.t]\npartitions = 2\n"):
        pass
    with pytest.raises(Exception, match=r"topic t: partitions can't change"):
        async with broker_on(env, "[topics.t]\n"):
            pass


@served('[topics.q]\n[topics.s]\nkind = "stream"\n[exchanges.e]\n')
async def test_show_commands_report_the_state(broker: Broker, client: RawClient) -> None:
    await client.publish("q", ["a", "b", "c"])
    await client.publish("s", ["a", "b", "c"])
    await client.call(m.Subscribe("q", credit=2))
    member = (await client.call(m.Subscribe("s", group="g", credit=2))).subscription
    delivered = [event for event in [await client.push() for _ in range(3)] if event.batches]
    await client.settle(member, next(event for event in delivered if event.message.subscription == member))
    shown = await client.administer("topic.show", name="q")
    counts = {"unsettled": 3, "leased": 2, "decided": 0, "consumers": 1, "dropped": 0, "dead_lettered": 0}
    assert shown["queue"] == counts
    assert (shown["partitions"][0]["start"], shown["partitions"][0]["end"]) == (0, 3)
    (place,) = (await client.administer("group.show", group="g"))["offsets"]
    assert (place["partition"], place["offset"], place["lag"]) == (0, 2, 1)
    (listed,) = await client.administer("group.list", topic="s")
    assert (listed["group"], listed["members"], listed["lag"]) == ("g", 1, 1)
    assert await client.administer("group.list", topic="q") == []
    with pytest.raises(Refused, match=r"group\.unknown"):
        await client.administer("group.show", group="h")
    shown = await client.administer("broker.show")
    assert shown == {
        "name": "linn",
        "version": __version__,
        "listeners": dict(broker.addresses),
        "connections": 1,
        "topics": 2,
        "exchanges": 1,
    }
    description = await client.call(m.Describe(["s", "nope"]))
    assert [(topic.name, topic.kind, len(topic.partitions)) for topic in description.topics] == [
        ("s", "stream", 1),
        ("nope", "", 0),
    ]
    assert [topic.name for topic in (await client.call(m.Describe())).topics] == ["q", "s"]


@served('[topics.t]\nmessage_bytes_max = 1000\nbytes_max = 100_000\noverflow = "reject"\n')
async def test_a_queue_that_grows_takes_publishes_meanwhile_and_delivers_them_all(
    client: RawClient, other: RawClient
) -> None:
    grown = await other.send(m.Administer("topic.alter", '{"name": "t", "settings": {"partitions": 50}}'))
    for number in range(200):
        await client.publish("t", [str(number)])
    assert await other.code_of(grown) == ""
    subscribed = await client.call(m.Subscribe("t"))
    got: list[str] = []
    while more := values((await client.pull(subscribed.subscription)).batches):
        got += more
    assert sorted(map(int, got)) == list(range(200))


@simulated
async def test_bindings_that_an_exchange_of_another_type_refuses_are_left_out_with_a_warning(
    env: SimEnv, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_on(env, '[exchanges.e]\ntype = "topic"\n[topics.t]\n'):
        client = await connected(env)
        bindings = [{"exchange": "e", "key": "a.*"}, {"exchange": "e", "key": "7"}]
        await client.administer("topic.create", name="live", settings={"bindings": bindings})
        for topic in ("live", "t"):
            await client.administer("exchange.bind", exchange="e", topic=topic, key="b.#")
    async with broker_on(env, '[exchanges.e]\ntype = "consistent-hash"\n[topics.t]\n'):
        client = await connected(env)
        shown = {topic["name"]: topic["settings"]["bindings"] for topic in await client.administer("topic.list")}
        assert shown == {"live": [{"exchange": "e", "key": "7", "arguments": {}}], "t": []}
    warnings = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert sorted(warning.split(" to e ")[0] for warning in warnings) == [
        "a binding of topic live",
        "a binding of topic live",
        "a binding of topic t",
    ]


@pytest.mark.parametrize("storage", ["dram", "segmented-log"])
@simulated
async def test_a_queue_continues_at_its_position_after_a_time_as_a_stream(env: SimEnv, storage: str) -> None:
    async with broker_on(env, f'[topics.t]\nkind = "both"\nlease = "1h"\nstorage = "{storage}"\n'):
        client = await connected(env)
        await client.publish("t", ["a", "b", "c"])
        subscription = (await client.call(m.Subscribe("t", credit=2))).subscription
        first = await client.delivery()
        assert values(first.batches) == ["a", "b"]
        entry = m.Settlement(0, first.message.delivery_id, 0, 1)  # type: ignore[attr-defined]
        assert (await client.call(m.Settle(subscription, [entry]))).refused == []
        for kind in ("stream", "both"):
            await client.administer("topic.alter", name="t", settings={"kind": kind})
        other = await connected(env)
        await other.call(m.Subscribe("t", credit=1))
        again = await other.delivery()
        assert (values(again.batches), again.message.attempt) == (["b"], 2)  # type: ignore[attr-defined]
        assert again.message.delivery_id > first.message.delivery_id  # type: ignore[attr-defined]


@pytest.mark.parametrize("storage", ["dram", "segmented-log"])
@simulated
async def test_groups_keep_their_places_when_the_topic_was_a_queue_meanwhile(env: SimEnv, storage: str) -> None:
    async with broker_on(env, f'[topics.t]\nkind = "both"\nlease = "1h"\nstorage = "{storage}"\n'):
        client = await connected(env)
        await client.publish("t", ["a", "b", "c"])
        subscription = (await client.call(m.Subscribe("t", group="g", credit=2))).subscription
        generation = (await client.push()).message.epoch  # type: ignore[attr-defined]
        assert await client.settle(subscription, await client.delivery()) == []
        for kind in ("queue", "both"):
            await client.administer("topic.alter", name="t", settings={"kind": kind})
        other = await connected(env)
        await other.call(m.Subscribe("t", group="g", credit=5))
        assert (await other.push()).message.epoch > generation  # type: ignore[attr-defined]
        assert values((await other.delivery()).batches) == ["c"]


@served('[topics.t]\nkind = "both"\n')
async def test_a_generation_that_a_full_disk_did_not_take_is_never_given_again(env: SimEnv, client: RawClient) -> None:
    await client.publish("t", ["a"])
    first = (await client.call(m.Subscribe("t", group="g"))).subscription
    await client.push()
    await client.call(m.Unsubscribe(first))
    env.disk.capacity_bytes = env.disk.used_bytes
    await client.call(m.Subscribe("t", group="g", credit=5))
    generation = (await client.push()).message.epoch  # type: ignore[attr-defined]
    assert generation > 1
    env.disk.capacity_bytes = 1 << 30
    for kind in ("queue", "both"):
        await client.administer("topic.alter", name="t", settings={"kind": kind})
    other = await connected(env)
    await other.call(m.Subscribe("t", group="g", credit=5))
    assert (await other.push()).message.epoch > generation  # type: ignore[attr-defined]
