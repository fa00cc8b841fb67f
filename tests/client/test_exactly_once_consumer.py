"""Consumers with a participant: each record has its effect once, whatever raises, reconnects or restarts."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from both_loops import on_both_clients, on_both_loops

import linn
from linn.client import Client
from linn.client.consume.exactly_once import ExactlyOnceConsumer
from linn.client.participants.participant import Floor, Mark
from linn.client.participants.sqlite import SqliteParticipant
from linn.core.broker.broker import running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.errors.tree import ParticipantConflict
from linn.core.plugins.manager import PluginManager, installed
from linn.errors import DeliveryFenced, LinnError, MessageInvalid, SubscriptionWrongKind
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

PATIENCE_S = 60.0
"""Time for what comes at all, on a busy machine."""
VALUES = [f"record {number}" for number in range(20)]
Consuming = ExactlyOnceConsumer[sqlite3.Connection]


def _make_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS effects (value TEXT NOT NULL)")


def _ledger(path: Path) -> SqliteParticipant:
    return SqliteParticipant(path / "ledger.db", prepare_connection=_make_table)


def _effects(path: Path) -> list[str]:
    with sqlite3.connect(path / "ledger.db") as connection:
        _make_table(connection)
        return [value for (value,) in connection.execute("SELECT value FROM effects ORDER BY rowid")]


async def _filled(client: Client, topic: str, values: Sequence[str] = VALUES, **settings: Any) -> None:
    if settings:
        await client.admin.create_topic(topic, **settings)
    async with client.producer(topic) as producer:
        await producer.publish_many([value.encode() for value in values])


async def _apply(
    consumer: Consuming, wait_s: float = 0.4, *, least: int = 0, seen: list[str] | None = None
) -> list[str]:
    """Store the values until nothing comes for a while, and commit. First there are so many of them, in a list that
    other consumers may share."""
    seen = [] if seen is None else seen
    with anyio.fail_after(PATIENCE_S):
        while True:
            with anyio.move_on_after(wait_s) as waiting:
                message, db = await anext(consumer)
                db.execute("INSERT INTO effects VALUES (?)", (message.text,))
                seen.append(message.text)
            if waiting.cancelled_caught and len(seen) >= least:
                await consumer.commit()
                return seen


async def _to_the_end(consumer: Consuming) -> None:
    while True:
        await anext(consumer)


async def _unsettled(client: Client, topic: str) -> int:
    shown = await client.admin.topic(topic)
    queue = shown["queue"]
    assert queue is not None
    return int(queue["unsettled"])


# --- sources ---------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_the_records_of_a_queue_have_their_effects_and_are_gone(
    client: Client, name: str, tmp_path: Path
) -> None:
    await _filled(client, name, delivery="exactly-once")
    async with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        assert await _apply(consumer, least=20) == VALUES
    assert _effects(tmp_path) == VALUES
    assert await _unsettled(client, name) == 0


@on_both_loops
async def test_scattered_records_of_an_order_all_have_their_effects(client: Client, name: str, tmp_path: Path) -> None:
    await client.admin.create_topic(name, delivery="exactly-once", order="priority")
    async with client.producer(name) as producer:
        for number in range(20):  # Into one batch, of which each delivery has some.
            producer.publish_nowait(b"%d" % number, priority=number % 3)
    wanted = [str(number) for priority in (2, 1, 0) for number in range(priority, 20, 3)]
    for least in (7, 13):  # A store that has effects on both sides of a record has none of the record's own.
        async with client.consumer(name, name="ann", prefetch=7, exactly_once=_ledger(tmp_path)) as consumer:
            with anyio.fail_after(PATIENCE_S):
                for _ in range(least):
                    message, db = await anext(consumer)
                    db.execute("INSERT INTO effects VALUES (?)", (message.text,))
                await consumer.commit()
    assert _effects(tmp_path) == wanted
    assert await _unsettled(client, name) == 0


@on_both_loops
async def test_two_names_share_a_queue(broker: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with linn.connect(broker) as client:
        await _filled(client, name, delivery="exactly-once")
        async with (
            client.consumer(name, name="ann", prefetch=5, exactly_once=_ledger(tmp_path / "a")) as ann,
            client.consumer(name, name="bob", prefetch=5, exactly_once=_ledger(tmp_path / "b")) as bob,
            anyio.create_task_group() as tasks,
        ):
            seen: list[str] = []
            for consumer in (ann, bob):
                tasks.start_soon(partial(_apply, consumer, least=len(VALUES), seen=seen))
        found = _effects(tmp_path / "a"), _effects(tmp_path / "b")
        assert sorted(found[0] + found[1]) == sorted(VALUES)
        assert min(map(len, found)) > 0
        assert await _unsettled(client, name) == 0


@on_both_loops
async def test_shared_subscriptions_of_a_stream_have_effects_of_their_own_in_one_store(
    client: Client, name: str, tmp_path: Path
) -> None:
    await _filled(client, name, kind="stream", delivery="exactly-once")
    for shared, count in (("work", 20), ("audit", 20), ("work", 0)):
        async with client.consumer(name, shared=shared, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
            await _apply(consumer, least=count)
    assert _effects(tmp_path) == VALUES * 2


@on_both_loops
async def test_a_reader_of_a_stream_goes_on_where_its_store_has_left_off(
    client: Client, name: str, tmp_path: Path
) -> None:
    await _filled(client, name, VALUES[:7], kind="stream", partitions=2)
    async with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        assert sorted(await _apply(consumer, least=7)) == VALUES[:7]
    await _filled(client, name, VALUES[7:])
    async with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        assert sorted(await _apply(consumer, least=13)) == sorted(VALUES[7:])
    async with client.consumer(name, name="bob", exactly_once=_ledger(tmp_path)) as consumer:
        assert sorted(await _apply(consumer, least=20)) == sorted(VALUES), "another reader has effects of its own"


@on_both_loops
async def test_a_member_skips_what_the_group_has_applied(
    broker: str, client: Client, name: str, tmp_path: Path
) -> None:
    """The first member dies after its commit, before the group hears of it."""
    await _filled(client, name, kind="stream", partitions=2)
    for member, count in (("ann", 20), ("bob", 0)):
        async with linn.connect(broker) as own:
            consumer = own.consumer(name, "books", name=member, session_timeout_s=1, exactly_once=_ledger(tmp_path))
            consumer._source.applied = lambda work: None  # type: ignore[method-assign]
            async with consumer:
                await _apply(consumer, 2, least=count)
    assert sorted(_effects(tmp_path)) == sorted(VALUES)


@on_both_loops
async def test_a_group_of_two_applies_each_record_once_through_rebalances(
    broker: str, client: Client, name: str, tmp_path: Path
) -> None:
    await _filled(client, name, kind="stream", partitions=2)

    everything = sorted([*VALUES, "late 1", "late 2", "late 3", "late 4"])

    async def member(who: str) -> None:
        async with linn.connect(broker) as own:
            async with own.consumer(name, "books", name=who, exactly_once=_ledger(tmp_path)) as consumer:
                with anyio.fail_after(PATIENCE_S):
                    while len(_effects(tmp_path)) < len(everything):
                        await _apply(consumer)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(member, "ann")
        await anyio.sleep(0.2)
        tasks.start_soon(member, "bob")
        await anyio.sleep(0.2)
        await _filled(client, name, ["late 1", "late 2", "late 3", "late 4"])
    assert sorted(_effects(tmp_path)) == everything


# --- ends of a block -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_a_commit_in_the_middle_of_a_delivery_keeps_the_rest(broker: str, kind: str, tmp_path: Path) -> None:
    topic = f"middle-{kind}"
    async with linn.connect(broker) as client:
        delivery = {"delivery": "exactly-once"} if kind == "queue" else {}
        await _filled(client, topic, kind=kind, **delivery)
        async with client.consumer(topic, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
            for value in VALUES[:5]:
                message, db = await anext(consumer)
                assert message.text == value
                db.execute("INSERT INTO effects VALUES (?)", (message.text,))
            await consumer.commit()
            assert _effects(tmp_path) == VALUES[:5]
            message, db = await anext(consumer)
            assert message.text == VALUES[5]
            db.execute("INSERT INTO effects VALUES (?)", ("undone",))
        assert _effects(tmp_path) == VALUES[:5], "the block has ended without a commit"
        async with client.consumer(topic, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
            assert sorted(await _apply(consumer, least=15)) == sorted(VALUES[5:])
        assert sorted(_effects(tmp_path)) == sorted(VALUES)


@on_both_loops
async def test_a_block_that_is_left_without_a_commit_has_no_effect(client: Client, name: str, tmp_path: Path) -> None:
    await _filled(client, name, delivery="exactly-once")
    async with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        async for message, db in consumer:
            db.execute("INSERT INTO effects VALUES (?)", (message.text,))
            break
    assert _effects(tmp_path) == []
    assert await _unsettled(client, name) == len(VALUES)


@on_both_loops
async def test_a_record_that_can_not_be_applied_is_dead_alone(client: Client, name: str, tmp_path: Path) -> None:
    await client.admin.create_topic(f"{name}-dead")
    await _filled(client, name, delivery="exactly-once", max_deliveries=3, dead_letter=f"{name}-dead")
    raised = 0
    while await _unsettled(client, name):
        try:
            participant = _ledger(tmp_path)
            async with client.consumer(name, name="ann", prefetch=20, exactly_once=participant) as consumer:
                with anyio.fail_after(1):
                    async for message, db in consumer:
                        db.execute("INSERT INTO effects VALUES (?)", (message.text,))
                        if message.text == VALUES[3]:
                            raise ValueError(message.text)
        except ValueError:
            raised += 1
        except TimeoutError:
            assert await _unsettled(client, name) <= 1
    assert raised == 3
    assert sorted(_effects(tmp_path)) == sorted({*VALUES} - {VALUES[3]})
    async with client.consumer(f"{name}-dead") as dead:
        message = await anext(dead)
        assert message.text == VALUES[3]
        await message.ack()
    assert await _unsettled(client, f"{name}-dead") == 0


@on_both_clients
async def test_messages_are_settled_by_the_consumer_and_may_be_rejected(
    client: Client, name: str, tmp_path: Path
) -> None:
    await client.admin.create_topic(f"{name}-dead")
    await _filled(client, name, VALUES[:1], delivery="exactly-once", dead_letter=f"{name}-dead")
    async with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        message, db = await anext(consumer)
        for settle in (message.ack, message.nack):
            with pytest.raises(SubscriptionWrongKind):
                settle()
        db.execute("INSERT INTO effects VALUES ('rejected')")
        await message.reject()
        await consumer.commit()
    assert _effects(tmp_path) == [], "its effects are undone: it is nobody's any more"
    async with client.consumer(f"{name}-dead") as dead:
        assert (await anext(dead)).text == VALUES[0]


@on_both_clients
async def test_what_can_not_be_asked_for(client: Client, name: str, tmp_path: Path) -> None:
    await client.admin.create_topic(name)
    with pytest.raises(MessageInvalid):
        client.consumer(name, exactly_once=_ledger(tmp_path))
    with pytest.raises(MessageInvalid):
        client.consumer(name, name="ann", mode="pull", exactly_once=_ledger(tmp_path))  # type: ignore[call-overload]
    with pytest.raises(SubscriptionWrongKind):
        async with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)):
            pass
    await client.admin.create_topic(f"{name}-once", delivery="exactly-once")
    with pytest.raises(SubscriptionWrongKind):
        async with client.consumer(f"{name}-once", name="ann"):
            pass


@on_both_loops
async def test_the_older_consumer_of_a_name_is_told_and_has_no_more_effects(
    client: Client, other: Client, name: str, tmp_path: Path
) -> None:
    await _filled(client, name, delivery="exactly-once")
    async with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as old:
        message, db = await anext(old)
        db.execute("INSERT INTO effects VALUES (?)", ("of a zombie",))
        async with other.consumer(name, name="ann", exactly_once=_ledger(tmp_path / "..")) as new:
            with pytest.raises(DeliveryFenced):
                await _to_the_end(old)
            assert new.topics == (name,)
        assert message.text == VALUES[0]
    assert _effects(tmp_path) == []


# --- participants that fail ------------------------------------------------------------------------------------------


class Flaky(SqliteParticipant):
    """Raises once in each of the named methods; `after`: when the method has done its work."""

    def __init__(self, path: Path, *failing: str, after: bool = False) -> None:
        super().__init__(path / "ledger.db", prepare_connection=_make_table)
        self.failing = set(failing)
        self.after = after

    def _fail(self, method: str) -> None:
        if method in self.failing:
            self.failing.remove(method)
            raise OSError(f"{method} failed")

    def begin(self, place: Any) -> sqlite3.Connection:
        if not self.after:
            self._fail("begin")
        handle = super().begin(place)
        self._fail("begin")
        return handle

    def applied(self, mark: Mark) -> Sequence[tuple[int, int]]:
        self._fail("applied")
        return super().applied(mark)

    def prepare(self) -> None:
        super().prepare()
        self._fail("prepare")

    def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        if not self.after:
            self._fail("commit")
        super().commit(marks, floor)
        self._fail("commit")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("method", ["begin", "applied", "prepare", "commit"])
@pytest.mark.parametrize("kind", ["queue", "stream", "group"])
async def test_a_participant_that_fails_once_has_each_effect_once(
    broker: str, kind: str, method: str, after: bool, tmp_path: Path
) -> None:
    topic = f"flaky-{kind}-{method}-{after}"
    async with linn.connect(broker) as client:
        settings = {"delivery": "exactly-once"} if kind == "queue" else {"kind": "stream"}
        await _filled(client, topic, **settings)
        participant = Flaky(tmp_path, method, after=after)
        group = "books" if kind == "group" else None
        raised = 0
        async with client.consumer(topic, group, name="ann", exactly_once=participant) as consumer:
            with anyio.fail_after(PATIENCE_S):
                while not raised or len(_effects(tmp_path)) < len(VALUES):
                    try:
                        await _apply(consumer)
                    except OSError:
                        raised += 1
            await _apply(consumer)
        assert raised == 1
        assert sorted(_effects(tmp_path)) == sorted(VALUES)
        if kind == "queue":
            assert await _unsettled(client, topic) == 0


@pytest.mark.parametrize("method", ["prepare", "commit"])
async def test_what_was_applied_before_is_passed_over_by_a_second_try_too(
    broker: str, method: str, tmp_path: Path
) -> None:
    topic = f"again-{method}"
    async with linn.connect(broker) as client:
        await _filled(client, topic, VALUES[:10], kind="stream")
        async with linn.connect(broker) as own:
            dying = own.consumer(topic, "books", name="ann", session_timeout_s=1, exactly_once=_ledger(tmp_path))
            dying._source.applied = lambda work: None  # type: ignore[method-assign]
            async with dying:
                await _apply(dying, least=10)
        await _filled(client, topic, VALUES[10:])
        raised = 0
        async with client.consumer(topic, "books", name="bob", exactly_once=Flaky(tmp_path, method)) as consumer:
            with anyio.fail_after(PATIENCE_S):
                while not raised or len(_effects(tmp_path)) < len(VALUES):
                    try:
                        await _apply(consumer)
                    except OSError:
                        raised += 1
            await _apply(consumer)
        assert raised == 1
        assert sorted(_effects(tmp_path)) == sorted(VALUES)


class Rival(SqliteParticipant):
    """Has the first commit done by another process a moment before."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / "ledger.db", prepare_connection=_make_table)
        self.is_beaten = False

    def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        if not self.is_beaten:
            self.is_beaten = True
            first = marks[0].first
            super().commit([Mark(marks[0].epoch, first, first + 3)], Floor(0, 0))
            raise ParticipantConflict("another process was faster")
        super().commit(marks, floor)


