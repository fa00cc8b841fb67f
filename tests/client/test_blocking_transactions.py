"""Transactions of the blocking client: what its threads publish and settle takes effect together, or not at all."""

from __future__ import annotations

import threading

import pytest

import linn.sync
from linn.errors import MessageInvalid
from linn.sync import Client, Message, Output


def _filled(client: Client, name: str, count: int = 3, **settings: str) -> None:
    client.admin.create_topic(name, **settings)  # type: ignore[arg-type]
    client.admin.create_topic(f"{name}-out", kind="both")
    with client.producer(name) as producer:
        producer.publish_many([b"%d" % number for number in range(count)])


def _values(client: Client, topic: str) -> list[bytes | None]:
    return [value for batch in client.fetch(topic, 0, 0).batches for value in batch.values]


def _unsettled(client: Client, topic: str) -> int:
    return int(client.admin.topic(topic)["queue"]["unsettled"])


def test_only_what_was_received_is_settled(client: linn.sync.Client, name: str) -> None:
    with client.transaction(f"{name}-tx") as tx:
        for settle in (tx.ack, tx.commit):
            with pytest.raises(MessageInvalid):
                settle(b"0")  # type: ignore[operator]


def test_threads_share_a_transaction(client: linn.sync.Client, name: str) -> None:
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
