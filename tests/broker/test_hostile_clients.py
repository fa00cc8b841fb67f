"""Clients that do what clients should not: each ends at most itself, within bounded time and memory."""

from __future__ import annotations

import gc
import re
import struct

import pytest
import trio
from raw_client import HEAD, RawClient, Refused, broker_on, connected, places, records, served, simulated, values

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.core.plugins.hookspecs import hookimpl
from linn.core.routing.exchange import ExchangeKind
from linn.plugins.exchanges import FanoutExchange, NoSettings
from linn.protocols.capnp.outbox import Outbox
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import frames_of, hello

TEXT = '[topics.t]\nkind = "stream"\n'


async def _raw(env: SimEnv) -> RawClient:
    return RawClient(await env.net.connect("127.0.0.1:5466"))


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("16030100f5010000f10303") + bytes(200),
        struct.pack("<II", 0, 0),
        struct.pack("<II", 0, 2**31),
        struct.pack("<II", 2**32 - 1, 1),
    ],
)
@pytest.mark.parametrize("greeted", [False, True])
@served(TEXT)
async def test_another_protocol_gets_one_error_and_harms_nobody(
    env: SimEnv, broker: Broker, other: RawClient, said: bytes, greeted: bool
) -> None:
    stranger = await (connected if greeted else _raw)(env)  # type: ignore[operator]
    publishes = [await stranger.send(m.Publish("t"), [records(["a"])])] if greeted else []
    await stranger.stream.send([said])
    heard = await stranger.until_closed()
    failed = [message for message in heard if isinstance(message, m.Failed)]
    assert len(failed) == 1
    assert failed[0].code.startswith("protocol.")
    for correlation in publishes:
        assert (await stranger.answer(correlation)).message.placements[0].copies == 1
    await other.publish("t", ["b"])
    await trio.sleep(1)
    assert broker.listening.connections == 1


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "protocol.malformed"),
        (struct.pack("<II", 0, 0), "protocol.malformed"),
        (struct.pack("<II", 0, 2**31), "protocol.frame_too_large"),
        (struct.pack("<II", 0, 1) + bytes(8), "protocol.malformed"),
    ],
)
def test_garbage_after_hello_in_one_segment_is_refused_at_once(said: bytes, code: str) -> None:
    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, TEXT):
            stranger = await _raw(env)
            await stranger.stream.send([b"".join([*frames_of(hello("raw"), 1), said])])
            heard = await stranger.until_closed()
            assert [message.code for message in heard if isinstance(message, m.Failed)] == [code]

    for seed in range(5):
        run_simulation(seed, scenario)


@pytest.mark.parametrize(
    "said", [m.Ping(), m.Publish("t"), m.Administer("x", "y" * 70_000), m.Hello(1, 1, ["x" * 70_000], "")]
)
@served(TEXT)
async def test_before_hello_nothing_is_done_and_nothing_large_is_taken(env: SimEnv, said: m.Message) -> None:
    stranger = await _raw(env)
    await stranger.send(said)
    (failed,) = await stranger.until_closed()
    assert isinstance(failed, m.Failed)
    assert failed.code in ("protocol.malformed", "protocol.frame_too_large")


@pytest.mark.parametrize("versions", [(2, 3), (0, 0), (5, 2)])
@served("")
async def test_a_client_of_another_version_is_told_so(env: SimEnv, versions: tuple[int, int]) -> None:
    client = await _raw(env)
    await client.stream.send(frames_of(m.Hello(*versions, [], "x"), 1))
    (failed,) = await client.until_closed()
    assert isinstance(failed, m.Failed)
    assert failed.code == "protocol.version_unsupported"


