"""Worker process that consumes the queue: `python -m linn.cli.demo.worker URL TOPIC [HOLD_AFTER]`.

It acks deliveries, and reports deliveries and acks on stdout. With HOLD_AFTER it stops acking after that many acks, but
goes on receiving, so that it holds leases when it is killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Literal

import anyio
import msgspec

import linn
from linn.cli.demo.flights import Flight
from linn.cli.exit_code import boundary
from linn.core.errors.tree import LinnError


class Report(msgspec.Struct, frozen=True):
    """Report of one event."""

    kind: Literal["ready", "received", "acked", "holding"]
    at_s: float = 0.0
    """Time of the event on the machine's monotonic clock."""
    numbers: list[int] = []
    """Numbers of flights."""
    attempt: int = 0
    """Attempt of a delivery, from 1."""


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Report).decode


PREFETCH = 500
"""Small, so that the work is spread, and few deliveries are held by a worker that is killed."""

_read = msgspec.json.Decoder(Flight).decode


def _tell(report: Report) -> None:
    sys.stdout.buffer.write(encode(report) + b"\n")
    sys.stdout.buffer.flush()


async def work(url: str, topic: str, hold_after: int | None) -> None:
    """Consume until killed. An ack that fails is not reported. Raises LinnError where the broker is gone."""
    acked = 0
    async with linn.connect(url) as client, client.consumer(topic, prefetch=PREFETCH) as consumer:
        _tell(Report("ready"))
        async for batch in consumer.batches():
            numbers = [_read(message.value or b"").number for message in batch]
            _tell(Report("received", time.monotonic(), numbers, batch.attempt))
            if hold_after is not None and acked >= hold_after:
                _tell(Report("holding"))
                continue
            try:
                await batch.ack()
            except LinnError:  # Its broker was killed: the flights come again, or their ack is known already.
                continue
            acked += len(numbers)
            _tell(Report("acked", time.monotonic(), numbers))


def main(arguments: Sequence[str]) -> None:
    """Run a worker; the process ends with the exit codes of commands."""
    url, topic, *hold_after = arguments
    with boundary():
        anyio.run(work, url, topic, int(hold_after[0]) if hold_after else None, backend="trio")


if __name__ == "__main__":
    main(sys.argv[1:])
