"""A reader of a stream whose broker loses power again and again, with records that were not synced.

The reader keeps what it has read, by offset; told that the log parted from it, it drops what it has from there on. At
the end it has what the log has.
"""

from __future__ import annotations

import random

import trio
from raw_client import ADDRESS, after_power_loss, broker_on

import linn
from linn.core.errors.tree import LogTruncated
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

TOML = """
[storage.segmented-log]
fsync = "interval"
flush_interval = "300ms"
[topics.t]
kind = "stream"
partitions = 2
storage = "{storage}"
"""
LIVES = 4
PARTITIONS = 2


def walk(seed: int) -> int:
    """Run one; returns how often the reader was told that records were lost."""
    told = 0

    async def run(env: SimEnv) -> None:
        nonlocal told
        told = await _Walk(env, random.Random(seed)).run()

    run_simulation(seed, run)
    return told


class _Walk:
    def __init__(self, env: SimEnv, rng: random.Random) -> None:
        self._env = env
        self._node = SimEnv(1, name="broker", world=env.world)
        self._rng = rng
        self._toml = TOML.format(storage=rng.choice(["segmented-log", "segmented-log", "dram"]))
        self._read: list[dict[int, bytes | None]] = [{} for _ in range(PARTITIONS)]
        self._told = 0
        self._published = 0

    async def run(self) -> int:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._serve)
            async with linn.connect(f"linn://{ADDRESS}", env=self._env) as client, trio.open_nursery() as readers:
                readers.start_soon(self._consume, client)
                for _ in range(LIVES):
                    await self._live(client)
                    self._node.crash()
                    await trio.sleep(self._rng.uniform(0.1, 3))
                await self._publish(client)
                await trio.sleep(40)
                for partition, read in enumerate(self._read):
                    await self._compare(client, partition, read)
                readers.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
        return self._told

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        async def broker(env: SimEnv) -> None:
            async with broker_on(env, self._toml):
                if self._is_first:
                    self._is_first = False
                    task_status.started()
                await trio.sleep_forever()

        self._is_first = True
        while True:
            await self._node.run_until_death(broker)
            await trio.sleep(self._rng.uniform(0, 1))
            self._node = await after_power_loss(self._node, self._toml)

    async def _live(self, client: linn.Client) -> None:
        for _ in range(self._rng.randint(1, 30)):
            await self._publish(client)
            await trio.sleep(self._rng.choice([0, 0.01, 0.1]))

    async def _publish(self, client: linn.Client) -> None:
        async with client.producer("t") as producer:
            for _ in range(self._rng.randint(1, 4)):
                self._published += 1
                await producer.publish(b"%d" % self._published, key=b"%d" % self._rng.randrange(9))

    async def _consume(self, client: linn.Client) -> None:
        async with client.consumer("t") as consumer:
            while True:
                try:
                    message = await anext(consumer)
                except LogTruncated as error:
                    self._told += 1
                    read = self._read[error.partition]
                    kept = {at: value for at, value in read.items() if at < error.offset}
                    if len(kept) == len(read):
                        raise AssertionError("nothing that was read was lost") from error
                    self._read[error.partition] = kept
                else:
                    read = self._read[message.partition]
                    assert message.offset not in read, f"offset {message.offset} is given to two records"
                    read[message.offset] = message.value
                    if self._rng.random() < 0.2:
                        await trio.sleep(self._rng.choice([0, 0.1, 0.4]))  # Others arrive meanwhile.

    async def _compare(self, client: linn.Client, partition: int, read: dict[int, bytes | None]) -> None:
        offset, stored = 0, dict[int, bytes | None]()
        while True:
            fetched = await client.fetch("t", partition, offset)
            for batch in fetched.batches:
                stored |= {message.offset: message.value for message in batch}
            offset = fetched.next_offset
            if not fetched.batches:
                break
        assert read == stored, f"the reader of partition {partition} has something else than the log"