@pytest.mark.parametrize("kind", ["queue", "group"])
async def test_of_a_conflict_what_the_other_has_not_applied_is_applied(broker: str, kind: str, tmp_path: Path) -> None:
    """The other has applied the first three, for which the effects of this transaction stand in."""
    topic, raised = f"rival-{kind}", 0
    async with linn.connect(broker) as client:
        settings = {"delivery": "exactly-once"} if kind == "queue" else {"kind": "stream"}
        await _filled(client, topic, **settings)
        group = "books" if kind == "group" else None
        seen: list[str] = []
        async with client.consumer(topic, group, name="ann", exactly_once=Rival(tmp_path)) as consumer:
            while not seen:
                try:
                    seen = await _apply(consumer, least=17)
                except ParticipantConflict:
                    raised += 1
            seen = await _apply(consumer) or seen
        assert raised == (1 if kind == "queue" else 0)
        assert seen[-17:] == VALUES[3:]
        if kind == "queue":
            assert await _unsettled(client, topic) == 0


@on_both_loops
async def test_a_participant_that_can_not_be_opened_leaves_nothing_behind(
    client: Client, name: str, tmp_path: Path
) -> None:
    await _filled(client, name, delivery="exactly-once")
    with pytest.raises(sqlite3.OperationalError):
        async with client.consumer(name, name="ann", exactly_once=SqliteParticipant(tmp_path)):
            pass
    shown = await client.admin.topic(name)
    assert shown["queue"] is not None
    assert shown["queue"]["consumers"] == 0


