"""One run of idempotent producers, in which single messages of the protocol go wrong: one seed is one run.

Two clients with their defaults publish through a proxy, to a topic exchange with three destinations and to a queue's
partitions. The proxy sees each message, and at those that the seed names it kills a side, loses power, cuts the
message, or sends it twice, at once or behind later ones. In the end each destination holds each record at most once,
what was confirmed surely, and each producer's records in order.

    python tests/broker/producer_arrows.py SEED [SEED ...]
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise, product
from typing import Any

import trio
from raw_client import ADDRESS, RawClient, after_power_loss, broker_on, values

import linn
from linn.client import Client, Producer
from linn.core.batch.batch import RecordBatch
from linn.core.env.env import AcceptedStream
from linn.core.errors.tree import LinnError, ProducerError
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, frames_of

PROXY = "127.0.0.1:6000"
ARROWS = ("hello", "welcome", "publish", "answer")
DEATHS = ("kill the broker", "lose power", "kill the client")
FAULTS: list[tuple[str, str]] = [
    *product(ARROWS, [f"{death} {when} it" for death in DEATHS for when in ("before", "after")]),
    *product(ARROWS, ["lose it", "cut it in the middle"]),
    *product(["publish"], ["send it twice", "send it late as well"]),
]
"""Each arrow of the protocol with all that may happen to it."""
RECORDS = 40
DONE_S_MAX = 300.0
STREAMS = {"a": 1, "b": 3}
"""Partitions of the streams, which are read in the end."""
QUEUES = {"c": 1, "direct": 2}
"""Partitions of the queues, which are full now and then: their consumers read all the time."""
KEYS = {"k.l": "abc", "k.x": "ab", "x.l": "ac", "x": "a"}
TOML = """
[storage.segmented-log]
fsync = "%s"
segment_bytes_max = 4096
[exchanges.e]
type = "topic"
[topics.a]
kind = "stream"
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
kind = "queue"
message_bytes_max = 200
bytes_max = %d
overflow = "reject"
[[topics.c.bindings]]
exchange = "e"
key = "#.l"
[topics.direct]
kind = "queue"
partitions = 2
message_bytes_max = 200
bytes_max = %d
overflow = "reject"
"""


class Run:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.seed = seed
        first = FAULTS[seed % len(FAULTS)]
        more = rng.choice([0, 1, 2, 4]) if seed >= len(FAULTS) else 0
        self.faults = Counter[tuple[str, int, str]]()
        for arrow, what in [first, *rng.choices(FAULTS, k=more)]:
            self.faults[arrow, rng.randrange(3 if arrow in ("hello", "welcome") else 25), what] += 1
        self.syncs = rng.choice(["always", "os"])
        self.sync_delay_s = rng.choice([0.0, 0.005, 0.05])
        self.timeout_s = rng.choice([1.0, 3.0, 30.0])
        self.batch_bytes_max = rng.choice([8, 8, 400])
        self.text = TOML % (self.syncs, rng.choice([1_500, 1 << 20]), rng.choice([1_500, 1 << 20]))
        self.seen = Counter[str]()
        self.lost_power = False
        self.taken: dict[tuple[str, int], dict[int, str]] = {
            (topic, index): {} for topic, partitions in QUEUES.items() for index in range(partitions)
        }
        """Records of the queues' partitions by offset, as their consumers got them."""

    async def run(self, env: SimEnv) -> None:
        self.broker = SimEnv(self.seed, name="broker", world=env.world)
        self.probe = env
        self.clients = [Publisher(self, "p", exchange="e"), Publisher(self, "d", topic="direct")]
        proxy = SimEnv(self.seed, name="proxy", world=env.world)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve)
            nursery.start_soon(self._proxy, proxy)
            for topic in QUEUES:
                nursery.start_soon(self._take, topic)
            with trio.fail_after(DONE_S_MAX):
                async with trio.open_nursery() as publishing:
                    for client in self.clients:
                        publishing.start_soon(client.run)
            await trio.sleep(5)  # What is late comes now.
            await self._check()
            nursery.cancel_scope.cancel()

    # --- the broker ---

    async def _serve(self) -> None:
        async def process(env: SimEnv) -> None:
            async with broker_on(env, self.text):
                await trio.sleep_forever()

        while True:
            self.broker.disk.sync_delay_s_max = self.sync_delay_s
            if not await self.broker.run_until_death(process):
                return
            await trio.sleep(self.rng.choice([0.05, 0.5, 2.5]))
            if self.broker.disk.death != "was killed" and self.syncs == "os":
                for taken in self.taken.values():
                    taken.clear()  # Their offsets may be given again.
            self.broker = await after_power_loss(self.broker, self.text)

    async def _take(self, topic: str) -> None:
        """Empty a queue, so that it is full only now and then."""
        node = SimEnv(self.seed, name=f"taker of {topic}", world=self.probe.world)
        while True:
            with suppress(LinnError):
                async with linn.connect(f"linn://{ADDRESS}", env=node) as client, client.consumer(topic) as consumer:
                    async for message in consumer:
                        self.taken[topic, message.partition][message.offset] = (message.value or b"").decode()
                        await message.ack()
                        await trio.sleep(0.02)
            await trio.sleep(0.1)

    # --- the proxy ---

    async def _proxy(self, env: SimEnv) -> None:
        listener = await env.net.listen(PROXY)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._connect_through, env, await listener.accept(), nursery)

    async def _connect_through(self, env: SimEnv, client: AcceptedStream, nursery: trio.Nursery) -> None:
        try:
            broker = await env.net.connect(ADDRESS)
        except LinnError:
            await client.aclose()
            return
        ids: list[int] = []
        async with trio.open_nursery() as both:
            for source, target in ((client, broker), (broker, client)):
                both.start_soon(self._pass_on, env, source, target, both, nursery, ids)
        await client.aclose()
        await broker.aclose()

    async def _pass_on(
        self, env: SimEnv, source: Any, target: Any, both: trio.Nursery, nursery: trio.Nursery, ids: list[int]
    ) -> None:
        """Pass on what a side sends. `ids` becomes the client's producer id and its key."""
        codec = Connection()
        codec.allow_frames(1 << 24)
        with suppress(LinnError, trio.BrokenResourceError):
            while count := await source.receive_into(codec.buffer()):
                for event in codec.received(count):
                    message = event.message
                    if not ids and isinstance(message, m.Hello | m.Welcome) and message.producer_id:
                        ids += message.producer_id, message.producer_key
                    for what in self._faults_of(event):
                        await self._spoil(what, event, env, target, nursery, ids)
                    await target.send(_bytes_of(event))
                    for what in self._after:
                        await self._after_it(what)
        both.cancel_scope.cancel()

    def _faults_of(self, event: Event) -> list[str]:
        self._after: list[str] = []
        arrow = _arrow(event.message)
        number = self.seen[arrow]
        self.seen[arrow] += 1
        found = [what for (name, nth, what) in self.faults if (name, nth) == (arrow, number)]
        self._after = [what for what in found if what.endswith("after it")]
        return [what for what in found if not what.endswith("after it")]

    async def _spoil(
        self, what: str, event: Event, env: SimEnv, target: Any, nursery: trio.Nursery, ids: Sequence[int]
    ) -> None:
        if what == "lose it":
            raise trio.BrokenResourceError
        if what == "cut it in the middle":
            content = b"".join(_bytes_of(event))
            await target.send([content[: len(content) // 2]])
            raise trio.BrokenResourceError
        if what.startswith("send it"):
            delay_s = 0.0 if what == "send it twice" else self.rng.choice([0.05, 0.3, 2.0, 4.0])
            batches = [bytes(batch.message) for batch in event.batches]
            nursery.start_soon(self._send_again, env, event.message, batches, delay_s, ids)
            return
        self._kill(what)

    async def _after_it(self, what: str) -> None:
        await trio.sleep(self.rng.choice([0, 0.0005, 0.002, 0.01]))
        self._kill(what)

    def _kill(self, what: str) -> None:
        if what.startswith("kill the broker"):
            self.broker.kill()
        elif what.startswith("lose power"):
            self.lost_power = True
            self.broker.crash()
        else:
            self.rng.choice(self.clients).env.kill()

    async def _send_again(
        self, env: SimEnv, message: m.Message, batches: Sequence[bytes], delay_s: float, ids: Sequence[int]
    ) -> None:
        """Send a copy of a publish over another connection, as one that was believed lost might bring it: no connection
        outlives the broker's process.
        """
        broker = self.broker
        await trio.sleep(delay_s)
        if self.broker is not broker:
            return
        with suppress(LinnError, EOFError):
            client = RawClient(await env.net.connect(ADDRESS))
            await client.greet("late", *ids)
            await client.send(message, [RecordBatch(bytearray(batch)) for batch in batches])
            await trio.sleep(1)
            await client.stream.aclose()

    # --- the verdict ---

    async def _check(self) -> None:
        client = RawClient(await self.probe.net.connect(ADDRESS))
        await client.greet()
        found = {
            (topic, index): await _read(client, topic, index)
            for topic, partitions in STREAMS.items()
            for index in range(partitions)
        }
        for place, taken in self.taken.items():
            left = await _read_queue(client, *place)
            found[place] = [value for _, value in sorted({**taken, **left}.items())]
        await client.stream.aclose()
        for place, stored in found.items():
            twice = [value for value, count in Counter(stored).items() if count > 1]
            assert not twice, f"{place} holds {twice} twice: {stored}"
            for publisher in self.clients:
                mine = [int(value.split(":")[1]) for value in stored if value.startswith(publisher.name)]
                wrong = [(earlier, later) for earlier, later in pairwise(mine) if earlier > later]
                assert not wrong, f"{place} holds {wrong} of {publisher.name} out of order: {mine}"
        by_topic = {topic: {v for (t, _), stored in found.items() if t == topic for v in stored} for topic, _ in found}
        for publisher in self.clients:
            for value, topics in publisher.confirmed.items():
                for topic in topics:
                    lost = value not in by_topic[topic]
                    assert not lost or (self.lost_power and self.syncs == "os"), f"{value} is not in {topic}"


class Publisher:
    """One producer with its client, which may be killed and started again."""

    def __init__(self, run: Run, name: str, **target: Any) -> None:
        self.name = name
        self.confirmed: dict[str, str | tuple[str, ...]] = {}
        self._run = run
        self._rng = random.Random(f"{run.seed}/{name}")
        self._target = target
        self._number = 0
        self.env = SimEnv(run.seed, name=name, world=run.probe.world)

    async def run(self) -> None:
        while await self.env.run_until_death(self._publish_all):
            self.env = self.env.restart()
            await trio.sleep(0.05)

    async def _publish_all(self, env: SimEnv) -> None:
        while self._number < RECORDS:
            with suppress(LinnError):
                timeout_s = self._run.timeout_s
                async with linn.connect(f"linn://{PROXY}", env=env, request_timeout_s=timeout_s) as client:
                    await self._publish_with(client)
            await trio.sleep(0.05)

    async def _publish_with(self, client: Client) -> None:
        # Mostly so small that each record is a batch, of which several are in flight.
        async with client.producer(**self._target, batch_bytes_max=self._run.batch_bytes_max) as producer:
            while self._number < RECORDS:
                async with trio.open_nursery() as nursery:
                    for _ in range(self._rng.randint(1, 12)):
                        begun = trio.Event()
                        nursery.start_soon(self._publish, producer, self._number, begun)
                        self._number += 1
                        await begun.wait()
                await trio.sleep(self._rng.uniform(0, 0.05))

    async def _publish(self, producer: Producer, number: int, begun: trio.Event) -> None:
        value = f"{self.name}:{number}:" + "." * self._rng.randrange(100)
        routing_key = self._rng.choice(list(KEYS)) if "exchange" in self._target else ""
        publishing = producer.publish(value.encode(), routing_key=routing_key)
        begun.set()
        try:
            await publishing
        except ProducerError:
            raise  # The client keeps the rules.
        except LinnError:
            pass
        else:
            self.confirmed[value] = KEYS[routing_key] if routing_key else ("direct",)


def _arrow(message: m.Message) -> str:
    match message:
        case m.Hello():
            return "hello"
        case m.Welcome():
            return "welcome"
        case m.Publish():
            return "publish"
        case m.Published() | m.Failed():
            return "answer"
    return "other"


def _bytes_of(event: Event) -> list[Any]:
    return frames_of(event.message, event.correlation, event.batches)


async def _read(client: RawClient, topic: str, partition: int) -> list[str]:
    found: list[str] = []
    while more := await client.fetch(topic, partition, len(found)):
        found += more
    return found


async def _read_queue(client: RawClient, topic: str, partition: int) -> dict[int, str]:
    """The records that a queue still holds, by offset."""
    found: dict[int, str] = {}
    offset = (await client.call(m.FindOffset(topic, partition, place=m.Place.EARLIEST))).offset
    while batches := (await client.ask(m.Fetch(topic, partition, offset))).batches:
        for batch in batches:
            found.update(enumerate(values([batch]), batch.base_offset))
            offset = batch.end_offset
    return found


def walk(seed: int) -> None:
    """Run a seed. Raises what went wrong."""
    run_simulation(seed, Run(seed).run, virtual_s_max=2 * DONE_S_MAX)


if __name__ == "__main__":
    for text in sys.argv[1:]:
        walk(int(text))
        print(f"seed {text} holds")
