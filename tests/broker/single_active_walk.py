"""A random walk of consumers of a queue with a single active one: python single_active_walk.py SEED."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import trio
from raw_client import RawClient, broker_on, connected, values

from linn.core.broker.broker import Broker
from linn.core.queue.queue import Queue
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

TOML = '[topics.t]\nconsumers = "one"\nlease = "3s"\npartitions = 2\n'
STEPS = 80
NAMES = "", "", "ann", "bob"


@dataclass(eq=False)
class Member:
    """A consumer, and the deliveries that it has not settled."""

    client: RawClient
    subscription: int
    id: int
    """Its number at the queue."""
    stands_by: bool
    """Whether it got no records when it came."""
    held: list[Event] = field(default_factory=list)


class SingleActiveWalk:
    """One seed's walk. Laws: whoever is given records is the only one that holds any, and the first in rank as soon as
    nobody else holds any; what was acked never comes again; everything comes.
    """

    def __init__(self, seed: int, env: SimEnv, broker: Broker, publisher: RawClient) -> None:
        self.random = Random(seed)
        self.env = env
        self.broker = broker
        self.publisher = publisher
        self.members: list[Member] = []
        self.joined = 0
        self.published = 0
        self.acked = set[str]()
        self.seen = set[tuple[int, int]]()
        """(partition, delivery id) of each lease that was there before."""
        self.is_single = True

    @property
    def queue(self) -> Queue:
        """The queue."""
        queue = self.broker.catalog.topics["t"].queue
        assert queue is not None
        return queue

    async def run(self) -> None:
        """Take all steps, then consume what is left."""
        steps: list[Callable[[], Awaitable[None]]] = [self._publish, self._join, self._leave, self._crash, self._wait]
        steps += [self._settle, self._settle, self._settle, self._change]
        for _ in range(STEPS):
            await self.random.choice(steps)()
            await self._look()
        while self.members:
            await self._crash()
        await self._look()
        await self._join()
        while len(self.acked) < self.published:
            await self._look()
            assert self.members[0].held, "what is left comes to the only consumer"
            await self._settle_all(self.members[0], 0)

    # --- steps ---

    async def _publish(self) -> None:
        count = self.random.randint(1, 6)
        await self.publisher.publish("t", [f"{self.published + at}" for at in range(count)])
        self.published += count

    async def _join(self) -> None:
        client = await connected(self.env)
        credit, priority = self.random.randint(1, 4), self.random.randint(-1, 1)
        name = self.random.choice(NAMES)
        made = await client.call(m.Subscribe("t", credit=credit, priority=priority, member=name))
        self.joined += 1
        self.members.append(Member(client, made.subscription, self.joined, made.stands_by))

    async def _leave(self) -> None:
        if self.members:
            member = self._taken()
            await member.client.call(m.Unsubscribe(member.subscription))

    async def _crash(self) -> None:
        if self.members:
            await self._taken().client.stream.aclose()

    def _taken(self) -> Member:
        return self.members.pop(self.random.randrange(len(self.members)))

    async def _wait(self) -> None:
        await trio.sleep(4 * self.random.random())

    async def _settle(self) -> None:
        holding = [member for member in self.members if member.held]
        if holding:
            await self._settle_all(self.random.choice(holding), self.random.choice([0, 0, m.Verdict.NACK]))

    async def _settle_all(self, member: Member, verdict: int) -> None:
        held, member.held = member.held, []
        for event in held:
            refused = await member.client.settle(member.subscription, event, verdict)
            if not refused and not verdict:
                self.acked.update(values(event.batches))

    async def _change(self) -> None:
        if self.random.random() < 0.3:
            self.is_single = not self.is_single
            settings = {"consumers": "one" if self.is_single else "many"}
            await self.publisher.administer("topic.alter", name="t", settings=settings)

    # --- looking ---

    async def _look(self) -> None:
        """Receive what is on its way, and check."""
        for member in list(self.members):
            while not await member.client.is_silent(0.05):
                message = member.client.pushed[0].message
                if isinstance(message, m.Ended):  # Another has taken over its name.
                    self.members.remove(member)
                    break
                event = await member.client.delivery()
                again = self.acked.intersection(values(event.batches))
                assert not again, f"settled records come again: {again}"
                member.held.append(event)
        leases = [
            (place, lease.delivery_id, consumer)
            for consumer in range(1, self.joined + 1)
            for place, part in enumerate(self.queue.partition_queues)
            for lease in part.subscription.leases_of(consumer)
        ]
        for member in self.members:
            told = (member.client.active or [(0, not member.stands_by)])[-1][1]
            gets = self.queue.is_for(self.queue.consumers[member.id])
            assert told == gets, "each consumer knows whether it gets records"
        new = {consumer for place, id, consumer in leases if (place, id) not in self.seen}
        self.seen.update((place, id) for place, id, _ in leases)
        if not self.is_single:
            return
        assert not new or new == {consumer for _, _, consumer in leases}, "two consumers hold records at a time"
        consumers = self.queue.consumers.values()
        best = max(consumers, key=lambda it: (it.priority, -it.id), default=None)
        single = self.queue.single
        assert single is not None
        assert single.active in (None, best), "the active consumer is the first in rank"
        if not {consumer for _, _, consumer in leases} - {best.id if best is not None else 0}:
            assert single.active is best, "a takeover waits for nobody who holds nothing"


def walk(seed: int) -> None:
    """Run one seed. Raises AssertionError."""

    async def scenario(env: SimEnv) -> None:
        async with broker_on(env, TOML) as broker:
            await SingleActiveWalk(seed, env, broker, await connected(env)).run()

    run_simulation(seed, scenario)


if __name__ == "__main__":
    walk(int(sys.argv[1]))
