"""Transactions of the blocking client: what its threads publish and settle takes effect together, or not at all."""

from __future__ import annotations

import threading

import pytest

import linn.sync
from linn.errors import LinnError, MessageInvalid, SubscriptionWrongKind, TransactionError
from linn.sync import Batch, Client, Message, Output


def _filled(client: Client, name: str, count: int = 3, **settings: str) -> None:
    client.admin.create_topic(name, **settings)  # type: ignore[arg-type]
    client.admin.create_topic(f"{name}-out", kind="both")
    with client.producer(name) as producer:
        producer.publish_many([b"%d" % number for number in range(count)])


def _values(client: Client, topic: str) -> list[bytes | None]:
    return [value for batch in client.fetch(topic, 0, 0).batches for value in batch.values]


def _unsettled(client: Client, topic: str) -> int:
    return int(client.admin.topic(topic)["queue"]["unsettled"])


def _fail(client: Client, name: str, error: type[BaseException], batch: Batch | None) -> None:
    """Have a block raise in which something was published and acked."""
    assert batch is not None

    def work() -> None:
        with client.transaction(f"{name}-tx") as tx:
            tx.publish(f"{name}-out", b"lost")
            tx.ack(batch)
            raise error

    with pytest.raises(error):
        work()


def test_a_block_commits_what_it_publishes_and_acks(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        _filled(client, name)
        with client.consumer(name) as consumer:
            for _ in range(2):
                message = next(consumer)
                with client.transaction(f"{name}-tx") as tx:
                    tx.publish(f"{name}-out", message.value)
                    tx.producer(f"{name}-out").publish_nowait(b"nowait")
                    tx.ack(message)
                    assert _unsettled(client, name) > 0
        assert _values(client, f"{name}-out") == [b"0", b"nowait", b"1", b"nowait"]
        assert _unsettled(client, name) == 1


def test_a_block_that_raises_or_aborts_leaves_nothing(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        _filled(client, name)
        with client.consumer(name) as consumer:
            batch = consumer.next_batch()
            _fail(client, name, ZeroDivisionError, batch)
            batch = consumer.next_batch()
            with client.transaction(f"{name}-tx") as tx:
                tx.publish_many(f"{name}-out", [b"lost", b"too"])
                tx.ack(batch)
                tx.abort()
            with pytest.raises(TransactionError):
                tx.publish(f"{name}-out", b"late")
            _fail(client, name, KeyboardInterrupt, consumer.next_batch())
            assert [next(consumer).value for _ in range(3)] == [b"0", b"1", b"2"]
        assert _values(client, f"{name}-out") == []


def test_a_group_commits_offsets_with_a_transaction(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        _filled(client, name, kind="stream")
        with client.consumer(name, "readers") as member:
            message = next(member)
            with client.transaction(f"{name}-tx") as tx:
                tx.commit(message)
                with pytest.raises(SubscriptionWrongKind):
                    tx.ack(message)
                with pytest.raises(MessageInvalid):
                    tx.commit(b"0")  # type: ignore[arg-type]
        assert client.admin.group("readers")["offsets"][0]["offset"] == 1


def test_threads_share_a_transaction(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        _filled(client, name)
        with client.transaction(f"{name}-tx") as tx:
            works = [threading.Thread(target=tx.publish, args=(f"{name}-out", b"%d" % n)) for n in range(8)]
            for work in works:
                work.start()
            for work in works:
                work.join()
        assert sorted(_values(client, f"{name}-out")) == [b"%d" % n for n in range(8)]  # type: ignore[type-var]


@pytest.mark.parametrize("group", [None, "readers"])
def test_process_runs_in_the_calling_thread_until_it_is_interrupted(broker: str, name: str, group: str | None) -> None:
    threads = set()

    def double(message: Message) -> list[bytes | Output]:
        threads.add(threading.current_thread())
        if message.text == "9":
            raise KeyboardInterrupt
        return [message.value or b"", Output(b"again", topic=f"{name}-more")]

    with linn.sync.connect(broker) as client:
        _filled(client, name, 3, kind="stream" if group else "queue")
        client.admin.create_topic(f"{name}-more", kind="both")
        with client.producer(name) as producer:
            producer.publish(b"9")
        with pytest.raises(KeyboardInterrupt):
            client.process(name, double, f"{name}-out", name=name, group=group, prefetch=1)
        done = _values(client, f"{name}-out")
        assert done == [b"0", b"1", b"2"][: len(done)]
        assert threads == {threading.current_thread()}

        def to_the_end(message: Message) -> bytes:
            if message.text == "last":
                raise ZeroDivisionError
            return message.value or b""

        with client.producer(name) as producer:
            producer.publish(b"last")
        with pytest.raises(ZeroDivisionError):
            client.process(name, to_the_end, f"{name}-out", name=name, group=group, prefetch=1)
        assert _values(client, f"{name}-out") == [b"0", b"1", b"2", b"9"]


def test_workers_of_a_process_have_threads_of_their_own(broker: str, name: str) -> None:
    threads = set()
    seen = threading.Semaphore(0)
    both = threading.Barrier(2, timeout=300)

    def note(message: Message) -> bytes | None:
        if threading.current_thread() not in threads:
            threads.add(threading.current_thread())
            both.wait()
        seen.release()
        if message.text == "9":
            raise ZeroDivisionError
        return message.value

    with linn.sync.connect(broker) as client:
        _filled(client, name, 2)
        with client.producer(name) as producer:
            producer.publish(b"9")
        with pytest.raises(ZeroDivisionError):
            client.process(name, note, f"{name}-out", name=name, workers=2, prefetch=1)
        assert len(threads) == 2
        assert [thread for thread in threads if thread.is_alive()] == [threading.current_thread()]


def test_wrong_arguments_of_a_process_are_refused(broker: str, name: str) -> None:
    with linn.sync.connect(broker) as client:
        for wrong in ({"sink": None}, {"sink": "a", "exchange": "b"}, {"sink": "a", "workers": 0}, {"sink": "a"}):
            with pytest.raises(LinnError):
                client.process(name, lambda message: None, name=name, **wrong)
