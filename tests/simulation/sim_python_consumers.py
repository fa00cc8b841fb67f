"""Consumers with the Python client: an iteration that settles what comes, over whatever happens to the connection."""

from __future__ import annotations

import trio
from sim_plan import ConsumerPlan
from sim_world import World, check_foreseen

from linn.client import Client, Consumer, Message, connect
from linn.core.errors.tree import ConnectionLost, LinnError, RequestTimeout
from linn.testing.history import Answered, Asked, Delivered, Joined, Left, Verdict


class PythonConsumer:
    """One consumer of a queue or of a named subscription, or one member of a group."""

    def __init__(self, world: World, plan: ConsumerPlan) -> None:
        self.world = world
        self.plan = plan
        self.rng = world.rng(plan.name)
        self._count = 0

    async def run(self) -> None:
        env = self.world.nodes[self.plan.node]
        while not self.world.is_over:
            try:
                async with connect("linn://127.0.0.1:5466", env=env, request_timeout_s=20) as client:
                    await self._consume(client)
            except LinnError as error:
                check_foreseen(error)
            await trio.sleep(self.rng.uniform(0.05, 0.4))

    async def _consume(self, client: Client) -> None:
        plan = self.plan
        name = ""
        try:
            as_name = plan.name if plan.shared else None
            async with client.consumer(
                plan.topic, group=plan.group, prefetch=plan.credit, name=as_name, shared=plan.shared
            ) as consumer:
                name = self._join()
                await self._iterate(consumer)
        finally:
            if name:
                self.world.history.add(Left(name, plan.topic))

    def _join(self) -> str:
        self._count += 1
        name = f"{self.plan.name}#{self._count}"
        plan = self.plan
        self.world.history.add(Joined(self.world.life, name, plan.topic, plan.group, releases=True, shared=plan.shared))
        return name

    async def _iterate(self, consumer: Consumer) -> None:
        while not self.world.is_over:
            message: Message | None = None
            with trio.move_on_after(0.5):
                message = await anext(consumer)
            if message is None:
                continue
            life = self._tell(message)
            if life is not None:
                await self._settle(message, life)
            if not self.world.is_closing and self.rng.random() < self.plan.leave:
                return

    def _tell(self, message: Message) -> int | None:
        """Tell the history of a message; the life that it is from, None: what it belongs to is neither."""
        batch = message.batch
        subscription = batch._subscription
        assert subscription is not None
        life = int(subscription.connection.welcome.broker)
        delivery = batch._delivery
        id = delivery.delivery_id if delivery is not None and not self.plan.group else 0
        attempt = delivery.attempt if delivery is not None else 0
        if not self.plan.group and not id:
            return None  # The topic is a stream at present, and this a reader of it.
        name = f"{self.plan.name}#{self._count}"
        value = (message.value or b"").decode()
        self.world.history.add(
            Delivered(
                life,
                name,
                self.plan.topic,
                message.partition,
                message.offset,
                (value,),
                id,
                attempt,
                group=self.plan.group,
                shared=self.plan.shared,
            )
        )
        return life

    async def _settle(self, message: Message, life: int) -> None:
        verdict = self._verdict()
        add = self.world.history.add
        delivery = message.batch._delivery
        asked = add(
            Asked(
                life,
                f"{self.plan.name}#{self._count}",
                self.plan.topic,
                message.partition,
                message.offset,
                message.offset + 1,
                verdict,
                delivery.delivery_id if delivery is not None and not self.plan.group else 0,
                group=self.plan.group,
                shared=self.plan.shared,
            )
        )
        settling = {"ack": message.ack, "nack": message.nack, "reject": message.reject}[verdict]()
        if self.rng.random() < 0.3:
            return  # A refusal is raised by the next step.
        try:
            await settling
        except (ConnectionLost, RequestTimeout):
            return
        except LinnError as error:
            check_foreseen(error)
            add(Answered(asked, f"{error.code} to the client"))
            return
        add(Answered(asked))

    def _verdict(self) -> Verdict:
        chance = self.rng.random()
        if self.world.is_closing or self.plan.group or chance >= self.plan.nack + self.plan.reject:
            return "ack"
        return "nack" if chance < self.plan.nack else "reject"
