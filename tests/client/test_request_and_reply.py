"""Requests and their replies: one, several, none, late ones, and what becomes of them when a connection is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
import trio

import linn
from linn.client import Client, Message, Reply
from linn.client.connection.answer import Answer
from linn.client.connection.replying import REPLY_TO, address_in
from linn.client.produce.requester import PRODUCERS_MAX
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.errors.inboxes import InboxUnknown, NoReply
from linn.core.errors.tree import (
    ConnectionLost,
    MessageInvalid,
    MessageTooLarge,
    SubscriptionWrongKind,
    TopicUnknown,
    Unroutable,
)
from linn.core.plugins.manager import PluginManager, installed
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

URL = "linn://127.0.0.1:5466"
TOML = """
[broker]
data_dir = "data"
message_bytes_max = "64KiB"
[listeners.native]
address = "127.0.0.1:5466"
[topics.jobs]
[topics.eu]
[topics.us]
[exchanges.all]
type = "fanout"
[exchanges.nowhere]
"""
BINDINGS = ("eu", "us")

Scenario = Callable[["World"], Awaitable[None]]
Work = Callable[[Message], Awaitable[Any]]


class World:
    """A broker, a client that asks, and clients that work."""

    def __init__(self, env: SimEnv, client: Client, nursery: trio.Nursery, broker: Broker) -> None:
        self.env, self.client, self.nursery, self.broker = env, client, nursery, broker

    async def worker(self, work: Work, topic: str = "jobs") -> None:
        """Start a worker with a client of its own, which acks what it has worked on."""

        async def run(task_status: trio.TaskStatus[None]) -> None:
            async with linn.connect(URL, env=self.env) as own, own.consumer(topic) as consumer:
                task_status.started()
                async for message in consumer:
                    await work(message)
                    await message.ack()

        await self.nursery.start(run)


def in_world(scenario: Scenario) -> Callable[[], None]:
    """A test in virtual time, beside a broker."""

    async def run(env: SimEnv) -> None:
        node = SimEnv(1, name="broker", world=env.world)
        source = TomlSource(TOML, "test.toml")
        plugins = PluginManager(plugin_settings(source), installed())
        async with running_broker(load_config(source, plugins), node, plugins) as broker:
            async with linn.connect(URL, env=env) as client, trio.open_nursery() as nursery:
                for topic in BINDINGS:
                    await client.admin.bind("all", topic)
                await scenario(World(env, client, nursery, broker))
                nursery.cancel_scope.cancel()

    def test() -> None:
        run_simulation(0, run)

    test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    return test


async def echo(message: Message) -> None:
    assert await message.reply(b"you said " + (message.value or b""), headers={"from": message.topic.encode()})


@in_world
async def test_a_request_gets_the_workers_reply(world: World) -> None:
    await world.worker(echo)
    reply = await world.client.request("jobs", b"hello", timeout_s=5)
    assert reply == Reply(b"you said hello", (("from", b"jobs"),))
    assert reply.text == "you said hello"
    queue = (await world.client.admin.topic("jobs"))["queue"]
    assert queue["unsettled"] <= 1, "a reply settles nothing, and the worker acks"


@in_world
async def test_each_of_many_requests_at_once_gets_its_own_reply(world: World) -> None:
    for _ in range(3):
        await world.worker(echo)
    found: dict[int, str] = {}

    async def ask(number: int) -> None:
        found[number] = (await world.client.request("jobs", b"%d" % number, timeout_s=30)).text

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(ask, number)
    assert found == {number: f"you said {number}" for number in range(200)}


@in_world
async def test_the_properties_of_a_request_reach_the_worker(world: World) -> None:
    seen: list[Message] = []

    async def work(message: Message) -> None:
        seen.append(message)
        await message.reply(None)

    await world.worker(work)
    options: dict[str, Any] = {
        "key": b"k",
        "labels": {"n": 1},
        "headers": [("a", b"1"), ("a", None)],
        "id": UUID(int=7),
    }
    assert (await world.client.request("jobs", None, timeout_s=5, **options)).value is None
    (message,) = seen
    assert (message.key, dict(message.labels), message.id, message.value) == (b"k", {"n": 1}, UUID(int=7), None)
    assert message.headers[1:] == (("a", b"1"), ("a", None))
    assert message.headers[0] == (REPLY_TO, str(message.reply_to).encode())


@in_world
async def test_a_request_without_a_worker_times_out_and_a_late_reply_is_dropped(world: World) -> None:
    began = trio.current_time()
    with pytest.raises(NoReply, match=r"^no reply from jobs within 2 s") as failed:
        await world.client.request("jobs", b"first", timeout_s=2)
    assert (failed.value.code, 2 <= trio.current_time() - began < 2.5) == ("request.no_reply", True)
    delivered: list[bool] = []

    async def work(message: Message) -> None:
        delivered.append(await message.reply(message.value))

    await world.worker(work)
    assert (await world.client.request("jobs", b"second", timeout_s=5)).text == "second"
    assert delivered == [True, True], "the requester's connection is there, and drops what nobody waits for"


@in_world
async def test_a_request_with_a_time_to_live_is_not_carried_out_after_it(world: World) -> None:
    with pytest.raises(NoReply):
        await world.client.request("jobs", b"first", timeout_s=1, ttl_ms=1_000)
    await trio.sleep(1)
    seen: list[str] = []

    async def work(message: Message) -> None:
        seen.append(message.text)
        await message.reply(message.value)

    await world.worker(work)
    assert (await world.client.request("jobs", b"second", timeout_s=5, ttl_ms=1_000)).text == "second"
    assert seen == ["second"]


@in_world
async def test_a_request_that_nothing_routes_fails_at_once(world: World) -> None:
    began = trio.current_time()
    with pytest.raises(Unroutable):
        await world.client.request(None, b"hello", exchange="nowhere")
    with pytest.raises(TopicUnknown):
        await world.client.request("absent", b"hello")
    assert trio.current_time() - began < 1
    with pytest.raises(NoReply):
        await world.client.request(None, b"hello", exchange="nowhere", mandatory=False, timeout_s=1)


@in_world
async def test_several_services_reply_to_one_request(world: World) -> None:
    for topic in BINDINGS:
        await world.worker(echo, topic)
    replies = await world.client.request_many(None, b"price?", exchange="all", replies_max=2, timeout_s=5)
    assert {dict(reply.headers)["from"] for reply in replies} == {b"eu", b"us"}
    began = trio.current_time()
    assert len(await world.client.request_many(None, b"price?", exchange="all", replies_max=3, timeout_s=1)) == 2
    assert 1 <= round(trio.current_time() - began, 9) < 1.5, "it waits for a third one until the time is over"
    assert await world.client.request_many("jobs", b"nobody", timeout_s=1) == []


@in_world
async def test_replies_beyond_the_limit_are_not_kept(world: World) -> None:
    async def chatter(message: Message) -> None:
        for _ in range(5):
            await message.reply(b"again")

    await world.worker(chatter)
    assert len(await world.client.request_many("jobs", b"hello", replies_max=3, timeout_s=5)) == 3


@in_world
async def test_replies_that_come_as_one_batch_are_replies_one_by_one(world: World) -> None:
    """Clients in other languages may send them so."""

    async def work(message: Message) -> None:
        replies = [Record(value=b"%d" % number, headers=(("n", b"v"),)) for number in range(5)]
        batch = build_from_records(replies, base_id=1)
        answer, connection = Answer(), message.batch._subscription.connection  # type: ignore[union-attr]
        connection.ask(answer, m.Reply(message.reply_to or ""), [batch])
        assert await answer.wait() == m.Done()

    await world.worker(work)
    found = await world.client.request_many("jobs", b"hello", replies_max=3, timeout_s=5)
    assert found == [Reply(b"%d" % number, (("n", b"v"),)) for number in range(3)]
    assert (await world.client.request("jobs", b"hello", timeout_s=5)).text == "0"


@in_world
async def test_a_worker_survives_messages_that_ask_for_no_reply_and_requesters_that_are_gone(world: World) -> None:
    delivered: list[bool] = []

    async def work(message: Message) -> None:
        delivered.append(await message.reply(b"done"))

    async with linn.connect(URL, env=world.env) as gone:
        with pytest.raises(NoReply):
            await gone.request("jobs", b"1", timeout_s=1)
    async with world.client.producer("jobs") as producer:
        await producer.publish(b"2")
        for wrong in (b"\xff", b"x" * 1_000, None, b"", b"0.1.2"):
            await producer.publish(b"3", headers={REPLY_TO: wrong})
    await world.worker(work)
    reply = await world.client.request("jobs", b"4", timeout_s=5)
    assert (reply.text, delivered) == ("done", [False] * 7 + [True])


@in_world
async def test_a_reply_by_address_says_why_it_was_not_delivered(world: World) -> None:
    addresses: list[str] = []

    async def work(message: Message) -> None:
        addresses.append(message.reply_to or "")

    await world.worker(work)
    async with linn.connect(URL, env=world.env) as gone:
        with trio.move_on_after(1):
            await gone.request("jobs", b"later")
        await gone.reply(addresses[0], b"the requester waits no longer, and its connection is there")
        with pytest.raises(MessageTooLarge):
            await world.client.reply(addresses[0], b"x" * (100 << 20))
        with pytest.raises(MessageInvalid):
            await world.client.reply(addresses[0], "text")  # type: ignore[arg-type]
    while len(world.broker.connections.inboxes):
        await trio.sleep(0.01)
    for address in (addresses[0], "", "0.1", "🦀"):
        with pytest.raises(InboxUnknown):
            await world.client.reply(address, b"too late")


@in_world
async def test_any_client_replies_later_to_a_request_by_its_address(world: World) -> None:
    async def forward(message: Message) -> None:
        async with linn.connect(URL, env=world.env) as other:
            await other.reply(message.reply_to or "", b"from elsewhere")

    await world.worker(forward)
    assert (await world.client.request("jobs", b"hello", timeout_s=5)).text == "from elsewhere"


@in_world
async def test_a_lost_connection_fails_its_requests_and_the_next_one_has_an_inbox_again(world: World) -> None:
    outcomes: list[object] = []

    async def ask() -> None:
        try:
            outcomes.append(await world.client.request("jobs", b"first", timeout_s=60))
        except ConnectionLost as error:
            outcomes.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while (await world.client.admin.topic("jobs"))["queue"]["unsettled"] == 0:
            await trio.sleep(0.01)
        (own,) = await world.client.admin.connections()
        with suppress(ConnectionLost):
            await world.client.admin.close_connection(own["number"])
    (lost,) = outcomes
    assert isinstance(lost, ConnectionLost)
    delivered: list[bool] = []

    async def work(message: Message) -> None:
        delivered.append(await message.reply(message.value))

    await world.worker(work)
    assert (await world.client.request("jobs", b"second", timeout_s=30)).text == "second"
    assert delivered[0] is False, "the first requester is gone, and the second has another address"


@in_world
async def test_a_request_that_is_cancelled_leaves_nothing_behind(world: World) -> None:
    with trio.move_on_after(1):
        await world.client.request("jobs", b"first")
    assert world.client._requester._waiting == {}


@in_world
async def test_requests_to_many_topics_keep_few_producers_open(world: World) -> None:
    for number in range(PRODUCERS_MAX + 5):
        await world.client.admin.create_topic(f"topic-{number}")
        with pytest.raises(NoReply):
            await world.client.request(f"topic-{number}", b"hello", timeout_s=0.1)
    assert len(world.client._requester._producers) == PRODUCERS_MAX
    listeners = len(world.client._connector.listeners)
    assert listeners <= PRODUCERS_MAX + 1


@in_world
async def test_a_fetched_request_is_replied_to_by_its_address(world: World) -> None:
    async with world.client.producer("jobs") as producer:
        await producer.publish(b"1", headers={REPLY_TO: b"0.1"})
    (batch,) = (await world.client.fetch("jobs", 0, 0)).batches
    (message,) = batch
    assert message.reply_to == "0.1"
    with pytest.raises(SubscriptionWrongKind, match=r"client\.reply"):
        await message.reply(b"done")


@in_world
async def test_wrong_arguments_are_refused(world: World) -> None:
    client = world.client
    for wrong in ({"topic": None}, {"topic": "jobs", "exchange": "all"}, {"topic": "jobs", "timeout_s": -1}):
        with pytest.raises(MessageInvalid):
            await client.request(**{"value": b"v"} | wrong)
    for replies_max in (0, -1, 1.5, None):
        with pytest.raises(MessageInvalid):
            await client.request_many("jobs", b"v", replies_max=replies_max)  # type: ignore[arg-type]
    with pytest.raises(MessageInvalid, match="a value must be bytes"):
        await client.request("jobs", "text")  # type: ignore[arg-type]


def test_the_text_of_a_reply_says_what_has_none() -> None:
    for value in (None, b"\xff"):
        with pytest.raises(MessageInvalid):
            _ = Reply(value).text
    assert address_in((("other", b"0.1"), (REPLY_TO, b"0.2"))) == "0.2"
