"""Consumers with a participant, blocking: each record has its effect once, and the participant one thread."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_blocking_client import interrupted

import linn.sync
from linn.client.participants.participant import NO_FLOOR, Floor, Mark, Place
from linn.client.participants.sqlite import SqliteParticipant
from linn.errors import ConnectionLost, DeliveryFenced, MessageInvalid
from linn.sync import Client

VALUES = [f"record {number}" for number in range(12)]
Consuming = linn.sync.ExactlyOnceConsumer[sqlite3.Connection]


def _make_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS effects (value TEXT NOT NULL)")


def _ledger(path: Path) -> SqliteParticipant:
    return SqliteParticipant(path / "ledger.db", prepare_connection=_make_table)


def _effects(path: Path) -> list[str]:
    with sqlite3.connect(path / "ledger.db") as connection:
        _make_table(connection)
        return [value for (value,) in connection.execute("SELECT value FROM effects ORDER BY rowid")]


def _filled(client: Client, topic: str, values: Sequence[str] = VALUES, **settings: Any) -> None:
    client.admin.create_topic(topic, **settings)
    with client.producer(topic) as producer:
        producer.publish_many([value.encode() for value in values])


def _apply(consumer: Consuming, count: int) -> list[str]:
    """Store so many values, and commit."""
    seen = []
    for message, db in consumer:
        db.execute("INSERT INTO effects VALUES (?)", (message.text,))
        seen.append(message.text)
        if len(seen) == count:
            consumer.commit()
            break
    return seen


def _unsettled(client: Client, topic: str) -> int:
    return client.admin.topic(topic)["queue"]["unsettled"]


# --- effects ---------------------------------------------------------------------------------------------------------


def test_a_reader_of_a_stream_goes_on_where_its_store_has_left_off(client: Client, name: str, tmp_path: Path) -> None:
    _filled(client, name, kind="stream")
    for count in (5, 7):
        with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
            _apply(consumer, count)
    assert _effects(tmp_path) == VALUES


def test_a_block_that_raises_or_is_left_without_a_commit_has_no_effect(
    client: Client, name: str, tmp_path: Path
) -> None:
    _filled(client, name, delivery="exactly-once")

    def fail() -> None:
        with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
            message, db = next(consumer)
            db.execute("INSERT INTO effects VALUES (?)", (message.text,))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        message, db = next(consumer)
        db.execute("INSERT INTO effects VALUES (?)", (message.text,))
    assert _effects(tmp_path) == []
    with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        assert sorted(_apply(consumer, 12)) == sorted(VALUES)
    assert sorted(_effects(tmp_path)) == sorted(VALUES)


def test_an_error_of_the_participant_is_raised_and_the_next_step_tries_again(
    broker: str, name: str, tmp_path: Path
) -> None:
    class Full(SqliteParticipant):
        times = 0

        def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
            self.times += 1
            if self.times == 1:
                raise sqlite3.OperationalError("the disk is full")
            super().commit(marks, floor)

    with linn.sync.connect(broker) as client:
        _filled(client, name, delivery="exactly-once")
        participant = Full(tmp_path / "ledger.db", prepare_connection=_make_table)
        with client.consumer(name, name="ann", exactly_once=participant) as consumer:
            with pytest.raises(sqlite3.OperationalError, match="disk is full"):
                _apply(consumer, 12)
            assert _apply(consumer, 12) == VALUES, "they were decided to it"
        assert _effects(tmp_path) == VALUES
        assert _unsettled(client, name) == 0


class Coroutines:
    """A participant for the async client."""

    async def open(self) -> None: ...
    async def floor(self, place: Place) -> Floor:
        return NO_FLOOR

    async def begin(self, place: Place) -> str:
        return ""

    async def applied(self, mark: Mark) -> Sequence[tuple[int, int]]:
        return ()

    async def prepare(self) -> None: ...
    async def commit(self, marks: Sequence[Mark], floor: Floor) -> None: ...
    async def rollback(self) -> None: ...
    async def close(self) -> None: ...


def test_a_participant_with_coroutines_is_refused(client: Client, name: str) -> None:
    client.admin.create_topic(name, delivery="exactly-once")
    with pytest.raises(MessageInvalid, match="for the async client"):
        client.consumer(name, name="ann", exactly_once=Coroutines())  # type: ignore[call-overload]
    assert client.admin.subscription(name)["by_consumer"] == []


# --- threads ---------------------------------------------------------------------------------------------------------


class Noting(SqliteParticipant):
    """A participant that notes the threads that call it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / "ledger.db", prepare_connection=_make_table)
        self.threads: dict[str, set[int]] = {}

    def __getattribute__(self, name: str) -> Any:
        if name in ("open", "floor", "begin", "applied", "prepare", "commit", "rollback", "close"):
            self.threads.setdefault(name, set()).add(threading.get_ident())
        return super().__getattribute__(name)


