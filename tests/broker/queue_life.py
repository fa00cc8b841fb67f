"""A random life of one queue with everything at once, and what must hold of it: python queue_life.py SEED [SEED ...].

Publishers and consumers, whose topic has an order, limits, times to live, ids and dead letters, and one or two phases;
scheduled records, some of them moved or cancelled; transactions; changes of kind, order and limits while records are
leased; questions about records; clocks that jump; kills and losses of power. The model is what clients were answered
(`queue_ledger`). It checks what is delivered, each choice of an order against all that was ready at that moment, and in
the end that each record has come to one end that its topic allows.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[1]))

import trio
from choices_of_orders import KEYLESS, check_choice
from queue_ledger import FOR_EVER_MS, QueueLedger, Sent, partition_of
from raw_client import ALWAYS, HAND_ID, RawClient, Refused, after_power_loss, broker_on, connected
from test_message_status import small_runs
from test_transactions import Owner
from watched_queue import checked_grants, noted_appends, noted_drops, replay

from linn.core.batch.builder import build_from_records, with_key_hashes
from linn.core.broker.broker import Broker
from linn.core.queue.lease import Lease
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.subscription import SharedSubscription
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

DEEDS = 20
"""Deeds in each life of the broker."""
JUMP_MS = 3_000
"""The largest jump of the clock."""
KEYS = 4
ROUNDS_MAX = 100
"""Rounds of the consumers in the end."""
ORDERS = ("fifo", "fifo", "priority", "fair", "key")
OVERFLOWS = ("block", "reject", "drop-head", "dead-letter")
LIMITS = ("unlimited", "unlimited", 3, 6, 15)
TTLS = ("unlimited", "unlimited", "15s")
WAITS_MS = (0, 500, 3_000, 15_000)
"""Times for which records are scheduled."""
WEIGHTS = {"0": 3, "2": 2}


@dataclass(eq=False)
class Consumer:
    """A consumer, and the deliveries that it has not settled, with their values."""

    name: str
    client: RawClient
    subscription: int
    held: list[tuple[Event, list[str]]] = field(default_factory=list)


class QueueLife:
    """The life of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.ledger = QueueLedger()
        self.sent = self.ledger.sent
        self.open: tuple[list[str], list[str]] = [], []
        """Records that the open transaction has published, and those that it settles."""
        self.lives = 3 if seed % 4 == 0 else 2
        self.two_phase = rng.random() < 0.25
        self.has_dedup = rng.random() < 0.5
        self.has_status = rng.random() < 0.5
        self.has_schedule = rng.random() < 0.5
        self.partitions = rng.choice([1, 1, 2])
        self.ttl_ms = FOR_EVER_MS
        self.settings: dict[str, object] = {
            "kind": rng.choice(["queue", "queue", "both"]),
            "partitions": self.partitions,
            "lease": "10s",
            "dead_letter": "dead",
            "delivery": "exactly-once" if self.two_phase else "at-least-once",
            "max_deliveries": rng.choice([2, 3, 20]),
            "redelivery_delay": rng.choice(["0s", "0s", "2s"]),
            "order": rng.choice(ORDERS),
            "order_by": "label.tenant",
        }
        optional: dict[str, tuple[bool, object]] = {
            "dedup": (self.has_dedup, "1h"),
            "status": (self.has_status, "1d"),
            "weights": (rng.random() < 0.5, WEIGHTS),
            "levels": (rng.random() < 0.5, 3),
            "order_window": (rng.random() < 0.3, 6),
        }
        self.settings |= {key: value for key, (is_set, value) in optional.items() if is_set}
        if rng.random() < 0.4:
            self.settings |= {"kind": "queue", "records_max": rng.choice(LIMITS[2:]), "overflow": rng.choice(OVERFLOWS)}
        self.env: SimEnv
        self.broker: Broker
        self.publisher: RawClient
        self.consumers: list[Consumer] = []
        self.wrong = self.ledger.wrong
        self.is_ending = False
        self.branch = HAND_ID
        """The producer id of the last transaction."""

    # --- lives -------------------------------------------------------------------------------------------------------

    async def live(self, env: SimEnv) -> None:
        """All lives of the broker."""
        for life in range(self.lives):
            is_last = life == self.lives - 1
            if not is_last and self.rng.random() < 0.7:
                env.disk.crash_at = len(env.disk.operations) + self.rng.randint(5, 250)
            await env.run_until_death(lambda env, life=life, is_last=is_last: self._work(env, life, is_last))  # type: ignore[misc]
            if is_last:
                assert not env.is_dead
                return
            if not env.is_dead:
                self.rng.choice([env.kill, env.crash])()
            env = await after_power_loss(env, ALWAYS)
            self._set_clock(env, self.rng.choice([0, 0, -JUMP_MS, JUMP_MS]))

    async def _work(self, env: SimEnv, life: int, is_last: bool) -> None:
        self.env = env
        if self.open[0] or self.open[1]:  # The connection of its owner is gone, and nobody goes on with it.
            self._end_open("aborted")
        with noted_appends("t", self.ledger.came), noted_drops(self.ledger.dropped), checked_grants(self.granted):
            async with broker_on(env, ALWAYS + '[topics.dead]\nkind = "stream"\n') as self.broker:
                self.publisher, self.consumers = await connected(env), []
                with suppress(Refused):  # It was made in an earlier life.
                    await self.publisher.administer("topic.create", name="t", settings=self.settings)
                for partition, end in self.broker.topics["t"].ends().items():
                    self.ledger.forget_lost(partition, end)
                self._check_kept()
                for name in ("ann", "bob"):
                    await self._join(name)
                for _ in range(DEEDS):
                    await self.rng.choice(_DEEDS)(self)
                    assert not self.wrong, self.wrong
                for part in [*self.parts(), *self.broker.topics["t"].timing.queues.values()]:
                    await replay(part, env.clock)
                if is_last:
                    await self._end()
                    assert not self.wrong, self.wrong

    async def _join(self, name: str) -> None:
        client = await connected(self.env)
        options: dict[str, Any] = {"member": name, "two_phase": True} if self.two_phase else {}
        shared = {"shared": ""}
        made = await client.call(m.Subscribe("t", **options, **shared))
        self.consumers.append(Consumer(name, client, made.subscription))

    # --- publishing --------------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        """Publish new records, or some once more whose ids the topic knows."""
        rng, resent = self.rng, list[str]()
        if self.has_dedup and rng.random() < 0.3:
            again = [value for value, sent in self.sent.items() if sent.state in ("stored", "unknown")]
            resent = rng.sample(again, min(len(again), rng.randint(1, 3)))
        values = resent or [self._new_value() for _ in range(rng.randint(1, 4))]
        waits_ms = WAITS_MS if self.has_schedule and rng.random() < 0.3 else (0,)
        partition = partition_of(values[0]) if resent else None
        values = [value for value in values if partition in (None, partition_of(value))]
        await self._send({value: rng.choice(waits_ms) for value in values})

    def _new_value(self, *, is_plain: bool = False) -> str:
        """A value that says all about its record; `is_plain`: it goes to the first partition, and has no properties."""
        rng, number = self.rng, len(self.sent)
        partition = 0 if is_plain else rng.randrange(self.partitions)
        priority = 0 if is_plain or self.settings["order"] == "fifo" else rng.randrange(10)
        ttl_ms = 0 if is_plain else rng.choice([0, 0, 0, 2_000, 20_000])
        value = f"{partition}/{priority}/{KEYLESS if is_plain else rng.randrange(KEYS)}/{number}"
        self.sent[value] = Sent(ttl_ms or FOR_EVER_MS, UUID(int=number + 1))
        return value

    async def _send(self, waits_ms: dict[str, int]) -> None:
        """Publish records, by value with the time for which each is scheduled; 0: it comes at once."""
        ledger, has_id = self.ledger, self.has_dedup or self.has_status
        for partition in range(self.partitions):
            some = [value for value in waits_ms if partition_of(value) == partition]
            if not some:
                continue
            now_ms = self.env.clock.now_ms()
            made = [ledger.record(value, now_ms, wait_ms=waits_ms[value], has_id=has_id) for value in some]
            # With hashes, as clients send them: an order by key that comes later needs them.
            batch = with_key_hashes(build_from_records(made, base_id=len(self.sent) << 64))
            asked = await self.publisher.send(m.Publish("t", partition=partition), [batch])
            with trio.move_on_after(1):
                try:
                    answer = (await self.publisher.answer(asked)).message
                except Refused as refused:
                    self._refused(some, refused)
                    continue
                assert isinstance(answer, m.Published)
                (placement,) = answer.placements
                if placement.refused:  # Those with priorities, if it has no order; or all.
                    refused = [value for value in some if value.split("/")[1] != "0" or not placement.copies]
                    self._refused(refused, Refused(m.Failed(placement.refused[0].code, "")))
                    some = [value for value in some if value not in refused]
                is_later = all(waits_ms[value] for value in some)
                ledger.stored(partition, placement.base_offset, some, is_later=is_later)
                continue
            # It waits for room, and nobody waits for it.
            await self.publisher.stream.aclose()
            self.publisher = await connected(self.env)

    def check_code(self, refused: Refused, *codes: str) -> None:
        """Note that something was refused for another reason than these."""
        if refused.code not in codes:
            self.wrong.append(f"{refused}")

    def _refused(self, values: list[str], refused: Refused) -> None:
        self.check_code(refused, "topic.full", "message.in_doubt", "message.unsupported")
        for value in values:
            if self.sent[value].state == "unknown" and not self.has_dedup:
                self.sent[value].state = "refused"

    async def reschedule(self) -> None:
        """Cancel some scheduled records, or move them to another time."""
        ids = {id: sent for sent in self.sent.values() for id in sent.timers}
        chosen = self.rng.sample(sorted(ids), min(len(ids), 2))
        if not chosen:
            return
        if self.rng.random() < 0.5:
            before = {id: ids[id].timers[id] for id in chosen}
            for id in chosen:
                ids[id].timers[id] = "asked"
            for each in await self.publisher.administer("scheduled.cancel", topic="t", ids=chosen):
                is_cancelled = each["outcome"] == "cancelled"
                ids[each["id"]].timers[each["id"]] = "cancelled" if is_cancelled else before[each["id"]]
            return
        due_ms, dues_ms = self.env.clock.now_ms() + self.rng.choice([0, 500, 9_000]), {id: ids[id].due_ms for id in ids}
        for id in chosen:
            ids[id].due_ms = min(due_ms, ids[id].due_ms)
        for each in await self.publisher.administer("scheduled.move", topic="t", ids=chosen, due_ms=due_ms):
            if ids[each["id"]].sends == 1:
                ids[each["id"]].due_ms = due_ms if each["outcome"] == "moved" else dues_ms[each["id"]]

    async def transact(self) -> None:
        """Publish in a transaction, and settle records in it; mostly end it."""
        rng = self.rng
        self.branch += 1
        owner = await Owner.open(self.publisher, timeout_ms=20_000, branch=self.branch)
        values = [self._new_value(is_plain=True) for _ in range(rng.randint(0, 2))]
        holding = [it for it in self.consumers if it.held] if not self.two_phase else []
        self.open = values, []
        for value in values:
            self.sent[value].sends += 1
            with trio.move_on_after(1) as waits:
                try:
                    await owner.publish("t", [value], self.branch, id=self.sent[value].id)
                except Refused as refused:
                    self.check_code(refused, "topic.full", "transaction.aborted")
                    self.sent[value].state = "aborted"
            if waits.cancelled_caught:
                self._end_open("aborted")
                await self.publisher.stream.aclose()
                self.publisher = await connected(self.env)
                return
        if holding and rng.random() < 0.7:
            consumer = rng.choice(holding)
            event, held = consumer.held.pop(rng.randrange(len(consumer.held)))
            self.open, owner.client = (values, held), consumer.client
            with suppress(Refused):
                await owner.settle(consumer.subscription, event.message, event.batches)  # type: ignore[arg-type]
        if rng.random() < 0.5:
            await trio.sleep(rng.choice([0.1, 3]))
        commit = rng.random() < 0.6
        if commit:
            self.ledger.asked.update(self.open[1])
            self.ledger.in_doubt.update(values)
            self._end_open("unknown")
        else:
            self._end_open("aborted")
        owner.client = self.publisher
        try:
            await owner.end(commit=commit, branches=[self.branch])
        except Refused as refused:
            self.check_code(refused, "transaction.aborted")
        else:
            self.ledger.in_doubt.difference_update(values)
            for value in values if commit else ():
                if self.sent[value].state == "unknown":
                    self.ledger.stored(0, -1, [value])

    def _end_open(self, state: str) -> None:
        """Forget the open transaction; "unknown": it may be committed."""
        for value in self.open[0]:
            if self.sent[value].state == "unknown":
                self.sent[value].state = state
        self.open = [], []

    # --- consuming ---------------------------------------------------------------------------------------------------

    async def take(self) -> None:
        """Have a consumer take some records, and check them."""
        self._check_kept()
        await self._take(self.rng.choice(self.consumers), self.rng.randint(1, 4))

    async def _take(self, consumer: Consumer, count: int) -> bool:
        try:
            event = await consumer.client.pull(consumer.subscription, count)
        except Refused as refused:
            self.check_code(refused, "topic.unknown", "delivery.fenced", "delivery.subscription_unknown")
            self.consumers.remove(consumer)
            await self._join(consumer.name)
            return False
        if not event.batches:
            return False
        deliver: Any = event.message
        found: list[str] = []
        for batch in event.batches:
            age_ms = self.env.clock.now_ms() - batch.append_time_ms
            for value in [(record.value or b"").decode() for record in batch.records()]:
                is_commit = deliver.phase == m.Phase.COMMIT
                self.ledger.delivered(value, consumer.name, age_ms, self.ttl_ms, is_commit=is_commit)
                found.append(value)
        consumer.held.append((event, found))
        return True

    async def settle(self) -> None:
        """Have a consumer settle a delivery."""
        holding = [it for it in self.consumers if it.held]
        if holding:
            consumer = self.rng.choice(holding)
            event, found = consumer.held.pop(self.rng.randrange(len(consumer.held)))
            verdict = self.rng.choice([m.Verdict.ACK] * 4 + [m.Verdict.NACK, m.Verdict.NACK, m.Verdict.REJECT])
            await self._settle(consumer, event, found, verdict)

    async def _settle(self, consumer: Consumer, event: Event, found: list[str], verdict: m.Verdict) -> None:
        message: Any = event.message
        if self.two_phase and (verdict == m.Verdict.ACK or message.phase == m.Phase.COMMIT):
            if message.phase != m.Phase.COMMIT:
                if await consumer.client.settle(consumer.subscription, event, m.Verdict.READY):
                    return
                self.ledger.holder |= dict.fromkeys(found, consumer.name)
                if not self.is_ending and self.rng.random() < 0.2:
                    return  # It comes again when the consumer is back.
            verdict = m.Verdict.DONE
        if verdict != m.Verdict.NACK:
            self.ledger.asked.update(found)
        delay_ms = self.rng.choice([0, 3_000]) if verdict == m.Verdict.NACK else 0
        refused = await consumer.client.settle(consumer.subscription, event, verdict, delay_ms)
        if not refused and verdict in (m.Verdict.ACK, m.Verdict.DONE):
            self.ledger.settled.update(found)
            for value in found:
                self.ledger.holder.pop(value, None)
        if not refused and verdict == m.Verdict.REJECT:
            self.ledger.rejected.update(found)

    async def lose(self) -> None:
        """Lose a consumer, or have it leave, and let it come again."""
        consumer = self.consumers.pop(self.rng.randrange(len(self.consumers)))
        if self.rng.random() < 0.5:
            with suppress(Refused):
                await consumer.client.call(m.Unsubscribe(consumer.subscription))
        await consumer.client.stream.aclose()
        await self._join(consumer.name)

    # --- time and changes --------------------------------------------------------------------------------------------

    async def pass_time(self) -> None:
        """Let time pass, or leases end."""
        await trio.sleep(self.rng.choice([0, 0.5, 2, 2, 12]))

    async def jump(self) -> None:
        """Set the wall clock."""
        self._set_clock(self.env, self.rng.choice([-JUMP_MS, -1_000, 1_000, JUMP_MS]))

    def _set_clock(self, env: SimEnv, ms: int) -> None:
        if ms < 0:
            self.ledger.set_back_ms = max(self.ledger.set_back_ms, env.clock.now_ms())
        env.clock.jump(ms)

    async def change(self) -> None:
        """Change a setting, whatever is leased."""
        rng = self.rng
        change: dict[str, object] = rng.choice(
            [
                {"order": rng.choice(ORDERS)},
                {"order": rng.choice(ORDERS)},
                {"records_max": rng.choice(LIMITS), "overflow": rng.choice(OVERFLOWS)},
                {"ttl": rng.choice(TTLS)},
                {"kind": rng.choice(["queue", "both"])},
                {"keep": rng.choice(["off", "1d"])},
                {"weights": rng.choice([None, WEIGHTS]), "levels": rng.choice([None, 3])},
                {"order_window": rng.choice([6, 1_000])},
            ]
        )
        if change.get("kind") == "both":
            change |= {"records_max": "unlimited", "overflow": "block"}  # Others are for queues alone.
        elif "records_max" in change:
            change["kind"] = "queue"
        if "ttl" in change:
            self.ttl_ms = FOR_EVER_MS  # Which one holds is not known until the answer.
        if "keep" in change:
            self.ledger.kept = {}
        try:
            await self.publisher.administer("topic.alter", name="t", settings=change)
        finally:
            self.settings |= change
        if "ttl" in change:
            self.ttl_ms = FOR_EVER_MS if change["ttl"] == "unlimited" else 15_000
        if change.get("keep") == "1d":
            self.ledger.kept = {part.partition.id.index: part.partition.log.bounds()[0] for part in self.parts()}

    # --- looking -----------------------------------------------------------------------------------------------------

    def parts(self) -> list[PartitionQueue]:
        """The parts of the queue."""
        topic = self.broker.topics.get("t")
        return [] if topic is None or topic.queue is None else topic.queue.partition_queues

    def _check_kept(self) -> None:
        for part in self.parts():
            start = part.partition.log.bounds()[0]
            assert start <= self.ledger.kept.get(part.partition.id.index, start), "nothing goes that the queue keeps"

    async def ask(self) -> None:
        """Ask for the status of some records."""
        values = self.rng.sample(sorted(self.sent), min(len(self.sent), 12)) if self.has_status else []
        if values:
            ids = [str(self.sent[value].id) for value in values]
            found = await self.publisher.administer("message.status", topic="t", ids=ids)
            for value, each in zip(values, found, strict=True):
                self.ledger.check_status(value, f"{each['state']} {each['reason']}".strip())

    def granted(
        self, subscription: SharedSubscription, lease: Lease, ready: Mapping[int, int], in_flight: Set[int], end: int
    ) -> None:
        """Check the choice of an order, with all that was ready and in flight before."""
        for part in self.parts():
            if part.subscription is subscription:
                index, at = part.partition.id.index, self.ledger.at
                values = {offset: at[index, offset] for offset in (*ready, *in_flight) if (index, offset) in at}
                self.wrong += check_choice(subscription, lease, ready, in_flight, values, end)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Consume what is left, and look at what has become of each record."""
        if self.open[0] or self.open[1]:
            self._end_open("aborted")
        await trio.sleep(25)  # Transactions and leases are over.
        self.publisher = await connected(self.env)
        await self.publisher.administer("topic.alter", name="t", settings={"records_max": "unlimited"})
        self.consumers, self.is_ending = [], True
        for name in ("ann", "bob"):
            await self._join(name)
        timing, is_idle = self.broker.topics["t"].timing, False
        for _ in range(ROUNDS_MAX):
            was_idle, is_idle = is_idle, True
            for consumer in list(self.consumers):
                if await self._take(consumer, 100):
                    await self._settle(consumer, *consumer.held.pop(), m.Verdict.ACK)
                    is_idle = False
            left = [part.subscription.unsettled_count(part.partition.stable_offset) for part in self.parts()]
            if is_idle and was_idle and not any(left) and not timing.waiting_count:
                break
            if is_idle:
                await trio.sleep(3)
        else:
            raise AssertionError(f"all is settled in the end: {left}, {timing.waiting_count} are not")
        await self.ask()
        self.ledger.check_ends(await self._dead())

    async def _dead(self) -> Counter[str]:
        client, found, offset = await connected(self.env), Counter[str](), 0
        while batches := (await client.ask(m.Fetch("dead", 0, offset, bytes_max=1 << 20))).batches:
            for batch in batches:
                found.update((record.value or b"").decode() for record in batch.records())
            offset = batches[-1].end_offset
        return found


_DEEDS: list[Callable[[QueueLife], Awaitable[None]]] = [
    *[QueueLife.publish] * 6,
    *[QueueLife.take] * 8,
    *[QueueLife.settle] * 7,
    *[QueueLife.pass_time] * 2,
    *[QueueLife.change] * 2,
    QueueLife.transact,
    QueueLife.reschedule,
    QueueLife.ask,
    QueueLife.lose,
    QueueLife.jump,
]


def walk(seed: int) -> None:
    """Run one life. Raises AssertionError where a promise was broken."""
    with small_runs(rows=6 + seed % 20):
        run_simulation(seed, QueueLife(seed).live)


if __name__ == "__main__":
    for number in sys.argv[1:]:
        walk(int(number))
