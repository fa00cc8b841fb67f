"""`linn connections`: who is connected, and closing a connection."""

import json

import pytest

import linn.sync
from linn.client.connection import connector
from linn.errors import ConnectionUnknown


def test_a_client_is_listed_while_it_is_there(quick, broker) -> None:
    with linn.sync.connect(broker.url) as watching:
        before = {one["number"] for one in watching.admin.connections()}
        with linn.sync.connect(broker.url) as client:
            (mine,) = [one for one in client.admin.connections() if one["number"] not in before]
            assert (mine["listener"], mine["protocol"]) == ("native", "capnp")
            assert min(mine["received_bytes"], mine["sent_bytes"]) > 0
            assert mine["open_s"] >= 0
            listed = {one["number"]: one["peer"] for one in json.loads(quick("connections", "--json").stdout)}
            assert listed[mine["number"]] == mine["peer"]
            assert mine["peer"] in quick("connections").stdout
        # The broker sees that a client is gone when its turn comes.
        lists = ({one["number"] for one in watching.admin.connections()} for _ in range(10_000))
        assert any(mine["number"] not in numbers for numbers in lists)


@pytest.mark.parametrize("columns", [None, "80"])
def test_a_client_is_listed_by_its_name_with_what_it_reads_and_holds(
    quick, broker, monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    with linn.sync.connect(broker.url, name="billing") as client:
        client.admin.create_topic("bills", lease="1h")
        with client.producer("bills") as producer, client.consumer("bills", name="ann") as consumer:
            producer.publish(b"bill")
            message = next(consumer)
            (mine,) = [one for one in client.admin.connections() if one["client"] == "billing"]
            shown_as = {"topic": "bills", "group": "", "shared": "", "name": "ann", "held": 1}
            assert mine["subscriptions"] == [shown_as]
            shown = quick("connections").stdout
            (row,) = [number for number, line in enumerate(shown.splitlines()) if "billing" in line]
            wrapped = [line.split("│") for line in shown.splitlines()[row : row + 2]]  # In a narrow terminal.
            cells = [" ".join(part.strip() for part in cell) for cell in zip(*wrapped, strict=False)]
            assert "bills by ann (1 held)" in map(str.strip, cells)
            message.ack().wait()


def number_of(client: linn.sync.Client, others: set[int]) -> int:
    (mine,) = {one["number"] for one in client.admin.connections()} - others
    return mine


def test_a_closed_connection_releases_its_leases_at_once(within, broker, monkeypatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(connector.logger, "warning", lambda text, about: told.append(text % about))
    with linn.sync.connect(broker.url) as watching:
        watching.admin.create_topic("held", lease="1h")
        others = {one["number"] for one in watching.admin.connections()}
        with linn.sync.connect(broker.url) as client, client.consumer("held") as consumer:
            with client.producer("held") as producer:
                producer.publish(b"job")
            assert next(consumer).attempt == 1
            number = number_of(client, others)
            with watching.consumer("held") as other:
                done = within("connections", "close", str(number), "--reason", "for a test", "--yes", url=broker.url)
                assert done.stdout == f"closed connection {number}\n"
                message = next(other)  # Its lease would have lasted an hour.
                assert message.attempt == 2
                message.ack().wait()
            assert number_of(client, others) > number, "the client has connected again by itself"
        assert any("an operator closed the connection: for a test" in line for line in told), told


def test_a_client_that_closes_its_own_connection_is_answered_first(broker) -> None:
    with linn.sync.connect(broker.url) as watching:
        others = {one["number"] for one in watching.admin.connections()}
        with linn.sync.connect(broker.url) as client:
            client.admin.close_connection(number_of(client, others))
            assert client.describe().broker


def test_only_an_existing_connection_can_be_closed(quick, within, broker) -> None:
    done = within("connections", "close", "123456789", url=broker.url)
    assert (done.returncode, done.stderr) == (
        1, "linn: there is no open connection 123456789 [connection.unknown]\n"
    )  # fmt: skip
    with linn.sync.connect(broker.url) as client, pytest.raises(ConnectionUnknown):
        client.admin.close_connection(0)
