"""A client that speaks the native protocol by hand, and brokers to speak with: in simulated time or on loopback."""

from __future__ import annotations

import inspect
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import trio
from simulated_time import simulated

from linn.cli.commands.recover import damaged_logs
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import Config, load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.env.env import Env, Stream
from linn.core.plugins.manager import PluginManager, installed
from linn.core.publish.producer_ids import ProducerIds
from linn.testing.sim_env import SimEnv
from linn.verbs import VERBS
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, frames_of, hello

HEAD = '[broker]\ndata_dir = "data"\ndrain_timeout = "2s"\n'
LISTENER = '[listeners.native]\naddress = "127.0.0.1:5466"\n'
ALWAYS = '[storage.segmented-log]\nfsync = "always"\n'
ADDRESS = "127.0.0.1:5466"
HAND_ID = 1 << 40
"""First of the producer ids with which tests number batches by hand: all clients of `connected` are given them."""
_given: WeakKeyDictionary[Env, ProducerIds] = WeakKeyDictionary()
"""The ids of the broker on each machine."""


def no_tasks(task: Callable[[], Awaitable[None]]) -> None:
    """A `Spawn` for a metadata store without leases."""
    raise AssertionError("only leases need tasks")


@cache
def _installed() -> Sequence[EntryPoint]:
    # What is installed does not change while tests run, and reading it takes longer than most of these brokers live.
    return tuple(installed())


@cache
def _configured(text: str) -> tuple[Config, PluginManager]:
    # Neither keeps anything of a broker, and simulations start hundreds with the same text.
    source = TomlSource(text, "test.toml")
    manager = PluginManager(plugin_settings(source), _installed())
    return load_config(source, manager), manager


def configured(text: str, head: str = HEAD, plugins: Sequence[Any] = ()) -> tuple[Config, PluginManager]:
    """A configuration, and the plugins that it was checked against: installed ones and, as entry points, `plugins`."""
    if not plugins:
        return _configured(head + LISTENER + text)
    source = TomlSource(head + LISTENER + text, "test.toml")
    manager = PluginManager(plugin_settings(source), [*_installed(), *plugins])
    return load_config(source, manager), manager


@asynccontextmanager
async def broker_on(env: Env, text: str, head: str = HEAD, plugins: Sequence[Any] = ()) -> AsyncIterator[Broker]:
    """A broker with these tables beside [broker]."""
    config, manager = configured(text, head, plugins)
    async with running_broker(config, env, manager) as broker:
        _given[env] = broker.producer_ids
        yield broker


async def after_power_loss(env: SimEnv, text: str) -> SimEnv:
    """The machine of `env`, on again; logs that a start would refuse are cut, as an operator has to."""
    env = env.restart()
    await damaged_logs(*configured(text), env, cut=True)
    return env


@contextmanager
def unsynced(env: SimEnv, folder: str) -> Iterator[None]:
    """Let no file of a folder be synced, without an error: its disk is slow."""
    sync_node = env.disk.sync_node

    async def slow(operation: str, path: str, node: Any) -> None:
        await trio.sleep(1000 if f"/{folder}/" in path else 0)
        await sync_node(operation, path, node)

    env.disk.sync_node = slow  # type: ignore[method-assign]
    try:
        yield
    finally:
        del env.disk.sync_node


def records(values: Sequence[str | bytes], **properties: Any) -> RecordBatch:
    """A batch of values."""
    made = [Record(value=v.encode() if isinstance(v, str) else v, **properties) for v in values]
    return build_from_records(made, base_id=1)


def values(batches: Sequence[RecordBatch]) -> list[str]:
    """The values of batches as text."""
    return [(record.value or b"").decode() for batch in batches for record in batch.records()]


def places(published: m.Published) -> list[tuple[int, int, int]]:
    """(partition, base offset, copies) of each batch."""
    return [(placement.partition, placement.base_offset, placement.copies) for placement in published.placements]


class Refused(Exception):
    """The broker answered a request with Failed, or refused all records of a batch."""

    def __init__(self, failed: m.Failed, placement: m.Placement | None = None) -> None:
        super().__init__(f"{failed.code}: {failed.text}")
        self.failed = failed
        self.placement = placement
        self.code = failed.code
        self.text = failed.text


