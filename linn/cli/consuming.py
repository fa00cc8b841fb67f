"""Consuming on the command line: messages to stdout, then the ack.

Law: a message is acked after its line was written and flushed, so that a broken pipe loses none.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from typing import Any

import anyio

from linn.cli.session import with_client
from linn.client.client import Client
from linn.client.consumer import Start
from linn.client.message import Batch, Message

IDLE_S = 1.0
"""How long `--no-follow` waits for one more batch."""
_PREFETCH = 1000


class Consuming:
    """`linn consume`."""

    def __init__(
        self, topic: str, group: str, *, count: int | None, follow: bool, ack: bool, start: Start, as_json: bool
    ) -> None:
        self._topic = topic
        self._group = group
        self._left = count
        self._idle_s = None if follow else IDLE_S
        self._ack = ack
        self._start = start
        self._line_of = json_line if as_json else value_line

    def run(self, url: str) -> None:
        """Print until there is a reason to stop. Raises LinnError, BrokenPipeError, KeyboardInterrupt."""
        with_client(url, self._work)

    async def _work(self, client: Client) -> None:
        # No more is taken from a queue than will be printed: others may be waiting for it.
        prefetch = _PREFETCH if self._left is None else min(self._left, _PREFETCH)
        async with client.consumer(self._topic, group=self._group, start=self._start, prefetch=prefetch) as consumer:
            batches = aiter(consumer.batches())
            while self._left is None or self._left > 0:
                batch: Batch | None = None
                with anyio.move_on_after(self._idle_s):
                    batch = await anext(batches, None)
                if batch is None:
                    break
                await self._print(batch)

    async def _print(self, batch: Batch) -> None:
        messages = list(batch)[: self._left]
        self._write(messages)
        if self._left is not None:
            self._left -= len(messages)
        if not self._ack:
            return
        if len(messages) == len(batch):
            await batch.ack()
            return
        for settled in [message.ack() for message in messages]:
            await settled

    def _write(self, messages: Sequence[Message]) -> None:
        out = sys.stdout.buffer
        out.write(b"".join(map(self._line_of, messages)))
        out.flush()


def value_line(message: Message) -> bytes:
    """The value, and a line's end. A tombstone is an empty line."""
    return (message.value or b"") + b"\n"


def json_line(message: Message) -> bytes:
    """Everything about a message as one line of JSON. Bytes that are not UTF-8 become {"base64": "..."}."""
    record = message.record()
    data = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "attempt": message.attempt,
        "id": str(record.id),
        "timestamp_ms": record.timestamp_ms,
        "key": readable(record.key),
        "routing_key": record.routing_key,
        "labels": dict(record.labels),
        "headers": [[name, readable(value)] for name, value in record.headers],
        "value": readable(record.value),
    }
    return json.dumps(data, ensure_ascii=False).encode() + b"\n"


def readable(data: bytes | None) -> Any:
    """Bytes for JSON: text where they are UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