@simulated
async def test_welcome_has_the_common_features_and_the_limits(env: SimEnv) -> None:
    async with broker_on(env, "", HEAD + 'name = "x"\nmessage_bytes_max = 1000\ninflight_requests_max = 7\n'):
        client = await _raw(env)
        answer = await client.call(m.Hello(0, 9, ["zstd", "future"], "me"))
        assert isinstance(answer, m.Welcome)
        ids = answer.producer_id, answer.producer_key
        assert min(ids) > 0
        assert answer == m.Welcome(1, ["zstd"], "x", 16 << 20, 8 << 20, 1000, 20_000, 7, 1_000, *ids, "anonymous")


@served(TEXT)
async def test_a_request_of_an_unknown_kind_fails_alone(client: RawClient) -> None:
    unknown = bytearray(frames_of(m.Ping(), 77)[0])
    assert unknown.count(struct.pack("<H", 3)) >= 1
    # The union's number lies behind the correlation and the number of batches.
    struct.pack_into("<H", unknown, 8 + 8 + 10, 999)
    struct.pack_into("<H", unknown, 8 + 8 + 8, 1)
    await client.stream.send([unknown, records(["a"]).message])
    with pytest.raises(Refused, match=r"protocol\.request_unknown"):
        await client.answer(77)
    await client.publish("t", ["a"])
    assert await client.fetch("t") == ["a"]


@served(TEXT)
async def test_a_broker_only_message_ends_the_connection(client: RawClient) -> None:
    await client.tell(m.Published([]))
    (failed,) = await client.until_closed()
    assert isinstance(failed, m.Failed)
    assert failed.code == "protocol.malformed"


@served(TEXT)
async def test_a_failing_publish_takes_its_batches_along_and_nothing_else(client: RawClient) -> None:
    sent = [await client.send(m.Publish(topic), [records(["a"]), records(["b"])]) for topic in ("t", "no", "t")]
    with pytest.raises(Refused, match=r"topic\.unknown"):
        await client.answer(sent[1])
    assert (await client.answer(sent[2])).message.placements[1].base_offset == 3
    assert await client.fetch("t") == ["a", "b", "a", "b"]


@served("")
async def test_a_client_without_a_timely_hello_is_disconnected(env: SimEnv, broker: Broker) -> None:
    silent, slow = await _raw(env), await _raw(env)
    greeting = bytes(frames_of(hello("x"), 1)[0])
    with trio.move_on_after(10.5):
        for byte in greeting:
            await slow.stream.send([bytes([byte])])
            await trio.sleep(1)
    for client in (silent, slow):
        heard = await client.until_closed(1)
        assert [message.code for message in heard] == ([] if client is silent else ["request.timeout"])
    assert broker.listening.connections == 0


@served('[topics.q]\nlease = "1h"\n')
async def test_a_silent_client_is_disconnected_after_three_keepalives_and_releases_its_leases(
    env: SimEnv, client: RawClient
) -> None:
    await client.publish("q", ["a"])
    await client.call(m.Subscribe("q", credit=1))
    await client.delivery()
    started = trio.current_time()
    await client.until_closed(100)
    assert 60 <= trio.current_time() - started <= 81
    other = await connected(env)
    subscription = (await other.call(m.Subscribe("q"))).subscription
    assert values((await other.pull(subscription)).batches) == ["a"]


@served(TEXT)
async def test_a_client_that_pings_may_stay_for_ever(client: RawClient) -> None:
    for _ in range(50):
        await trio.sleep(19)
        await client.call(m.Ping())


@served(TEXT)
async def test_a_frame_that_never_ends_is_as_good_as_silence(broker: Broker, client: RawClient) -> None:
    frame = bytes(frames_of(m.Administer("x", "y" * 100_000), 1)[0])
    with trio.fail_after(200):
        while broker.listening.connections:
            await trio.sleep(1)
            try:
                await client.stream.send([frame[:1]])
            except Exception:
                break
            frame = frame[1:]


