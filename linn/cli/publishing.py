"""Publishing from the command line: given values, or the lines of stdin as they come.

Law: memory is bounded by one chunk of input and what the client has under way; a line is published without its end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import anyio.to_thread

from linn.cli.exit_code import complain
from linn.cli.session import with_client
from linn.client.client import Client
from linn.client.producer import Producer
from linn.client.receipt import BulkReceipt, Offsets
from linn.core.record import LabelValue

_CHUNK_BYTES = 1 << 20


class Publishing:
    """`linn publish`."""

    def __init__(
        self,
        url: str,
        target: str,
        *,
        to_exchange: bool,
        key: str | None,
        routing_key: str,
        labels: dict[str, LabelValue],
        headers: Sequence[tuple[str, bytes]],
        as_json: bool,
    ) -> None:
        self._url = url
        self._target = target
        self._to_exchange = to_exchange
        self._key = None if key is None else os.fsencode(key)
        self._routing_key = routing_key
        self._labels = labels
        self._headers = headers
        self._as_json = as_json
        self._total = BulkReceipt(0, None if to_exchange else target, {}, 0)

    def run(self, values: Sequence[str]) -> None:
        """Publish `values`, or stdin; say what became of them. Raises LinnError."""
        with_client(self._url, partial(self._work, values))
        print(json.dumps(self._as_data()) if self._as_json else self._in_words())

    async def _work(self, values: Sequence[str], client: Client) -> None:
        place: dict[str, Any] = {"exchange" if self._to_exchange else "topic": self._target}
        async with client.producer(**place) as producer:
            if values:
                await self._publish(producer, [os.fsencode(value) for value in values])
                return
            if sys.stdin.isatty():
                complain("one message per line; Ctrl-D ends")
            async for lines in stdin_lines():
                await self._publish(producer, lines)

    async def _publish(self, producer: Producer, values: list[bytes]) -> None:
        receipt = await producer.publish_many(
            values,
            keys=None if self._key is None else [self._key] * len(values),
            routing_keys=self._routing_key,
            labels=self._labels,
            headers=[self._headers] * len(values) if self._headers else None,
        )
        self._total = added(self._total, receipt)

    def _as_data(self) -> dict[str, Any]:
        total = self._total
        offsets = {str(partition): list(offsets) for partition, offsets in total.partitions.items()}
        return {"count": total.count, "topic": total.topic, "copies": total.copies, "partitions": offsets}

    def _in_words(self) -> str:
        total = self._total
        said = f"published {total.count} message{'s' * (total.count != 1)} to {self._target}"
        if self._to_exchange:
            return f"{said}: {total.copies} copies stored" if total.copies else f"{said}: no binding took any"
        places = [
            f"partition {partition}, offset{'s' * (first != last)} {first}{f' to {last}' * (first != last)}"
            for partition, (first, last) in sorted(total.partitions.items())
        ]
        return f"{said} ({'; '.join(places)})" if places else said


def added(total: BulkReceipt, receipt: BulkReceipt) -> BulkReceipt:
    """Two receipts of the same place as one."""
    partitions = dict(total.partitions)
    for partition, offsets in receipt.partitions.items():
        known = partitions.get(partition)
        partitions[partition] = offsets if known is None else Offsets(known.first, offsets.last)
    copies = (total.copies or 0) + (receipt.copies or 0)
    return BulkReceipt(total.count + receipt.count, total.topic, partitions, copies)


async def stdin_lines() -> AsyncIterator[list[bytes]]:
    """The lines that are there, as soon as there are any; without their ends."""
    stdin = sys.stdin.fileno()
    rest: list[bytes] = []
    while True:
        # The thread may wait for ever for a terminal; a cancelled command leaves it behind.
        chunk = await anyio.to_thread.run_sync(os.read, stdin, _CHUNK_BYTES, abandon_on_cancel=True)
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield (b"".join(rest) + head).split(b"\n")
            rest = []
        rest.append(tail)
        if not chunk:
            break
    last = b"".join(rest)
    if last:
        yield [last]
