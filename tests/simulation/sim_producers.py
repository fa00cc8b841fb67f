"""Simulated producers: by hand, each record sent once, and with the Python client, which sends again."""

from __future__ import annotations

import random
from collections import deque

import trio
from raw_client import RawClient, Refused
from sim_plan import EXCHANGE, ProducerPlan
from sim_world import REQUEST_S_MAX, World, check_foreseen

from linn.client import Client, Producer, Receipt, connect
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.batch.key_hash import key_hash
from linn.core.batch.record import Record
from linn.core.batch.routes import pair_of
from linn.core.errors.tree import ConnectionLost, LinnError, RequestTimeout
from linn.testing.history import Confirmed, Published
from linn.testing.history import Refused as PublishRefused
from linn.wire import messages as m

_ACKS = {"none": m.Acks.NONE, "leader": m.Acks.LEADER}


class _Producer:
    """The common part of both: numbered records."""

    def __init__(self, world: World, plan: ProducerPlan) -> None:
        self.world = world
        self.plan = plan
        self.rng: random.Random = world.rng(plan.name)
        self.number = 0

    @property
    def is_done(self) -> bool:
        return self.world.is_closing or self.number >= self.world.plan.records_max

    def routing_key(self) -> str:
        """One for the next records."""
        return self.rng.choice(["k0", "k1"]) if self.plan.topic is None else ""

    def delay_ms(self) -> int:
        """The delay of the next records; 0: they come at once."""
        return self.rng.choice([50, 400, 2_000]) if self.plan.later and self.rng.random() < self.plan.later else 0

    def next(self, routing_key: str, delay_ms: int = 0) -> Record:
        """The next record, told to the history. One with a delay is in no order with others."""
        plan, rng = self.plan, self.rng
        name = f"{plan.name}:{self.number}"
        padding = "." * rng.randrange(plan.size + 1)
        key = f"key{rng.randrange(plan.keys)}" if plan.keys else ""
        topics = (plan.topic,) if plan.topic is not None else self.world.plan.topics_of(routing_key)
        self.world.history.add(
            Published(
                name + padding,
                f"{plan.name}/{self.number}" if delay_ms else plan.name,
                self.number,
                topics,
                key,
                committed=plan.acks != "none",
            )
        )
        self.number += 1
        priority = rng.randrange(plan.priorities) if plan.priorities > 1 else 0
        return Record(
            value=(name + padding).encode(),
            key=key.encode() or None,
            routing_key=routing_key,
            priority=priority,
            delay_ms=delay_ms,
        )


class RawProducer(_Producer):
    """Sends batches, up to a window of them unanswered, and never one again."""

    async def run(self) -> None:
        await self.world.keep_at(self.plan.node, self.plan.name, self._work)

    async def _work(self, client: RawClient, life: int) -> None:
        waiting: deque[tuple[int, list[Record]]] = deque()
        plan = self.plan
        while not self.is_done:
            routing_key, delay_ms = self.routing_key(), self.delay_ms()
            batch = [self.next(routing_key, delay_ms) for _ in range(self.rng.randint(1, plan.batch))]
            request = m.Publish(
                plan.topic or EXCHANGE, plan.topic is None, acks=_ACKS[plan.acks], partition=plan.partition
            )
            made = build_batch(self._columns(batch))
            waiting.append((await client.send(request, [made]), batch))
            while len(waiting) >= plan.window:
                await self._answer(client, life, *waiting.popleft())
            await trio.sleep(self.rng.uniform(0, plan.pause_s))
        while waiting:
            await self._answer(client, life, *waiting.popleft())

    def _columns(self, batch: list[Record]) -> BatchColumns:
        keys = [record.key for record in batch]
        has_keys = any(key is not None for key in keys)
        return BatchColumns(
            [record.value for record in batch],
            timestamp_ms=0,
            base_id=self.rng.getrandbits(127),
            keys=keys if has_keys else None,
            pairs=(pair_of(batch[0].routing_key, {}),) if batch[0].routing_key else (),
            key_hashes=[key_hash(key) for key in keys] if has_keys else None,
            priorities=[record.priority for record in batch] if self.plan.priorities > 1 else None,
            delays_ms=[record.delay_ms for record in batch] if batch[0].delay_ms else None,
        )

    async def _answer(self, client: RawClient, life: int, correlation: int, batch: list[Record]) -> None:
        add = self.world.history.add
        values = [(record.value or b"").decode() for record in batch]
        try:
            with trio.fail_after(REQUEST_S_MAX):
                event = await client.answer(correlation)
        except Refused as refused:
            check_foreseen(refused)
            for value in values:
                add(PublishRefused(life, value, refused.code))
            return
        (placement,) = event.message.placements  # type: ignore[attr-defined]
        for index, value in enumerate(values):
            if placement.partition >= 0 and self.plan.topic is not None and not batch[0].delay_ms:
                add(Confirmed(life, value, placement.partition, placement.base_offset + index))
            else:
                add(Confirmed(life, value))


class PythonProducer(_Producer):
    """The Python client with its defaults."""

    async def run(self) -> None:
        env = self.world.nodes[self.plan.node]
        while not self.is_done:
            try:
                async with connect("linn://127.0.0.1:5466", env=env, request_timeout_s=20) as client:
                    await self._work(client)
            except LinnError as error:
                check_foreseen(error)
                await trio.sleep(self.rng.uniform(0.05, 0.2))

    async def _work(self, client: Client) -> None:
        plan = self.plan
        target = {"exchange": EXCHANGE} if plan.topic is None else {"topic": plan.topic}
        async with client.producer(**target, acks=plan.acks) as producer:
            while not self.is_done:
                async with trio.open_nursery() as nursery:
                    for _ in range(self.rng.randint(1, plan.batch)):
                        record = self.next(self.routing_key(), self.delay_ms())
                        begun = trio.Event()
                        nursery.start_soon(self._publish, client, producer, record, begun)
                        await begun.wait()
                await trio.sleep(self.rng.uniform(0, plan.pause_s))

    async def _publish(self, client: Client, producer: Producer, record: Record, begun: trio.Event) -> None:
        value = (record.value or b"").decode()
        publishing = producer.publish(
            record.value,
            key=record.key,
            routing_key=record.routing_key,
            priority=record.priority,
            delay_ms=record.delay_ms,
        )
        begun.set()
        try:
            receipt = await publishing
        except (ConnectionLost, RequestTimeout):
            return
        except LinnError as error:
            check_foreseen(error)
            return
        self._confirm(client, value, receipt, has_place=not record.delay_ms)

    def _confirm(self, client: Client, value: str, receipt: Receipt, *, has_place: bool) -> None:
        if self.plan.acks == "none":
            return  # Handed to the connection, and no more is said.
        # An answer and the connection that it came by are known in the same moment.
        life = int(client.broker or self.world.life)
        if has_place and receipt.topic is not None and receipt.offset is not None and receipt.partition is not None:
            self.world.history.add(Confirmed(life, value, receipt.partition, receipt.offset))
        else:
            self.world.history.add(Confirmed(life, value))
