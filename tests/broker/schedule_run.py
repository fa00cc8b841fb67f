"""Runs of delayed records while power is lost again and again, and the clock jumps."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from uuid import UUID

import trio
from raw_client import ALWAYS, RawClient, after_power_loss, broker_on, connected

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = ALWAYS + '[topics.t]\nkind = "stream"\nstatus = "7d"\n'
LIVES = 5
BATCHES = 12
JUMPS_MS = (-2_000, -300, 300, 2_000)


class Life:
    """The records of one run, by their values."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.has_jumps = bool(seed % 3)
        self.early_ms = 0
        """By how much a record may seem to be early: the clock was set back between its departure and its arrival."""
        self.count = 0
        self.dues_ms: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self.changed: set[str] = set()
        """Records that were moved or cancelled, or perhaps."""
        self.cancelled: set[str] = set()
        self.confirmed: dict[str, int] = {}
        """The wall times at which records were confirmed."""

    async def publish(self, env: SimEnv, client: RawClient) -> None:
        """Publish some records, for one time."""
        contents = [str(number) for number in range(self.count, self.count + self.rng.randint(1, 4))]
        self.count += len(contents)
        wait_ms = self.rng.choice([1, 200, 1_000, 1_000, 4_000, 20_000])
        due_ms = env.clock.now_ms() + wait_ms
        self.dues_ms.update(dict.fromkeys(contents, due_ms))
        properties: dict[str, int] = {"delay_ms": wait_ms} if self.rng.random() < 0.5 else {"due_ms": due_ms}
        made = [Record(value=each.encode(), id=UUID(int=int(each)), **properties) for each in contents]
        (place,) = (await client.call(m.Publish("t"), [build_from_records(made, base_id=0)])).placements
        self.ids.update({each: f"0/{place.base_offset + at}" for at, each in enumerate(contents)})
        self.confirmed.update(dict.fromkeys(contents, env.clock.now_ms()))

    async def change(self, env: SimEnv, client: RawClient) -> None:
        """Cancel or move some records."""
        chosen = self.rng.sample(sorted(self.ids), min(len(self.ids), 2))
        ids, is_move = [self.ids[value] for value in chosen], self.rng.random() < 0.7
        self.changed.update(chosen)
        if is_move:
            due_ms = env.clock.now_ms() + self.rng.choice([0, 500, 3_000, 9_000])
            before = {value: self.dues_ms[value] for value in chosen}
            self.dues_ms.update({value: min(due_ms, before[value]) for value in chosen})
            found = await client.administer("scheduled.move", topic="t", ids=ids, due_ms=due_ms)
            for value, each in zip(chosen, found, strict=True):
                self.dues_ms[value] = due_ms if each["outcome"] == "moved" else before[value]
        else:
            found = await client.administer("scheduled.cancel", topic="t", ids=ids)
            outcomes = [each["outcome"] for each in found]
            self.cancelled.update(value for value, outcome in zip(chosen, outcomes, strict=True) if outcome[0] == "c")

    async def check_states(self, client: RawClient, come: frozenset[str] = frozenset({"scheduled", "stored"})) -> None:
        """Check that the status of each confirmed record is one that it may have."""
        asked = sorted(self.confirmed)
        ids = [str(UUID(int=int(value))) for value in asked]
        for each, value in zip(await client.administer("message.status", topic="t", ids=ids), asked, strict=True):
            may_be = {"cancelled"} if value in self.cancelled else come
            if value in self.changed - self.cancelled:
                may_be = come | {"cancelled", "unknown"}  # Of a cancel without an answer the state may be lost.
            assert each["state"] in may_be, (
                f"{value} {'was cancelled, and ' * (value in self.cancelled)}is {each['state']}"
            )

    def jump(self, env: SimEnv) -> None:
        """Set the clock."""
        ms = self.rng.choice(JUMPS_MS)
        self.early_ms += max(0, -ms)
        env.clock.jump(ms)

    async def work(self, env: SimEnv) -> None:
        """One start of the broker."""
        async with broker_on(env, TEXT):
            client = await connected(env)
            await self.check_states(client)
            for _ in range(BATCHES):
                deed = self.rng.choice(["publish", "publish", "wait", "jump", "change"])
                if deed == "publish":
                    await self.publish(env, client)
                elif deed == "change":
                    await self.change(env, client)
                elif deed == "wait":
                    await trio.sleep(self.rng.choice([0, 0.01, 0.2, 1, 3]))
                elif self.has_jumps:
                    self.jump(env)


async def _all(client: RawClient) -> list[RecordBatch]:
    found: list[RecordBatch] = []
    while batches := (
        await client.ask(m.Fetch("t", 0, found[-1].end_offset if found else 0, bytes_max=1 << 20))
    ).batches:
        found += batches
    return found


def _check(life: Life, batches: list[RecordBatch]) -> None:
    found: dict[str, int] = {}
    for batch in batches:
        for record in batch.records():
            value = (record.value or b"").decode()
            assert value not in found, f"{value} has come twice"
            found[value] = batch.append_time_ms
            assert (record.delay_ms, record.due_ms) == (0, 0)
            early_ms = life.dues_ms[value] - batch.append_time_ms
            assert early_ms <= life.early_ms, f"{value} has come early"
    assert life.confirmed.keys() - life.changed <= found.keys(), "what was confirmed has come"
    assert not found.keys() & life.cancelled, "what was cancelled has not come"
    if not life.has_jumps:
        order = [value for value in found if value in life.confirmed.keys() - life.changed]
        for before, after in pairwise(order):
            if life.confirmed[after] < life.dues_ms[before]:
                assert life.dues_ms[before] <= life.dues_ms[after], f"{after} was due before {before}"


def walk(seed: int) -> None:
    """Lose power a few times; in the end each record has come once, and not before its time. Raises AssertionError."""
    life = Life(seed)

    async def scenario(env: SimEnv) -> None:
        for _ in range(LIVES):
            env.disk.sync_delay_s_max = life.rng.choice([0.0, 0.01])
            env.disk.crash_at = len(env.disk.operations) + life.rng.randint(5, 200)
            if await env.run_until_death(life.work):
                env = await after_power_loss(env, TEXT)
            env.disk.crash_at = None
        async with broker_on(env, TEXT) as broker:
            await trio.sleep(60)
            assert broker.topics["t"].timing.waiting_count == 0
            await life.check_states(await connected(env), frozenset({"stored"}))
            _check(life, await _all(await connected(env)))
            counts = Counter(batch.producer_epoch for batch in await _all(await connected(env)))
            assert counts.keys() <= {0}, "the epoch never changes"

    run_simulation(seed, scenario)
