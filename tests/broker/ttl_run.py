"""A random life of a queue whose records expire: consumers, clocks that jump, restarts; and what must hold of it."""

from __future__ import annotations

from random import Random

import trio
from raw_client import RawClient, broker_on, connected, records

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

TTL_MS = 20_000
OWN_ONLY = """
[topics.t]
lease = "10s"
dead_letter = "dead"
[topics.dead]
"""
TEXT = OWN_ONLY.replace("lease", f'ttl = "{TTL_MS}ms"\nlease')
TTLS_MS = (0, 0, 2_000, 7_000, 60_000)
FOR_EVER_MS = 1 << 60
IN_FLIGHT_MS = 500
"""Time from a delivery to its arrival, at most."""

JUMP_MS = 3_000
"""The largest jump of the clock: it may come between a death and the copy, which says the time."""


class Life:
    """The records of one run, by their values, and their consumer."""

    def __init__(self, seed: int, env: SimEnv) -> None:
        self.rng = Random(seed)
        self.env = env
        self.text, self.topic_ttl_ms = (TEXT, TTL_MS) if seed % 2 else (OWN_ONLY, FOR_EVER_MS)
        self.count = 0
        self.published_ms: dict[str, int] = {}
        self.ttls_ms: dict[str, int] = {}
        self.settled: set[str] = set()
        self.rejected: set[str] = set()
        self.held: list[tuple[int, Event]] = []
        self.behind_ms = 0
        """By how much the wall clock has been set back, all times together."""
        self.client: RawClient
        self.subscription = 0

    async def connect(self) -> None:
        self.client, self.held = await connected(self.env), []
        self.subscription = (await self.client.call(m.Subscribe("t"))).subscription

    async def publish(self) -> None:
        ttl_ms = self.rng.choice(TTLS_MS)
        values = [str(number) for number in range(self.count, self.count + self.rng.randint(1, 4))]
        self.count += len(values)
        now_ms = self.env.clock.now_ms()
        for value in values:
            self.published_ms[value] = now_ms
            self.ttls_ms[value] = min(ttl_ms or FOR_EVER_MS, self.topic_ttl_ms)
        await self.client.call(m.Publish("t"), [records(values, ttl_ms=ttl_ms)])

    async def take(self) -> None:
        event = await self.client.pull(self.subscription, self.rng.randint(1, 4))
        for batch in event.batches:
            age_ms = self.env.clock.now_ms() - batch.append_time_ms
            for record in batch.records():
                value = (record.value or b"").decode()
                assert age_ms < self.ttls_ms[value] + IN_FLIGHT_MS, "no consumer gets a record that has expired"
                assert value not in self.settled | self.rejected, "what is settled does not come back"
        if event.batches:
            self.held.append((self.subscription, event))

    async def settle(self) -> None:
        if not self.held:
            return
        subscription, event = self.held.pop(self.rng.randrange(len(self.held)))
        verdict = self.rng.choice([m.Verdict.ACK, m.Verdict.ACK, m.Verdict.NACK, m.Verdict.REJECT])
        delay_ms = self.rng.choice([0, 3_000]) if verdict == m.Verdict.NACK else 0
        refused = await self.client.settle(subscription, event, verdict, delay_ms)
        if not refused and verdict != m.Verdict.NACK:
            ended = self.settled if verdict == m.Verdict.ACK else self.rejected
            ended |= {(record.value or b"").decode() for batch in event.batches for record in batch.records()}

    async def pass_time(self) -> None:
        await trio.sleep(self.rng.choice([0, 0.5, 1, 3, 12]))

    async def jump(self) -> None:
        ms = self.rng.choice([-JUMP_MS, -1_000, 1_000, JUMP_MS])
        self.behind_ms += max(0, -ms)
        self.env.clock.jump(ms)

    async def check_dead(self) -> None:
        """Wait for a long time, and see that all records have expired that have a TTL and are not settled."""
        await trio.sleep(max(TTLS_MS) / 1000 + self.behind_ms / 1000 + 120)
        await self.connect()  # The connection of one that sends nothing does not last so long.
        subscription = (await self.client.call(m.Subscribe("dead"))).subscription
        dead: dict[str, str] = {}
        while (event := await self.client.pull(subscription, 100, wait_max_ms=500)).batches:
            for batch in event.batches:
                for record in batch.records():
                    value, labels = (record.value or b"").decode(), record.labels
                    assert value not in dead, "one copy of each"
                    dead[value] = str(labels["linn.dead.reason"])
                    assert (record.ttl_ms, record.delay_ms) == (0, 0), "a copy has no TTL, and stays"
                    late_ms = int(labels["linn.dead.time_ms"]) - self.published_ms[value]
                    if dead[value] == "expired":
                        assert late_ms >= self.ttls_ms[value] - JUMP_MS, "nothing expires early"
            await self.client.settle(subscription, event)
        assert {value for value, reason in dead.items() if reason == "rejected"} == self.rejected
        expired = {value for value, reason in dead.items() if reason == "expired"}
        mortal = {value for value, ttl_ms in self.ttls_ms.items() if ttl_ms < FOR_EVER_MS}
        assert expired == mortal - self.settled - self.rejected, "all else has expired, and nothing more"


async def live(seed: int, env: SimEnv) -> None:
    """One life over three starts of the broker."""
    life = Life(seed, env)
    deeds = [life.publish, life.take, life.take, life.settle, life.settle, life.pass_time, life.jump]
    for start in range(3):
        async with broker_on(env, life.text):
            await life.connect()
            for _ in range(30):
                await life.rng.choice(deeds)()
            if start == 2:
                await life.check_dead()


def walk(seed: int) -> None:
    """Run one life. Raises AssertionError where a promise was broken."""
    run_simulation(seed, lambda env: live(seed, env))