@simulated
async def test_a_publisher_that_is_blocked_for_long_is_not_taken_for_a_silent_one(env: SimEnv) -> None:
    text = '[topics.t]\nbytes_max = "4KiB"\nmessage_bytes_max = 1000\nlease = "1h"\n'
    async with broker_on(env, text, HEAD + 'connection_bytes_max = "1KiB"\n'):
        client, other = await connected(env), await connected(env)
        await client.publish("t", ["x" * 900] * 4)
        blocked = await client.send(m.Publish("t"), [records(["y" * 900])])
        for _ in range(20):
            await trio.sleep(15)
            await client.stream.send(frames_of(m.Ping(), 0))
            await other.call(m.Ping())
        subscription = (await other.call(m.Subscribe("t", credit=4))).subscription
        await other.settle(subscription, await other.delivery())
        with trio.fail_after(5):
            assert (await client.answer(blocked)).message.placements[0].base_offset == 4


@simulated
async def test_a_client_that_never_reads_fills_no_memory(env: SimEnv) -> None:
    text = TEXT + '[topics.q]\nlease = "1h"\n'
    bound = 256 << 10
    async with broker_on(env, text, HEAD + f"connection_bytes_max = {bound}\n"):
        client, other = await connected(env), await connected(env)
        for topic in ("t", "q"):
            for _ in range(60):
                await other.publish(topic, ["x" * 1000] * 50)
        waiting: list[int] = []
        watched = _outboxes()
        for _ in range(4):
            await client.tell(m.Subscribe("t", credit=2**31))
            await client.tell(m.Subscribe("q", credit=2**31))
        with trio.move_on_after(30):
            while True:
                await client.stream.send(frames_of(m.Fetch("t", 0, 0, bytes_max=1 << 20), 5))
        await trio.sleep(1)
        waiting = [outbox.waiting_bytes for outbox in watched()]
        # The bound, one fetch's answer, one delivery of each subscription, and small answers.
        assert bound <= max(waiting) < bound + (1 << 20) + 8 * (64 << 10) + 100_000
        await other.publish("t", ["still there"])
        assert values((await other.ask(m.Fetch("t", 0, 3000))).batches) == ["still there"]


def _outboxes():  # type: ignore[no-untyped-def]
    return lambda: [thing for thing in gc.get_objects() if isinstance(thing, Outbox)]


@simulated
async def test_unanswered_requests_are_limited_by_not_reading_more(env: SimEnv) -> None:
    async with broker_on(env, TEXT, HEAD + "inflight_requests_max = 10\n"):
        client = await connected(env)
        waits = [await client.send(m.Fetch("t", 0, 0, wait_max_ms=5_000)) for _ in range(10)]
        ping = await client.send(m.Ping())
        late = [await client.send(m.Fetch("t", 0, 0, wait_max_ms=5_000)) for _ in range(3_000)]
        for correlation in (*waits, ping, *late):
            await client.answer(correlation)


@simulated
async def test_connections_are_limited(env: SimEnv) -> None:
    async with broker_on(env, TEXT, HEAD + "connections_max = 3\n") as broker:
        clients = [await connected(env) for _ in range(3)]
        (failed,) = await (await _raw(env)).until_closed()
        assert (failed.code, failed.retriable) == ("broker.full", True)
        assert broker.connections.traffic["native"].refused == 1
        await clients[0].stream.aclose()
        await trio.sleep(1)
        await (await connected(env)).publish("t", ["a"])


@served('[topics.t]\nkind = "both"\npartitions = 3\n')
async def test_storms_of_connections_and_joins_leave_nothing_behind(
    env: SimEnv, broker: Broker, client: RawClient
) -> None:

    async def storm(number: int) -> None:
        for turn in range(5):
            hasty = await connected(env)
            await hasty.tell(m.Subscribe("t", group="g" if number % 2 else "", credit=5))
            await hasty.tell(m.Publish("t"), [records([f"{number}.{turn}"])])
            await trio.sleep(env.rng.uniform(0, 0.01))
            await hasty.stream.aclose()

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(storm, number)
    await trio.sleep(5)
    assert broker.listening.connections == 1
    topic = broker.topics["t"]
    assert topic.queue is not None
    assert broker.groups.members("g", "t") == 0
    assert not topic.queue.consumers
    shown = await client.administer("topic.show", name="t")
    assert shown["queue"]["leased"] == 0
    assert topic.readers == {}


