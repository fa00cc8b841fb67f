"""A delivery whose records are applied in several transactions: what is true of one part is not true of the others."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from linn.client.client import Client
from linn.client.consume.exactly_once import ExactlyOnceConsumer
from linn.client.participants.participant import Floor, Mark, Place
from linn.client.participants.sqlite import SqliteParticipant
from linn.testing.virtual_world import VirtualWorld

LEASE_S = 10.0
DELIVERY = {"delivery": "exactly-once", "lease": "10s", "dead_letter": "dead"}
TOPICS = {"jobs": DELIVERY, "log": {"kind": "stream", **DELIVERY}, "dead": {}}
VALUES = [f"record {number}" for number in range(10)]


def _make_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS effects (value TEXT NOT NULL)")


class SlowLedger:
    """A database whose commits take a while, in which other tasks run."""

    def __init__(self, path: Path, commit_s: float = 0.0) -> None:
        self.path = path / "ledger.db"
        self.commit_s = commit_s
        self._made = SqliteParticipant(self.path, prepare_connection=_make_table)

    async def open(self) -> None:
        self._made.open()

    async def floor(self, place: Place) -> Floor:
        return self._made.floor(place)

    async def begin(self, place: Place) -> sqlite3.Connection:
        return self._made.begin(place)

    async def applied(self, mark: Mark) -> Sequence[tuple[int, int]]:
        return self._made.applied(mark)

    async def prepare(self) -> None:
        self._made.prepare()

    async def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        await trio.sleep(self.commit_s)
        self._made.commit(marks, floor)

    async def rollback(self) -> None:
        self._made.rollback()

    async def close(self) -> None:
        self._made.close()

    def effects(self) -> list[str]:
        with sqlite3.connect(self.path) as connection:
            _make_table(connection)
            return [value for (value,) in connection.execute("SELECT value FROM effects ORDER BY rowid")]


Consuming = ExactlyOnceConsumer[sqlite3.Connection]
Scenario = Callable[[Client, SlowLedger], Awaitable[None]]


class Seen(Counter[str]):
    """Counts the messages that an application was given, and stores them."""

    async def take(self, consumer: Consuming, records: int, work_s: float = 0.0) -> None:
        for _ in range(records):
            message, db = await anext(consumer)
            self[message.text] += 1
            db.execute("INSERT INTO effects VALUES (?)", (message.text,))
            await trio.sleep(work_s)

    async def take_all(self, consumer: Consuming, idle_s: float = 3 * LEASE_S) -> None:
        """Take what comes, and commit, until nothing comes for a while."""
        while True:
            with anyio.move_on_after(idle_s) as waiting:
                await self.take(consumer, 1)
            if waiting.cancelled_caught:
                await consumer.commit()
                return


def _run(
    tmp_path: Path, scenario: Scenario, values: Sequence[str] = VALUES, *, commit_s: float = 0.0, topic: str = "jobs"
) -> None:
    """Run a scenario with a broker and a ledger in virtual time.

    In the end each record of the topic has its effect once, and the broker knows that.
    """
    ledger = SlowLedger(tmp_path, commit_s)

    async def simulated(world: VirtualWorld) -> None:
        await world.publish(topic, *[value.encode() for value in values])
        async with world.connect() as client:
            await scenario(client, ledger)
        (queue,) = world.broker.topics[topic].subscriptions.values()
        assert queue.unsettled_count() == 0, queue.partition_queues[0].subscription.statistics()

    VirtualWorld(topics=TOPICS).run(simulated)
    assert sorted(ledger.effects()) == sorted(values)


def _consumer(client: Client, ledger: SlowLedger, topic: str = "jobs", **options: Any) -> Consuming:
    """Make a consumer of a queue, or of a shared subscription of a stream."""
    shared = "work" if topic == "log" else None
    made: Consuming = client.consumer(topic, name="ann", shared=shared, exactly_once=ledger, **options)
    return made


@pytest.mark.parametrize("topic", ["jobs", "log"])
@pytest.mark.parametrize("commit_s", [0.0, 1.6 * LEASE_S])
def test_the_rest_of_a_delivery_stays_leased_after_a_commit_in_its_middle(
    commit_s: float, topic: str, tmp_path: Path
) -> None:
    seen = Seen()

    async def scenario(client: Client, ledger: SlowLedger) -> None:
        async with _consumer(client, ledger, topic, prefetch=10) as consumer:
            await seen.take(consumer, 3)
            await consumer.commit()
            await seen.take(consumer, 2, 1.6 * LEASE_S)
            await consumer.commit()
            await seen.take_all(consumer)

    _run(tmp_path, scenario, commit_s=commit_s, topic=topic)
    assert seen == Counter(VALUES), "nothing was delivered twice"


@pytest.mark.parametrize("topic", ["jobs", "log"])
def test_the_rest_of_a_delivery_may_be_lost_while_a_part_of_it_is_committed(topic: str, tmp_path: Path) -> None:
    """No lease is renewed, as where a database blocks the event loop."""
    seen = Seen()

    async def scenario(client: Client, ledger: SlowLedger) -> None:
        async with _consumer(client, ledger, topic, prefetch=10, renewal_max_s=0) as consumer:
            await seen.take(consumer, 3)
            await consumer.commit()
            ledger.commit_s = 0.0
            await seen.take_all(consumer)

    _run(tmp_path, scenario, commit_s=1.6 * LEASE_S, topic=topic)
    assert seen == Counter(VALUES), "the rest came again, and had not been handed out before"


@pytest.mark.parametrize("renewal_max_s", [0.0, 3_600.0])
def test_parts_of_a_second_attempt_are_applied_by_a_slow_database(renewal_max_s: float, tmp_path: Path) -> None:
    values = [f"record {number}" for number in range(150)]
    seen = Seen()

    async def scenario(client: Client, ledger: SlowLedger) -> None:
        async with _consumer(client, ledger, prefetch=150) as consumer:
            await anext(consumer)  # An attempt that is undone.
        async with _consumer(client, ledger, prefetch=150, renewal_max_s=renewal_max_s) as consumer:
            await seen.take(consumer, 150)
            await consumer.commit()
            ledger.commit_s = 0.0
            await seen.take_all(consumer)

    _run(tmp_path, scenario, values, commit_s=1.2 * LEASE_S)
    if renewal_max_s:
        assert seen == Counter(values)


@pytest.mark.parametrize("prefetch", [1, 2, 10])
def test_a_lease_that_ends_before_the_consumer_is_ready_ends_no_loop(prefetch: int, tmp_path: Path) -> None:
    seen = Seen()

    async def scenario(client: Client, ledger: SlowLedger) -> None:
        async with _consumer(client, ledger, prefetch=prefetch, renewal_max_s=0) as consumer:
            await seen.take(consumer, 1, 1.6 * LEASE_S)
            await seen.take_all(consumer)

    _run(tmp_path, scenario)
    assert seen[VALUES[0]] == 2


def test_a_consumer_whose_prefetch_has_shrunk_to_one_gets_all_records(tmp_path: Path) -> None:
    """It holds a part of a delivery that was decided when the rest was lost, and no more than one record beside it."""
    values = [f"record {number}" for number in range(200)]
    seen = Seen()

    async def scenario(client: Client, ledger: SlowLedger) -> None:
        async with _consumer(client, ledger, renewal_max_s=0) as consumer:
            await seen.take(consumer, 20)
            ledger.commit_s = 1.6 * LEASE_S
            await consumer.commit()
            ledger.commit_s = 0.0
            await seen.take(consumer, 20, LEASE_S / 3)
            await seen.take_all(consumer)

    _run(tmp_path, scenario, values)


@pytest.mark.parametrize("gives_up_s", [0.0, 0.001, 0.5 * LEASE_S, 1.6 * LEASE_S])
def test_an_application_that_gives_up_waiting_for_a_commit_goes_on(gives_up_s: float, tmp_path: Path) -> None:
    """The records may have been decided, or not: a part of their delivery, and then a part of that."""
    seen = Seen()

    async def scenario(client: Client, ledger: SlowLedger) -> None:
        async with _consumer(client, ledger, prefetch=10, renewal_max_s=0) as consumer:
            await seen.take(consumer, 6)
            with anyio.move_on_after(gives_up_s):
                await consumer.commit()
            ledger.commit_s = 0.0
            await trio.sleep(1.1 * LEASE_S)
            await seen.take(consumer, 3)
            await consumer.commit()
            await seen.take_all(consumer)

    _run(tmp_path, scenario, commit_s=LEASE_S)


def test_a_rejected_message_of_a_delivery_has_no_effect(tmp_path: Path) -> None:
    """It is a dead letter. The effects of its delivery are undone, and the others have theirs when they come again."""
    seen = Seen()

    async def scenario(client: Client, ledger: SlowLedger) -> None:
        async with _consumer(client, ledger, prefetch=10) as consumer:
            for value in VALUES[:10]:
                message, db = await anext(consumer)
                db.execute("INSERT INTO effects VALUES (?)", (message.text,))
                if value == VALUES[4]:
                    await message.reject()
            await consumer.commit()
            assert ledger.effects() == []
            await seen.take_all(consumer)
        assert seen == Counter({*VALUES} - {VALUES[4]})
        async with client.consumer("dead") as dead:
            message = await anext(dead)
            assert message.text == VALUES[4]
            await message.ack()
        with sqlite3.connect(ledger.path) as connection:
            connection.execute("INSERT INTO effects VALUES (?)", (VALUES[4],))  # For the check at the end.

    _run(tmp_path, scenario)
