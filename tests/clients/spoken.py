"""Requests to agents, and checks of their answers."""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

import pytest
from agents import AgentProcess, Refused, Said

import linn

WAIT_MS = 10_000
"""The timeout for expected events: far longer than they take, and within the test's limit."""
NOTHING_MS = 100
"""The time to wait for events that must not come."""
TIME_MS = 1_700_000_000_000


def text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def plain(*values: bytes) -> list[Said]:
    return [{"value": text(value)} for value in values]


def values_of(records: list[Said]) -> list[bytes]:
    return [base64.b64decode(record["value"]) for record in records]


def content_of(record: Said) -> str:
    """Return all content of a published record, as text that tells True from 1 from 1.0."""
    names = ["value", "key", "routing_key", "labels", "headers", "timestamp_ms", "id", "priority", "delay_ms", "ttl_ms"]
    said = {name: record[name] for name in names}
    return repr({**said, "labels": sorted(said["labels"].items()), "headers": sorted(said["headers"].items())})


def take(agent: AgentProcess, subscription: int, count: int) -> list[Said]:
    """The next `count` records, in as many answers as it takes."""
    records: list[Said] = []
    while len(records) < count:
        missing = count - len(records)
        found = agent.ask("next", subscription=subscription, records_max=missing, timeout_ms=WAIT_MS)["records"]
        assert found, f"{len(records)} of {count} records came"
        assert len(found) <= missing
        records += found
    return records


def nothing_comes(agent: AgentProcess, subscription: int) -> bool:
    found = agent.ask("next", subscription=subscription, records_max=1, timeout_ms=NOTHING_MS)["records"]
    return found == []


def subscribe(agent: AgentProcess, topic: str, **fields: Any) -> int:
    number: int = agent.ask("subscribe", topic=topic, **{"credit": 100, **fields})["subscription"]
    return number


def settle(
    agent: AgentProcess, subscription: int, verdict: str, record: Said, ms: int = 0, reason: str = ""
) -> list[str]:
    """Settle one record; the codes of refusals."""
    answer = agent.ask(
        "settle",
        subscription=subscription,
        verdict=verdict,
        partition=record["partition"],
        delivery_id=record["delivery_id"],
        first=record["offset"],
        end=record["offset"] + 1,
        ms=ms,
        reason=reason,
    )
    return [refusal["code"] for refusal in answer["refused"]]


def code_of(agent: AgentProcess, op: str, **fields: Any) -> str:
    """The code with which a command must fail."""
    with pytest.raises(Refused) as refused:
        agent.ask(op, **fields)
    return refused.value.code


def everything(language: str) -> list[Said]:
    """Records that carry all that a record can carry."""
    ids = [str(UUID(int=number << 64 | number)) for number in range(1, 6)]
    records: list[Said] = [
        {"value": text(b"all"), "key": text(b"k\0\xff"), "routing_key": "späte.flüge",
         "headers": {"h": text(b"\0"), "": None},
         "labels": {"t": "ä", "i": 2**63 - 1, "f": 1.0, "b": True, "n": -0.0}, "priority": 9},
        {"value": None, "key": text(b"")},
        {"value": text(b""), "key": None, "labels": {"i": -(2**63), "f": 0.1, "b": False, "t": ""}},
        {"value": text(b"x" * 70_000), "routing_key": "a\0b"},
        {"value": text(language.encode()), "labels": {"x": 1}},
    ]  # fmt: skip
    blank = {"key": None, "routing_key": "", "headers": {}, "labels": {}, "priority": 0, "delay_ms": 0, "ttl_ms": 0}
    return [
        {**blank, **record, "id": ids[index], "timestamp_ms": TIME_MS + index} for index, record in enumerate(records)
    ]


def everything_for_a_queue(language: str) -> list[Said]:
    """The same, but for what queues do not serve yet."""
    return [record | {"priority": 0} for record in everything(language)]


async def create_topic(url: str, name: str) -> None:
    async with linn.connect(url) as client:
        await client.admin.create_topic(name)