class RawClient:
    """One connection. One task uses it; what is not the awaited answer is kept in `pushed`."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.pushed: deque[Event] = deque()
        self.closed = False
        self.lost: list[m.LeaseEnded] = []
        self.active: list[tuple[int, bool]] = []
        """Notices of the single active consumer: (subscription, whether it is that one)."""
        self.welcome: m.Welcome
        self._answers: dict[int, Event] = {}
        self._connection = Connection()
        self._correlation = 0

    async def greet(self, name: str = "raw", producer_id: int = 0, producer_key: int = 0) -> m.Welcome:
        """Say hello, perhaps with producer ids of an earlier connection. Raises Refused."""
        correlation = await self.send(hello(name, producer_id, producer_key))
        while correlation not in self._answers:
            if self.pushed and isinstance(failed := self.pushed.popleft().message, m.Failed):
                raise Refused(failed)
            if self.closed:
                raise EOFError("the broker closed the connection")
            await self._receive()
        answer = (await self.answer(correlation)).message
        self._connection.allow_frames(1 << 26)
        assert isinstance(answer, m.Welcome)
        self.welcome = answer
        return answer

    async def send(self, message: m.Message, batches: list[RecordBatch] | None = None) -> int:
        """Send a request; returns its correlation."""
        self._correlation += 1
        await self.stream.send(frames_of(message, self._correlation, batches))
        return self._correlation

    async def tell(self, message: m.Message, batches: list[RecordBatch] | None = None) -> None:
        """Send what wants no answer."""
        await self.stream.send(frames_of(message, 0, batches))

    async def _receive(self) -> None:
        count = await self.stream.receive_into(self._connection.buffer())
        self.closed = count == 0
        for event in self._connection.received(count):
            if event.correlation:
                assert event.correlation not in self._answers, "answered twice"
                self._answers[event.correlation] = event
            elif isinstance(event.message, m.Assigned) and not event.message.epoch:
                self.active.append((event.message.subscription, bool(event.message.partitions)))
            else:
                self.pushed.append(event)

    async def answer(self, correlation: int) -> Event:
        """Wait for the answer to a request. Raises Refused, EOFError."""
        while correlation not in self._answers:
            if self.closed:
                raise EOFError("the broker closed the connection")
            await self._receive()
        event = self._answers.pop(correlation)
        if isinstance(event.message, m.Failed):
            raise Refused(event.message)
        return event

    async def code_of(self, correlation: int) -> str:
        """The error that a request is answered with; "" for any other answer."""
        try:
            await self.answer(correlation)
        except Refused as refused:
            return refused.code
        return ""

    def is_answered(self, correlation: int) -> bool:
        """Whether the answer has come already."""
        return correlation in self._answers

    async def ask(self, message: m.Message, batches: list[RecordBatch] | None = None) -> Event:
        """Send a request and wait for its answer. Raises Refused."""
        return await self.answer(await self.send(message, batches))

    async def call(self, message: m.Message, batches: list[RecordBatch] | None = None) -> Any:
        """`ask`, for the message alone. Raises Refused, also if a batch had records, and all of them were refused."""
        answer = (await self.ask(message, batches)).message
        if isinstance(answer, m.Published):
            for placement in answer.placements:
                if placement.refused and not placement.copies:
                    raise Refused(m.Failed(placement.refused[0].code, placement.refused[0].text), placement)
        return answer

    async def push(self, wait_s: float = 10) -> Event:
        """The next push. Raises TooSlowError, EOFError."""
        with trio.fail_after(wait_s):
            while not self.pushed:
                if self.closed:
                    raise EOFError("the broker closed the connection")
                await self._receive()
        return self.pushed.popleft()

    async def delivery(self, wait_s: float = 10) -> Event:
        """The next push, which is a delivery, but for leases that have ended: `lost` has those."""
        event = await self.push(wait_s)
        while isinstance(event.message, m.LeaseEnded):
            self.lost.append(event.message)
            event = await self.push(wait_s)
        assert isinstance(event.message, m.Deliver), event
        return event

    async def is_silent(self, wait_s: float) -> bool:
        """Whether nothing is pushed for so long, but for leases that have ended: `lost` has those."""
        with trio.move_on_after(wait_s):
            while not self._pushed_else():
                await self._receive()
        return not self.pushed

    def _pushed_else(self) -> bool:
        while self.pushed and isinstance(self.pushed[0].message, m.LeaseEnded):
            self.lost.append(self.pushed.popleft().message)  # type: ignore[arg-type]
        return bool(self.pushed)

    async def until_closed(self, wait_s: float = 10) -> list[m.Message]:
        """Read until the broker closes; what came."""
        with trio.fail_after(wait_s):
            while not self.closed:
                await self._receive()
        return [event.message for event in [*self.pushed, *self._answers.values()]]

    # --- shorthand ---

    async def publish(self, target: str, contents: Sequence[str | bytes], **options: Any) -> m.Placement:
        """Publish one batch with confirmation."""
        answer = await self.call(m.Publish(target, **options), [records(contents)])
        placement: m.Placement = answer.placements[0]
        return placement

    async def administer(self, verb: str, **arguments: Any) -> Any:
        """Carry out a verb; its result, which has the verb's type: no key is missing, unknown or of another type."""
        result = json.loads((await self.call(m.Administer(verb, json.dumps(arguments)))).result)
        assert msgspec.convert(result, VERBS[verb].result) == result
        return result

    async def fetch(self, topic: str, partition: int = 0, offset: int = 0, **options: Any) -> list[str]:
        """The values of one fetch."""
        return values((await self.ask(m.Fetch(topic, partition, offset, **options))).batches)

    async def pull(self, subscription: int, records_max: int = 1000, wait_max_ms: int = 0) -> Event:
        """One pull."""
        return await self.ask(m.Pull(subscription, records_max, wait_max_ms))

    async def taken(self, topic: str, group: str = "", count: int = 100) -> list[str]:
        """The values of so many records, or of all where there are fewer, acked one by one by a new subscription."""
        subscription = (await self.call(m.Subscribe(topic, group=group))).subscription
        found: list[str] = []
        while len(found) < count and (event := await self.pull(subscription, 1, wait_max_ms=500)).batches:
            found += values(event.batches)
            await self.settle(subscription, event)
        return found

    async def commit(self, subscription: int, topic: str, ends: dict[int, int]) -> list[m.Refusal]:
        """Commit offsets by partition, as a member of the only group of a topic; what was refused."""
        (group,) = await self.administer("group.list", topic=topic)
        entries = [m.Settlement(partition, group["epoch"], 0, end) for partition, end in ends.items()]
        refused: list[m.Refusal] = (await self.call(m.Settle(subscription, entries))).refused
        return refused

    async def settle(self, subscription: int, event: Event, verdict: int = 0, ms: int = 0) -> list[m.Refusal]:
        """Settle all of a delivery; what was refused."""
        deliver = event.message
        first, end = event.batches[0].base_offset, event.batches[-1].end_offset
        entry = m.Settlement(deliver.partition, deliver.delivery_id, first, end, verdict, ms)
        refused: list[m.Refusal] = (await self.call(m.Settle(subscription, [entry]))).refused
        return refused


