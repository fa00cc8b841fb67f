"""The clients of Spark's processes, while a broker is away."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from linn.core.errors.peers import PeerUnreachable
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import ConnectionLost
from linn.spark_plugin.connections import OUTAGE_S_MAX, forget_client, patiently, pooled_client
from linn.spark_plugin.place import BrokerPlace
from linn.testing.process import BrokerProcess


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def url_of(listener: socket.socket) -> str:
    return f"linn://127.0.0.1:{listener.getsockname()[1]}"


def end_one_connection(listener: socket.socket) -> None:
    """Have one attempt to connect fail, as when the broker ends."""
    listener.settimeout(OUTAGE_S_MAX)
    connection, _ = listener.accept()
    connection.close()
    listener.close()


def test_planning_fails_at_once(listener: socket.socket) -> None:
    with ThreadPoolExecutor() as pool:
        found = pool.submit(pooled_client, BrokerPlace(url_of(listener)))
        end_one_connection(listener)
        with pytest.raises(ConnectionLost):
            found.result(OUTAGE_S_MAX)


def test_a_task_waits_for_a_broker_that_restarts(listener: socket.socket, tmp_path: Path) -> None:
    url = url_of(listener)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(pooled_client, BrokerPlace(url), wait_s=OUTAGE_S_MAX)
        end_one_connection(listener)
        with BrokerProcess(tmp_path, listen=[url.removeprefix("linn://")]):
            assert found.result(OUTAGE_S_MAX).broker
            forget_client(BrokerPlace(url))


def test_a_request_is_repeated_while_its_topic_has_no_leader_that_answers() -> None:
    errors = [NotLeader("it has none"), PeerUnreachable("it is gone"), ConnectionLost("of the broker at hand")]

    def ask() -> str:
        raise errors.pop(0)

    with pytest.raises(ConnectionLost):
        patiently(ask)
    assert errors == []
    assert patiently(lambda: "an answer") == "an answer"