# --- lost connections and restarts, in virtual time ------------------------------------------------------------------

URL = "linn://127.0.0.1:5466"
TOML = """
[broker]
data_dir = "data"
[listeners.native]
address = "127.0.0.1:5466"
[storage.segmented-log]
fsync = "always"
[topics.jobs]
delivery = "exactly-once"
lease = "30s"
"""


async def _serve(node: SimEnv, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    source = TomlSource(TOML, "test.toml")
    plugins = PluginManager(plugin_settings(source), installed())
    async with running_broker(load_config(source, plugins), node, plugins):
        task_status.started()
        await trio.sleep_forever()


@pytest.mark.parametrize("seed", range(12))
def test_a_broker_that_is_killed_again_and_again_gets_each_effect_once(seed: int, tmp_path: Path) -> None:
    """The kills come at any moment: between ready and its answer, between the commit and done."""

    async def lives(rng: random.Random, node: SimEnv, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        for life in range(6):

            async def process(env: SimEnv, life: int = life) -> None:
                async with trio.open_nursery() as nursery:
                    await nursery.start(_serve, env)
                    if not life:
                        task_status.started()
                    await trio.sleep(0.02 + 0.4 * rng.random() if life < 5 else 1e9)
                    env.kill() if rng.random() < 0.5 else env.crash()

            await node.run_until_death(process)
            node = node.restart()

    async def scenario(env: SimEnv) -> None:
        rng = random.Random(seed)
        node = SimEnv(seed, name="broker", world=env.world)
        async with trio.open_nursery() as nursery:
            await nursery.start(lives, rng, node)
            async with linn.connect(URL, env=env, request_timeout_s=5) as client:

                async def publish() -> None:
                    async with client.producer("jobs") as producer:
                        for value in VALUES * 2:
                            await producer.publish(value.encode())
                            await trio.sleep(0.03)

                nursery.start_soon(publish)
                seen = 0
                while len(_effects(tmp_path)) < 2 * len(VALUES):
                    try:
                        async with client.consumer("jobs", name="ann", exactly_once=_ledger(tmp_path)) as consumer:
                            while True:
                                with trio.move_on_after(3) as waiting:
                                    message, db = await anext(consumer)
                                    db.execute("INSERT INTO effects VALUES (?)", (message.text,))
                                    seen += 1
                                if waiting.cancelled_caught:
                                    await consumer.commit()
                                    break
                    except LinnError:
                        await trio.sleep(0.1)
                while await _unsettled(client, "jobs"):
                    async with client.consumer("jobs", name="ann", exactly_once=_ledger(tmp_path)) as consumer:
                        await _apply(consumer, 3)
            nursery.cancel_scope.cancel()

    run_simulation(seed, scenario)
    assert sorted(_effects(tmp_path)) == sorted(VALUES * 2)
