"""A program that is killed at any point has given each record its effect once, with its mark, or not at all."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis
from database_servers import postgres_server, redis_server
from killed_program import KINDS, PLACE

from linn.participants import Mark

pytestmark = pytest.mark.system
KILLS = 50
KILLS_OF_SERVERS = 20
"""Kills of programs whose effects are in a server, which lives on."""
STEPS_MAX = 80
STEPS = (b"c", b"w", b"c", b"d", b"c", b"b")
"""Before the begin, before a write, before the commit and after it: the program goes on meanwhile."""
TURNS_MAX = 150_000
"""Turns of an empty loop, a few milliseconds in all: the kill comes at any point of a commit, not just at its start."""
PROGRAM = Path(__file__).parent / "killed_program.py"


def run_and_kill(kind: str, where: str, steps: int, last: bytes, turns: int) -> None:
    """Run the program, and kill it while it goes on after so many steps and then the next one that is `last`."""
    with subprocess.Popen([sys.executable, str(PROGRAM), kind, where], stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        seen = b""
        while steps > 0 or seen != last:
            seen = process.stdout.read(1)
            assert seen, "the program ended by itself"
            steps -= 1
        for _ in range(turns):
            pass
        process.kill()


def check_effects(kind: str, where: str, read: Callable[[], list[int]], kills: int) -> None:
    """Kill the program many times, at steps of each kind, and compare effects and marks each time."""
    rng, marked = random.Random(kind), 0
    for number in range(kills):
        run_and_kill(kind, where, rng.randrange(STEPS_MAX), STEPS[number % len(STEPS)], rng.randrange(TURNS_MAX))
        effects = read()
        participant, _ = KINDS[kind](where)
        with closing(participant):
            participant.open()
            participant.begin(PLACE)
            parts = participant.applied(Mark(1, 0, 1 << 40))
        assert sorted(effects) == [record for first, end in parts for record in range(first, end)]
        marked += len(parts) > 1
    assert marked, "killed while there was a mark above the floor"


def test_effects_in_files(tmp_path: Path) -> None:
    def read() -> list[int]:
        return [int(line) for path in tmp_path.glob("*.txt") for line in path.read_text().split()]

    check_effects("files", str(tmp_path), read, KILLS)


def test_effects_in_sqlite(tmp_path: Path) -> None:
    def read() -> list[int]:
        with closing(sqlite3.connect(tmp_path / "effects.db")) as connection:
            has_table = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'effects'").fetchone()[0]
            return [row[0] for row in connection.execute("SELECT record FROM effects")] if has_table else []

    check_effects("sqlite", str(tmp_path), read, KILLS)


def test_effects_in_postgres() -> None:
    with postgres_server() as conninfo, psycopg.connect(conninfo, autocommit=True) as connection:

        def read() -> list[int]:
            # The server may not have noticed yet that the program is dead: its transaction ends now, or has ended.
            connection.execute(
                "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            has_table = connection.execute("SELECT to_regclass('effects') IS NOT NULL").fetchone()
            return [row[0] for row in connection.execute("SELECT record FROM effects")] if has_table == (True,) else []

        check_effects("postgres", conninfo, read, KILLS_OF_SERVERS)


def test_effects_in_redis() -> None:
    with redis_server() as url, closing(redis.Redis.from_url(url, decode_responses=True)) as client:

        def read() -> list[int]:
            client.client_kill_filter(_type="normal", skipme=True)  # What the dead program has sent is read, or never.
            return [int(record) for record in client.lrange("effects", 0, -1)]

        check_effects("redis", url, read, KILLS_OF_SERVERS)
