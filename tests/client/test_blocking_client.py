from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import pytest
import trio

import linn
import linn.client
import linn.sync
from linn.client.blocking.loop_thread import LoopThread
from linn.core.errors.tree import AddressInvalid, ClientUnreachable, ConnectFailed, ConnectionLost, RequestTimeout
from linn.sync import Client
from linn.testing.process import BrokerProcess

THREADS = 8


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "linn-client"]


# --- life ------------------------------------------------------------------------------------------------------------


def test_closing_joins_the_thread(broker: str) -> None:
    before = client_threads()
    with linn.sync.connect(broker) as client:
        assert len(client_threads()) == len(before) + 1
        assert client.broker
    assert client_threads() == before
    client.close()


def test_connect_without_a_broker_fails_and_leaves_no_thread() -> None:
    before = client_threads()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed, match="can't connect to 127"):
            linn.sync.connect(f"linn://127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(AddressInvalid):
        linn.sync.connect("kafka://x")
    assert client_threads() == before


def test_a_closed_client_says_so(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        producer = client.producer(name)
    for use in (client.describe, client.admin.topics, lambda: producer.publish(b""), lambda: client.producer(name)):
        with pytest.raises(ConnectionLost, match="closed"):
            use()
    with pytest.raises(ConnectionLost, match="closed"):
        producer.publish_nowait(b"")


def test_closing_the_client_closes_what_was_made_from_it_first(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name)
        client.producer(name).publish_nowait(b"1")
        client.producer(name).publish_nowait(b"2")
        message = client.consumer(name).get()
        message.ack()
    with linn.sync.connect(broker) as client:
        with client.consumer(name) as consumer:
            left = [consumer.get().value]
        assert client.admin.topic(name)["queue"]["unsettled"] == 1
    assert {message.value, *left} == {b"1", b"2"}


def test_an_error_of_the_block_leaves_it_as_it_is(broker: str, name: str) -> None:
    with pytest.raises(KeyError):
        with linn.sync.connect(broker) as client, client.producer(name):
            raise KeyError


def test_a_client_that_is_dropped_unclosed_warns_and_ends_its_thread(broker: str, name: str) -> None:
    before = client_threads()
    client = linn.sync.connect(broker)
    producer = client.producer(name)
    (mine,) = [thread for thread in client_threads() if thread not in before]
    del client
    gc.collect()
    assert mine.is_alive()  # What was made from a client keeps it.
    del producer
    with pytest.warns(ResourceWarning, match="unclosed <linn.sync.Client of 127"):
        gc.collect()
    mine.join(10)
    assert not mine.is_alive()


def test_a_client_that_was_closed_does_not_warn(broker: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = linn.sync.connect(broker)
        client.close()
        del client
        gc.collect()


def test_a_program_that_never_closes_ends_all_the_same(broker: str) -> None:
    program = f"import linn.sync; client = linn.sync.connect({broker!r}); print(client.broker != '')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


# --- forks -----------------------------------------------------------------------------------------------------------


def outcome_in_child(work: Callable[[], object]) -> str:
    """Run work in a forked process, which ends without running anything of pytest's; returns its output."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Newer Pythons warn of every fork with threads.
        child = os.fork()
    if child == 0:
        try:
            told = work()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(write, str(told).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


def test_a_forked_child_is_refused_and_the_parent_is_not_disturbed(client: Client, name: str) -> None:
    client.admin.create_topic(name)
    with client.producer(name) as producer, client.consumer(name) as consumer:
        producer.publish_many([b"1", b"2"])
        message = next(consumer)
        for use in (
            lambda: next(consumer),
            lambda: message.ack(),
            lambda: producer.publish(b"child"),
            lambda: producer.publish_nowait(b"child"),
            lambda: consumer.get(timeout_s=1),
            lambda: client.describe(),
        ):
            assert outcome_in_child(use).startswith("ClientUnreachable: the process was forked")
        for close in (consumer.close, producer.close, client.close):
            assert outcome_in_child(close) == "None"
        producer.publish(b"parent")
        assert [message.value, next(consumer).value, next(consumer).value] == [b"1", b"2", b"parent"]
        message.ack().wait()


def test_a_forked_child_is_refused_also_where_another_thread_was_publishing(broker: str, name: str) -> None:
    held, forked = threading.Event(), threading.Event()

    def publish_in_child() -> None:
        signal.alarm(10)
        producer.publish_nowait(b"child")

    def hold() -> None:
        with producer._lock:
            held.set()
            forked.wait(20)

    with linn.sync.connect(broker) as client, client.producer(name) as producer:
        with running_threads(hold):
            held.wait(10)
            assert outcome_in_child(publish_in_child).startswith("ClientUnreachable")
            forked.set()


def test_a_child_makes_a_client_of_its_own(broker: str) -> None:
    def connect_again() -> bool:
        with linn.sync.connect(broker) as own:
            return own.broker != ""

    with linn.sync.connect(broker):
        assert outcome_in_child(connect_again) == "True"


# --- threads ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_threads(*works: Callable[[], object]) -> Iterator[None]:
    """Run threads that must have ended, without an error, when the block is left."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []


def test_eight_threads_publish_and_consume_through_one_client(broker: str, name: str) -> None:
    each = 2_000
    worked: list[int] = []

    def publish(place: int) -> None:
        for number in range(each):
            value = b"%d" % (place * each + number)
            if number % 500 == 0:
                producer.publish(value)
            elif number % 10 == 0:
                producer.publish_nowait(value, key=b"%d" % place)
            else:
                producer.publish_nowait(value)
        producer.flush()

    def work() -> None:
        for message in consumer:
            message.ack()
            worked.append(int(message.value or b""))  # Behind the ack: whoever sees all of them closes the consumer.
            if len(worked) >= THREADS * each:
                break
        consumer.close()

    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name)
        with client.producer(name) as producer, client.consumer(name, prefetch=500) as consumer:
            publishers = [lambda place=place: publish(place) for place in range(THREADS)]
            with running_threads(*publishers, *[work] * THREADS):
                pass
        assert sorted(worked) == list(range(THREADS * each))
        assert client.admin.topic(name)["queue"]["unsettled"] == 0


def test_messages_of_one_thread_are_stored_in_order(broker: str, name: str) -> None:
    def publish(place: int) -> None:
        for number in range(300):
            value = b"%d %d" % (place, number)
            if number % 100 == 50:
                producer.publish(value)
            elif number % 100 == 75:
                producer.publish_many([value])
            else:
                producer.publish_nowait(value, headers={"h": b""} if number % 7 == 0 else None)

    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name, kind="stream")
        with client.producer(name) as producer:
            with running_threads(*[lambda place=place: publish(place) for place in range(THREADS)]):
                pass
        stored: dict[int, list[int]] = {}
        with client.consumer(name) as reader:
            for _ in range(300 * THREADS):
                place, number = (next(reader).value or b"").split()
                stored.setdefault(int(place), []).append(int(number))
    assert stored == {place: list(range(300)) for place in range(THREADS)}


def test_closing_while_others_wait_ends_their_waits(broker: str, name: str) -> None:
    ended: list[str] = []
    waiting = threading.Barrier(3)

    def wait(step: Callable[[], object]) -> None:
        waiting.wait(10)
        try:
            step()
        except (ConnectionLost, StopIteration) as error:
            ended.append(type(error).__name__)

    client = linn.sync.connect(broker)
    client.admin.create_topic(name)
    consumer = client.consumer(name)
    with running_threads(lambda: wait(consumer.get), lambda: wait(lambda: next(consumer))):
        waiting.wait(10)
        client.close()
    assert sorted(ended) in (["ClientClosed", "StopIteration"], ["ClientClosed", "ClientClosed"])


def test_a_blocking_client_works_beside_a_running_loop(broker: str) -> None:
    async def inside() -> str:
        with linn.sync.connect(broker) as client:
            return client.describe().broker

    assert trio.run(inside)
    assert anyio.run(inside, backend="asyncio")


def test_calls_that_would_wait_for_their_own_thread_are_refused(broker: str) -> None:
    told: list[str] = []
    heard = threading.Event()
    with linn.sync.connect(broker) as client:

        def from_within() -> None:
            try:
                client.describe()
            except ClientUnreachable as error:
                told.append(error.code)
            heard.set()

        client._thread.soon(from_within)
        assert heard.wait(10)
    assert told == ["client.unreachable"]


# --- interruptions ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def interrupted(after_s: float = 0.2) -> Iterator[None]:
    """The main thread gets SIGINT, as from Ctrl-C, while it waits in the block."""
    timer = threading.Timer(after_s, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    timer.join()


def test_ctrl_c_in_a_wait_for_a_message_loses_none(client: Client, name: str) -> None:
    client.admin.create_topic(name)
    with client.producer(name) as producer, client.consumer(name) as consumer:
        with interrupted():
            consumer.get()
        producer.publish(b"after")
        assert consumer.get().value == b"after"
        with interrupted():
            next(consumer)
        producer.publish(b"once more")
        assert next(consumer).value == b"once more"


def test_ctrl_c_in_a_publish_withdraws_waiting_messages(client: Client, name: str) -> None:
    client.admin.create_topic(name, kind="stream")
    with client.producer(name, linger_ms=60_000) as producer:
        with interrupted():
            producer.publish(b"withdrawn")
        producer.publish_nowait(b"kept")
    assert [batch.values for batch in client.fetch(name, 0, 0).batches] == [[b"kept"]]


def test_ctrl_c_in_connect_leaves_no_thread() -> None:
    before = client_threads()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with interrupted():
            linn.sync.connect(f"linn://127.0.0.1:{silent.getsockname()[1]}", connect_timeout_s=60)
    assert client_threads() == before


def test_ctrl_c_in_a_wait_for_a_broker_leaves_no_thread(tmp_path: Path) -> None:
    before = client_threads()
    with interrupted():
        linn.sync.connect(f"linn+unix://{tmp_path}/linn.sock", wait_s=600)
    assert client_threads() == before


def test_a_blocking_wait_for_a_broker_says_how_long_it_was(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match=r"no broker after waiting for 0\.1 s"):
        linn.sync.connect(f"linn+unix://{tmp_path}/linn.sock", wait_s=0.1)


def test_ctrl_c_in_the_block_closes_the_client(broker: str, name: str) -> None:
    before = client_threads()
    with interrupted():
        with linn.sync.connect(broker) as client:
            client.admin.create_topic(name)
            with client.consumer(name) as consumer:
                consumer.get()
    assert client_threads() == before


# --- a broker that dies ----------------------------------------------------------------------------------------------


@pytest.mark.system
def test_workers_finish_all_jobs_although_the_broker_is_killed_halfway(tmp_path: Path, name: str) -> None:
    with BrokerProcess(tmp_path, f'[topics.{name}]\n[storage.segmented-log]\nfsync = "always"\n') as process:
        with linn.sync.connect(process.url, backoff_max_s=0.1) as client:
            done: list[bytes | None] = []

            def work() -> None:
                for message in consumer:
                    done.append(message.value)
                    message.ack()

            with client.producer(name) as producer:
                producer.publish_many([b"%d" % number for number in range(50)])
                consumer = client.consumer(name)
                with running_threads(work, work):
                    while len(done) < 25:
                        threading.Event().wait(0.001)
                    process.kill()
                    process.start()
                    producer.publish_many([b"%d" % number for number in range(50, 100)])
                    while len(set(done)) < 100:
                        threading.Event().wait(0.001)
                    consumer.close()
            with client.consumer(name) as rest:
                assert rest.get(timeout_s=0.1) is None


@pytest.mark.system
def test_a_publish_outlives_a_broker_that_is_killed_and_started_again(tmp_path: Path, name: str) -> None:
    with BrokerProcess(tmp_path, f'[topics.{name}]\nkind = "stream"\n') as process:
        with linn.sync.connect(process.url, retries_max=100, backoff_max_s=0.1) as client:
            confirmed: list[int] = []
            enough = threading.Event()

            def publish() -> None:
                with client.producer(name) as producer:
                    while not (enough.is_set() and len(confirmed) >= 200):
                        producer.publish(b"%d" % len(confirmed))
                        confirmed.append(len(confirmed))

            with running_threads(publish):
                while len(confirmed) < 50:
                    enough.wait(0.001)
                process.kill()
                at_the_kill = len(confirmed)
                process.start()
                while len(confirmed) < at_the_kill + 50:
                    enough.wait(0.001)
                enough.set()
            with client.consumer(name) as reader:
                stored = [int(next(reader).value or b"") for _ in range(len(confirmed))]
                while len(set(stored)) < len(confirmed):
                    stored.append(int(next(reader).value or b""))
    assert list(dict.fromkeys(stored)) == confirmed
    assert stored == sorted(stored)


@pytest.mark.system
def test_a_wait_fails_in_time_if_no_broker_returns(tmp_path: Path, name: str) -> None:
    with BrokerProcess(tmp_path, f"[topics.{name}]\n") as process:
        with linn.sync.connect(process.url, retries_max=2, backoff_s=0.01) as client:
            with client.producer(name) as producer:
                with client.consumer(name) as consumer:
                    process.kill()
                    with pytest.raises(ConnectionLost):
                        list(consumer)
                with pytest.raises(ConnectionLost):
                    producer.publish(b"")
                with pytest.raises((ConnectionLost, RequestTimeout)):
                    producer.publish(b"", timeout_s=0.001)


# --- the same names --------------------------------------------------------------------------------------------------


def test_the_blocking_client_has_everything_that_the_async_one_has() -> None:
    ours = {"AnyEnv", "ClientEnv", "ClientOptions"}
    assert set(linn.client.__all__) - ours <= set(linn.sync.__all__)
    assert linn.sync is sys.modules["linn.sync"]


# --- the thread ------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_raised_and_not_waited_for(client: Client) -> None:
    with pytest.raises(TypeError, match="required positional argument: 'name'"):
        client.admin.create_topic()  # type: ignore[call-arg]


def test_calls_are_refused_and_none_hangs_when_the_loop_has_failed() -> None:
    @contextlib.asynccontextmanager
    async def block() -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as tasks:
            yield tasks

    async def fail() -> None:
        raise ZeroDivisionError

    thread = LoopThread()
    tasks = thread.start(block())
    thread.soon(lambda: tasks.start_soon(fail))
    with pytest.raises(ConnectionLost) as caught:
        thread.call(anyio.sleep, 10)
    thread.join()
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    with pytest.raises(ConnectionLost):
        thread.call(anyio.sleep, 0)
    with pytest.raises(ConnectionLost):
        thread.soon(lambda: None)


def test_a_call_made_while_the_loop_ends_does_not_hang() -> None:
    leaving, called = threading.Event(), threading.Event()

    @contextlib.asynccontextmanager
    async def block() -> AsyncIterator[None]:
        try:
            yield
        finally:
            leaving.set()
            called.wait(10)  # The loop stands still: what is called meanwhile begins when the block has ended.

    thread = LoopThread()
    thread.start(block())
    thread.end()
    assert leaving.wait(10)
    timer = threading.Timer(0.2, called.set)
    timer.start()
    with pytest.raises(ConnectionLost):
        thread.call(anyio.sleep, 60)
    thread.join()
    timer.join()


def test_every_call_that_crosses_the_end_is_answered(broker: str) -> None:
    for _ in range(20):
        client = linn.sync.connect(broker)
        ready = threading.Barrier(5)

        def ask(client: Client = client, ready: threading.Barrier = ready) -> None:
            ready.wait(10)
            with contextlib.suppress(ConnectionLost):
                while True:
                    client.describe()

        with running_threads(*[ask] * 4):
            ready.wait(10)
            client.close()
