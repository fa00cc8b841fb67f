"""`Consumer.run`: what becomes of messages whose handler fails, and how a run ends."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from both_loops import on_both_loops

import linn
from linn.client import Client, Message
from linn.core.errors.tree import MessageInvalid, SubscriptionWrongKind, TopicUnknown
from linn.participants import SqliteParticipant

QUEUE: dict[str, Any] = {"max_deliveries": 3}
LOGGER = "linn.client"


async def publish(client: Client, topic: str, *values: bytes) -> None:
    async with client.producer(topic) as producer:
        await producer.publish_many(list(values))


async def make(client: Client, topic: str, *values: bytes, **settings: Any) -> None:
    """A topic with messages, and one for its dead letters if it has attempts."""
    if "max_deliveries" in settings:
        await client.admin.create_topic(f"{topic}-dead")
        settings["dead_letter"] = f"{topic}-dead"
    await client.admin.create_topic(topic, **settings)
    await publish(client, topic, *values)


class Worker:
    """A handler that notes what it is called with, fails for some values, and stops the run after the last."""

    def __init__(self, stop: Callable[[], Any], last: bytes = b"last", bad: bytes = b"bad") -> None:
        self.stop = stop
        self.last = last
        self.bad = bad
        self.calls: list[tuple[bytes | None, int]] = []

    async def __call__(self, message: Message) -> None:
        self.work(message)

    def work(self, message: Any, *_: object) -> None:
        self.calls.append((message.value, message.attempt))
        if message.value == self.last:
            self.stop()
        if message.value == self.bad:
            raise ValueError("can't be read\nat all")


def places(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER and record.exc_info]


# --- a queue ---------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_a_poison_message_is_logged_and_dies_and_the_run_goes_on(
    client: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make(client, name, b"1", b"bad", b"2", **QUEUE)
    async with client.consumer(name) as consumer, client.consumer(f"{name}-dead") as dead:
        stop = anyio.Event()
        worker = Worker(stop.set)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(worker, stop=stop))
            letter = await anext(dead)
            assert (letter.value, letter.labels["linn.dead.error"]) == (b"bad", "ValueError: can't be read")
            await publish(client, name, b"last")
    assert [call for call in worker.calls if call[0] != b"bad"] == [(b"1", 1), (b"2", 1), (b"last", 1)]
    assert [call for call in worker.calls if call[0] == b"bad"] == [(b"bad", 1), (b"bad", 2), (b"bad", 3)]
    assert places(caplog) == [
        f"{name}/0@1, attempt {attempt}: ValueError: can't be read; returning the message" for attempt in (1, 2, 3)
    ]
    assert (await client.admin.topic(name))["queue"]["unsettled"] == 0


@on_both_loops
async def test_an_exception_that_is_in_vain_rejects_at_once(client: Client, name: str) -> None:
    await make(client, name, b"bad", b"last", **QUEUE)
    async with client.consumer(name) as consumer, client.consumer(f"{name}-dead") as dead:
        stop = anyio.Event()
        worker = Worker(stop.set)
        await consumer.run(worker, stop=stop, reject_on=(KeyError, ValueError))
        labels = (await anext(dead)).labels
        assert (labels["linn.dead.reason"], labels["linn.dead.error"]) == ("rejected", "ValueError: can't be read")
    assert worker.calls == [(b"bad", 1), (b"last", 1)]


@on_both_loops
async def test_so_many_messages_are_handled_at_a_time(client: Client, name: str) -> None:
    await make(client, name, *[b"%d" % number for number in range(9)])
    async with client.consumer(name, prefetch=9) as consumer:
        stop, together = anyio.Event(), anyio.Event()
        at_work: list[Message] = []

        async def work(message: Message) -> None:
            at_work.append(message)
            if len(at_work) == 3:
                stop.set()
                await anyio.lowlevel.checkpoint()
                together.set()
            await together.wait()
            assert len(at_work) == 3

        await consumer.run(work, concurrency=3, stop=stop)
        assert (await client.admin.topic(name))["queue"]["unsettled"] == 6


@on_both_loops
async def test_a_stop_finishes_what_is_in_hand_and_leaves_the_rest_to_others_at_once(client: Client, name: str) -> None:
    await make(client, name, b"1", b"2")
    async with client.consumer(name, prefetch=2) as consumer, client.consumer(name) as other:
        stop = anyio.Event()

        async def work(message: Message) -> None:
            stop.set()
            assert ((await anext(other)).value, message.value) == (b"2", b"1")

        await consumer.run(work, stop=stop)
        assert (await client.admin.topic(name))["queue"]["unsettled"] == 1


@on_both_loops
async def test_a_stop_ends_the_wait_for_a_message(client: Client, name: str) -> None:
    await make(client, name)
    async with client.consumer(name) as consumer, anyio.create_task_group() as tasks:
        stop = anyio.Event()
        tasks.start_soon(lambda: consumer.run(Worker(stop.set), concurrency=4, stop=stop))
        await anyio.wait_all_tasks_blocked()
        stop.set()


@on_both_loops
async def test_cancelling_a_run_settles_nothing_that_is_in_hand(client: Client, name: str) -> None:
    await make(client, name, b"1")
    async with client.consumer(name) as consumer:
        with anyio.CancelScope() as scope:

            async def work(message: Message) -> None:
                scope.cancel()
                await anyio.sleep_forever()

            await consumer.run(work)
    async with client.consumer(name) as consumer:
        assert (await anext(consumer)).attempt == 2


@on_both_loops
async def test_a_plain_function_is_a_handler_as_well(client: Client, name: str) -> None:
    await make(client, name, b"last")
    async with client.consumer(name) as consumer:
        stop = anyio.Event()
        worker = Worker(stop.set)
        await consumer.run(worker.work, stop=stop)
    assert worker.calls == [(b"last", 1)]


@on_both_loops
async def test_a_run_ends_with_the_subscription_and_says_why(client: Client, name: str) -> None:
    await make(client, name, b"1")
    async with client.consumer(name) as consumer:

        async def work(message: Message) -> None:
            await client.admin.delete_topic(name)

        with pytest.raises(TopicUnknown):
            await consumer.run(work)


@on_both_loops
async def test_a_closed_consumer_ends_its_run(client: Client, name: str) -> None:
    await make(client, name)
    async with client.consumer(name) as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: consumer.run(Worker(lambda: None), concurrency=2))
        await anyio.wait_all_tasks_blocked()
        await consumer.aclose()


@on_both_loops
async def test_a_settlement_that_is_refused_is_logged_and_the_run_goes_on(
    client: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make(client, name, b"1", b"last")
    async with client.consumer(name, prefetch=1) as consumer:
        stop = anyio.Event()
        worker = Worker(stop.set)

        async def work(message: Message) -> None:
            if message.value == b"1":
                await message.ack()  # The run does that.
            await worker(message)

        await consumer.run(work, stop=stop)
    assert worker.calls == [(b"1", 1), (b"last", 1)]
    assert "going on" in caplog.text


@on_both_loops
async def test_what_is_settled_on_delivery_is_only_logged(
    client: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make(client, name, b"bad", b"last", delivery="at-most-once")
    async with client.consumer(name) as consumer:
        stop = anyio.Event()
        worker = Worker(stop.set)
        await consumer.run(worker, stop=stop)
    assert [value for value, _ in worker.calls] == [b"bad", b"last"]
    assert "was settled when it was delivered" in caplog.text


# --- SIGTERM ---------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_sigterm_ends_all_runs_of_a_program_that_leaves_it_alone(broker: str, name: str) -> None:
    async with linn.connect(broker) as client:
        await make(client, name)
        async with client.consumer(name) as first, client.consumer(name) as second:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: first.run(Worker(lambda: None)))
                tasks.start_soon(lambda: second.run(Worker(lambda: None)))
                await anyio.wait_all_tasks_blocked()
                signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@on_both_loops
async def test_a_program_that_handles_sigterm_goes_on_to(broker: str, name: str) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        async with linn.connect(broker) as client:
            await make(client, name, b"1", b"last")
            async with client.consumer(name) as consumer:
                stop = anyio.Event()
                worker = Worker(stop.set)

                async def work(message: Message) -> None:
                    signal.raise_signal(signal.SIGTERM)
                    await worker(message)

                await consumer.run(work, stop=stop)
        assert (len(worker.calls), len(heard)) == (2, 2)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# --- a stream --------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_a_poison_message_of_a_stream_is_repeated_and_then_passed_over(
    broker: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with linn.connect(broker, backoff_s=0.001) as client:
        await make(client, name, b"1", b"bad", b"last", kind="stream")
        for group in (None, f"{name}-readers"):
            caplog.clear()
            async with client.consumer(name, group) as consumer:
                stop = anyio.Event()
                worker = Worker(stop.set)
                await consumer.run(worker, stop=stop, attempts_max=3)
            assert [value for value, _ in worker.calls] == [b"1", b"bad", b"bad", b"bad", b"last"]
            assert [place.partition("; ")[2] for place in places(caplog)] == [
                *("trying it again",) * 2,
                "passing over the message",
            ]
            assert places(caplog)[1].startswith(f"{name}/0@1, attempt 2: ValueError")
        assert (await client.admin.group(f"{name}-readers"))["offsets"][0]["offset"] == 3


@on_both_loops
async def test_a_stop_leaves_a_failing_message_of_a_stream_for_the_next_run(broker: str, name: str) -> None:
    async with linn.connect(broker, backoff_s=600, backoff_max_s=600) as client:
        await make(client, name, b"1", b"bad", kind="stream")
        async with client.consumer(name, f"{name}-readers") as consumer:
            stop = anyio.Event()
            worker = Worker(stop.set, last=b"bad")
            await consumer.run(worker, stop=stop, attempts_max=None)
        async with client.consumer(name, f"{name}-readers") as consumer:
            stop = anyio.Event()
            again = Worker(stop.set, last=b"bad")
            await consumer.run(again, stop=stop, reject_on=ValueError)
        assert [value for value, _ in again.calls] == [b"bad"]
        assert (await client.admin.group(f"{name}-readers"))["offsets"][0]["offset"] == 2


@on_both_loops
async def test_a_stream_is_handled_in_order(client: Client, name: str) -> None:
    await make(client, name, kind="stream")
    for group in (None, f"{name}-readers"):
        async with client.consumer(name, group) as consumer:
            with pytest.raises(SubscriptionWrongKind, match="in order"):
                await consumer.run(Worker(lambda: None), concurrency=2)


@on_both_loops
async def test_wrong_arguments_are_refused_by_name(client: Client, name: str) -> None:
    await make(client, name)
    async with client.consumer(name) as consumer:
        for wrong in ({"concurrency": 0}, {"reject_on": "ValueError"}, {"attempts_max": 0}):
            with pytest.raises(MessageInvalid, match=next(iter(wrong))):
                await consumer.run(Worker(lambda: None), **wrong)  # type: ignore[arg-type]
        with pytest.raises(MessageInvalid, match="handler"):
            await consumer.run(None)  # type: ignore[arg-type]


# --- exactly once ----------------------------------------------------------------------------------------------------


def ledger(path: Path) -> SqliteParticipant:
    def make_table(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS payments (text TEXT)")

    return SqliteParticipant(path, prepare_connection=make_table)


def payments(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM payments ORDER BY rowid")]


class Clerk(Worker):
    """A handler that books what it is called with, before it fails."""

    def work(self, message: Any, *handles: Any) -> None:
        handles[0].execute("INSERT INTO payments VALUES (?)", (message.text,))
        super().work(message)

    async def book(self, message: Message, handle: object) -> None:
        self.work(message, handle)


@on_both_loops
async def test_exactly_once_returns_the_poison_message_alone(
    client: Client, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make(client, name, b"1", b"2", b"bad", b"3", delivery="exactly-once", **QUEUE)
    made = client.consumer(name, name="ann", exactly_once=ledger(tmp_path / "ledger"), prefetch=10)
    async with made as consumer, client.consumer(f"{name}-dead") as dead:
        stop = anyio.Event()
        clerk = Clerk(stop.set)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(clerk.book, stop=stop))
            letter = await anext(dead)
            assert (letter.value, letter.labels["linn.dead.error"]) == (b"bad", "ValueError: can't be read")
            await publish(client, name, b"last")
    assert sorted(payments(tmp_path / "ledger")) == ["1", "2", "3", "last"]
    assert [attempt for value, attempt in clerk.calls if value == b"bad"] == [1, 2, 3]
    assert {attempt for value, attempt in clerk.calls if value != b"bad"} == {1}
    assert len(places(caplog)) == 3
    assert (await client.admin.topic(name))["queue"]["unsettled"] == 0


@on_both_loops
async def test_exactly_once_passes_nothing_of_a_stream_over(broker: str, name: str, tmp_path: Path) -> None:
    async with linn.connect(broker, backoff_s=0.001) as client:
        await make(client, name, b"1", b"bad", b"last", kind="stream")
        participant = ledger(tmp_path / "ledger")
        async with client.consumer(name, name="ann", exactly_once=participant) as consumer:
            stop = anyio.Event()
            clerk = Clerk(stop.set)

            async def work(message: Message, handle: object) -> None:
                clerk.bad = b"bad" if len(clerk.calls) < 6 else b""
                clerk.work(message, handle)

            await consumer.run(work, stop=stop)
        assert payments(tmp_path / "ledger") == ["1", "bad", "last"]


@on_both_loops
async def test_a_store_that_fails_is_tried_again(
    broker: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = anyio.Event()

    class Failing(SqliteParticipant):
        failures = 2

        def prepare(self) -> None:
            if self.failures:
                self.failures -= 1
                raise sqlite3.OperationalError("database is locked")
            stop.set()
            super().prepare()

    async with linn.connect(broker, backoff_s=0.001) as client:
        await make(client, name, b"1", delivery="exactly-once", **QUEUE)
        participant = Failing(tmp_path / "ledger", prepare_connection=ledger(tmp_path / "ledger")._prepare_connection)
        async with client.consumer(name, name="ann", exactly_once=participant, prefetch=10) as consumer:
            clerk = Clerk(stop.set)
            await consumer.run(clerk.book, stop=stop)
        assert payments(tmp_path / "ledger") == ["1"]
        assert clerk.calls == [(b"1", 1)] * 3
        assert caplog.text.count("OperationalError: database is locked") >= 2


# --- blocking --------------------------------------------------------------------------------------------------------


def make_blocking(client: linn.sync.Client, topic: str, *values: bytes, **settings: Any) -> None:
    if "max_deliveries" in settings:
        client.admin.create_topic(f"{topic}-dead")
        settings["dead_letter"] = f"{topic}-dead"
    client.admin.create_topic(topic, **settings)
    with client.producer(topic) as producer:
        producer.publish_many(list(values))


def test_a_poison_message_ends_no_thread(client: linn.sync.Client, name: str, caplog: pytest.LogCaptureFixture) -> None:
    make_blocking(client, name, b"1", b"bad", b"2", **QUEUE)
    stop = threading.Event()
    worker = Worker(stop.set)
    with client.consumer(name) as consumer, client.consumer(f"{name}-dead") as dead:
        run = threading.Thread(target=lambda: consumer.run(worker.work, concurrency=3, stop=stop))
        run.start()
        letter = next(dead)
        assert (letter.value, letter.labels["linn.dead.error"]) == (b"bad", "ValueError: can't be read")
        with client.producer(name) as producer:
            producer.publish(b"last")
        run.join()
    assert sorted(worker.calls) == [(b"1", 1), (b"2", 1), (b"bad", 1), (b"bad", 2), (b"bad", 3), (b"last", 1)]
    assert len(places(caplog)) == 3
    assert client.admin.topic(name)["queue"]["unsettled"] == 0


def test_threads_handle_messages_at_the_same_time_and_finish_them(client: linn.sync.Client, name: str) -> None:
    make_blocking(client, name, *[b"%d" % number for number in range(9)])
    stop, together = threading.Event(), threading.Barrier(3)

    def work(message: linn.sync.Message) -> None:
        together.wait(20)
        stop.set()

    with client.consumer(name, prefetch=9) as consumer:
        consumer.run(work, concurrency=3, stop=stop)
    assert client.admin.topic(name)["queue"]["unsettled"] == 6


def test_sigterm_ends_the_runs_of_threads(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        make_blocking(client, name, b"1", b"2")

        def work(message: linn.sync.Message) -> None:
            signal.raise_signal(signal.SIGTERM)

        with client.consumer(name, prefetch=1) as consumer:
            consumer.run(work)
        assert client.admin.topic(name)["queue"]["unsettled"] == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_ctrl_c_leaves_the_message_in_hand_unsettled(client: linn.sync.Client, name: str) -> None:
    make_blocking(client, name, b"1")

    def work(message: linn.sync.Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), client.consumer(name) as consumer:
        consumer.run(work, concurrency=2)
    with client.consumer(name) as consumer:
        assert next(consumer).attempt == 2


def test_what_ends_one_thread_ends_the_run(client: linn.sync.Client, name: str) -> None:
    make_blocking(client, name, b"1")
    with client.consumer(name) as consumer, pytest.raises(TopicUnknown):
        consumer.run(lambda message: client.admin.delete_topic(name), concurrency=2)


def test_closing_the_consumer_ends_its_run(client: linn.sync.Client, name: str) -> None:
    make_blocking(client, name, b"1")
    consumer = client.consumer(name)
    consumer.run(lambda message: consumer.close(), concurrency=2)


def test_a_poison_message_of_a_stream_is_passed_over_by_a_thread(
    broker: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with linn.sync.connect(broker, backoff_s=0.001) as client:
        make_blocking(client, name, b"1", b"bad", b"last", kind="stream")
        stop = threading.Event()
        worker = Worker(stop.set)
        with client.consumer(name, f"{name}-readers") as consumer:
            with pytest.raises(SubscriptionWrongKind):
                consumer.run(worker.work, concurrency=2)
            consumer.run(worker.work, stop=stop, attempts_max=2)
        assert [value for value, _ in worker.calls] == [b"1", b"bad", b"bad", b"last"]
        assert client.admin.group(f"{name}-readers")["offsets"][0]["offset"] == 3


def test_a_coroutine_function_is_no_handler_of_threads(client: linn.sync.Client, name: str) -> None:
    make_blocking(client, name)

    async def work(message: linn.sync.Message) -> None:
        pass

    with client.consumer(name) as consumer, pytest.raises(MessageInvalid, match="coroutine"):
        consumer.run(work)


def test_exactly_once_in_a_thread_returns_the_poison_message_alone(
    broker: str, client: linn.sync.Client, name: str, tmp_path: Path
) -> None:
    make_blocking(client, name, b"1", b"bad", b"2", delivery="exactly-once", **QUEUE)
    stop = threading.Event()
    clerk = Clerk(stop.set)

    def end() -> None:
        with linn.sync.connect(broker) as other:
            with other.consumer(f"{name}-dead") as dead:
                assert next(dead).value == b"bad"
            with other.producer(name) as producer:
                producer.publish(b"last")

    ending = threading.Thread(target=end)
    ending.start()
    participant = ledger(tmp_path / "ledger")
    with client.consumer(name, name="ann", exactly_once=participant, prefetch=10) as consumer:
        consumer.run(clerk.work, stop=stop)
    ending.join()
    assert sorted(payments(tmp_path / "ledger")) == ["1", "2", "last"]
    assert [attempt for value, attempt in clerk.calls if value == b"bad"] == [1, 2, 3]
    assert client.admin.topic(name)["queue"]["unsettled"] == 0
