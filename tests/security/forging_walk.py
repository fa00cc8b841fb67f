"""Random lives of a producer beside a client that forges its numbers: one seed is one run.

Law: the topic has the confirmed records of the owner, each once and in order, and nothing else. The owner is never
refused.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))  # Not by pytest alone: planted bugs are found here too.

from raw_client import ADDRESS, RawClient, Refused, broker_on, records

from linn.core.batch.batch import TRANSACTIONAL, RecordBatch
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TOPIC = '[topics.t]\nkind = "stream"\n'
LIVES, STEPS = 2, 12


def walk(seed: int) -> None:
    """Run one. Raises AssertionError with the law that was broken."""
    run_simulation(seed, lambda env: _Walk(env, random.Random(seed)).run())


class _Walk:
    def __init__(self, env: SimEnv, rng: random.Random) -> None:
        self._env = env
        self._rng = rng
        self._confirmed: list[str] = []
        self._id = self._key = self._epoch = self._next = 0

    async def run(self) -> None:
        for _ in range(LIVES):
            async with broker_on(self._env, TOPIC):
                owner = await self._connected(self._id, self._key)
                if not self._id:
                    self._id, self._key = owner.welcome.producer_id, owner.welcome.producer_key
                for _ in range(STEPS):
                    try:
                        await self._rng.choice([self._publish, self._commit, self._forge])(owner)
                    except Refused as refused:
                        raise AssertionError(f"the owner was refused: {refused}") from refused
                stored = await owner.fetch("t")
                assert stored == self._confirmed, f"stored is {stored}, and confirmed was {self._confirmed}"

    async def _connected(self, producer_id: int = 0, key: int = 0) -> RawClient:
        client = RawClient(await self._env.net.connect(ADDRESS))
        await client.greet("walk", producer_id, key)
        return client

    def _batch(self, text: str, attributes: int = 0, transaction: int = 0) -> RecordBatch:
        batch = records([text])
        batch.number(self._id, self._epoch, self._next, attributes, transaction)
        return batch

    async def _store(self, client: RawClient, batch: RecordBatch) -> None:
        await client.call(m.Publish("t", partition=0), [batch])

    async def _publish(self, owner: RawClient) -> None:
        text = f"plain {len(self._confirmed)}"
        await self._store(owner, self._batch(text))
        self._next += 1
        self._confirmed.append(text)

    async def _commit(self, owner: RawClient) -> None:
        """Publish in a transaction, during which the forger may try to end it."""
        opened = await owner.call(m.OpenTransactions("name", 60_000))
        numbers = opened.producer_id, opened.epoch, opened.number
        await owner.call(m.AddBranch(*numbers[:2], self._id))
        text = f"committed {len(self._confirmed)}"
        await self._store(owner, self._batch(text, TRANSACTIONAL, opened.number))
        self._next += 1
        if self._rng.random() < 0.7:
            await self._forge_an_end(numbers)
        await owner.call(m.EndTransaction(*numbers, True, [self._id]))
        self._confirmed.append(text)

    async def _forge_an_end(self, numbers: tuple[int, int, int]) -> None:
        attacker = await self._connected()
        with suppress(Refused):
            key = self._rng.choice([0, 1, attacker.welcome.producer_key])
            await attacker.call(m.EndTransaction(*numbers, False, producer_key=key))
        await attacker.stream.aclose()

    async def _forge(self, owner: RawClient) -> None:
        """Publish what the owner's next batch looks like, or one of a later epoch, perhaps with a key of its own."""
        attacker = await self._connected()
        if self._rng.random() < 0.5:
            key = self._rng.choice([1, attacker.welcome.producer_key])
            with suppress(Refused, EOFError):
                attacker = await self._connected(self._id, key)
        forged = records(["forged"])
        later = self._rng.random() < 0.3
        forged.number(self._id, self._epoch + later, 0 if later else self._next, 0)
        with suppress(Refused):
            await self._store(attacker, forged)
        await attacker.stream.aclose()
