"""The conformance agent of the Python client. See docs/how-to/write-a-client.md.

Reads one JSON command per line on stdin and writes one JSON answer per line on stdout.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import trio
import trio.testing

import linn
from linn.client.client import Client
from linn.client.consume.consumer import Consumer
from linn.client.consume.message import Batch, Message
from linn.client.produce.producer import Producer
from linn.client.produce.receipt import Receipt
from linn.core.batch import schema
from linn.core.batch.batch import STAMP_BYTES, BatchLimits, Codec, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.flat_message import DATA_AT
from linn.core.batch.record import Record
from linn.core.errors.tree import FeatureUnsupported, LinnError, MessageInvalid, ProtocolError
from linn.wire import codec
from linn.wire.framing import FrameReader
from linn.wire.messages import Verdict

Answer = dict[str, Any]
Op = Callable[[Answer], Awaitable[Answer]]
FRAME_BYTES_MAX = 64 << 20
LINGER_MS = 60_000
"""Longer than any command: a batch goes when it is flushed."""
PROPERTIES = [field.name for field in dataclasses.fields(Record) if field.name not in ("value", "due_ms")]


def text(content: bytes | None) -> str | None:
    return base64.b64encode(content).decode() if content is not None else None


def octets(encoded: str | None) -> bytes | None:
    return base64.b64decode(encoded) if encoded is not None else None


def record_of(said: Answer) -> Record:
    """A record of a command; what it leaves out has its default."""
    return Record(
        value=octets(said.get("value")),
        key=octets(said.get("key")),
        routing_key=said.get("routing_key", ""),
        labels=said.get("labels", {}),
        headers=tuple((name, octets(value)) for name, value in said.get("headers", {}).items()),
        id=UUID(said["id"]) if said.get("id") else None,
        timestamp_ms=said.get("timestamp_ms") or 0,
        priority=said.get("priority", 0),
        delay_ms=said.get("delay_ms", 0),
        ttl_ms=said.get("ttl_ms", 0),
    )


def record_says(record: Record) -> Answer:
    return {
        "value": text(record.value),
        "key": text(record.key),
        "routing_key": record.routing_key,
        "labels": dict(record.labels),
        "headers": {name: text(value) for name, value in record.headers},
        "timestamp_ms": record.timestamp_ms,
        "id": str(record.id),
        "priority": record.priority,
        "delay_ms": record.delay_ms,
        "ttl_ms": record.ttl_ms,
    }


# --- without a connection --------------------------------------------------------------------------------------------


async def decode(command: Answer) -> Answer:
    batch = RecordBatch(Path(command["path"]).read_bytes())
    batch.check_crc()
    if batch.offset_span == batch.count:
        batch.verify(BatchLimits())  # A broker takes no other from a producer.
    if any(batch.message[DATA_AT : DATA_AT + STAMP_BYTES]):
        batch.check_stored()
    records = [{**record_says(record), "offset": batch.offset(index)} for index, record in enumerate(batch.records())]
    return {"records": records, "header": header_says(batch)}


def header_says(batch: RecordBatch) -> dict[str, int]:
    """All numbers, by their names in the schema."""
    names = [field.name for field in schema.load("batch").RecordBatch.schema.node.struct.fields][:21]
    numbers = {"idHigh": batch.base_id >> 64, "idLow": batch.base_id & (1 << 64) - 1}
    snake = {
        name: re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), name) for name in names if name not in numbers
    }
    return {**numbers, **{name: int(getattr(batch, place)) for name, place in snake.items()}}


async def encode(command: Answer) -> Answer:
    records = [record_of(said) for said in command["records"]]
    used = Codec.ZSTD if command.get("zstd") else Codec.NONE
    batch = build_from_records(records, base_id=UUID(command.get("base_id") or str(UUID(int=0))).int, codec=used)
    return {"batch": text(bytes(batch.message))}


async def frame(command: Answer) -> Answer:
    content = Path(command["path"]).read_bytes()
    correlation, batches, message = codec.decode(memoryview(one_frame(content)))
    name = type(message).__name__
    member = name[0].lower() + name[1:]
    return {"member": member, "correlation": correlation, "batches": batches, "fields": fields_of(message)}


def one_frame(content: bytes) -> bytes:
    """The frame that `content` is, and nothing else. Raises ProtocolError."""
    reader, frames, at = FrameReader(FRAME_BYTES_MAX), [], 0
    while at < len(content) and reader.failure is None:
        buffer = reader.buffer()
        part = content[at : at + len(buffer)]
        buffer[: len(part)] = part
        frames += reader.received(len(part))
        at += len(part)
    if reader.failure is not None:
        raise reader.failure
    if len(frames) != 1 or reader.pending_bytes:
        raise ProtocolError("the bytes are not one frame")
    return bytes(frames[0])


def fields_of(message: msgspec.Struct) -> Answer:
    """A message's fields by their names in the schema."""
    found: Answer = {}
    for field in msgspec.structs.fields(type(message)):
        value = getattr(message, field.name)
        if isinstance(value, list):
            value = [fields_of(entry) if isinstance(entry, msgspec.Struct) else entry for entry in value]
        found[codec.camel(field.name)] = value
    return found


