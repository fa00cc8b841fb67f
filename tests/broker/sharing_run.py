"""Consumers that share a topic, come, and go, while one producer runs into a limit: one run for each seed.

A queue that is full lets its producer wait; workers of the queue and members of a group are connections that end with
records in hand. Nothing crashes here: the broker does in `tests/simulation`.
"""

from __future__ import annotations

import random

import trio
from raw_client import ALWAYS, RawClient, broker_on, connected, records, values

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = (
    ALWAYS
    + '[topics.q]\nlease = "1h"\nmessage_bytes_max = "4KiB"\nbytes_max = "8KiB"\noverflow = "block"\n'
    + '[topics.s]\nkind = "stream"\npartitions = 4\n'
)
BATCHES = 40
LARGE = 3_000
"""Bytes: two of these leave room for a small batch and not for a third."""
ENDS_WITHIN_S = 60
"""The time limit of a run, much less than the lease."""


class SharingRun:
    """The state that the clients know."""

    def __init__(self, seed: int, env: SimEnv) -> None:
        self.rng = random.Random(seed)
        self.env = env
        self.sent: list[str] = []
        self.has_sent_all = False
        self.stored: dict[int, str] = {}
        """Records of the queue by offset, as delivered."""
        self.held: set[int] = set()
        self.settled: set[int] = set()

    async def run(self) -> None:
        async with broker_on(self.env, TEXT), trio.open_nursery() as nursery:
            nursery.start_soon(self._publish)
            for _ in range(3):
                nursery.start_soon(self._members)
            with trio.move_on_after(ENDS_WITHIN_S):
                async with trio.open_nursery() as workers:
                    for _ in range(2):
                        workers.start_soon(self._workers)
            nursery.cancel_scope.cancel()
        assert len(self.settled) == len(self.sent), "what a worker held that went away is given to others at once"
        in_order = [self.stored[offset] for offset in sorted(self.stored)]
        assert in_order == self.sent, "one connection's records are stored in the order in which it sent them"

    async def _publish(self) -> None:
        """Send without waiting for answers: what comes behind a batch that waits for room waits with it."""
        client = await connected(self.env)
        for _ in range(BATCHES):
            size = self.rng.choice([1, 1, 100, LARGE])
            count = self.rng.randint(1, 4) if size < LARGE else 1
            batch = [f"{len(self.sent) + n}".ljust(size, ".") for n in range(count)]
            self.sent += batch
            await client.send(m.Publish("q"), [records(batch)])
            await client.send(m.Publish("s", partition=self.rng.randrange(4)), [records(batch)])
            await trio.sleep(self.rng.choice([0, 0, 0.05]))
        self.has_sent_all = True
        await trio.sleep_forever()

    # --- the queue ---------------------------------------------------------------------------------------------------

    async def _workers(self) -> None:
        """One worker after another."""
        while not self.has_sent_all or len(self.settled) < len(self.sent):
            await self._work(await connected(self.env))

    async def _work(self, client: RawClient) -> None:
        subscription = (await client.call(m.Subscribe("q", credit=3))).subscription
        mine: set[int] = set()
        for _ in range(self.rng.randint(1, 8)):
            if await client.is_silent(1):
                break
            event = await client.delivery()
            first, end = event.batches[0].base_offset, event.batches[-1].end_offset
            self._note(first, values(event.batches))
            mine |= set(range(first, end))
            await trio.sleep(self.rng.uniform(0, 0.02))
            if self.rng.random() < 0.3:
                continue
            self.held -= set(range(first, end))
            assert await client.settle(subscription, event) == [], "the lease lasts"
            mine -= set(range(first, end))
            self.settled |= set(range(first, end))
            await client.tell(m.Credit(subscription, end - first))
        self.held -= mine
        await client.stream.aclose()

    def _note(self, first: int, found: list[str]) -> None:
        for offset, value in enumerate(found, first):
            assert offset not in self.held, "no other consumer has a record while its lease lasts"
            assert self.stored.setdefault(offset, value) == value, "a record keeps its offset"
            self.held.add(offset)

    # --- the group ---------------------------------------------------------------------------------------------------

    async def _members(self) -> None:
        """One member after another, with nobody in between."""
        while True:
            await self._be_member(await connected(self.env))
            await trio.sleep(self.rng.uniform(0, 0.2))

    async def _be_member(self, client: RawClient) -> None:
        subscription = (await client.call(m.Subscribe("s", group="g", credit=4))).subscription
        owned: set[int] = set()
        until = trio.current_time() + self.rng.uniform(0, 1)
        while trio.current_time() < until and not await client.is_silent(0.2):
            event = await client.push()
            message = event.message
            if isinstance(message, m.Assigned):
                owned = set(message.partitions)
                if message.revoked:
                    await client.tell(m.Heartbeat(subscription, message.epoch))
                continue
            assert message.partition in owned, "a member reads what it owns, and nothing that it was told is another's"
            if self.rng.random() < 0.8:
                await client.settle(subscription, event)
                await client.tell(m.Credit(subscription, event.batches[-1].end_offset - event.batches[0].base_offset))
        await client.stream.aclose()


def share(seed: int) -> None:
    """Run the workers. Raises AssertionError if a promise was broken."""
    run_simulation(seed, lambda env: SharingRun(seed, env).run(), virtual_s_max=2 * ENDS_WITHIN_S)
