"""Queues with orders, times, limits, ids and dead letters in a cluster under faults: everything follows from the seed.

Topics: two queues, whose settings are drawn; the topics of their dead letters, at other leaders; and queues of
connections, which come and go. Publishers and consumers are at any broker, so mostly at another than the leader.

Laws, all along: no record comes again after its settlement was confirmed, to another consumer after it was decided to
one, before its time, or twice into a log; attempts do not go down; each choice of an order is checked against all that
was ready at that moment, and one consumer of a queue with a single one holds records; a record of a key comes when all
earlier ones are settled. At the end, without faults: all queues get empty; each confirmed record is settled, a dead
letter, or dropped by its limit, and each dead letter is there once behind each binding; the statuses of messages say
the same; a named subscription of a queue that keeps its records gets all of them; nothing is left of connections.

    python tests/cluster/queues_run.py SEED [SEED ...]
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "broker")]

import trio
from broker_world import broker_world, until_led
from choices_of_orders import check_choice
from cluster_run import SESSION_S, STORAGE
from cluster_world import until
from committed_records import CommittedRecords
from faulty_clients import Worker
from queue_clients import Account, Changer, QueueConsumer, QueueProducer, Visitor
from raw_client import RawClient
from replicas_seen import agree, holders, is_whole
from trouble import ALL_FAULTS, Trouble, run_named
from watched_queue import checked_grants

from linn.core.batch.batch import CONTROL
from linn.core.errors.tree import LinnError
from linn.core.queue.dead_letter import SUBSCRIPTION, TOPIC
from linn.core.queue.lease import Lease
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.queue import Queue
from linn.core.queue.subscription import SharedSubscription
from linn.testing.deterministic import run_simulation
from linn.testing.sim_device import SimulatedCrash
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

FAULTS = 5
PAUSE_S, HOLD_S = 2.0, 8.0
"""Longest time before a fault, and until it is mended."""
QUIET_S = 240.0
"""Time without faults for all to be consumed: takeovers wait for leases, and dead letters for up to 10 s."""
VIRTUAL_S_MAX = 3600.0
QUEUES = ("jobs", "mails")
GRAVES = ("graves", "archive")
READ_BYTES = 1 << 20


def drawn_settings(rng: random.Random, *, delays: bool) -> dict[str, Any]:
    """The settings of a queue. `delays`: whether its records may be returned for later."""
    settings: dict[str, Any] = {
        "kind": "queue",
        "partitions": rng.choice([1, 1, 2]),
        "lease": "5s",
        "order": rng.choice(["fifo", "priority", "priority", "fair", "key", "key"]),
        "delivery": rng.choice(["at-least-once"] * 3 + ["exactly-once"]),
        "consumers": rng.choice(["many", "many", "one"]),
        "max_deliveries": rng.choice([2, 20, 20]),
        "redelivery_delay": rng.choice(["0s", "0s", "1s"]) if delays else "0s",
        **rng.choice([{"dead_letter": GRAVES[0]}, {"dead_letter_exchange": "funerals"}]),
        **rng.choice([{}, {}, {"records_max": 8, "overflow": rng.choice(["block", "reject"])}]),
        **rng.choice([{}, {}, {"ttl": "15s"}]),
    }
    if "records_max" not in settings and rng.random() < 0.3:
        settings |= {"records_max": 8, "overflow": rng.choice(["drop-head", "dead-letter"])}
    if settings["order"] == "fair":
        settings["order_by"] = "label.tenant"
    for name, value in (("dedup", "1d"), ("status", "7d"), ("keep", "7d")):
        if rng.random() < 0.4:
            settings[name] = value
    return settings


class QueuesRun:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"queues {seed}")
        self.replicas = rng.choice([2, 3, 3])
        self.min_in_sync = rng.randint(1, 2)
        self.is_synced = rng.random() < 0.5
        self.segment_bytes = rng.choice([4096, 1 << 20])
        self.has_jumps = rng.random() < 0.3
        """Whether clocks are set: then no record is returned for later, since a delay ends by the clock of a leader."""
        self.accounts = {name: Account(name, drawn_settings(rng, delays=not self.has_jumps)) for name in QUEUES}
        for account in self.accounts.values():
            account.is_changed = rng.random() < 0.3
        self.again = [it.of_subscription("again") for it in self.accounts.values() if "keep" in it.settings]
        """The accounts of named subscriptions."""
        self.names = [*QUEUES, *GRAVES]
        self.wrong: list[str] = []
        self.choices = 0
        """The number of leases whose choice was checked."""
        self.trouble: Trouble

    def __str__(self) -> str:
        synced = "synced" if self.is_synced else "not synced"
        about = f"{self.replicas} replicas, {self.min_in_sync} in sync, {synced}, segments of {self.segment_bytes}"
        queues = "; ".join(
            f"{it.name}: {it.settings}, {len(it.confirmed)} confirmed, {len(it.acked)} acked"
            for it in self.accounts.values()
        )
        return f"{about}, {self.choices} choices; {queues}"

    async def run(self, env: SimEnv) -> None:
        """Live with faults, then without, and check."""
        async with broker_world(env, self.seed) as world:
            self.world = world
            storage = STORAGE.format("always" if self.is_synced else "os", self.segment_bytes)
            self.brokers = await world.brokers(3, storage + '[exchanges.funerals]\ntype = "fanout"\n')
            how: Any = {"is_synced": self.is_synced, "pause_s": PAUSE_S, "hold_s": HOLD_S}
            self.trouble = Trouble(world, self.brokers, self.rng, **how)
            try:
                with checked_grants(self.granted):
                    await self._live()
            except BaseException as error:
                error.add_note(f"{self}: {'; '.join(self.trouble.said)}")
                raise

    async def _live(self) -> None:
        await self._make_topics()
        about = self.world, self.brokers, self.rng
        accounts = list(self.accounts.values())
        self.producers = [QueueProducer(*about, account) for account in accounts]
        later = QueueProducer(*about, accounts[0], has_times=True)
        self.consumers = [
            QueueConsumer(*about, account, name, delays=not self.has_jumps)
            for account in accounts
            for name in ("ann", "bob")
        ]
        self.consumers += [QueueConsumer(*about, account, "eve", delays=False) for account in self.again]
        visitor, changers = Visitor(*about), [Changer(*about, it.name) for it in accounts if it.is_changed]
        workers: list[Worker] = [*self.producers, later, *self.consumers, visitor, *changers]
        committed = CommittedRecords(self.world, self.brokers)
        faults = [it for it in ALL_FAULTS if self.has_jumps or it is not Trouble.clock_jumps]
        faults += [Trouble.is_killed, *[Trouble.is_isolated, Trouble.hears_nothing] * 2]
        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(worker.run)
            async with trio.open_nursery() as looking:
                looking.start_soon(committed.run)
                looking.start_soon(self._learn_all_along)
                await self.trouble.run(faults, FAULTS)
                await trio.sleep(2 * SESSION_S)  # The last fault may yet cost a node its session.
                await until(lambda: all(is_whole(self.brokers, name, self.replicas) for name in self.names), QUIET_S)
                await self._until_all_get_on(visitor)
                for worker in (*self.producers, later, visitor, *changers):
                    worker.is_over = True
                for consumer in self.consumers:
                    consumer.acks_all = True
                await self._until_empty()
                looking.cancel_scope.cancel()
            for worker in workers:
                worker.is_over = True
        await until(lambda: all(agree(holders(self.brokers, name), name) for name in self.names), QUIET_S)
        await committed.look()
        committed.check_epochs()
        await self._check()

    async def _make_topics(self) -> None:
        admin = await self.brokers[0].client()
        about = {"replicas": self.replicas, "min_in_sync": self.min_in_sync}
        for name in GRAVES:
            settings = {"kind": "stream", "bindings": [{"exchange": "funerals"}], **about}
            await admin.administer("topic.create", name=name, settings=settings)
        for name, account in self.accounts.items():
            await admin.administer("topic.create", name=name, settings=account.settings | about)
        await until_led(self.brokers, *self.names)

    # --- looking -----------------------------------------------------------------------------------------------------

    def queues(self, account: Account) -> Iterator[Queue]:
        """The queue or subscription at each broker that has it open."""
        for broker in self.brokers:
            topic = broker.broker.topics.get(account.name)
            if topic is not None and account.shared in topic.subscriptions and not broker.has_ended:
                yield topic.subscriptions[account.shared]

    async def learn(self, account: Account) -> None:
        """Read what is committed of a queue, to know which record is at which offset."""
        for part in [part for queue in self.queues(account) for part in queue.partition_queues]:
            index, partition = part.partition.id.index, part.partition
            with suppress(LinnError, SimulatedCrash):  # It is trimmed or closed meanwhile.
                at, end = partition.log.bounds()[0], partition.stable_offset
                while (index, at) in account.at:
                    at += 1
                while at < end:
                    batches = [it for it in await partition.read_log(at, READ_BYTES) if it.end_offset <= end]
                    for batch in batches:
                        if not batch.attributes & CONTROL:
                            account.learn(batch, index)
                    at = batches[-1].end_offset if batches else end

    async def _learn_all_along(self) -> None:
        while True:
            await trio.sleep(0.25)
            for account in self.accounts.values():
                await self.learn(account)
            assert not self.wrong, self.wrong

    def granted(
        self, subscription: SharedSubscription, lease: Lease, ready: Mapping[int, int], in_flight: Set[int], end: int
    ) -> None:
        """Check a lease, with all that was ready and in flight before."""
        for account in (*self.accounts.values(), *self.again):
            for queue in self.queues(account):
                for part in queue.partition_queues:
                    if part.subscription is subscription:
                        self._granted(account, queue, part, lease, ready, in_flight, end)

    def _granted(
        self,
        account: Account,
        queue: Queue,
        part: PartitionQueue,
        lease: Lease,
        ready: Mapping[int, int],
        in_flight: Set[int],
        end: int,
    ) -> None:
        places = {at: account.at.get((part.partition.id.index, at)) for at in (*ready, *in_flight)}
        known = {at: value for at, value in places.items() if value is not None}
        self.wrong += check_choice(part.subscription, lease, ready, in_flight, known, end)
        self.choices += 1
        states = [it.subscription for it in queue.partition_queues]
        if queue.single is not None and any(it.leased_count > it.leased_by(lease.consumer) for it in states):
            self.wrong.append(f"{account.name}: {lease.ranges()} beside a lease of another consumer")

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _until_all_get_on(self, visitor: Visitor) -> None:
        counts = [it.count for it in self.producers]
        delivered, visits = [it.delivered for it in self.accounts.values()], visitor.visits

        def get_on() -> bool:
            has_published = all(it.count > then for it, then in zip(self.producers, counts, strict=True))
            now = [it.delivered for it in self.accounts.values()]
            return has_published and visitor.visits > visits and all(a > b for a, b in zip(now, delivered, strict=True))

        await until(get_on, QUIET_S)

    async def _until_empty(self) -> None:
        """Wait until nothing is left in the queues."""
        await until(lambda: not any(self._left(name) for name in QUEUES), QUIET_S)

    def _left(self, name: str) -> int:
        leaders = [it for it in self.brokers if it.broker.topic(name).led_by is None]
        if len(leaders) != 1:
            return 1
        topic = leaders[0].broker.topic(name)
        return sum(it.unsettled_count() for it in topic.subscriptions.values()) + topic.timing.waiting_count

    async def _check(self) -> None:
        assert not self.wrong, self.wrong
        leaders = await until_led(self.brokers, *self.names)
        copies = {grave: await self._copies(await leaders[grave].client(), grave) for grave in GRAVES}
        for name, account in self.accounts.items():
            both = "dead_letter_exchange" in account.settings
            dead = copies[GRAVES[0]][name]
            assert copies[GRAVES[1]][name] == (dead if both else Counter()), f"the dead letters of {name} differ"
            twice = [value for value, count in dead.items() if count > 1]
            assert not twice, f"{name}: dead letters are there twice: {twice}"
            both_ends = [value for value in dead if value in account.acked]
            assert not both_ends, f"{name}: dead letters of what was acked: {both_ends}"
            lost = account.lost({*dead})
            assert not lost, f"{name} lacks confirmed records: {sorted(lost)}"
            missing = account.rejected - {*dead}
            assert not missing, f"{name}: no dead letters of what was rejected: {missing}"
            if "status" in account.settings:
                await self._check_statuses(account, {*dead})
        for account in self.again:
            lost = account.lost({*copies[GRAVES[0]][f"{account.name} {account.shared}"]})
            assert not lost, f"a subscription of {account.name} lacks confirmed records: {sorted(lost)}"
        await until(lambda: not [key for key in self.world.store.content() if key.startswith("topics/mine")], QUIET_S)

    async def _copies(self, client: RawClient, grave: str) -> dict[str, Counter[str]]:
        """The dead letters in one of their topics, by the queue, or the topic and its subscription."""
        found, offset = defaultdict[str, Counter[str]](Counter), 0
        while batches := (await client.ask(m.Fetch(grave, 0, offset, bytes_max=READ_BYTES))).batches:
            for record in [record for batch in batches for record in batch.records()]:
                source = f"{record.labels[TOPIC]} {record.labels.get(SUBSCRIPTION, '')}".strip()
                found[source].update([(record.value or b"").decode()])
            offset = batches[-1].end_offset
        return found

    async def _check_statuses(self, account: Account, dead: set[str]) -> None:
        """Check what any broker says that has become of messages."""
        client, confirmed = await self.rng.choice(self.brokers).client(), sorted(account.confirmed)
        ids = [str(account.sent[value].id) for value in confirmed]
        found = await client.administer("message.status", topic=account.name, ids=ids)
        makes_room = account.settings.get("overflow") == "drop-head"
        for value, status in zip(confirmed, found, strict=True):
            allowed = {"dead", "expired"} if value in dead else {"settled"}
            if makes_room and value not in dead and value not in account.acked:
                allowed = {"settled", "dropped"}
            assert status["state"] in allowed, f"{account.name}: {value} is {status}, and not one of {allowed}"


def run_seed(seed: int) -> QueuesRun:
    """Run a seed, in simulated time."""
    run = QueuesRun(seed)
    run_simulation(seed, run.run, virtual_s_max=VIRTUAL_S_MAX)
    return run


if __name__ == "__main__":
    run_named(run_seed)