# --- with a connection -----------------------------------------------------------------------------------------------


class Reading:
    """A consumer, and the records of each lease that it has handed over."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.delivered: dict[tuple[int, int], list[Batch]] = {}

    async def next(self, records_max: int, timeout_s: float) -> list[Answer]:
        records: list[Answer] = []
        while len(records) < records_max:
            with trio.move_on_after(timeout_s if not records else 0) as scope:
                message = await anext(self.consumer)
            if scope.cancelled_caught:
                break
            batch = message.batch
            known = self.delivered.setdefault((batch.partition, delivery_id_of(batch)), [])
            if batch not in known:
                known.append(batch)
            records.append(message_says(message))
        return records

    async def settle(self, command: Answer) -> list[Answer]:
        """Settle what one command names; one refusal at most for each batch that it is about."""
        first, end = command["first"], command["end"]
        verdict = Verdict[command["verdict"].upper()]
        refused, settled = [], set[int]()
        # Without a lease records may have come twice; the later counts.
        for batch in reversed(self.delivered.get((command["partition"], command.get("delivery_id", 0)), [])):
            low, high = max(first, batch.start_offset), min(end, batch.end_offset)
            if low >= high or settled.intersection(range(low, high)):
                continue
            settled.update(range(low, high))
            try:
                low, high = batch.records.index_at(low), batch.records.index_at(high)
                await batch._settle(low, high, verdict, command.get("ms", 0), command.get("reason", ""))
            except MessageInvalid:
                raise
            except LinnError as error:
                refused.append({"entry": 0, "code": error.code, "text": error.text})
        return refused


def delivery_id_of(batch: Batch) -> int:
    return batch._delivery.delivery_id if batch._delivery is not None else 0


def message_says(message: Message) -> Answer:
    """The fields of a delivered or fetched message."""
    return {
        **record_says(message.record()),
        "offset": message.offset,
        "partition": message.partition,
        "attempt": message.attempt,
        "delivery_id": delivery_id_of(message.batch),
    }


class Agent:
    """The commands that need a client. `close` may be followed by another `connect`."""

    def __init__(self) -> None:
        self.ops: dict[str, Op] = {
            "connect": self.connect,
            "publish": self.publish,
            "subscribe": self.subscribe,
            "next": self.next,
            "settle": self.settle,
            "fetch": self.fetch,
            "close": self.close,
            "decode": decode,
            "encode": encode,
            "frame": frame,
        }
        self.client: Client | None = None
        self.stack = AsyncExitStack()
        self.readings: list[Reading] = []

    async def connect(self, command: Answer) -> Answer:
        options: Answer = {"name": "linn-python-agent"}
        if "user" in command:
            options["login"] = linn.Password(command["user"], command["password"])
        if "token" in command:
            options["login"] = linn.Token(command["token"])
        if "ca" in command:
            options["tls"] = linn.Tls(ca=command["ca"])
        self.client = await self.stack.enter_async_context(linn.connect(command["url"], **options))
        return {"broker": self.client.broker, "version": 1}

    async def publish(self, command: Answer) -> Answer:
        """Publish all records in one batch: it is closed when the last of them has been added."""
        if command.get("partition", -1) != -1:
            raise FeatureUnsupported("this client chooses partitions by key")
        assert self.client is not None
        records = [record_of(said) for said in command["records"]]
        outcomes: list[Receipt | LinnError] = []
        exchange, acks = command.get("exchange"), command.get("acks", "all")
        options: Answer = {"acks": acks, "linger_ms": LINGER_MS, "codec": "zstd" if command.get("zstd") else None}
        async with self.client.producer(command.get("topic"), exchange=exchange, **options) as producer:
            async with trio.open_nursery() as nursery:
                for record in records:
                    nursery.start_soon(publish_one, producer, record, command.get("mandatory", False), outcomes)
                    await trio.testing.wait_all_tasks_blocked()
                await producer.flush()
        for outcome in outcomes:
            if isinstance(outcome, LinnError):
                raise outcome
        receipts = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
        return {"placements": [placement_of(receipts)] if acks != "none" else []}

    async def subscribe(self, command: Answer) -> Answer:
        assert self.client is not None
        topic, group = command["topic"], command.get("group", "")
        start = {-2: "earliest", -1: "latest"}.get(command.get("start", -2), command.get("start"))
        prefetch = command.get("credit", 4096)
        name, shared = command.get("name"), command.get("shared")
        consumer = self.client.consumer(
            topic,
            group or None,
            prefetch=prefetch,
            start=start,
            where=command.get("where"),
            renewal_max_s=0,
            name=name,
            shared=shared,
        )
        await self.stack.enter_async_context(consumer)
        (info,) = (await self.client.describe(topic)).topics
        self.readings.append(Reading(consumer))
        kind = "group" if group else "reader" if info.kind == "stream" and not shared else "shared"
        return {"subscription": len(self.readings), "kind": kind}

    async def next(self, command: Answer) -> Answer:
        reading = self.readings[command["subscription"] - 1]
        return {"records": await reading.next(command["records_max"], command["timeout_ms"] / 1000)}

    async def settle(self, command: Answer) -> Answer:
        return {"refused": await self.readings[command["subscription"] - 1].settle(command)}

    async def fetch(self, command: Answer) -> Answer:
        assert self.client is not None
        fetched = await self.client.fetch(
            command["topic"],
            command.get("partition", 0),
            command.get("offset", 0),
            bytes_max=command.get("bytes_max", 1 << 20),
            where=command.get("where"),
            unsettled=command.get("unsettled", False),
        )
        records = [message_says(message) for batch in fetched.batches for message in batch]
        return {
            "records": records,
            "start_offset": fetched.start_offset,
            "high_watermark": fetched.high_watermark,
            "next_offset": fetched.next_offset,
        }

    async def close(self, command: Answer) -> Answer:
        self.client, self.readings = None, []
        stack, self.stack = self.stack, AsyncExitStack()
        await stack.aclose()
        return {}


async def publish_one(producer: Producer, record: Record, mandatory: bool, outcomes: list[Receipt | LinnError]) -> None:
    properties = {name: getattr(record, name) for name in PROPERTIES} | {"at": record.due_ms or None}
    try:
        outcomes.append(await producer.publish(record.value, mandatory=mandatory, **properties))
    except LinnError as error:
        outcomes.append(error)


def placement_of(receipts: list[Receipt]) -> Answer:
    """The place of the one batch of these receipts."""
    offsets = [receipt.offset for receipt in receipts if receipt.offset is not None]
    return {
        "partition": receipts[0].partition if offsets else -1,
        "base_offset": min(offsets, default=-1),
        "copies": receipts[0].batch_copies,
    }


async def answers(agent: Agent, line: str) -> Answer:
    """The answer to one command."""
    try:
        command = json.loads(line)
        return {"ok": await agent.ops[command["op"]](command)}
    except LinnError as error:
        return {"error": {"code": error.code, "text": error.text}}


async def main() -> None:
    agent = Agent()
    try:
        async for line in trio.wrap_file(sys.stdin):
            print(json.dumps(await answers(agent, line), ensure_ascii=False), flush=True)
    finally:
        await agent.close({})


if __name__ == "__main__":
    trio.run(main)
