"""A topic whose kind is changed under consumers with a store: no effect happens twice, whatever the two kinds are."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import anyio
import pytest

from linn.api import Principal
from linn.client.client import Client
from linn.client.consume.exactly_once import ExactlyOnceConsumer
from linn.client.participants.files import FileParticipant
from linn.client.participants.sqlite import SqliteParticipant
from linn.errors import ConfigNotLive, SubscriptionWrongKind
from linn.testing.virtual_world import VirtualWorld

IDLE_S = 60.0
PAIRS = list(permutations(["queue", "stream", "both"], 2))
BEFORE = [f"before {number}" for number in range(3)]
AFTER = [f"after {number}" for number in range(3)]
LATE = [f"late {number}" for number in range(3)]


def _make_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS effects (value TEXT NOT NULL)")


class Program:
    """The same program again and again, with one store."""

    def __init__(
        self, world: VirtualWorld, folder: Path, *, group: str | None = None, shared: str | None = None
    ) -> None:
        self.name = "ledger"
        self._world = world
        self._path = folder / "ledger.db"
        self._how = {"group": group, "shared": shared}

    async def run(self) -> None:
        """Apply what comes, until nothing comes for a while."""
        participant = SqliteParticipant(self._path, prepare_connection=_make_table)
        async with self._world.connect() as client:
            consumer: ExactlyOnceConsumer[sqlite3.Connection] = client.consumer(
                "payments", name=self.name, exactly_once=participant, **self._how
            )
            async with consumer:
                while True:
                    with anyio.move_on_after(IDLE_S) as idle:
                        message, db = await anext(consumer)
                        db.execute("INSERT INTO effects VALUES (?)", (message.text,))
                    if idle.cancelled_caught:
                        await consumer.commit()
                        return

    def effects(self) -> list[str]:
        with sqlite3.connect(self._path) as connection:
            return sorted(value for (value,) in connection.execute("SELECT value FROM effects"))


async def _publish(world: VirtualWorld, values: Sequence[str]) -> None:
    await world.publish("payments", *[value.encode() for value in values])


async def _alter(world: VirtualWorld, kind: str) -> None:
    async with world.connect() as client:
        await client.admin.alter_topic("payments", kind=kind)  # type: ignore[typeddict-item]


def _world(kind: str) -> VirtualWorld:
    return VirtualWorld(topics={"payments": {"kind": kind, "delivery": "exactly-once"}})


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_a_consumer_alone_goes_on_or_is_refused(kind: str, other: str, tmp_path: Path) -> None:
    """Queues, of both kinds, have the same place in a store. A reader has one of its own, and can't go on there."""
    is_refused = "stream" in (kind, other)

    async def scenario(world: VirtualWorld) -> None:
        program = Program(world, tmp_path)
        await _publish(world, BEFORE)
        await program.run()
        assert program.effects() == sorted(BEFORE)
        await _alter(world, other)
        await _publish(world, AFTER)
        if is_refused:
            with pytest.raises(SubscriptionWrongKind, match="change the topic's kind back"):
                await program.run()
            assert program.effects() == sorted(BEFORE)
            await _alter(world, kind)
        await program.run()
        assert program.effects() == sorted(BEFORE + AFTER)
        await _publish(world, LATE)
        await program.run()
        assert program.effects() == sorted(BEFORE + AFTER + LATE)

    _world(kind).run(scenario)


@pytest.mark.parametrize("how", ["group", "shared"])
@pytest.mark.parametrize(("kind", "other"), [pair for pair in PAIRS if pair[0] != "queue"])
def test_a_group_and_a_shared_subscription_go_on_or_are_refused(
    kind: str, other: str, how: str, tmp_path: Path
) -> None:
    """Their places have their own name, and the broker keeps what they have read. A queue has neither of them."""

    async def scenario(world: VirtualWorld) -> None:
        program = Program(world, tmp_path, **{how: "books"})
        await _publish(world, BEFORE)
        await program.run()
        if (how, other) == ("shared", "queue"):
            with pytest.raises(ConfigNotLive):
                await _alter(world, other)
        else:
            await _alter(world, other)
        if (how, other) == ("group", "queue"):
            with pytest.raises(SubscriptionWrongKind):
                await program.run()
            await _alter(world, kind)
        await _publish(world, AFTER)
        await program.run()
        assert program.effects() == sorted(BEFORE + AFTER)

    _world(kind).run(scenario)


