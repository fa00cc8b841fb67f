"""Broker and consumers are killed again and again: each record is booked once, in SQLite or in PostgreSQL.

A failure prints its seed.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import trio
from database_servers import postgres_server

import linn
from linn.testing.process import BrokerProcess

KILLS = 50
NAMES = ("ann", "bob")
PROGRAM = Path(__file__).parent / "booking_program.py"
ALIVE_S_MAX = 0.6
DONE_S_MAX = 600.0
CONFIG = """
[topics.payments]
delivery = "exactly-once"
partitions = 2
lease = "2s"
"""


@dataclass
class Sqlite:
    """A file for each name."""

    folder: Path

    def database(self, name: str) -> str:
        """Path of the file of a name."""
        return str(self.folder / f"{name}.db")

    def effects(self, name: str) -> list[int]:
        """The records whose effects are stored by a name."""
        with closing(sqlite3.connect(self.database(name))) as connection:
            return [record for (record,) in connection.execute("SELECT record FROM effects")]


@dataclass
class Postgres:
    """A schema for each name, on one server."""

    server: str

    def __post_init__(self) -> None:
        with psycopg.connect(self.server) as connection:
            for name in NAMES:
                table = "effects (record bigint NOT NULL, at_ns bigint NOT NULL)"
                connection.execute(f"CREATE SCHEMA {name} CREATE TABLE {table}".encode())

    def database(self, name: str) -> str:
        """Connection string of a name."""
        return f"{self.server} options='-csearch_path={name}'"

    def effects(self, name: str) -> list[int]:
        """The records whose effects are stored by a name."""
        with psycopg.connect(self.database(name)) as connection:
            return [record for (record,) in connection.execute("SELECT record FROM effects")]


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sqlite | Postgres]:
    if request.param == "sqlite":
        yield Sqlite(tmp_path)
        return
    with postgres_server() as server:
        yield Postgres(server)


class Consumer:
    """One name with its database, as a process that is started again after each kill."""

    def __init__(self, url: str, name: str, store: Sqlite | Postgres, folder: Path) -> None:
        self._name, self._store = name, store
        self._command = [sys.executable, str(PROGRAM), url, name, store.database(name)]
        self._log = (folder / f"{name}.log").open("ab")
        self._process = subprocess.Popen(self._command, stderr=self._log)

    def kill(self) -> None:
        """End the process with SIGKILL. It must not have ended by itself."""
        assert self._process.poll() is None, "the program ended by itself"
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        """Start the process again."""
        self._process = subprocess.Popen(self._command, stderr=self._log)

    def close(self) -> None:
        """End the process if it is there."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def effects(self) -> list[int]:
        """The records whose effects are stored."""
        return self._store.effects(self._name)


async def test_each_record_is_booked_once_whoever_is_killed(tmp_path: Path, store: Sqlite | Postgres) -> None:
    seed = 1
    rng = random.Random(seed)
    published: list[int] = []
    stopping = False

    async def publish(url: str) -> None:
        async with linn.connect(url) as client, client.producer("payments") as producer:
            while not stopping:
                some = list(range(len(published), len(published) + rng.randint(1, 50)))
                await producer.publish_many([b"%d" % record for record in some])
                published.extend(some)
                await trio.sleep(rng.uniform(0, 0.1))

    with BrokerProcess(tmp_path, CONFIG) as broker:
        consumers = [Consumer(broker.url, name, store, tmp_path) for name in NAMES]
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, broker.url)
                for number in range(KILLS):
                    await trio.sleep(rng.uniform(0.05, ALIVE_S_MAX))
                    if number % 2:
                        await trio.to_thread.run_sync(broker.kill)
                        await trio.to_thread.run_sync(broker.start)
                    else:
                        victim = rng.choice(consumers)
                        await trio.to_thread.run_sync(victim.kill)
                        victim.start()
                stopping = True
            with trio.fail_after(DONE_S_MAX):
                async with linn.connect(broker.url) as client:
                    while True:
                        queue = (await client.admin.topic("payments"))["queue"]
                        assert queue is not None
                        if not queue["unsettled"]:
                            break
                        await trio.sleep(0.2)
            effects = Counter(record for consumer in consumers for record in consumer.effects())
        finally:
            for consumer in consumers:
                consumer.close()
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0
    wrong = {record: effects[record] for record in published if effects[record] != 1}
    assert wrong == {}, f"effects of records; seed {seed} decides the moments"
    assert set(effects) == set(published)
    assert len(published) > 10 * KILLS, "there was no load"
    assert all(consumer.effects() for consumer in consumers), "both had a part in it"