async def connected(env: Env, address: str = ADDRESS, *, name: str = "raw", producer_id: int = HAND_ID) -> RawClient:
    """A client that has said hello; it has got the block of `producer_id` before, if that is not 0."""
    client = RawClient(await env.net.connect(address))
    ids = _given.get(env) if producer_id else None
    await client.greet(name, producer_id if ids else 0, ids.key("anonymous", producer_id) if ids else 0)
    return client


def served(text: str, **options: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """A test that runs in simulated time beside a broker with these tables; on the seed 0, unless it has one.

    Parameters are filled by their type: the SimEnv, the Broker, and clients that have said hello, one for each
    RawClient. The others are pytest's.
    """

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        parameters = inspect.signature(test).parameters.values()

        async def scenario(env: SimEnv, **given: Any) -> None:
            async with broker_on(env, text, **options) as broker:
                for parameter in parameters:
                    if parameter.annotation == "RawClient":
                        given[parameter.name] = await connected(env)
                    elif parameter.annotation in ("SimEnv", "Broker"):
                        given[parameter.name] = env if parameter.annotation == "SimEnv" else broker
                await test(**given)

        scenario.__name__, scenario.__doc__, scenario.__module__ = test.__name__, test.__doc__, test.__module__
        kept = [one for one in parameters if one.annotation not in ("RawClient", "SimEnv", "Broker")]
        env = inspect.Parameter("env", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        scenario.__signature__ = inspect.Signature([env, *kept])  # type: ignore[attr-defined]
        return simulated(scenario)

    return decorate