@pytest.mark.parametrize(("kind", "other"), [pair for pair in PAIRS if "stream" in pair])
def test_a_store_of_its_own_is_not_refused(kind: str, other: str, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()

    async def scenario(world: VirtualWorld) -> None:
        await _publish(world, BEFORE)
        await Program(world, tmp_path).run()
        await _alter(world, other)
        await _publish(world, AFTER)
        program = Program(world, tmp_path / "new")
        await program.run()
        kept = AFTER if kind == "queue" else BEFORE + AFTER
        assert program.effects() == sorted(kept)

    _world(kind).run(scenario)


def test_a_queue_on_a_stream_is_purged_and_read_under_another_name(tmp_path: Path) -> None:
    async def scenario(world: VirtualWorld) -> None:
        program = Program(world, tmp_path)
        await _publish(world, BEFORE)
        await program.run()
        await _alter(world, "both")
        async with world.connect() as client:
            assert await client.admin.purge_topic("payments") == len(BEFORE)
        await _publish(world, AFTER)
        program.name = "ledger of the queue"
        await program.run()
        assert program.effects() == sorted(BEFORE + AFTER)

    _world("stream").run(scenario)


@pytest.mark.parametrize("kind", ["queue", "both"])
def test_a_stream_that_was_a_queue_is_read_by_a_group_from_its_end(kind: str, tmp_path: Path) -> None:
    """An empty queue has kept nothing. Of both, the group is set to the end of the stream."""

    async def scenario(world: VirtualWorld) -> None:
        await _publish(world, BEFORE)
        await Program(world, tmp_path).run()
        await _alter(world, "stream")
        if kind == "both":
            async with world.connect() as client:
                async with client.consumer("payments", "books"):
                    pass
                await client.admin.reset_group("books", "latest", "payments")
        await _publish(world, AFTER)
        program = Program(world, tmp_path, group="books")
        await program.run()
        assert program.effects() == sorted(BEFORE + AFTER)

    _world(kind).run(scenario)


def test_a_kind_that_changes_while_the_consumer_has_no_connection_ends_it(tmp_path: Path) -> None:
    """Its client subscribes again by itself, and the topic is a stream by then, which would be read from its start."""

    async def scenario(world: VirtualWorld) -> None:
        participant = SqliteParticipant(tmp_path / "ledger.db", prepare_connection=_make_table)
        await _publish(world, BEFORE)
        async with world.connect() as client, client.consumer("payments", name="ann", exactly_once=participant) as own:
            for _ in BEFORE:
                _, db = await anext(own)
                db.execute("INSERT INTO effects VALUES ('effect')")
            await own.commit()
            await _alter_unseen(world, client)
            with pytest.raises(SubscriptionWrongKind):
                await anext(own)

    _world("both").run(scenario)


async def _alter_unseen(world: VirtualWorld, client: Client) -> None:
    """Make the topic a stream while a client has no connection, and can't make one."""
    connection = client._connector.usable
    assert connection is not None
    world.cut_network()
    await connection.aclose()
    altered = {"name": "payments", "settings": {"kind": "stream"}}
    await world.broker.gateway.session(Principal("test")).perform("topic.alter", json.dumps(altered))
    world.heal_network()


def test_files_say_too_that_a_kind_was_changed(tmp_path: Path) -> None:
    """Also where nothing is settled yet, so that the floor is at offset 0."""

    async def run(world: VirtualWorld) -> int:
        seen = 0
        async with world.connect() as client:
            made: Any = client.consumer("payments", name="ann", exactly_once=FileParticipant(tmp_path / "files"))
            async with made as consumer:
                while True:
                    with anyio.move_on_after(IDLE_S) as idle:
                        message, file = await anext(consumer)
                        file.write(message.value)
                        seen += 1
                    if idle.cancelled_caught:
                        await consumer.commit()
                        return seen

    async def scenario(world: VirtualWorld) -> None:
        await _publish(world, BEFORE)
        assert await run(world) == len(BEFORE)
        await _alter(world, "stream")
        with pytest.raises(SubscriptionWrongKind):
            await run(world)

    _world("both").run(scenario)