class BrokenExchange(FanoutExchange):
    """An exchange that fails for one routing key."""

    def match(self, subject):  # type: ignore[no-untyped-def]
        if subject.routing_key == "bad":
            raise RuntimeError("I am broken")
        return super().match(subject)


class BrokenPlugin:
    """Brings it."""

    name = "broken"
    dist = None
    value = "broken"

    def load(self) -> BrokenPlugin:
        return self

    @hookimpl
    def linn_register_exchange(self) -> ExchangeKind:
        return ExchangeKind("broken", NoSettings, BrokenExchange)


@simulated
async def test_an_exchange_that_raises_refuses_that_record_and_no_other(env: SimEnv) -> None:
    text = TEXT + '[exchanges.e]\ntype = "broken"\n[[topics.t.bindings]]\nexchange = "e"\n'
    async with broker_on(env, text, plugins=[BrokenPlugin()]):
        client = await connected(env)
        sent = [
            await client.send(m.Publish("e", True), [records(["a"], routing_key=key)])
            for key in ("good", "bad", "good")
        ]
        assert (await client.answer(sent[0])).message.placements[0].copies == 1
        (refused,) = (await client.answer(sent[1])).message.placements[0].refused
        assert refused.code == "topic.invalid"
        said = r'exchange e \(broken\), of plugin "\w+" \(.*\), failed: RuntimeError: I am broken'
        assert re.match(said, refused.text)
        assert (await client.answer(sent[2])).message.placements[0].base_offset == 1


@simulated
async def test_one_batch_reaches_several_topics_each_with_its_records(env: SimEnv) -> None:
    text = '[exchanges.e]\ntype = "topic"\n' + "".join(
        f'[topics.{name}]\nkind = "stream"\n[[topics.{name}.bindings]]\nexchange = "e"\nkey = "{key}"\n'
        for name, key in (("all", "#"), ("a", "a.*"), ("b", "b.*"), ("none", "c"))
    )
    async with broker_on(env, text):
        client = await connected(env)
        keys = ["a.x", "b.x", "a.y", "d"]
        batch = build_from_records([Record(value=key.encode(), routing_key=key) for key in keys], base_id=1)
        answer = await client.call(m.Publish("e", True), [batch])
        assert places(answer) == [(-1, -1, 7)]
        got = {name: await client.fetch(name) for name in ("all", "a", "b", "none")}
        assert got == {"all": keys, "a": ["a.x", "a.y"], "b": ["b.x"], "none": []}
        answer = await client.call(m.Publish("e", True), [records(["q"], routing_key="zzz")])
        assert places(answer) == [(0, 4, 1)]


@simulated
async def test_limits_beyond_what_the_protocol_can_say_are_told_as_the_largest_it_can(env: SimEnv) -> None:
    head = HEAD + "".join(f'{key} = "8GiB"\n' for key in ("message_bytes_max", "batch_bytes_max", "frame_bytes_max"))
    async with broker_on(env, TEXT, head):
        client = await _raw(env)
        welcome = await client.call(hello("x"))
        largest = 2**32 - 1
        assert (welcome.frame_bytes_max, welcome.batch_bytes_max, welcome.message_bytes_max) == (largest,) * 3
        assert (await client.call(m.Describe(["t"]))).topics[0].message_bytes_max == largest


@served(TEXT)
async def test_a_topic_that_is_named_many_times_is_described_once(client: RawClient) -> None:
    topics = (await client.call(m.Describe(["t", "no"] * 2_048))).topics
    assert [(topic.name, topic.kind) for topic in topics] == [("t", "stream"), ("no", "")]