@pytest.mark.parametrize("settings", [{"delivery": "exactly-once"}, {"kind": "stream"}], ids=["queue", "stream"])
def test_the_participant_is_called_in_the_thread_of_the_consumer(
    client: Client, name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    _filled(client, name, **settings)
    participant = Noting(tmp_path)

    def work() -> int:
        participant.threads.clear()
        with client.consumer(name, name="ann", exactly_once=participant) as consumer:
            _apply(consumer, 5)
            next(consumer)
        return threading.get_ident()

    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(work).result()
    used = {method: found for method, found in participant.threads.items() if found != {thread}}
    assert used == {}
    assert {"open", "begin", "applied", "prepare", "commit", "close"} <= participant.threads.keys()
    assert _effects(tmp_path) == VALUES[:5]


def test_closing_in_another_thread_ends_the_iteration_and_leaves_the_participant_to_its_own(
    client: Client, name: str, tmp_path: Path
) -> None:
    _filled(client, name, VALUES[:1], delivery="exactly-once")
    participant, opened, waiting = Noting(tmp_path), [], threading.Event()

    def work() -> list[str]:
        with client.consumer(name, name="ann", exactly_once=participant) as consumer:
            opened.append(consumer)
            seen = []
            for message, db in consumer:
                db.execute("INSERT INTO effects VALUES (?)", (message.text,))
                seen.append(message.text)
                waiting.set()
            return seen

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        assert waiting.wait(20)
        while _unsettled(client, name):
            pass  # Each look is a round trip: the thread waits for a second message then.
        opened[0].close()
        assert future.result(20) == VALUES[:1]
    assert threading.get_ident() not in participant.threads["close"]
    assert _effects(tmp_path) == VALUES[:1]


def test_a_closed_client_undoes_what_is_not_committed(broker: str, name: str, tmp_path: Path) -> None:
    client = linn.sync.connect(broker)
    _filled(client, name, delivery="exactly-once")
    consumer = client.consumer(name, name="ann", exactly_once=_ledger(tmp_path))
    message, db = next(consumer)
    db.execute("INSERT INTO effects VALUES (?)", (message.text,))
    client.close()
    consumer.close()
    assert list(consumer) == []
    with pytest.raises(ConnectionLost, match="closed"):
        client.describe()
    assert _effects(tmp_path) == []


def test_the_older_consumer_of_a_name_is_told(client: Client, name: str, tmp_path: Path) -> None:
    _filled(client, name, delivery="exactly-once")
    old = client.consumer(name, name="ann", exactly_once=_ledger(tmp_path))
    with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as new:
        assert _apply(new, 12) == VALUES
        with pytest.raises(DeliveryFenced):
            _apply(old, 12)
    old.close()
    assert _effects(tmp_path) == VALUES


# --- interruptions ---------------------------------------------------------------------------------------------------


def test_ctrl_c_in_a_wait_for_a_message_loses_none(client: Client, name: str, tmp_path: Path) -> None:
    _filled(client, name, VALUES[:2], delivery="exactly-once")
    with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        _apply(consumer, 2)
        with interrupted():
            next(consumer)
        with client.producer(name) as producer:
            producer.publish(b"after")
        assert _apply(consumer, 1) == ["after"]
    assert _effects(tmp_path) == [*VALUES[:2], "after"]
    assert _unsettled(client, name) == 0


def test_work_that_comes_while_a_wait_is_interrupted_is_the_next(
    client: Client, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(client, name, VALUES[:2], delivery="exactly-once")
    with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        call = client._thread.call

        def interrupt(*work: Any, **options: Any) -> Any:
            call(*work, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(client._thread, "call", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(consumer)
        assert _apply(consumer, 2) == VALUES[:2]
        with client.producer(name) as producer:
            producer.publish(b"last")
        with monkeypatch.context() as patched:
            patched.setattr(client._thread, "call", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(consumer)
    with client.consumer(name, name="ann", exactly_once=_ledger(tmp_path)) as consumer:
        message, _ = next(consumer)
        assert (message.text, message.attempt) == ("last", 1), "it was never given to the application"


@pytest.mark.parametrize("method", ["begin", "prepare", "commit"])
def test_an_interrupt_in_the_store_undoes_the_transaction(
    broker: str, name: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with linn.sync.connect(broker) as client:
        _filled(client, name, delivery="exactly-once")
        participant = _ledger(tmp_path)
        with client.consumer(name, name="ann", exactly_once=participant) as consumer:
            with monkeypatch.context() as patched:
                patched.setattr(participant, method, interrupt)
                with pytest.raises(KeyboardInterrupt):
                    _apply(consumer, 12)
            assert _effects(tmp_path) == []
            assert _apply(consumer, 12) == VALUES
        assert _effects(tmp_path) == VALUES


# --- parts of a delivery ---------------------------------------------------------------------------------------------


def _until_leases_end(client: Client, topic: str) -> None:
    while client.admin.subscription(topic)["leased"]:
        pass


class Slow(SqliteParticipant):
    """Commits the first time when all leases have ended."""

    def __init__(self, path: Path, client: Client, topic: str) -> None:
        super().__init__(path / "ledger.db", prepare_connection=_make_table)
        self.is_slow = True
        self._client, self._topic = client, topic

    def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        if self.is_slow:
            self.is_slow = False
            _until_leases_end(self._client, self._topic)
        super().commit(marks, floor)


def test_what_was_decided_is_done_although_the_rest_of_its_delivery_was_lost_meanwhile(
    broker: str, client: Client, name: str, tmp_path: Path
) -> None:
    with linn.sync.connect(broker) as other:
        _filled(client, name, delivery="exactly-once", lease="100ms")
        participant = Slow(tmp_path, other, name)
        with client.consumer(name, name="ann", prefetch=12, renewal_max_s=0, exactly_once=participant) as consumer:
            assert _apply(consumer, 3) == VALUES[:3]
            assert not participant.is_slow
            while len(_effects(tmp_path)) < len(VALUES):
                _apply(consumer, 1)
        assert sorted(_effects(tmp_path)) == sorted(VALUES)
        assert _unsettled(client, name) == 0


def test_a_lease_that_ends_before_the_consumer_is_ready_ends_no_loop(client: Client, name: str, tmp_path: Path) -> None:
    _filled(client, name, VALUES[:2], delivery="exactly-once", lease="100ms")
    seen = []
    with client.consumer(name, name="ann", prefetch=1, renewal_max_s=0, exactly_once=_ledger(tmp_path)) as consumer:
        for message, db in consumer:
            if not seen:
                _until_leases_end(client, name)
            db.execute("INSERT INTO effects VALUES (?)", (message.text,))
            seen.append(message.text)
            if len(_effects(tmp_path)) == 1:
                consumer.commit()
            if len(_effects(tmp_path)) == 2:
                break
    assert sorted(_effects(tmp_path)) == VALUES[:2]
