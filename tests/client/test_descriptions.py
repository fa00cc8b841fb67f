"""The types of `linn.descriptions` are those of the broker: the same settings, and descriptions with the same keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import anyio
import msgspec
import pytest

import linn
from linn import descriptions
from linn.core.config import topic_settings
from linn.core.config.decoder import fields_of, plain_types, rest_of, unit_of
from linn.core.errors.tree import TransactionUnknown
from linn.participants import SqliteParticipant


def test_the_settings_of_topics_are_those_that_the_broker_knows() -> None:
    tables = rest_of(topic_settings.TopicSettings)  # Those of services, which plugins bring.
    known = {field.encode_name: field for field in fields_of(topic_settings.TopicSettings) if field is not tables}
    typed = get_type_hints(descriptions.TopicSettings)
    assert list(typed) == list(known)
    for key, field in known.items():
        plain = [one for one in plain_types(field.type) if one is not type(None)]
        if get_origin(plain[0]) is Literal:
            assert set(get_args(typed[key])) == set(get_args(plain[0])), key
        elif unit_of(field.name) is None and plain[0] in (int, str):
            assert typed[key] in (plain[0], plain[0] | None, plain[0] | Literal["unlimited"]), key
        elif unit_of(field.name) is not None:
            assert typed[key] in (descriptions.Duration, descriptions.Size), key
            assert (typed[key] is descriptions.Duration) == (unit_of(field.name) == "ms"), key


def check(description: Any, described: Any) -> None:
    """Reading a description as its type changes nothing: no key is missing, unknown or of another type."""
    assert msgspec.convert(description, described) == description


def test_descriptions_of_decided_deliveries(broker: str, name: str, tmp_path: Path) -> None:
    async def consume_and_never_commit() -> None:
        participant = SqliteParticipant(tmp_path / "effects.db")
        async with linn.connect(broker) as client:
            async with client.consumer(name, name="ledger", exactly_once=participant) as consumer:
                await anext(consumer)
                participant.commit = _fail  # type: ignore[method-assign]
                with pytest.raises(OSError, match="on fire"):
                    await consumer.commit()

    with linn.sync.connect(broker) as client:
        client.admin.create_topic(name, delivery="exactly-once")
        with client.producer(name) as producer:
            producer.publish(b"1")
        anyio.run(consume_and_never_commit)
        found = client.admin.decided_deliveries(name, "", "ledger", partition=0)
        (decided,) = found["deliveries"]
        check(found, descriptions.DecidedDeliveries)
        place = decided["partition"], decided["delivery_id"]
        assert client.admin.resolve_delivery(name, *place, "ledger", "done", first=0, end=1) == 1
        assert client.admin.decided_deliveries(name)["deliveries"] == []


def _fail(marks: object, floor: object) -> None:
    raise OSError("the store is on fire")


def test_descriptions_of_transactions(broker: str, name: str) -> None:
    async def look() -> None:
        async with linn.connect(broker) as client:
            await client.admin.create_topic(name, kind="both")
            async with client.producer(name) as producer:
                await producer.publish_many([b"1", b"2"])
            async with (
                client.consumer(name, group="readers") as member,
                client.consumer(name) as consumer,
                client.transaction(name) as tx,
            ):
                await tx.publish(name, b"3")
                tx.commit(await anext(member))
                tx.ack(await anext(consumer))
                await tx._settle()
                found = await client.admin.transactions("open")
                check(found, descriptions.TransactionSummaries)
                described = await client.admin.transaction(name)
                check(described, descriptions.TransactionDescription)
                counts = described["partitions"], described["offsets"], described["queue_partitions"]
                assert counts == (1, 1, 1)
                assert [len(described[key]) for key in ("wrote", "holds", "commits")] == [1, 1, 1]
                with pytest.raises(TransactionUnknown):
                    await client.admin.abort_transaction(name, described["number"] - 1)
                assert await client.admin.abort_transaction(name, described["number"]) == described["number"]
                await tx.abort()

    anyio.run(look)
