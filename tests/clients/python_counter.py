"""Publish numbers to an exchange with the Python client and its defaults, for tests that kill the broker meanwhile.

    python_counter.py URL NAME async|blocking EXCHANGE

For each line of standard input it publishes the numbers below it that were not published before, and prints how many
are confirmed, again and again. For the line "flush" it waits for all, and prints "flushed".
"""

from __future__ import annotations

import sys

import trio

import linn
import linn.sync

CHUNK = 20
"""Messages between two confirmations that are printed."""


def value_of(name: str, number: int) -> bytes:
    return f"{name} {number}".encode()


def key_of(number: int) -> bytes:
    return b"%d" % (number % 7)


def routing_key_of(number: int) -> str:
    return "number.odd" if number % 2 else "number.even"


def say(line: object) -> None:
    print(line, flush=True)


async def count(url: str, name: str, exchange: str) -> None:
    """Publish one message at a time, without waiting for the earlier ones."""

    async def confirm(end: int) -> None:
        await producer.flush()
        say(end)

    first = 0
    async with (
        linn.connect(url) as client,
        client.producer(exchange=exchange) as producer,
        trio.open_nursery() as nursery,
    ):
        async for line in trio.wrap_file(sys.stdin):
            if line == "flush\n":
                await producer.flush()
                say("flushed")
                continue
            for number in range(first, first := int(line)):
                value, key, routing_key = value_of(name, number), key_of(number), routing_key_of(number)
                producer.publish_nowait(value, key=key, routing_key=routing_key)
                if number % CHUNK == CHUNK - 1:
                    nursery.start_soon(confirm, number + 1)
                    await trio.lowlevel.checkpoint()


def count_blocking(url: str, name: str, exchange: str) -> None:
    """Publish some messages at a time, and wait for each such call."""
    first = 0
    with linn.sync.connect(url) as client, client.producer(exchange=exchange) as producer:
        for line in sys.stdin:
            if line == "flush\n":
                producer.flush()
                say("flushed")
                continue
            begin, first = first, int(line)
            for chunk in range(begin, first, CHUNK):
                numbers = range(chunk, min(chunk + CHUNK, first))
                producer.publish_many(
                    [value_of(name, number) for number in numbers],
                    keys=[key_of(number) for number in numbers],
                    routing_keys=[routing_key_of(number) for number in numbers],
                )
                say(numbers.stop)


if __name__ == "__main__":
    url, name, kind, exchange = sys.argv[1:]
    if kind == "async":
        trio.run(count, url, name, exchange)
    else:
        count_blocking(url, name, exchange)
