from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from linn_sqlite_engine import log as log_module
from linn_sqlite_engine.engine import SqliteEngine
from linn_sqlite_engine.settings import SqliteSettings

import linn
from linn.api import DiskFull, LogCorrupt, PartitionId, RealEnv, StorageError
from linn.testing.engines import EngineConformance, EngineHarness, append_batches, make_batch, messages_of, read_through
from linn.testing.log_machine import PartitionLogMachine
from linn.testing.process import BrokerProcess


def harness_in(folder: Path, fsync: str = "os") -> EngineHarness:
    chosen = SqliteSettings(fsync="always" if fsync == "always" else "os")
    return EngineHarness(RealEnv(), lambda env: SqliteEngine(str(folder / "sqlite"), chosen, env))


class TestSqlite(EngineConformance):
    @pytest.fixture(params=["os", "always"])
    def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> EngineHarness:
        return harness_in(tmp_path, request.param)


class AgainstAList(PartitionLogMachine):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        super().__init__()

    def make_harness(self) -> EngineHarness:
        return harness_in(Path(self.folder.name))

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


async def test_appended_batches_survive_a_kill_of_the_process(tmp_path: Path) -> None:
    async with harness_in(tmp_path).log() as log:
        messages = append_batches(log)
        # What the files hold now is what a killed process leaves behind.
        left = tmp_path / "left" / "sqlite" / "orders"
        left.mkdir(parents=True)
        for path in (tmp_path / "sqlite" / "orders").iterdir():
            (left / path.name).write_bytes(path.read_bytes())
    async with harness_in(tmp_path / "left").log() as log:
        assert messages_of(await read_through(log)) == messages


async def test_a_checkpoint_empties_the_wal_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "WAL_BYTES_MAX", 10_000)
    wal = tmp_path / "sqlite" / "orders" / "0.db-wal"
    async with harness_in(tmp_path).log() as log:
        messages = []
        for _ in range(20):
            messages += append_batches(log)
            await log.enforce_retention(0, age_ms=None, bytes_max=None, before=None)
        assert wal.stat().st_size < log.size_bytes() / 2
        assert messages_of(await read_through(log)) == messages


async def test_a_batch_that_was_damaged_is_told_and_not_delivered(tmp_path: Path) -> None:
    async with harness_in(tmp_path).log() as log:
        append_batches(log)
    with sqlite3.connect(tmp_path / "sqlite" / "orders" / "0.db") as database:
        database.execute("UPDATE batches SET message = zeroblob(length(message)) WHERE base_offset = 1")
    database.close()
    async with harness_in(tmp_path).log() as log:
        assert len(await log.read(0, 1)) == 1
        with pytest.raises(LogCorrupt, match=r"0\.db"):
            await log.read(1, 1)


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sqlite" / "orders" / "0.db"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(LogCorrupt, match=r"0\.db"):
        await harness_in(tmp_path).make(RealEnv()).open(PartitionId("orders", 0))
    assert path.read_bytes() == b"not a database" * 100


async def test_a_full_disk_stores_nothing_and_loses_nothing(tmp_path: Path) -> None:
    async with harness_in(tmp_path).log() as log:
        messages = append_batches(log)
        database = log._database  # type: ignore[attr-defined]
        (pages,) = database._writer.execute("PRAGMA page_count").fetchone()
        database._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        bounds, size = log.bounds(), log.size_bytes()
        with pytest.raises(DiskFull):
            log.append(make_batch(1, value_bytes=100_000))
        assert (log.bounds(), log.size_bytes()) == (bounds, size)
        database._writer.execute("PRAGMA max_page_count = 1000000")
        log.append(make_batch(1))
        assert messages_of(await read_through(log))[:-1] == messages


async def test_a_topic_that_names_no_folder_is_refused(tmp_path: Path) -> None:
    engine = harness_in(tmp_path).make(RealEnv())
    for topic in ("..", "a/b", ""):
        with pytest.raises(StorageError):
            await engine.open(PartitionId(topic, 0))


TOML = """
[storage.kept]
engine = "sqlite"
fsync = "always"
[topics.jobs]
storage = "kept"
[topics.events]
kind = "stream"
partitions = 2
storage = "sqlite"
"""


async def test_a_broker_keeps_what_it_confirmed_when_it_is_killed(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, TOML)
    with broker:
        async with linn.connect(broker.url) as client:
            for topic in ("jobs", "events"):
                async with client.producer(topic) as producer:
                    for number in range(50):
                        await producer.publish(b"%d" % number, key=b"k")
            async with client.consumer("jobs", prefetch=10) as worker:
                for _ in range(10):
                    await (await anext(worker)).ack()
        broker.kill()
    with broker:
        async with linn.connect(broker.url) as client:
            async with client.consumer("jobs") as worker:
                assert [int((await anext(worker)).value or b"") for _ in range(40)] == list(range(10, 50))
            async with client.consumer("events") as reader:
                assert [int((await anext(reader)).value or b"") for _ in range(50)] == list(range(50))
        broker.stop()
    with sqlite3.connect(tmp_path / "data" / "sqlite" / "events" / "0.db") as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    database.close()
    assert tables == {"batches", "bounds"}
